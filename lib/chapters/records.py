"""List a machine's records, count damaged files, and offer downloads."""

import base64
import gzip
import html
import io
import statistics
from collections.abc import Mapping

import pandas as pd
from IPython.display import HTML

from lib import paths
from lib.records import damaged, long_form, results
from lib.report import sentences, tables, tidy
from lib.stats import digits

BUDGET_BYTES = 1_500_000  # per download, encoded; keeps the whole page under 6 MB
MAIN = "the samples and single values, without the noise probe and the tables of kernels, timelines and breakdowns"
NOISE = "noise_probe_ms"


def listing(experiments: Mapping[str, pd.DataFrame]) -> HTML:
    """Return a sortable list of records, folded by experiment, that evidence links to."""
    return HTML("".join(_section(name, records) for name, records in experiments.items() if len(records)))


def _section(name: str, records: pd.DataFrame) -> str:
    fields, shown = records.fields, html.escape(name)
    rows = "".join(_row_html(name, record, fields) for record in records.to_dict("records"))
    heads = [*(field.replace("_", " ") for field in fields), "round", "status", "n", "median, ms", "started", "run"]
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    count = f"{len(records)} record{'s' * (len(records) > 1)}"
    return (
        f'<details class="records"><summary>{shown}, {count}</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="records of {shown}">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _row_html(experiment: str, record: Mapping, fields: list[str]) -> str:
    case, times = {field: record[field] for field in fields}, record.get("total_ms")
    counted = isinstance(times, list)
    cells = [html.escape(str(value)) for value in case.values()]
    cells += [str(record["round"]), html.escape(_status_text(record))]
    cells += [str(len(times)), digits.number(statistics.median(times))] if counted else ["", ""]
    cells += [html.escape(record["started"]), _notebook_link(record)]
    anchor = sentences.anchor(results.called(experiment, case, record["round"]))
    return f'<tr id="{anchor}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _status_text(record: Mapping) -> str:
    """Return how a record ended, what throttled the GPU beside it, and why it is stale if it is."""
    ended = ", ".join([tidy.STATUS[record["status"]] or "ok", *tidy.throttled(record)])
    return f"{ended}, stale: {record['stale']}" if record["stale"] else ended


def _notebook_link(record: Mapping) -> str:
    """Link to the notebook that made a record if it exists, or name the run."""
    run, machine = record["environment"].get("run", ""), record["machine"]
    file = paths.runs() / machine / f"{run}.ipynb"
    name = html.escape(run)
    return f'<a href="runs/{html.escape(machine)}/{name}.ipynb">{name}</a>' if file.exists() else name


def damage() -> list[sentences.Statement | tables.Table]:
    """State how many files are damaged, and list them in a table by their faults."""
    losses = damaged.losses()
    read = sum(len(damaged.files(root)) for root in (results.folder(), results.REFERENCE))
    if losses.empty and not read:
        return [sentences.missing("There are no record files.")]
    whole = f"All record files are valid: {digits.count(read)} of {digits.count(read)}."
    evidence = (
        "Each file in the store and each that is kept in git was read, and its bytes, fields, checksum and place were "
        "held against what a record must be; what was set aside or refused was counted."
    )
    counts = losses.groupby(list(damaged.COLUMNS)).size().rename("files").reset_index()
    table = tables.Table(counts, "Files that are not valid records, and why; none of their numbers is shown")
    return [
        sentences.Statement(damaged.counted(losses) or whole, "derived", evidence),
        *([table] if len(counts) else []),
    ]


def csv(frame: pd.DataFrame) -> bytes:
    """Return a table as compressed CSV; equal tables give equal bytes."""
    return gzip.compress(frame.to_csv(index=False).encode(), mtime=0)


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a table as Parquet."""
    file = io.BytesIO()
    frame.to_parquet(file, index=False, engine="pyarrow", compression="zstd", compression_level=9)
    return file.getvalue()


KINDS = {  # of files, by their ending: the media type, and what writes them
    "csv.gz": ("application/gzip", csv),
    "parquet": ("application/vnd.apache.parquet", parquet),
}


def downloads(machine: str, experiments: Mapping[str, pd.DataFrame], budget: int = BUDGET_BYTES) -> HTML:
    """Return links that contain all records of some experiments, as CSV and as Parquet.

    If a file exceeds `budget` bytes, the link holds the main values, or names the command that writes the file."""
    frame = long_form.long(experiments)
    items = "".join(f"<li>{_link(frame, machine, ending, budget)}</li>" for ending in KINDS)
    return HTML(f'<ul class="downloads">{items}</ul>' if len(frame) else "")


def _link(every: pd.DataFrame, machine: str, ending: str, budget: int) -> str:
    media, write = KINDS[ending]
    main = every[~every["metric"].str.contains(".", regex=False) & (every["metric"] != NOISE)]
    for frame, what in ((every, "every sample of every record"), (main, MAIN)):
        content = base64.b64encode(write(frame)).decode()
        if len(content) <= budget:
            name, address = f"records-{html.escape(machine)}.{ending}", f"data:{media};base64,{content}"
            size = f"{len(frame):,} rows, {len(content) * 3 // 4 / 1e6:.1f} MB"
            return f'<a download="{name}" href="{address}">{name}</a>: {what} ({size})'
    return f"{ending}: too large for this page; `python -m lib.records` writes it"
