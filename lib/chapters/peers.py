"""Compare our training step with that of another library.

`python -m lib.chapters.peers` prints the pairs."""

import sys

import pandas as pd

from lib import cli, validate
from lib.records import results
from lib.report import compare, sentences, tidy
from lib.report.headings import heading
from lib.report.sentences import NO_DATA, Statement
from lib.stats import digits

PEER = "transformers"
CASE = "size context_length batch_size precision "
COLUMNS = CASE + "ours_ms transformers_ms ratio verdict logits_error gradient_error peer_version"
PRINTED = CASE + "ours_ms transformers_ms ratio verdict peer_version"


def pairs(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each step of the peer with ours by `compare.against_baselines`.

    Has the medians of both in the pairs, `ours_ms` and `transformers_ms`, the errors of the peer and its version."""
    fields, found = records.fields, compare.against_baselines(records)
    metrics = ["baseline_ms", "paired_ms", "logits_error", "gradient_error", "peer_version"]
    medians = tidy.medians(tidy.current(records), *metrics)[[*fields, *metrics]]
    named = medians.rename(columns={"baseline_ms": "ours_ms", "paired_ms": "transformers_ms"})
    return tidy.ordered(found.merge(named, on=fields), "size context_length precision")


def answer(records: pd.DataFrame) -> Statement:
    """Say how our step compares with the peer's in the largest case of each precision."""
    measured = tidy.select(tidy.current(records), program=PEER, status="ok")
    precisions = sorted(set(measured["precision"]), key=tidy.ORDER.index)
    said, where = [], "at size {size}, {batch_size} × {context_length} tokens, in {precision}"
    for name in precisions:
        case = tidy.largest(measured, "forward_flops", precision=name)
        ours, peer = {**case, "program": "ours"}, f"{PEER} {tidy.one(records, case)['peer_version']}"
        said.append(sentences.compare(records, ours, {"program": PEER}, "our step", peer, where))
    if not said:
        return sentences.missing("No other library was measured here.", records)
    return sentences.together(*said)


def listing(records: pd.DataFrame) -> str:
    """Return the pairs as a text table, with the intervals of the ratios."""
    table = pairs(records)
    times = {name: table[name].map(digits.value) for name in ("ours_ms", f"{PEER}_ms")}
    shown = table.assign(**times, ratio=table["ratio"].map(digits.interval))
    return shown[PRINTED.split()].rename(columns=heading).to_string(index=False)


def main(arguments: list[str] | None = None) -> int:
    """Print the pairs of a machine; return 0, 1 if there are none, or 2 for bad input."""
    made = cli.parser(
        "lib.chapters.peers",
        "Print our training step and that of another library, by their interleaved pairs.",
        ("", "--machine xeon-2c"),
        {1: "the machine has no such pairs", 2: cli.BAD_INPUT},
    )
    made.add_argument("--machine", default="", help="machine to print; default: the machine measured last")
    given, machines = made.parse_args(arguments), results.machines()
    try:
        validate.choice("machine", given.machine or next(iter(machines), ""), machines)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    records = results.load("peers", given.machine or machines[0])
    if answer(records).verdict == NO_DATA:
        print("peers: no pairs found; `make peers` measures them", file=sys.stderr)
        return 1
    print(listing(records), answer(records).text, sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
