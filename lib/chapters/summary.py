"""Collect a machine's largest gaps between theory and measurement."""

import math
from collections.abc import Mapping

import pandas as pd

from lib import notebooks
from lib.chapters import adam, attention, attention_module, compile, kernels, memory, precision, step, warmup
from lib.records import results
from lib.report import hypotheses, tables, tidy
from lib.report.hypotheses import BROKEN, Hypothesis
from lib.stats.intervals import ABOVE, BELOW

SHOWN = 5  # rows of the table of surprises


def every_hypothesis(records: Mapping[str, pd.DataFrame]) -> list[Hypothesis]:
    """Return the hypotheses of all chapters, from records by experiment."""
    ceilings, steps = records["ceilings"], tidy.select(records["step"], mode="train_step")
    return [
        *step.theory(records["step"], ceilings),
        *warmup.theory(warmup.cold(records["warmup"])),
        *kernels.theory(records["kernels"], ceilings),
        *precision.theory(records["precision"], steps, ceilings),
        *memory.theory(records["memory"]),
        *attention.theory(records["attention"], ceilings),
        *attention_module.theory(records["attention_module"], ceilings),
        *compile.theory(compile.with_compile_time(records["compile"])),
        *adam.theory(records["adam"], ceilings),
    ]


def surprises(machine: str) -> tables.Table:
    """Return the predictions furthest from measurement, outside its interval."""
    records = {name: results.load(name, machine) for name in notebooks.experiments()}
    wrong = [one for one in every_hypothesis(records) if one.verdict in (ABOVE, BELOW, BROKEN)]
    wrong = [one for one in wrong if one.measured.value * one.predicted > 0]
    wrong.sort(key=lambda one: -abs(math.log(one.measured.value / one.predicted)))
    caption = "The predictions that what was measured is furthest from, of those that its interval excludes"
    return hypotheses.table(wrong[:SHOWN], records["step"], caption)
