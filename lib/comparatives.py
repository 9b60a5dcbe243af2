"""The words by which prose compares or states an outcome, as regular expressions; reads no text.

A list can be added to: what it lacks passes unseen, and what it has too much of is worded otherwise or defined.
"""

import re

_SIZES = (
    "fast slow large small big high low long short cheap costly quick great few light heavy wide narrow steep deep"
    " tight strong weak poor rich rough simple hard easy noisy thin thick dense smooth sharp flat fine safe smart broad"
    " dear scarce rare loose mild stable tiny huge busy tall loud quiet brief sparse lengthy sluggish speedy thrifty"
)
_OTHERS = "hot cold warm calm lean far close clear bright clean young old new soft stiff hungry"


def _forms(adjective: str) -> str:
    """The comparative and the superlative of an adjective."""
    doubled = adjective + adjective[-1] if re.search(r"[^aeiou][aeiou][gtnmd]$", adjective) else adjective
    return re.sub(r"y$", "i", doubled.removesuffix("e")) + "(?:er|est)"


def _is(adjectives: str) -> str:
    """One of the adjectives as what a sentence says of its subject."""
    verb = r"(?:is|are|was|were|remains?|stays?|becomes?|gets?|looks?|seems?)"
    return rf"{verb} (?:\w+ly |very |too |quite |so |rather )?(?:{'|'.join(adjectives.split())})"


NUMBER_WORD = (
    "(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million)"
)
UNIT = (
    r"(?:[nµμm]?s|milli\w*|micro\w*|seconds?|minutes?|hours?|[KMGT]i?B(?:/s)?|[mg]igabytes?|[KMGTP]?FLOPS?(?:/s)"
    r"|tokens?/s|tokens (?:a|per) second|GHz|watts?)(?![\w/])"
)
CLAIMS = {
    "a comparative": [
        r"more|less|most|least|fewer|better|best|worse|worst|further|furthest|farther|superior|inferior|than|versus",
        r"as \w+ as|times as|ahead|close to|extra|enough|sufficient\w*|preferabl[ey]|optimal\w*|ideal\w*",
        *map(_forms, (_SIZES + " " + _OTHERS).split()),
    ],
    "a ratio or a fraction": [
        r"twice|thrice|half|halves|halv(?:e|ed|ing)|doubl(?:e|es|ed|ing)|tripl(?:e|es|ed|ing)|quadrupl(?:e|es|ed|ing)",
        r"\w*[a-z]-?fold|orders? of magnitude|percent(?:age points?)?|per cent|majority|minority|bulk|a factor of",
        r"(?:a|one|two|three|four|nine) (?:third|quarter|fifth|sixth|eighth|tenth|hundredth|thousandth)s?",
        r"(?:[a-z]+-)?(?:thirds|quarters|fifths|sixths|eighths|tenths)|(?:tens|hundreds|thousands) of",
        rf"{NUMBER_WORD} times|(?:many|several|a few) times (?:the|that|as|its)|{NUMBER_WORD}[ -]{UNIT}",
        r"a \w+ (?:fraction|portion|chunk|part|share) of|a (?:fraction|portion|chunk|part) of|lion's share",
        r"roughly|approximately|≈|~|a lot|much of|mostly|mainly|largely|predominantly|chiefly|primarily",
        r"dozens?|almost all|nearly all|next to (?:nothing|no)|hardly|barely|scarcely",
    ],
    "a word for a size": [
        r"negligib\w+|trivial\w*|(?:in)?significan(?:t|tly|ce)|substantial\w*|considerabl[ey]|dramatic\w*|marginal\w*",
        r"notabl[ey]|noticeabl[ey]|markedly|vastly|hugely|greatly|drastic\w*|appreciabl[ey]|slightly|huge|wildly",
        r"enormous\w*|massive\w*|minuscule|minimal\w*|prohibitive\w*|impractical|unusable|full speed|worth\w*",
        r"fast|slow|slowly|cheap|cheaply|expensive|costly|(?:in)?efficient\w*|well|poorly|good|bad|quick|quickly",
        r"(?:costs?|takes?) (?:nothing|no time|little)|(?:for|almost|nearly|practically|is) free",
        _is(_SIZES),
    ],
    "a word for a growth": [
        r"(?:sub|super)?-?(?:linear|quadratic|cubic)(?:ly)?|exponentially|(?:is|are|grows?) exponential",
        r"logarithmically|scales|scaled? (?:with|as|well|poorly|up|down)",
        r"gr(?:ow|ows|ew|own|owing)|shr(?:ink|inks|ank|unk|inking)",
        r"ris(?:e|es|en|ing)|rose|climb\w*|soar\w*|plummet\w*|increas\w+|decreas\w+|reduc(?:e|es|ed|ing)|improv\w+",
        r"degrad\w+|deteriorat\w+|worsen\w*|lengthen\w*|shorten\w*|drops?|dropped|declin\w+|diminish\w*|inflat\w+",
        r"balloon\w*|explod\w+|collaps\w+|cuts?|slash\w*|vanish\w*|disappear\w*|(?:goes?|went|comes?|came) (?:up|down)",
        r"speeds? up|sped up|speed-?ups?|slows?(?: down)?|slowed|slow-?downs?|accelerat\w+|proportional\w*",
        r"(?:in)?sensitive to|(?:in)?dependent of|stays? (?:flat|level)|constant|un(?:changed|affected)",
        r"(?:not|never) (?:matter|change|affect|help|depend)",
    ],
    "a word for a winner": [
        r"dominat\w+|outperform\w*|outpac\w+|outstrip\w*|outrun\w*|outweigh\w*|undercut\w*|surpass\w*|exceed\w*",
        r"beats?|beaten|wins?|won|winner|loses? (?:to|against|out)|lags?|trails?|(?:far|falls?|leaves?) behind",
        r"overtak\w+|overtook|prevail\w*",
        r"leads?|tops|eclips\w+|dwarf\w*|rival\w*|suffers?|benefi\w+|gains?|hurts?|helps?|(?:dis)?advantag\w+",
        r"penalt\w+|bottleneck\w*|\w+-bound|(?:is|are) (?:bound by|the limit)|limited by|pays? off|recommend\w*|choice",
        r"sav(?:e|es|ed|ing|ings)|wast(?:e|es|ed|ing)|account(?:s|ed)? for|consum\w+|eats?|yields?|amorti[sz]\w+",
        r"reach(?:es)? the (?:ceiling|limit|peak)|outliers?|(?:in)?accurate\w*|wrong|a must|the way to go",
    ],
    "a word for a tie": [
        r"equally|equals|(?:is|are) equal|identical\w*|comparabl[ey]|similar(?:ly)?|on (?:a )?par|neck and neck",
        r"indistinguishable|tied?|ties|match(?:es|ed)|match for|keeps? (?:pace|up)|no \w+ difference",
        r"same (?:time|speed|memory|amount|cost|rate|performance|throughput)|(?:remains?|is|are|stays?) the same",
        r"no (?:difference|effect|change|cost|gain)|makes? (?:little|a) difference",
    ],
}
HARMLESS = {  # the same words where they compare nothing
    "a comparative": r"at (?:the )?(?:most|least|best)|no (?:more|less) than|rather than|other than|once more"
    r"|more than one|as (?:well|soon|many|few) as|\w+ or more|(?<!take the )(?<!takes the )least (?:times?|bytes)",
    "a ratio or a fraction": r"half precision|two times are|nine times of ten",
    "a word for a size": r"as well(?: as)?|may well|well-\w+",
}
