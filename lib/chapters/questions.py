"""List the assignment's questions and link the sections that answer them.

The assignment is the second of Stanford's CS336, spring 2025. Names of problems are the assignment's; the wording is
this project's own. The comparison of optimizers comes from two public write-ups.
"""

import functools
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
from markupsafe import Markup

from lib import notebooks
from lib.records import results
from lib.report import tables, tidy

ABSENT = "not measured on this machine"


@dataclass(frozen=True)
class Question:
    """A part of a problem, with the sections that answer it.

    `answered_in` are pairs of chapter and heading; an empty heading means the whole chapter. `experiment` and `where`
    select the records that bear on it."""

    problem: str
    part: str
    asks: str
    answered_in: tuple[tuple[str, str], ...]
    experiment: str
    where: Mapping = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the assignment's name for the question."""
        return f"{self.problem} ({self.part})" if self.part else self.problem


STEP, WARMUP, KERNELS, PRECISION, MEMORY = "02_step", "03_warmup", "04_kernels", "05_precision", "06_memory"
ATTENTION, COMPILE, ADAM = "07_attention", "09_compile", "10_adam"
ASKED, MEASURED = "The questions of the assignment", "What was measured"
TRAINING = {"mode": "train_step"}

# fmt: off
QUESTIONS = (
    Question("benchmarking_script", "a", "A script that times forward and backward passes of a model of any size",
             (("01_method", "How a time is measured"), (STEP, "")), "step"),
    Question("benchmarking_script", "b", "How long forward and backward take at each size, and how much that varies",
             ((STEP, MEASURED), (STEP, "Beside other machines")), "step", TRAINING),
    Question("benchmarking_script", "c", "What changes without warm-up steps, or with one or two, and why",
             ((WARMUP, MEASURED), (WARMUP, "Beside the write-ups")), "warmup"),
    Question("nsys_profile", "a", "How long the forward pass takes under the profiler, and whether a timer agrees",
             ((KERNELS, ASKED),), "kernels"),
    Question("nsys_profile", "b", "Which kernel takes the most time, how often it runs, and if backward changes it",
             ((KERNELS, ASKED), (KERNELS, "In numbers")), "kernels"),
    Question("nsys_profile", "c", "Which kernels besides matrix products take time in the forward pass",
             ((KERNELS, ASKED), (KERNELS, "In numbers")), "kernels"),
    Question("nsys_profile", "d", "How the share of matrix products changes in a whole training step",
             ((KERNELS, ASKED), (KERNELS, "In numbers")), "kernels", TRAINING),
    Question("nsys_profile", "e", "How softmax and matrix products in attention compare, in time and in FLOPs",
             ((KERNELS, ASKED), (KERNELS, "In numbers")), "kernels"),
    Question("mixed_precision_accumulation", "", "How exact four ways are to add up many small numbers",
             ((PRECISION, "Four ways to add up"),), "precision", {"subject": "accumulation"}),
    Question("benchmarking_mixed_precision", "a", "Which dtypes parameters, outputs, loss and gradients have under "
             "autocast", ((PRECISION, "The dtypes under autocast"),), "precision", {"subject": "toy"}),
    Question("benchmarking_mixed_precision", "b", "What in layer normalisation is sensitive, and whether bf16 differs "
             "from fp16", ((PRECISION, "What is sensitive in a norm"),), "precision", {"subject": "layer_norm"}),
    Question("benchmarking_mixed_precision", "c", "How long forward and backward take in bf16, by model size",
             ((PRECISION, "Mixed precision and model size"),), "step", {"precision": "bf16"}),
    Question("memory_profiling", "a", "What memory looks like over a forward pass and over a training step",
             ((MEMORY, "The timelines"),), "memory"),
    Question("memory_profiling", "b", "How high the peak is at each context length",
             ((MEMORY, "The peak by context length"),), "memory"),
    Question("memory_profiling", "c", "What mixed precision changes of the peak",
             ((MEMORY, "Mixed precision"),), "memory", {"precision": "bf16"}),
    Question("memory_profiling", "d", "How large one activation of the residual stream is",
             ((MEMORY, "The residual stream"),), "memory"),
    Question("memory_profiling", "e", "How large the largest allocations are, and what made them",
             ((MEMORY, "Large allocations, and who made them"),), "memory"),
    Question("pytorch_attention", "", "How long attention takes and what it keeps for the backward pass, by sequence "
             "and head size, and where memory ends",
             ((ATTENTION, "Forward, backward, and the memory between"), (ATTENTION, "Where memory ends"),
              (ATTENTION, "What is kept for the backward pass")), "attention", {"variant": "naive"}),
    Question("torch_compile", "a", "What compiling changes of attention",
             ((COMPILE, "Attention, compiled and not"),), "compile", {"model": "attention"}),
    Question("torch_compile", "b", "What compiling changes of the whole model, by phase",
             ((COMPILE, "The whole Transformer, compiled and not"),), "step", {"compiled": True}),
    Question("flash_forward, flash_backward", "", "Attention in tiles, in plain PyTorch and checked against naive "
             "attention; in Triton it is not part of this project",
             ((ATTENTION, "The idea"), (ATTENTION, "What is kept for the backward pass")), "attention",
             {"variant": "tiled"}),
    Question("flash_benchmarking", "", "How attention in tiles and PyTorch's own compare with naive attention",
             ((ATTENTION, "Forward, backward, and the memory between"), (ATTENTION, "Beside other machines")),
             "attention", {"variant": ["tiled", "sdpa", "flex"]}),
    Question("Adam, in two write-ups", "", "Which implementation of the optimizer step is fastest, by number and size "
             "of parameters", ((ADAM, MEASURED), (ADAM, "Where each wins"), (ADAM, "Beside other machines")), "adam"),
)
# fmt: on


@functools.cache
def headings(chapter: str) -> tuple[str, ...]:
    """Return the headings of a chapter, its title first."""
    cells = json.loads((notebooks.NOTEBOOKS / "report" / f"{chapter}.ipynb").read_text())["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return tuple(re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE))


def link_to(chapter: str, heading: str) -> Markup:
    """Link to a section of the report. Raises ValueError for an unknown heading."""
    title, *others = headings(chapter)
    if heading and heading not in others:
        raise ValueError(f"{chapter}: got {heading!r}, expected one of its headings, {', '.join(others)}")
    words = f"{title}: {heading}" if heading else title
    return Markup(f'<a href="#{tables.anchor(chapter, heading or title)}">{html.escape(words)}</a>')


def found(question: Question, records: pd.DataFrame) -> str:
    """State how many cases bear on a question, or why there are none."""
    chosen = tidy.select(records, **question.where)
    fields = records.attrs["fields"]
    measured = chosen[chosen["status"] == "ok"]
    if len(measured):
        count = len(measured[fields].drop_duplicates())
        return f"answered, from {count} case{'s' * (count > 1)}"
    ends = ", ".join(dict.fromkeys(tidy.STATUS[status] for status in chosen["status"]))
    return f"{ABSENT}: {ends}" if ends else ABSENT


def table(machine: str) -> tables.Table:
    """Return all questions with links to their answers and this machine's cases."""
    records = {name: results.load(name, machine) for name in {question.experiment for question in QUESTIONS}}
    rows = [
        {
            "question": Markup("{}<small>{}</small>").format(one.asks, one.name),
            "answered in": Markup("; ").join(link_to(*where) for where in one.answered_in),
            "on this machine": found(one, records[one.experiment]),
        }
        for one in QUESTIONS
    ]
    caption = "The questions of the assignment, and where they are answered"
    return tables.Table(pd.DataFrame(rows, dtype=object), caption)
