"""Says what the C library's default allocator costs beside one that keeps freed memory."""

import pandas as pd

from lib.report import compare, sentences, tidy
from lib.report.sentences import Statement
from lib.stats.comparisons import FASTER, SAME, SLOWER, UNCLEAR

METRICS = ("total_ms", "minor_faults")


def compared(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each program's time with the default allocator to that with freed memory kept, one a row.

    Beside the columns of `compare.against_baselines` it has `total_ms` and `minor_faults` of both: the baseline's end
    in `_kept`. `label` and `name` are for a figure."""
    found = compare.against_baselines(records)
    medians = tidy.medians(records, *METRICS).set_index("program")
    sides = {side: tidy.select(medians, allocator=side) for side in ("default", "keeps")}
    columns = {
        f"{metric}{end}": sides[side][metric]
        for metric in METRICS
        for side, end in (("default", ""), ("keeps", "_kept"))
    }
    return found.join(pd.DataFrame(columns), on="program").assign(label=found["program"], name=found["allocator"])


def answer(records: pd.DataFrame) -> Statement:
    """Say by how much each program is slower with the default allocator, the worst first."""
    found = compared(records)
    if found.empty:
        return sentences.with_stale(
            Statement("What the default allocator costs was not measured here.", sentences.NO_DATA, "any case"), records
        )
    rows = sorted(found.to_dict("records"), key=lambda row: -row["ratio"].value)
    parts = [
        f"{row['program']} takes {sentences.times(row['ratio'])} as long" for row in rows if row["verdict"] == SLOWER
    ]
    for verdict, end in (
        (FASTER, "faster: {}"),
        (SAME, "no difference beyond 3%: {}"),
        (UNCLEAR, "unclear: {}"),
    ):
        named = [row["program"] for row in rows if row["verdict"] == verdict]
        parts += [end.format(sentences.listed(named))] * bool(named)
    text = f"With freed memory given back to the system, {'; '.join(parts)}."
    evidence = "Ratios of the medians of fresh processes, one allocator each."
    verdict = ", ".join(dict.fromkeys(row["verdict"] for row in rows))
    return Statement(text, verdict, evidence, sentences.names(records, {}))
