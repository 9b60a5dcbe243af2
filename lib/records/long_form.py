"""Turn records into a long table with one row per sample, and write it for other tools."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

COLUMNS = [
    *("experiment", "machine", "round", "case", "metric", "index", "value", "text"),
    *("status", "code", "started", "stale"),
]
OF_THE_RECORD = {  # columns of `results.load` that are not metrics
    *("machine", "hardware", "round", "status", "environment", "code", "started", "seconds", "stale"),
    *("quietest_ms", "known_ceiling"),
}
WRITERS = {
    ".csv": lambda frame, file: frame.to_csv(file, index=False),
    ".parquet": lambda frame, file: frame.to_parquet(file, index=False, engine="pyarrow"),
}


def long(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per sample of the records that `results.load` gives for some experiments.

    The case is JSON; a number is in `value`, a text in `text`; a table's entries are under `table.column`.
    A record without metrics has one row without value and text."""
    rows = []
    for experiment, frame in frames.items():
        fields = frame.fields
        for record in frame.to_dict("records"):
            case = json.dumps({name: record[name] for name in fields})
            before = (experiment, record["machine"], record["round"], case)
            after = (record["status"], record["code"], record["started"], record["stale"])
            metrics = {name: record[name] for name in frame if name not in OF_THE_RECORD and name not in fields}
            rows += [(*before, *entry, *after) for entry in _entries(metrics)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    kinds = {"round": int, "index": int, "value": float, "text": "string"}
    return table.astype(kinds)


def _entries(metrics: Mapping) -> Iterator[tuple[str, int, float | None, str | None]]:
    """Yield metric, index, value and text of each entry, or one empty row."""
    found = False
    for name, value in metrics.items():
        columns = (
            {f"{name}.{key}": column for key, column in value.items()} if isinstance(value, dict) else {name: value}
        )
        for metric, column in columns.items():
            for index, entry in enumerate(column if isinstance(column, list) else [column]):
                if isinstance(entry, str) or not pd.isna(entry):
                    found = True
                    yield (metric, index, None, entry) if isinstance(entry, str) else (metric, index, entry, None)
    if not found:
        yield "", 0, None, None


def write(table: pd.DataFrame, file: Path) -> None:
    """Write a table in the format of the file's ending, one of `WRITERS`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[file.suffix](table, file)
