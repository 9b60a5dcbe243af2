"""Says what the C library's default allocator costs beside one that keeps freed memory."""

import pandas as pd

from lib.report import compare, sentences, tidy
from lib.report.sentences import Statement

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
    said = [
        f"{row['program']} takes {sentences.times(row['ratio'])} as long" for row in rows if row["verdict"] == "slower"
    ]
    same = [row["program"] for row in rows if row["verdict"] != "slower"]
    text = f"With the C library's default allocator, {sentences.listed(said)}" if said else ""
    rest = f"no cost is shown for {sentences.listed(same)}" if same else ""
    both = f"{text}; {rest}." if text and rest else f"{text or rest[:1].upper() + rest[1:]}."
    evidence = "Ratios of the medians of fresh processes, one allocator each."
    return Statement(both, "slower" if said else "unclear", evidence, sentences.names(records, {}))
