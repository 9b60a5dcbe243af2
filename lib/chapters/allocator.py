"""Say what the C library's default allocator costs beside one that keeps freed memory."""

import pandas as pd

from lib.report import compare, sentences, tidy
from lib.report.sentences import Statement, of_records
from lib.stats.comparisons import FASTER, SAME, SLOWER, UNCLEAR

METRICS = ("total_ms", "minor_faults")


def compared(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each program's time with the default allocator to that with freed memory kept, one a row.

    Beside the columns of `compare.against_baselines` it has `total_ms` and `minor_faults` of both: the baseline's end
    in `_kept`. `label` and `name` are for a figure."""
    medians = tidy.medians(records, *METRICS)[["program", "allocator", *METRICS]]
    default, keeps = (
        tidy.select(medians, allocator=name).set_index("program")[list(METRICS)] for name in ("default", "keeps")
    )
    found = compare.against_baselines(records).join(default.join(keeps.add_suffix("_kept")), on="program")
    return found.assign(label=found["program"], name=found["allocator"])


@of_records()
def answer(records: pd.DataFrame) -> Statement:
    """Say by how much each program is slower with the default allocator, the worst first."""
    found = compared(records)
    if found.empty:
        return sentences.missing("What the default allocator costs was not measured here.")
    found = found.assign(program=found["program"].str.replace("_", " "))
    rows = sorted(found.to_dict("records"), key=lambda row: -row["ratio"].value)
    parts = [
        f"{row['program']} takes {sentences.times(row['ratio'])} as long" for row in rows if row["verdict"] == SLOWER
    ]
    for verdict, words in {FASTER: "faster", SAME: "no difference beyond 3%", UNCLEAR: "unclear"}.items():
        named = [row["program"] for row in rows if row["verdict"] == verdict]
        parts += [f"{words}: {sentences.listed(named)}"] * bool(named)
    text = f"With the default allocator, {'; '.join(parts)}."
    verdict = ", ".join(dict.fromkeys(row["verdict"] for row in rows))
    return Statement(text, verdict, "Ratios of the medians of fresh processes, one allocator each.")
