"""Answer the assignment's questions from this machine's records, one to three sentences each.

The assignment is the second of Stanford's CS336, spring 2025. Names of problems are the assignment's; the wording is
this project's own. The comparison of optimizers comes from two public write-ups.
"""

import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import pandas as pd
from markupsafe import Markup

from lib import notebooks
from lib.chapters import (
    adam,
    attention,
    collectives,
    flash,
    kernels,
    memory,
    parallel,
    precision,
    profiles,
    step,
    warmup,
)  # fmt: skip
from lib.records import results
from lib.report import quantities, sentences, tables, tidy
from lib.report.sentences import NO_DATA, Statement
from lib.stats import digits

STATUSES = AT_SIZE, SMALLER, NOT_RUN = "at the size asked", "at a smaller size", "not run"
DONE = ("ok", "oom")  # running out of memory is a result that the assignment asks to note
SIZES, CONTEXTS = ("small", "medium", "large", "xl", "2.7B"), (128, 256, 512, 1024)
MODELS = {"size": SIZES, "precision": ("fp32",)}  # what the assignment asks to measure
PROFILED = MODELS | {"context_length": CONTEXTS}
PROFILED_MEMORY = {"size": ("2.7B",), "context_length": (128, 256, 512), "mode": ("forward", "train_step")}
SQUARES = {"seq_len": (256, 1024, 4096, 8192, 16384), "d_head": (16, 32, 64, 128), "batch_size": (8,)}
LISTS = {"num_params": (1, 2, 4, 8, 16, 32), "param_size": (16384, 65536, 262144, 1048576, 4194304)}
TRAINING = {"mode": "train_step"}

# chapters, and headings of chapters
STEP, KERNELS, MEMORY = ("01_step",), ("03_kernels",), ("04_memory",)
ATTENTION, FLASH, ADAM = ("05_attention",), ("06_flash",), ("07_adam",)
PRECISION, SUMS = ("08_precision",), ("08_precision", "Four ways to add up")
DTYPES, NORMS = ("08_precision", "Dtypes under autocast"), ("08_precision", "What is sensitive in a norm")
WARMUPS, COMPILE = ("09_warmup", "No warm-up, one, two or five"), ("82_compile",)
RING, RANKS = ("10_collectives",), ("11_parallel",)
WRITTEN, XXL = ("11_parallel", "Memory of a rank"), ("11_parallel", "From which batch size on it is compute-bound")


class Machine:
    """Load the records of a machine by experiment, each once."""

    def __init__(self, name: str):
        self.name, self.load = name, cache(lambda experiment: results.load(experiment, name))


def _script(of: Machine) -> Statement:
    """Answer with the notebook that times a step, and the cases that it measured here."""
    cases = len(tidy.medians(tidy.select(of.load("step"), status="ok", **TRAINING)))
    text = "The notebook step times forward, backward and optimizer inside the same step, for any size"
    said = f"{text}; {digits.count(cases)} cases were measured here."
    return Statement(said, "measured" if cases else NO_DATA, "Records of training steps.")


def _passes(of: Machine) -> Statement:
    """Answer with the times of both passes of the plain step, and their deviation."""
    steps = step.prepared(of.load("step"), of.load("ceilings"))
    head = step.headline_case(steps)
    where = sentences.at("At {size}, context {context_length}, in {precision}: ", head)
    times = sentences.values(steps, head, where + "forward {} ms, backward {} ms;", "forward_ms", "backward_ms")
    spread = sentences.number(steps, "deviation_percent", head)
    if times.verdict == NO_DATA or spread is None:
        return times
    text = f"the steps of a process vary by {spread}%."
    return sentences.together(times, Statement(text, "measured", "Standard deviation.", (), (spread,)))


def _warmups(of: Machine) -> Statement:
    """Answer with the deviations by warm-ups, and the first step's length."""
    starts = warmup.cold(of.load("warmup"))
    return sentences.together(warmup.without(starts, warmup.headline_case(starts)), warmup.first_line(starts))


def _profiled(say: Callable) -> Callable[[Machine], Statement]:
    """Answer with a statement of the chapter on kernels about its case."""
    return lambda of: say(of.load("kernels"), profiles.headline_case(of.load("kernels")))


def _norms(of: Machine) -> Statement:
    """Answer with what overflows in layer norm, in fp16 and bf16."""
    return sentences.together(
        *(precision.sensitive(of.load("precision"), "layer_norm", name) for name in ("fp16", "bf16"))
    )


def _plain_memory(of: Machine) -> pd.DataFrame:
    return tidy.select(of.load("memory"), checkpoint=0)


def _step_with_most(by: str, precision: str, say: Callable) -> Callable[[Machine], Statement]:
    """Answer with what the chapter on memory says of the plain step that has the most of a field."""

    def answer(of: Machine) -> Statement:
        plain = _plain_memory(of)
        return say(plain, tidy.largest(plain, by, precision=precision, mode="train_step"))

    return answer


def _peaks(of: Machine) -> Statement:
    """Answer with the peak of a training step and of a forward pass at each context of one size."""
    plain = tidy.select(_plain_memory(of), precision="fp32", status="ok")
    head = tidy.largest(plain, "context_length", mode="train_step")
    found = []
    for tokens in sorted(set(plain["context_length"])):
        cases = ({**head, "mode": mode, "context_length": tokens} for mode in ("train_step", "forward"))
        peaks = [memory.number(plain, "peak_mib", case) for case in cases]
        found += [] if None in peaks else [(f"{tokens:,}", *peaks)]
    if not found:
        return memory.MISSING
    contexts, steps, passes = zip(*found, strict=True)
    at, peaks, less = (sentences.listed(list(map(str, each))) for each in (contexts, steps, passes))
    text = f"At {head['size']} and {at} tokens, a training step peaks at {peaks} MiB, a forward pass at {less}."
    return Statement(text, "measured", "peak_mib", (), (*steps, *passes))


def _attention(of: Machine) -> Statement:
    """Answer with the growth of naive attention and the size at which memory ends."""
    records = of.load("attention")
    at = {name: value for name, value in attention.longest_case(records).items() if name != "seq_len"}
    naive = sentences.exponent(
        records, "total_ms", "seq_len", {**at, "variant": "naive"}, "the time of naive attention"
    )
    return sentences.together(naive, attention.out_of_memory(records, of.name))


def _compiled_attention(of: Machine) -> Statement:
    """Answer with compiled against eager attention, in the longest case."""
    records = of.load("compile")
    case = tidy.largest(records, "seq_len", model="attention", precision="fp32", compiled=True)
    words = "compiled attention", "eager attention", "at {seq_len:,} tokens, head size {d_head}"
    return sentences.compare(records, case, {"compiled": False}, *words)


def _compiled_step(of: Machine) -> Statement:
    """Answer with the compiled step against the plain one, in the largest case."""
    steps = tidy.select(of.load("step"), **TRAINING)
    case = tidy.largest(steps, "forward_flops", precision="fp32", compiled=True, **step.PLAIN)
    words = "the compiled step", "the eager one", "at {size}, context {context_length}"
    return sentences.compare(steps, case, {"compiled": False}, *words)


def _tiled(of: Machine) -> Statement:
    """Answer with the time of tiled attention against naive attention, in the longest case."""
    records = of.load("attention")
    case = {**attention.longest_case(records, "tiled"), "variant": "tiled"}
    words = "tiled attention", "naive attention", "in plain PyTorch, at {batch_size} × {seq_len:,} tokens"
    return sentences.compare(records, case, {"variant": "naive"}, *words)


def _triton(of: Machine) -> Statement:
    """Answer with the time of ours in Triton against PyTorch's kernel, in the longest case."""
    case = flash.headline_case(tidy.select(of.load("flash"), variant="triton"))
    if case["seq_len"] is None:
        return sentences.missing("Our Triton kernel was not measured here: it needs an NVIDIA GPU.")
    return flash.answer(flash.alike(of.load("flash"), case), case)


def _flash(of: Machine) -> Statement:
    """Answer with ours against PyTorch's kernel and naive attention over all lengths."""
    case = flash.headline_case(of.load("flash"))
    records = flash.alike(of.load("flash"), case)
    return flash.turning(flash.outcomes(records, case), records, case)


def _optimizers(of: Machine) -> Statement:
    """Answer with the optimizer step of a model, and the fastest at each list of parameters."""
    records = of.load("adam")
    lists = tidy.select(records, **adam.LISTS)
    return sentences.together(adam.answer(records, adam.headline_case(records)), adam.tally(adam.wins(lists)))


def _all_reduces(of: Machine) -> Statement:
    """Answer with the largest all-reduce, and the latency and bandwidth of all."""
    records = collectives.prepared(of.load("collectives"))
    return collectives.answer(records, collectives.fits(records))


def _ranks_memory(of: Machine) -> Statement:
    """Answer with what a rank holds after a step, plain and with a sharded optimizer."""
    sharded = of.load("sharded")
    return parallel.memory(parallel.held(sharded, of.load("fsdp").iloc[:0]), sharded)


@dataclass(frozen=True)
class Question:
    """Hold a part of a problem: what it asks, its answer from records, and where that is shown.

    `experiment` and `where` select the records that bear on it. `asked` has the values that the assignment names for
    some fields; without any, the size does not matter."""

    problem: str
    part: str
    asks: str
    answer: Callable[[Machine], Statement]
    shown_in: tuple[str, ...]
    experiment: str = ""
    where: Mapping = field(default_factory=dict)
    asked: Mapping = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the assignment's name for the question."""
        return f"{self.problem} ({self.part})" if self.part else self.problem


# fmt: off
QUESTIONS = (
    Question("benchmarking_script", "a", "A script that times both passes of a model of any size",
             _script, STEP, "step", TRAINING),
    Question("benchmarking_script", "b", "How long forward and backward take at each size, and how much that varies",
             _passes, STEP, "step", TRAINING, MODELS),
    Question("benchmarking_script", "c", "What changes without warm-up, or with one or two steps of it",
             _warmups, WARMUPS, "warmup", {}, MODELS),
    Question("nsys_profile", "a", "How long the forward pass takes under the profiler, against a timer",
             _profiled(kernels.agreement), KERNELS, "kernels", {}, PROFILED),
    Question("nsys_profile", "b", "Which kernel takes the most time, and how often it runs",
             _profiled(kernels.leader), KERNELS, "kernels", {}, PROFILED),
    Question("nsys_profile", "c", "Which kernels besides matrix products take time in the forward pass",
             _profiled(kernels.besides), KERNELS, "kernels", {}, PROFILED),
    Question("nsys_profile", "d", "How the share of matrix products changes in a whole training step",
             _profiled(kernels.fall), KERNELS, "kernels", TRAINING, PROFILED),
    Question("nsys_profile", "e", "How softmax and matrix products in attention compare, in time and in FLOPs",
             _profiled(kernels.softmax), KERNELS, "kernels", {}, PROFILED),
    Question("mixed_precision_accumulation", "", "How exact four ways are to add up many small numbers",
             lambda of: precision.sums(of.load("precision")), SUMS, "precision", {"subject": "accumulation"}),
    Question("benchmarking_mixed_precision", "a", "Which dtypes a toy model's tensors have under autocast",
             lambda of: precision.observed(of.load("precision"), "fp16"), DTYPES, "precision", {"subject": "toy"}),
    Question("benchmarking_mixed_precision", "b", "What in layer norm is sensitive, and if bf16 differs from fp16",
             _norms, NORMS, "precision", {"subject": "layer_norm"}),
    Question("benchmarking_mixed_precision", "c", "How long both passes take in bf16, by model size",
             lambda of: precision.trend(tidy.select(of.load("step"), **TRAINING)), PRECISION, "step",
             TRAINING | {"precision": "bf16"}, {"size": SIZES}),
    Question("memory_profiling", "a", "What memory looks like over a forward pass and a training step",
             _step_with_most("parameters", "fp32", memory.answer), MEMORY, "memory", {}, PROFILED_MEMORY),
    Question("memory_profiling", "b", "How high the peak is at each context length",
             _peaks, MEMORY, "memory", {}, PROFILED_MEMORY),
    Question("memory_profiling", "c", "What mixed precision changes of the peak",
             _step_with_most("context_length", "bf16", memory.narrower), MEMORY, "memory", {"precision": "bf16"},
             PROFILED_MEMORY),
    Question("memory_profiling", "d", "How large one activation of the residual stream is",
             lambda _: memory.residual("2.7B", 256), MEMORY),
    Question("memory_profiling", "e", "How large the largest allocations are, and what made them",
             _step_with_most("context_length", "fp32", memory.scores), MEMORY, "memory", {}, PROFILED_MEMORY),
    Question("pytorch_attention", "", "How the time of naive attention grows, and where memory ends",
             _attention, ATTENTION, "attention", {"variant": "naive"}, SQUARES),
    Question("torch_compile", "a", "What compiling changes of attention",
             _compiled_attention, COMPILE, "compile", {"model": "attention", "compiled": True}, SQUARES),
    Question("torch_compile", "b", "What compiling changes of the whole model",
             _compiled_step, COMPILE, "step", TRAINING | {"compiled": True}, MODELS),
    Question("flash_forward, flash_backward", "PyTorch",
             "FlashAttention in plain PyTorch, checked against naive attention",
             _tiled, ATTENTION, "attention", {"variant": "tiled"}),
    Question("flash_forward", "Triton", "FlashAttention as our own Triton kernel",
             _triton, FLASH, "flash", {"variant": "triton"}),
    Question("flash_benchmarking", "", "How FlashAttention compares with naive attention",
             _flash, FLASH, "flash", {"variant": ["triton", "tiled"]},
             {"seq_len": tuple(2**power for power in range(7, 17)), "d_head": SQUARES["d_head"], "num_heads": (1,),
              "precision": ("bf16", "fp32")}),
    Question("distributed_communication_single_node", "", "How all-reduces grow with their size and with the ranks",
             _all_reduces, RING, "collectives", {"operation": "all_reduce"},
             {"megabytes": (1, 10, 100, 1000), "world": (2, 4, 6), "backend": ("gloo", "nccl")}),
    Question("naive_ddp_benchmarking", "", "What share of a naive data parallel step is communication",
             lambda of: parallel.share(of.load("ddp")), RANKS, "ddp", {"variant": "naive"}, {"size": ("xl",)}),
    Question("minimal_ddp_flat_benchmarking", "", "What one all-reduce of all gradients changes",
             lambda of: parallel.against(of.load("ddp"), "flat", "naive"), RANKS, "ddp", {"variant": "flat"},
             {"size": ("xl",)}),
    Question("ddp_overlap_individual_parameters_benchmarking", "", "What overlap with the backward pass changes",
             lambda of: parallel.against(of.load("ddp"), "overlap", "naive", "flat"), RANKS, "ddp",
             {"variant": "overlap"}, {"size": ("xl",)}),
    Question("ddp_bucketed_benchmarking", "", "Which bucket is best, by the model and measured",
             lambda of: collectives.bucket(of.load("ddp"), collectives.fits(of.load("collectives"))), RING, "ddp",
             {"variant": "bucketed"}, {"size": ("xl",), "bucket_mib": (1, 10, 100, 1000)}),
    *(Question("communication_accounting", part, asks, lambda _, part=part: parallel.xxl_answer(part), XXL)
      for part, asks in {
        "a": "What memory XXL needs", "b": "Over how many devices it must be sharded",
        "c": "From which batch size on it is compute-bound", "d": "How the batch can be smaller",
    }.items()),
    Question("optimizer_state_sharding_accounting", "a", "What memory a sharded optimizer saves",
             _ranks_memory, WRITTEN, "sharded", {}, {"size": ("xl",), "variant": ("plain", "sharded")}),
    Question("optimizer_state_sharding_accounting", "b", "What it changes of the time of a step",
             lambda of: parallel.slower(of.load("sharded")), WRITTEN, "sharded", {"variant": "sharded"},
             {"size": ("xl",)}),
    Question("optimizer_state_sharding_accounting", "c", "How it differs from ZeRO stage 1",
             lambda _: parallel.stages(), RANKS),
    Question("Adam, in two write-ups", "", "Which implementation of the optimizer step is fastest",
             _optimizers, ADAM, "adam", {}, LISTS),
)
# fmt: on


def status(question: Question, of: Machine) -> str:
    """Compare the cases that were run with those that the assignment asks for."""
    if not question.experiment:
        return AT_SIZE
    records = tidy.select(of.load(question.experiment), **question.where)
    done = records[records["status"].isin(DONE)]
    if not (done["status"] == "ok").any():
        return NOT_RUN
    asked = set(itertools.product(*question.asked.values()))
    return AT_SIZE if asked <= set(done[list(question.asked)].itertuples(index=False, name=None)) else SMALLER


class Answers:
    """Each question with its answer, a link to its chapter and its status, as a list of definitions."""

    def __init__(self, machine: str):
        of = Machine(machine)
        answered = [(one, one.answer(of)) for one in QUESTIONS]
        self.rows = [(one, said, NOT_RUN if said.verdict == NO_DATA else status(one, of)) for one, said in answered]
        steps = of.load("step")
        measured = steps[steps["device"] != "cuda"] if len(steps) else steps
        names = (name.partition(", freed")[0] for name in tidy.column(measured, "hardware"))
        self.hardware = " and ".join(dict.fromkeys(names))

    def summary(self) -> Statement:
        """Count the questions by status, and name the hardware if it is not what the assignment asks for."""
        found = Counter(mark for *_, mark in self.rows)
        be, was = ("is" if found[AT_SIZE] == 1 else "are"), ("was" if found[NOT_RUN] == 1 else "were")
        every, asked, smaller, without = map(
            digits.count, (len(self.rows), found[AT_SIZE], found[SMALLER], found[NOT_RUN])
        )
        text = (
            f"Of {every} questions, {asked} {be} answered at the size asked and {smaller} at "
            f"a smaller size; {without} {was} not run."
        )
        if self.hardware:
            text += f" The assignment asks for an NVIDIA GPU; these answers are from {self.hardware}."
        return Statement(text, "derived", "Cases that were run against those that the assignment names.")

    def overview(self) -> tables.Table:
        """Count the questions of each chapter by status."""
        found = Counter((question.shown_in[0], mark) for question, _, mark in self.rows)
        rows = [
            {"shown in": Markup(link_to(chapter)), **{mark: found[chapter, mark] for mark in STATUSES}}
            for chapter in dict.fromkeys(chapter for chapter, _ in found)
        ]
        caption = "The assignment's questions by chapter and by how they are answered"
        return tables.Table(pd.DataFrame(rows, dtype=object), caption)

    def _repr_html_(self) -> str:
        return f'<dl class="questions">{"".join(itertools.starmap(_row_html, self.rows))}</dl>'


@cache
def headings(chapter: str) -> tuple[str, ...]:
    """Return the headings of a chapter, its title first."""
    cells = json.loads((notebooks.CHAPTERS / f"{chapter}.ipynb").read_text())["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return tuple(re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE))


def link_to(chapter: str, heading: str = "") -> str:
    """Return a link to a chapter or to a heading of it."""
    title = heading or headings(chapter)[0]
    return f'<a href="#{tables.anchor(chapter, title)}">{html.escape(title)}</a>'


def _row_html(question: Question, answer: Statement, mark: str) -> str:
    """Return a question, its status and its answer as HTML."""
    said = quantities.marked(answer.text, answer.quantities)
    name, asks = html.escape(question.name), html.escape(question.asks)
    link = "" if mark == NOT_RUN else f"; {link_to(*question.shown_in)}"
    return (
        f'<dt>{asks} <small>{name}</small></dt><dd>{said} <small data-verdict="{mark}"><b>{mark}</b>{link}</small></dd>'
    )
