"""Writes a few small notebooks and records, of which the tests of the page make a report."""

import contextlib
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from lib import notebooks, paths, records
from lib.report import page

MACHINE = "plain-2c"
ADAM = {
    "variant": "fused", "shapes": "equal", "num_params": 8, "param_size": 16, "amsgrad": True, "cold": False,
    "device": "cpu",
}  # fmt: skip
HARDWARE = "Plain Processor, 2 cores"

SETUP = """
import pandas as pd
import seaborn
from lib.records import NotMeasured
from lib.report import plots
from lib.report.answers import answer
from lib.report.tables import table
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval

def near(value):
    return Interval(value, value * 0.96, value * 1.04, 3)
"""
LINES = """
rows = [{"variant": name, "seq_len": length, "total_ms": near(factor * (length / 256) ** 2)}
        for name, factor in {"naive": 4.0, "tiled": 3.1, "sdpa": 1.2}.items() for length in (256, 512, 1024, 2048)]
frame = pd.DataFrame(rows)
plots.show(plots.lines(frame, "seq_len", "total_ms", "variant"), "Time by length: naive grows fastest.", key="lengths")
"""
TABLE = """
wide = frame.pivot(index="seq_len", columns="variant", values="total_ms").reset_index()
wide = wide.rename(columns={"seq_len": "tokens", "naive": "naive, ms", "sdpa": "sdpa, ms", "tiled": "tiled, ms"})
wide["gain"] = [Comparison(near(ratio), "faster") for ratio in (3.3, 3.2, 3.4, 3.3)]
wide["kept, MiB"] = [1.5, 6.0, 24.0, 96.0]
wide["limit"] = "memory"
table(wide, "Attention, forward and backward, by length", "n = 90 in 3 rounds; Plain Processor, 2 cores; fp32.")
"""
STACKED = """
steps = pd.DataFrame({"label": ["plain", "+ bf16", "+ compiled"], "forward": [near(860), near(400), near(380)],
    "backward": [near(1610), near(800), near(760)], "bound, ms": [near(2200), near(1000), near(1000)]})
figure_ = plots.bars(steps, "label", ["forward", "backward"], "a step, ms", mark="bound, ms")
plots.show(figure_, "The steps get shorter.", key="ladder")
plots.show(plots.bars(steps, "label", ["forward"], "ms", "bound, ms"), "The forward passes.")
"""
RATIOS = """
gains = pd.DataFrame({"switch": ["bf16 autocast", "fused AdamW"], "comparison": [
    Comparison(near(2.1), "faster"), Comparison(near(1.13), "unclear")]})
plots.show(plots.ratios(gains, "switch"), "bf16 is about twice as fast.")
"""
HEATMAP = """
drawn = plots.blank(2.6)
seaborn.heatmap(pd.DataFrame([[1.0, 2.0], [3.0, 4.5]]), annot=True, ax=drawn.axes[0], cbar=False)
plots.show(drawn, "A map of four numbers.")
"""
NOISE = """
import sys, warnings
print("\\r 50%|#####     |", file=sys.stderr)
warnings.warn("adam/fused.r1.json: skipped: checksum", stacklevel=1)
"""
FORMULA = r"""
Naive attention writes its scores, so that its bytes grow with $T^2$, and those of a step with
$b = 8 \, T^2 + 16 \, T d + 24 \, T d_{ff} + 32 \, T d_{model} + 40 \, d_{model} d_{ff} + 48 \, d_{model} d$:

$$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d}}\right) V
\qquad b = 8 \, T^2 + 16 \, T d$$
"""
ODD = r"""
It is told after a kernel died. A box costs $5 an hour, or $10.

```
## a comment
```

$$\frac{1}{$$

In a row $x_{a}_{b}$, and $\left( x$.

## 层

One.

## Twice

Two.

## Twice

Three.

## A picture

![pasted](attachment:lost.png)
"""
OUTPUTS = """
from IPython.display import Image, Latex, display
display(Image(data=bytes.fromhex("ffd8ffe0"), format="jpeg"), Latex("$y^2$"))
print("\\x1b[31mred\\x1b[0m")
"""
PARAMETERS = ("", 'variant = "naive"\nmachine = ""', "parameters")
MISSING = ("", "raise NotMeasured('bf16 on this machine')")

SUMMARY = [
    (cell.source, "") if cell.cell_type == "markdown" else ("", cell.source, *cell.metadata.get("tags", []))
    for cell in nbformat.read(notebooks.NOTEBOOKS / "summary.ipynb", as_version=4).cells
]

# a cell is its Markdown or else its code, and then its tag if it has one
CHAPTERS = {
    "summary": SUMMARY,
    "step": [
        ("# A training step\n\nHow long does a step take, and what takes it?\n\n- Look for the backward pass.", ""),
        ("- Change `seconds`, whoever runs this.", "", "by-hand"),
        PARAMETERS,
        ("", SETUP),
        ("", "answer('step', f'A step of small takes {near(2.7)} s, of which the backward pass is 60%.')"),
        ("", STACKED),
        ("", RATIOS),
        ("## Phases\n\n", ""),
        MISSING,
        ("## In detail\n\nWhat follows is for who wants to know.", ""),
        ("", HEATMAP),
        ("### Nothing here", ""),
        ("### Nothing there\n\n", ""),
        ("", "table(pd.DataFrame(columns=['a']), 'An empty table')"),
    ],
    "attention": [
        ("# Attention\n\nWhich way to compute attention is fastest, and what does it keep?", ""),
        PARAMETERS,
        ("", "records = f'secret-measure-code {machine}'", "measure"),
        ("", SETUP),
        MISSING,
        ("", "answer('attention', f'At 2,048 tokens sdpa is {Comparison(near(3.3), \"faster\")} than naive.')"),
        ("## Predict\n" + FORMULA, ""),
        ("", LINES),
        ("", TABLE),
        MISSING,
        ("## In detail", ""),
        ("", "print('a printed line')\nwide"),
    ],
    "adam": [
        ("# The optimizer\n\nWhich AdamW is fastest?", ""),
        PARAMETERS,
        ("", SETUP + "answer('adam', 'Fused AdamW is fastest.')\nanswer('adam_ms', '4.2', shown=False)"),
        ("", NOISE),
        ("## Its time", ""),
        MISSING,
    ],
    "precision": [("# Precision\n\nHow exact is bf16?", ""), PARAMETERS, ("", "1 / 0"), ("Never reached.", "")],
    "warmup": [("# First steps\n\nHow long are they?", ""), PARAMETERS, ("", "import os; os._exit(1)")],
    "method": [("# Method" + ODD, ""), PARAMETERS, ("", OUTPUTS), ("", "machine")],
}  # fmt: skip


@contextlib.contextmanager
def at(folder):
    """Have notebooks, records and reports in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", str(folder / "results"))
        patch.setattr(notebooks, "NOTEBOOKS", folder / "notebooks")
        patch.setattr(paths, "REFERENCE", folder / "reference")
        patch.setattr(records, "REFERENCE", folder / "reference")
        patch.setattr(page, "CATALOG", ["adam"])
        yield


def write_notebook(file: Path, cells: list[tuple]) -> None:
    made = []
    for position, (text, code, *tags) in enumerate(cells):
        cell = v4.new_code_cell(code.strip()) if code else v4.new_markdown_cell(text)
        cell.metadata["tags"] = tags
        cell.id = f"cell-{position}"
        made.append(cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(v4.new_notebook(cells=made), file)


def record(round: int, probe: float) -> dict:
    """Return a record of the made-up machine; the noise probe took `probe` milliseconds."""
    environment = {"machine": MACHINE, "hardware": HARDWARE, "torch": "2.13.0", "memory_mib": 24_105, "commit": "0123"}
    metrics = {"total_ms": [2.0, 2.1, 2.0], "noise_probe_ms": [probe] * 8}
    return records.create("adam", ADAM, round, "ok", metrics, environment, started="2026-11-24T10:00:00+00:00")
