"""The main answers of the kept reports follow from their records by plain pandas and numpy."""

import json
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean

from lib.records import REFERENCE

TIME = r"[\d.,]+(?: \([\d.,]+ to [\d.,]+\))? m?s\b"
SPEEDUP = r"(?P<speedup>[\d.,]+)×"
SIZE = r"(?P<size>[\w.]+)"
PRECISION = r"(?P<precision>\w+)"
BATCH = r"(?P<batch_size>\d+) × (?P<context_length>[\d,]+) tokens"
TOTAL = rf"(?P<total_ms>{TIME})"
LENGTH = r"(?P<context_length>[\d,]+)"
PAIRS = rf"(?P<paired_ms>{TIME}) (?:against|instead of) (?P<baseline_ms>{TIME})"
# words that stand for a value of the case; a group that an answer does not have is False
WORDS = {None: False, " with amsgrad": True, "compiled": True, "eager": False}
STEP = {"mode": "train_step"}


def cell(name):
    """Return the pattern of a table's cell, which may have an interval."""
    return rf"(?P<{name}>[\d.,]+)(?: \([\d.,]+–[\d.,]+\))? \|"


PASSES = f"{cell('forward_ms')} {cell('backward_ms')}"
# the key of an answer, its experiment, what every answer leaves unsaid, and its words, or those of a row of its table:
# groups named as in NUMBERS or `<metric>_ms` are numbers, and others are values of the case
ANSWERS = [
    ("step", "step", STEP, rf"of {SIZE} \(.*, {BATCH}, {PRECISION}\) takes {TOTAL}"),
    ("ladder", "ladder", {}, rf"of {SIZE} at {BATCH} takes {PAIRS}; it is {SPEEDUP}"),
    ("kernels.sizes", "kernels", {"precision": "fp32", "compiled": False},
     rf"\| {SIZE} \| {LENGTH} \| {cell('forward_ms')} {cell('profiled_forward_ms')}"),
    ("memory", "memory", STEP, rf"step of {SIZE} at {BATCH} in {PRECISION} takes (?P<peak_mib>[\d,]+) MiB"),
    ("attention", "attention", {},
     rf"(?:Use )?(?P<variant>\w+)(?:: it)? is the fastest of \d+ "
     rf"measured at (?P<batch_size>\d+) × (?P<seq_len>[\d,]+) tokens "
     rf"\((?P<num_heads>\d+) .*heads? of (?P<d_head>\d+), {PRECISION}\): {SPEEDUP}.*?, {PAIRS}"),
    ("flash", "attention", {"causal": True},
     rf"of (?P<batch_size>\d+) sequences? of (?P<seq_len>[\d,]+) tokens and (?P<num_heads>\d+) heads? "
     rf"of (?P<d_head>\d+): in {PRECISION} (?P<variant>\w+) is "
     rf"(?:[\d.,]+× as fast as naive \([\d.,]+ ms\) and )?{SPEEDUP}[^;]*?, {PAIRS}"),
    ("attention.naive", "attention", {"variant": "naive", "precision": "fp32"},
     rf"\| (?P<seq_len>[\d,]+) \| (?P<d_head>\d+) \| {PASSES}"),
    ("flash.lengths", "attention", {},
     rf"\| {PRECISION}(?:, converted)? \| (?P<seq_len>[\d,]+) \| (?P<variant>\w+) \| {PASSES} {cell('total_ms')}"),
    ("attention_module", "attention_module", {},
     rf"d_model (?P<d_model>[\d,]+) and {BATCH} \((?P<compiled>\w+), {PRECISION}\), .* take "
     rf"{TOTAL}: (?P<forward_ms>{TIME}) forward and (?P<backward_ms>{TIME})"),
    ("compile", "step", STEP | {"compiled": True},
     rf"of {SIZE} at {BATCH} in {PRECISION} costs .* takes {PAIRS}, {SPEEDUP}"),
    ("compile.sizes", "step", STEP | {"compiled": True},
     rf"\| {SIZE} \| {LENGTH} \| {PRECISION} \| {cell('baseline_ms')} {cell('paired_ms')}"),
    ("adam", "adam", {}, rf"step(?P<amsgrad> with amsgrad)? on (?:[^()]*\((?:.*, )?)?(?P<elements>[\d,]+) elements\)?, "
     rf"(?P<variant>\w+), takes {PAIRS}; it is {SPEEDUP}"),
    ("precision.step", "step", STEP,
     rf"In {PRECISION} a step at {BATCH} is {SPEEDUP}.*? fp32 for (?P<size>[\w.]*\w), "
     r"(?P<paired_ms>[\d,]+) against (?P<baseline_ms>[\d,]+) ms"),
    ("precision.passes", "step", STEP | {"compiled": False},
     rf"\| {PRECISION} \| {SIZE} \| [^|]+\| {cell('forward_ms')} [^|]+\| {cell('backward_ms')}"),
    ("warmup", "warmup", {},
     rf"For {SIZE} at {BATCH} in {PRECISION} the first step takes (?P<first_over_later>[\d.]+) times"),
    ("collectives", "collectives", {"operation": "all_reduce"},
     rf"of (?P<megabytes>[\d.]+) MB between (?P<world>\d+) ranks by (?P<backend>\w+) takes {TOTAL}"),
    ("collectives.sizes", "collectives", {"operation": "all_reduce"},
     rf"\| all_reduce \| (?P<world>\d+) \| (?P<backend>\w+) \| (?P<megabytes>[\d.,]+) \| {cell('total_ms')}"),
    ("parallel.flat", "parallel", {"world": 2, "bucket_mib": 0},
     rf"\| {SIZE} \| (?P<variant>\w+) \| {cell('total_ms')} {cell('backward_ms')} {cell('synchronization_ms')}"),
    ("parallel", "parallel", {},
     rf"at {BATCH} in {PRECISION} takes on (?P<world>\d+) ranks by \w+, against .*?: in {SIZE} {TOTAL} .*"
     rf"Shortest mean: (?P<variant>\w+) in"),
    ("peers", "peers", {"program": "transformers"},
     rf"our step, {SIZE} at {BATCH}\. In {PRECISION} the Llama's step is .*?{SPEEDUP}"),
    ("ceilings", "ceilings", {}, r"products (?P<products_tflops>[\d.,]+) TFLOP/s in (?P<precision>\w+)"),
    ("ceilings", "ceilings adam ladder peers", {}, r"memory (?P<memory_gbs>[\d.,]+) GB/s"),
    ("calibration.timer", "calibration", {"check": "timer"},
     rf"median is (?P<paired_ms>{TIME}), that of \S+ (?P<baseline_ms>{TIME}): \w+, a ratio of (?P<speedup>[\d.]+\d)"),
]  # fmt: skip


def log_ratio(metrics):
    """Return the Hodges-Lehmann estimate of a process, from the definition."""
    logs = np.log(metrics["baseline_ms"]) - np.log(metrics["paired_ms"])
    return np.median([(a + b) / 2 for i, a in enumerate(logs) for b in logs[i:]])


def best_tflops(metrics):
    """Return the rate of all three products of a weight, or of one of them if that is higher."""
    thirds = [metrics[name] for name in ("forward_ms", "input_gradients_ms", "weight_gradients_ms") if name in metrics]
    return metrics["flops"] / min([np.median(metrics["total_ms"]), *(3 * np.median(third) for third in thirds)]) / 1e9


def memory_gbs(metrics):
    """Return the rate of what only moves memory: a program, or the optimizer's part of a step."""
    moved_bytes = metrics.get("moved_bytes") or metrics["optimizer_bytes"]
    names = ("optimizer_ms", "paired_optimizer_ms", "total_ms")
    return moved_bytes / np.median(next(metrics[name] for name in names if name in metrics)) / 1e6


# how a number comes from the metrics of one process, and from the numbers of several
NUMBERS = {
    "speedup": (lambda run: np.exp(log_ratio(run)), gmean),
    "peak_mib": (lambda run: np.median(run["peak_mib"]), np.median),
    "first_over_later": (lambda run: run["first_total_ms"][0] / np.median(run["first_total_ms"][15:]), np.median),
    "memory_gbs": (memory_gbs, max),
    "products_tflops": (best_tflops, max),
}


def read_number(text):
    """Return a number as it is told, in ms if it is a time, and half of its last digit."""
    number = Decimal(re.match(r"[\d,]+(\.\d+)?", text)[0].replace(",", ""))
    # the zeros that end a whole number may stand for rounded digits
    exponent = number.as_tuple().exponent or number.normalize().as_tuple().exponent
    scale = 1e3 if text.endswith(" s") else 1.0
    return scale * float(number), scale * 10.0**exponent / 2


def is_same(fact, words):
    """Tell if a fact of a case is what an answer calls it; of 0.01 a table has 0.0100."""
    text = str(words).replace(",", "")
    if isinstance(fact, float):
        return fact == float(text)
    return str(fact) == text


def agrees(processes, numbers):
    """Tell if what is told of a case is what the metrics of its processes give."""
    for name, text in numbers.items():
        of_process, of_several = NUMBERS.get(name, (lambda metrics, name=name: np.median(metrics[name]), gmean))
        try:
            value = of_several([of_process(metrics) for metrics in processes])
        except KeyError:
            return False
        number, half = read_number(text)
        # of what is slower the inverse is told
        if min(abs(value - number), abs(1 / value - number)) > 1.001 * half:
            return False
    return True


@pytest.mark.parametrize(("key", "experiment", "unsaid", "words"), ANSWERS)
def test_an_answer_is_that_of_a_case_with_its_words(key, experiment, unsaid, words):
    matches = []
    for file in REFERENCE.glob("*/answers.json"):
        matches += [(file, match) for match in re.finditer(words, json.loads(file.read_text()).get(key, ""))]
    for file, match in matches:
        numbers = {name: text for name, text in match.groupdict().items() if name in NUMBERS or name.endswith("_ms")}
        values = {name: WORDS.get(text, text) for name, text in match.groupdict().items() if name not in numbers}
        files = [file.with_name(f"{name}.jsonl") for name in experiment.split()]
        records = pd.concat([pd.read_json(name, lines=True) for name in files if name.exists()]).query("status == 'ok'")
        cases = records.groupby(records["case"].map(json.dumps))["metrics"].agg(list)
        for case, processes in cases.items():
            facts = json.loads(case) | processes[0]
            is_meant = all(is_same(facts[name], value) for name, value in (unsaid | values).items())
            # a profile is told of one process
            groups = [[process] for process in processes] if experiment == "kernels" else [processes]
            if is_meant and any(agrees(group, numbers) for group in groups):
                break
        else:
            pytest.fail(f"no case of {file.parent.name} has this: {match[0]}")
    assert matches, "no report has this answer in these words"


def test_what_the_faster_library_saves_follows_from_the_ratios_of_two_rungs_to_plain():
    folder = REFERENCE / "epyc-2c-1419"
    records = pd.read_json(folder / "ladder.jsonl", lines=True)
    small = {"size": "small", "batch_size": 4, "context_length": 128}
    speedup, plain_ms = {}, {}
    for switches in ("fused", "fused+bf16_products"):
        runs = records[[case["switches"] == switches and small.items() <= case.items() for case in records["case"]]]
        speedup[switches] = gmean([np.exp(log_ratio(run)) for run in runs["metrics"]])
        plain_ms[switches] = gmean([np.median(run["baseline_ms"]) for run in runs["metrics"]])
    saved_ms = plain_ms["fused+bf16_products"] * (1 / speedup["fused"] - 1 / speedup["fused+bf16_products"])
    text = json.loads((folder / "answers.json").read_text())["ladder.library"]
    assert saved_ms == pytest.approx(float(re.search(r"it saves (\d+) \(", text)[1]), abs=10)


def test_products_have_one_share_of_a_step():
    for file in REFERENCE.glob("*/answers.json"):
        answers = json.loads(file.read_text())
        share = re.search(r"take (\d+)% of the", answers["kernels.finding"])[1]
        assert f"matrix products {share}%" in answers["kernels"]
        assert re.search(rf"matrix products \d+% and {share}%", answers["kernels.products"])
