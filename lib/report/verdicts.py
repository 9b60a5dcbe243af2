"""List a machine's comparisons by verdict, and write the sweep of the unclear ones."""

import json
import math
import statistics
from datetime import datetime

import pandas as pd
from scipy import special

from lib import notebooks, paths
from lib.catalog import CATALOG
from lib.records import baselines, results
from lib.report import compare, tidy
from lib.stats import digits
from lib.stats.comparisons import FASTER, LOOK_LEVEL, LOOKS, MARGIN, MEDIANS, SAME, SLOWER, UNCLEAR, Comparison
from lib.stats.intervals import POWER

LEAST_MORE, MOST = 3, 12  # an unclear case gets at least this many more rounds, and this many in all at most
Tables = dict[str, tuple[pd.DataFrame, pd.DataFrame]]


def tables(machine: str) -> Tables:
    """Return the records of each experiment with baselines, and its comparisons with them."""
    loaded = {name: results.load(name, machine) for name, entry in CATALOG.items() if entry.baseline}
    return {name: (records, compare.against_baselines(records)) for name, records in loaded.items()}


def listing(found: Tables) -> str:
    """Return a text table of each verdict: cases, baselines, ratios and what they rest on."""
    rows = [
        {
            "verdict": row["verdict"], "experiment": name, "case": results.name(row[records.fields]),
            "baseline": row["baseline"], "ratio": digits.interval(row["ratio"]), "rests on": row["by"],
        }
        for name, (records, compared) in found.items() for _, row in compared.iterrows()
    ]  # fmt: skip
    frame, parts = pd.DataFrame(rows), []
    for verdict in (FASTER, SLOWER, SAME, UNCLEAR) if rows else ():
        chosen = frame[frame["verdict"] == verdict].drop(columns="verdict")
        parts.append(f"{verdict}: {len(chosen)}\n{chosen.to_string(index=False) if len(chosen) else ''}".strip())
    return "\n\n".join(parts)


def rounds_needed(found: Comparison) -> int:
    """Return how many rounds in all would decide a comparison if the ratio stays as it is.

    The answer is at least 3 more than there are, but 12 if fewer would not do."""
    had, log = found.ratio.rounds, abs(math.log(found.ratio.value))
    distance = max(log, math.log1p(MARGIN) - log)  # from one, or from the end of what is the same
    for rounds in range(had + LEAST_MORE, MOST):
        reach = special.stdtrit(found.freedom + rounds - had, 1 - LOOK_LEVEL / 2) + special.ndtri(POWER)
        if distance >= reach * found.error * math.sqrt(had / rounds):
            return rounds
    return MOST


def write_unclear(machine: str, found: Tables) -> str:
    """Write the sweep of a machine's unclear cases; return how long it takes, or why nothing is written."""
    if not unclear(found)[0]:
        return "nothing is unclear: no sweep to write"
    if not (paths.results() / machine).is_dir():
        return f"{machine}: all its records come from git, expected some measured here; `make report` measures them"
    file = paths.unclear()
    cases = {name: _unclear_cases(name, *pair) for name, pair in found.items()}
    latest = max(case["started"] for each in cases.values() for case in each)
    if file.exists() and datetime.fromisoformat(latest).timestamp() > file.stat().st_mtime:
        return f"{file}: already measured; a table is judged at most {LOOKS} times, so what is unclear stays unclear"
    blocks = {name: _blocks(name, [case for case in each if case["more"]]) for name, each in cases.items()}
    count = sum(more for each in blocks.values() for more, _ in each)
    if not count:
        return f"every unclear case has {MOST} rounds: no sweep to write"
    lines = [f"# The unclear comparisons of {machine}, in further rounds"]
    for name, each in blocks.items():
        lines += [f"{name}:"] * bool(each) + [f"  - {json.dumps(block)}" for _, block in each]
    file.write_text("\n".join([*lines, ""]))
    return (
        f"{file} written: about {_minutes(cases)} min and the start of processes ({count}); "
        f"`make sweep SWEEP={file.name}` runs it"
    )


def unclear(found: Tables) -> tuple[int, int, int]:
    """Count the unclear comparisons and all, and the minutes of a sweep of the unclear ones."""
    decided = [verdict for _, compared in found.values() for verdict in compared["verdict"]]
    cases = {name: _unclear_cases(name, *pair) for name, pair in found.items()}
    return decided.count(UNCLEAR), len(decided), _minutes(cases)


def _minutes(cases: dict[str, list[dict]]) -> int:
    """Return the minutes of the further rounds of cases."""
    return math.ceil(sum(case["more"] * case["seconds"] for each in cases.values() for case in each) / 60)


def _unclear_cases(experiment: str, records: pd.DataFrame, compared: pd.DataFrame) -> list[dict]:
    """Return the cases of unclear comparisons, and the baselines of those compared by medians.

    Each has its fields and settings (`block`), the `more` rounds that it needs, whether its comparison is `paired`, and
    `started` and `seconds` of its records."""
    cases: dict[str, dict] = {}
    for _, row in compared[compared["verdict"] == UNCLEAR].iterrows():
        case = row[records.fields].to_dict()
        base = baselines.of(experiment, case)
        judged = compare.comparison(records, "total_ms", case, base)
        more, paired = max(0, rounds_needed(judged) - judged.ratio.rounds), not row["by"].startswith(MEDIANS)
        for one in (case,) if paired else (case, base):
            rounds = tidy.select(tidy.current(records), **one)
            known = cases.get(results.name(one), {"more": 0})
            block = one | _settings(rounds) | {"rounds": int(rounds["round"].max()) + max(more, known["more"])}
            cases[results.name(one)] = {
                "block": block, "more": max(more, known["more"]), "paired": paired,
                "started": rounds["started"].max(), "seconds": statistics.median(rounds["seconds"]),
            }  # fmt: skip
    return list(cases.values())


def _settings(rounds: pd.DataFrame) -> dict[str, int]:
    """Return how much the records of a case sampled, as powers of two so that like cases agree."""
    counted = {"warmup": "warmup_ms", "samples": "total_ms", "pairs": "paired_ms"}
    most = {name: max(map(len, tidy.samples(rounds, metric).values()), default=0) for name, metric in counted.items()}
    return {name: 2 ** round(math.log2(count)) if count else 0 for name, count in most.items()} | {"target_percent": 0}


def _blocks(experiment: str, cases: list[dict]) -> list[tuple[int, dict]]:
    """Return the blocks of a sweep with exactly these cases, each with its number of further rounds.

    Cases that differ in one field share a block, and so a process, unless they are compared by medians."""
    blocks = [(case["more"], case["block"], case["paired"]) for case in cases]
    for field in notebooks.fields(experiment):
        alike: dict[str, list] = {}
        for number, (more, block, paired) in enumerate(blocks):
            rest = {name: value for name, value in block.items() if name != field}
            alike.setdefault(json.dumps([more, rest, paired or number]), []).append((more, block, paired))
        blocks = [
            (more, block if len(same) == 1 else block | {field: [one[1][field] for one in same]}, paired)
            for same in alike.values() for more, block, paired in same[:1]
        ]  # fmt: skip
    default = notebooks.parameters(experiment)
    return [(more, {k: v for k, v in block.items() if default.get(k) != v}) for more, block, _ in blocks]
