"""Writes a few small notebooks and records, of which the tests of the page make a report."""

import contextlib
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from by_hand import ADAM
from lib import notebooks, paths, records
from lib.report import page

MACHINE = "plain-2c"
HARDWARE = "Plain Processor, 2 cores"

SETUP = """
import pandas as pd
import seaborn
from lib import report
from lib.report import plots
"""
LINES = """
rows = [(name, length, factor * (length / 256) ** 2)
        for name, factor in {"naive": 4.0, "tiled": 3.1, "sdpa": 1.2}.items() for length in (256, 512, 1024, 2048)]
frame = pd.DataFrame(rows, columns=["variant", "seq_len", "total_ms"])
drawn = plots.blank(2.7)
hues = plots.palette(frame["variant"])
seaborn.lineplot(frame, x="seq_len", y="total_ms", hue="variant", palette=hues, ax=drawn.axes[0])
report.figure(drawn, "Time by length: naive grows fastest.", "lengths")
"""
TABLE = """
wide = frame.pivot(index="seq_len", columns="variant", values="total_ms").add_suffix("_ms").reset_index()
wide = wide.assign(speedup=[3.3, 3.2, 3.4, 3.3], speedup_low=3.1, speedup_high=3.5, verdict="faster")
wide = wide.assign(kept_mib=[1.5, 6.0, 24.0, 96.0], limit="memory")
report.show(wide, "Attention, forward and backward, by length", "3 rounds a case. Plain Processor, 2 cores.")
"""
STACKED = """
names = ["plain", "+ bf16", "+ compiled"]
steps = pd.DataFrame({"forward": [860, 400, 380], "backward": [1610, 800, 760]}, index=names)
for key, bars in {"ladder": steps, "": steps[["forward"]]}.items():
    drawn = plots.blank(1.8)
    bars.plot.barh(stacked=True, color=[plots.HUES["sky"], plots.HUES["blue"]], xlabel="a step, ms", ax=drawn.axes[0])
    report.figure(drawn, f"The steps get shorter: {', '.join(bars)}.", key)
"""
HEATMAP = """
heat = plots.blank(2.6)
seaborn.heatmap(pd.DataFrame([[1.0, 2.0], [3.0, 4.5]]), annot=True, ax=heat.axes[0], cbar=False)
report.figure(heat, "A map of four numbers.")
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
It is told after a kernel died.

```
## a comment
```

$$\frac{1}{$$

In a row $x_{a}_{b}$, and $\left( x$.

## 层

One.
"""
OUTPUTS = """
from IPython.display import Image, Latex, display
display(Image(data=bytes.fromhex("ffd8ffe0"), format="jpeg"), Latex("$y^2$"))
print("\\x1b[31mred\\x1b[0m")
"""
MEASURE = """
from lib import records as stored
records = stored.load("{name}", machine)
records
"""
PARAMETERS = ("", 'variant = "naive"\nmachine = ""', "parameters")
MISSING = ("", "report.show(pd.DataFrame(columns=['total_ms']), 'bf16 on this machine')")

# a cell is its Markdown or else its code, and then its tag if it has one
CHAPTERS = {
    "step": [
        ("# A training step\n\nHow long does a step take, and what takes it?\n\n- Look for the backward pass.", ""),
        ("- Change `seconds`, whoever runs this.", "", "by-hand"),
        PARAMETERS,
        ("", SETUP),
        ("", "report.answer('step', 'A step of small takes 2.7 s, of which the backward pass is 60%.')"),
        ("", STACKED),
        ("## In detail\n\nWhat follows is for who wants to know.", ""),
        ("", HEATMAP),
    ],
    "attention": [
        ("# Attention\n\nWhich way to compute attention is fastest, and what does it keep?", ""),
        PARAMETERS,
        ("", "records = f'secret-measure-code {machine}'", "measure"),
        ("", SETUP),
        ("", "report.answer('attention', 'At 2,048 tokens sdpa is 3.3× faster than naive.')"),
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
        ("", SETUP),
        ("", MEASURE.format(name="adam"), "measure"),
        ("", "table = report.table(records)\ntable", "notebook-only"),
        MISSING, ("## Nothing yet", ""), MISSING,
        ("", "report.answer('adam', 'Fused AdamW is fastest.')\nreport.answer('adam_ms', '4.2', shown=False)"),
        ("", NOISE),
    ],
    # of which there are no records
    "kernels": [
        ("# Kernels\n\nWhich ones run?", ""), ("- Change it.", "", "by-hand"), PARAMETERS,
        ("", MEASURE.format(name="kernels"), "measure"), ("## Never reached", ""), ("", "1 / 0"),
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
        patch.setattr(page, "CATALOG", ["adam", "kernels"])
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
