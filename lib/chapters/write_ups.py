"""Judge claims of public write-ups by their own tables and by records.

The claims are those of `reports/reference/published/claims.csv`, in its order and by its names.
"""

import functools
import html
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pandas as pd
from markupsafe import Markup

from lib.chapters import adam, attention, capacity, compile, kernels, memory, precision, step, warmup
from lib.records import results, staleness
from lib.records.frame import Frame
from lib.report import claims, tables, tidy
from lib.report.claims import CONTRADICTED, LESS, MORE, NOT_COMPARABLE, SUPPORTED, Claim, Judgement
from lib.report.published import published_adam, published_attention, published_step, published_table
from lib.report.sentences import Statement
from lib.stats import digits

# fmt: off
_DECISIONS = {  # by the claim's name: the finder, the rule, the texts if it holds and if not, the numbers needed
    "backward-twice-forward": (
        step.backward_twice_forward, "the ratio lies within a fifth of 2 in every case",
        "a backward pass takes about twice the forward", "a backward pass does not take about twice the forward"),
    "spread-under-one-percent": (
        warmup.spread, "the median deviation after five warm-ups is under 1% of the mean, by its interval",
        "after warm-ups the deviation is usually under 1%", "after warm-ups the deviation is usually above 1%"),
    "cold-spread": (
        warmup.cold_spread, "without warm-up the largest deviation is at least 1.44 times the mean, 1.8 less a fifth",
        "without warm-up the deviation reaches 1.8 times the mean", "without warm-up the deviation stays far below 1.8 "
        "times the mean"),
    "one-warmup-nearly-enough": (
        warmup.one_warmup, "the mean after one warm-up lies within 3% of that after five in every case",
        "one warm-up is nearly as good as five", "one warm-up is not as good as five"),
    "matmul-85-of-forward": (
        kernels.products_of_forward, "the share is above 85%",
        "matrix products take more than 85% of the forward pass", "matrix products take less than 85% of the forward "
        "pass"),
    "matmul-68-of-step": (
        kernels.products_of_step, "the share lies within a tenth of 68%, and below that in the forward pass",
        "in a whole step the share of matrix products falls to about 68%", "in a whole step the share of matrix "
        "products does not fall to about 68%"),
    "top-kernel-same": (
        kernels.top_kernel, "the same in every process",
        "the kernels that take most of the forward pass take most of forward and backward too", "forward and backward "
        "are led by another kernel than the forward pass"),
    "softmax-6-percent": (
        kernels.softmax_share, "the share of time lies within a fifth of 6.1%, that of FLOPs below 5%",
        "softmax takes about 6.1% of attention with next to none of its FLOPs", "softmax does not take about 6.1% of "
        "attention"),
    "accumulate-fp32": (
        precision.three_sums, "equal to the four digits that were printed, all three", "the three sums are as printed",
        "the three sums are not as printed", 3),
    "autocast-dtypes": (
        precision.four_dtypes, "each as said, all four", "the tensors under fp16 autocast have the dtypes named",
        "not all tensors under fp16 autocast have the dtypes named", 4),
    "mixed-slower-small": (
        precision.mixed_speed, "bf16 to fp32 above 1 for the smallest model and below 1 for the largest",
        "mixed precision is slower for the smallest model and faster for the largest", "it is not true that mixed "
        "precision is slower for the smallest model and faster for the largest", 2),
    "mixed-memory-not-always": (
        memory.mixed_memory, "in at least one case the peak in mixed precision is the larger",
        "mixed precision does not always reduce the peak", "mixed precision reduces every peak"),
    "residual-12-5-mb": (
        memory.residual_by_shape, "within 1%", "an activation of the residual stream has 12.5 MiB",
        "an activation of the residual stream does not have 12.5 MiB"),
    "largest-allocation-softmax": (
        memory.largest_allocation, "it has the size of a layer's scores, and attention made it",
        "the largest allocation of a forward pass is made by softmax", "the largest allocation of a forward pass is "
        "not made by softmax", 2),
    "attention-superlinear": (
        attention.attention_grows, "the exponents are those of 80-fold and 60-fold over 32 times the tokens, each fold "
        "within a fifth", "attention grows like 80-fold in time and 60-fold in memory over 32 times the tokens",
        "attention does not grow like 80-fold in time and 60-fold in memory over 32 times the tokens", 2),
    "compile-speeds-attention": (
        compile.compiled_attention, "compiled to eager below 1 at the longest sequence, for every head size",
        "compiling makes attention at long sequences faster", "compiling does not make attention at long sequences "
        "faster"),
    "compile-speeds-step": (
        compile.compiled_step, "compiled to eager below 1 at every size and context",
        "compiling makes the training step faster at every size", "compiling does not make every training step "
        "faster", 2),
    "tf32-speeds-large": (
        compile.tf32_to_compiling, "at the largest size TF32 shortens the compiled step by more than compiling the "
        "eager one",
        "TF32 brings most of the gain for large models", "TF32 does not bring most of the gain for large models"),
    "compiled-adam-fastest": (
        partial(adam.compiled_against, rivals=["single_tensor", "fused"], within=LESS, num_params=1, param_size=16384),
        "less time than single_tensor and than fused", "the compiled single-tensor Adam is the fastest for one "
        "parameter of 16,384 elements", "the compiled single-tensor Adam is not the fastest for one parameter of "
        "16,384 elements", 2),
    "compiled-adam-many": (
        adam.many_parameters, "its ratio to single_tensor is larger for the most parameters than for at most 8",
        "the compiled Adam gets worse against the eager one as parameters become many", "the compiled Adam does not "
        "get worse against the eager one as parameters become many"),
    "compiled-adam-large": (
        partial(adam.compiled_against, rivals=["single_tensor"], within=MORE, num_params=[1, 2, 4, 8],
                param_size=[1048576, 4194304]),
        "more time than single_tensor for at most 8 parameters of at least 1,048,576 elements, in every case",
        "the compiled Adam is slower than the eager one for few large parameters", "the compiled Adam is not slower "
        "than the eager one for few large parameters"),
    "compiled-adam-small": (
        partial(adam.compiled_against, rivals=["single_tensor", "fused"], within=LESS, num_params=[1, 2],
                param_size=16384),
        "less time than single_tensor and than fused for one or two parameters of 16,384 elements",
        "for small models the compiled Adam gives a benefit", "for small models the compiled Adam gives no benefit "
        "over the others", 2),
}
# fmt: on


GPU = "an A100 or H100 and models that fill it"  # what most statements of write-ups 002 to 004 are about
ANYWHERE = {  # their statements that any machine can contradict: about bytes, dtypes or rounding
    "accumulate-fp32", "autocast-dtypes", "mixed-memory-not-always", "residual-12-5-mb",
}  # fmt: skip


@functools.cache
def published() -> tuple[Claim, ...]:
    """Return every claim of `claims.csv`."""
    table = published_table("claims").set_index("id")[["source", "experiment", "claim"]]
    found = []
    for name, decision in _DECISIONS.items():
        source, experiment, says = table.loc[name]
        about = "" if experiment == "adam" or name in ANYWHERE else GPU
        found.append(Claim(name, source, experiment, says, *decision, about=about))
    return tuple(found)


def sources() -> pd.DataFrame:
    """Return what each public write-up is: its name with its address, hardware, date and what it measured."""
    table = published_table("sources")
    addresses = table.pop("address").fillna("").str.removeprefix("https://")
    table["source"] = pd.Series(
        [
            Markup("{}<br>").format(name) + Markup("/<wbr>").join(address.split("/")) if address else name
            for name, address in zip(table["source"], addresses, strict=True)
        ],
        dtype=object,
    )
    return table


FIELDS = (  # fields of a case that a printed table may have
    *("size", "context_length", "seq_len", "d_head", "batch_size", "num_params", "param_size"),
    *("precision", "compiled", "variant", "mode", "hardware"),
)


@functools.cache
def own_tables(source: str) -> dict[str, pd.DataFrame]:
    """Return what a claim's write-ups printed of each experiment, in the shape of records.

    Metrics in ms and MiB are lists of one number, and the attribute `printed` is set. The tables are cached: do not
    change them. A step's `total_ms` is that of forward and backward if no more was printed. Warm-ups and kernels have
    the tables of their chapters."""
    steps, peaks = published_step(), capacity.published()
    found = {
        "step": steps.assign(total_ms=steps["total_ms"].fillna(steps["forward_backward_ms"])),
        "attention": published_attention(),
        "adam": published_adam().drop(columns=["amsgrad", "cold"]),
        "memory": peaks.assign(peak_mib=peaks["published_gib"] * 2**10),
        "warmup": warmup.published(),
        "kernels": kernels.published_shares(),
    }
    frames, write_ups = {}, [f"write-up {number}" for number in source.split(" and ")]
    for experiment, table in found.items():
        chosen = pd.concat([tidy.select(table, source=name) for name in write_ups], ignore_index=True)
        metrics = [metric for metric in chosen if metric.endswith(("_ms", "_mib"))]
        lists = {metric: chosen[metric].map(lambda of: None if pd.isna(of) else [float(of)]) for metric in metrics}
        fields = [field for field in FIELDS if field in chosen]
        if len(chosen):
            frame = Frame(chosen.assign(**lists, status="ok", round=1))
            frames[experiment] = frame.with_origin(fields=fields, experiment=experiment, printed=True)
    return frames


@functools.cache
def on_own_tables() -> tuple[Judgement, ...]:
    """Judge each claim by the tables of the write-ups that it comes from."""
    return tuple(claims.judge([claim], own_tables(claim.source), "printed")[0] for claim in published())


def on_records(machine: str) -> list[Judgement]:
    """Judge every claim by a machine's records as one table; a CPU contradicts no statement about a GPU."""
    data = {name: results.load(name, machine) for name in dict.fromkeys(claim.experiment for claim in published())}
    devices = {device for records in data.values() for device in tidy.column(records, "device").dropna()}
    return claims.judge(published(), data, comparable="cuda" in devices)


NOTE = (
    "A verdict opens to its sentence, rule and numbers. Of the statements that the records decide, on average at most "
    "2.5% are decided wrongly (Benjamini and Hochberg). Printed tables have no intervals and count as they stand. Not "
    "comparable: the statement is about other hardware or larger models. No data: its table was not printed, or its "
    "cases were not measured."
)


OWN, HERE = "its own table", "this machine"  # columns of verdicts


class Ledger(tables.Table):
    """A table of the claims with their verdicts.

    Each is judged by its own table, by the reference machines and by this machine. A verdict opens to its numbers."""

    def __init__(self, machine: str):
        kept = results.references(machine)
        own = on_own_tables()
        stale = staleness.left_out(*(results.load(name, machine) for name in {one.claim.experiment for one in own}))
        self.about = f"{NOTE} {stale}".strip()
        self.rows = list(zip(own, *(on_records(name) for name in [*kept, machine]), strict=True))
        words = [[row[0].claim.says, row[0].claim.source, *(one.verdict for one in row)] for row in self.rows]
        caption = "What the public write-ups say, and whether their own tables and the records bear it out"
        super().__init__(pd.DataFrame(words, columns=["claim", "write-up", OWN, *kept, HERE]), caption)

    def summary(self) -> Statement:
        """Say how many claims hold by their own tables and by this machine's records."""
        own, here = (Counter(self.frame[name]) for name in (OWN, HERE))
        text = (
            f"The write-ups' own tables bear out {digits.count(own[SUPPORTED])} of their "
            f"{digits.count(len(self.rows))} statements and contradict {digits.count(own[CONTRADICTED])}. "
            f"The records of this machine bear out {digits.count(here[SUPPORTED])} and contradict "
            f"{digits.count(here[CONTRADICTED])}; "
            f"{digits.count(here[NOT_COMPARABLE])} are about other hardware or larger models."
        )
        records = tuple(dict.fromkeys(name for row in self.rows for name in row[-1].statement.records))
        return Statement(text, "measured", self.about, records)

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.frame)
        rows = "".join(f"<tr>{_row_cells(row)}</tr>" for row in self.rows)
        return (
            f'<figure class="table ledger"><figcaption><b class="label">Table</b> {self.caption}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{self.caption}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            f'<p class="note">{html.escape(self.about)}</p></figure>'
        )


def _row_cells(row: Sequence[Judgement]) -> str:
    claim = row[0].claim
    cells = f'<th scope="row">{html.escape(claim.says)}</th><td>{html.escape(claim.source)}</td>'
    return cells + "".join(f"<td>{one.statement.mark()}</td>" for one in row)
