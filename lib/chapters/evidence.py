"""The numbers that the statements of public write-ups are about, selected and estimated from records or from printed
tables; knows no verdict.

`Data` are the records of each experiment by its name, or printed tables in their shape.
"""

import math
from collections.abc import Callable, Mapping

import pandas as pd

from lib.chapters import kernels, memory, precision, warmup
from lib.instruments import kernel_classes
from lib.report import claims, tidy
from lib.report.claims import LESS, MORE, Found, about
from lib.report.published import published_table
from lib.stats import comparisons

Data = Mapping[str, pd.DataFrame]
STEP, CASE = "at size {size}, context {context_length}", "for {num_params} × {param_size:,} elements"
TOKENS = "at {seq_len:,} tokens, head size {d_head}"


def _rows(data: Data, experiment: str, **where) -> pd.DataFrame:
    """The rows of an experiment with these values of fields; a printed table, which has not all fields, by those that
    it has. Empty where there are none."""
    records = data.get(experiment, pd.DataFrame({"status": []}))
    records.attrs.setdefault("fields", [])
    return tidy.select(records, **_had(records, where))


def _had(records: pd.DataFrame, where: Mapping) -> dict:
    """Of these values of fields those that a printed table has at all; of records all."""
    return {name: value for name, value in where.items() if name in records or not claims.printed(records)}


def _steps(data: Data, **where) -> pd.DataFrame:
    return _rows(data, "step", mode="train_step", **where)


def backward_twice_forward(data: Data) -> list[Found]:
    """The backward pass relative to the forward pass of the same iteration, of each eager step in fp32."""
    steps = _steps(data, precision="fp32", compiled=False)
    if steps.empty:
        return []
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    return claims.medians(steps, "backward_to_forward", about(2), STEP)


def _warmups(data: Data, after: int) -> tuple[list[float], list[str]]:
    """The deviations of ten whole steps after so many warm-ups, in percent of their mean, one a case and process."""
    records = _rows(data, "warmup")
    if records.empty:
        return [], []
    if claims.printed(records):
        return list(records.loc[records["warmups"] == after, "deviation_percent"]), []
    table = warmup.after_warmups(warmup.cold(records))
    table = table[(table["phase"] == warmup.WHOLE) & (table["warmups"] == after)]
    return [percent for percents in table["percents"] for percent in percents], claims.names(records)


def spread(data: Data) -> list[Found]:
    """The deviations after five warm-ups."""
    values, names = _warmups(data, warmup.FULL)
    return [claims.usual("% of the mean, over cases and processes", values, (0, 1), names)] if values else []


def cold_spread(data: Data) -> list[Found]:
    """The largest deviation without warm-up, in units of the mean."""
    values, names = _warmups(data, 0)
    most = max(values, default=0) / 100
    return [claims.known(f"times the mean at most, of {len(values)}", most, (1.44, math.inf), names)] if values else []


def one_warmup(data: Data) -> list[Found]:
    """The mean after one warm-up relative to that after five, of each case."""
    near, label = (1 / (1 + comparisons.MARGIN), 1 + comparisons.MARGIN), "at size {size}, context {context_length}"
    records = _rows(data, "warmup")
    if records.empty:
        return []
    if claims.printed(records):
        rows = records[records["warmups"] == 1].to_dict("records")
        return [claims.known(f"{label}, {{phase}}".format(**row), row["ratio"], near) for row in rows]
    records = warmup.cold(records)
    table = warmup.one_against_five(records)
    names = [claims.names(tidy.select(records, **row[records.attrs["fields"]])) for _, row in table.iterrows()]
    rows = zip(table.to_dict("records"), names, strict=True)
    return [claims.estimated(label.format(**row), row["ratio"], near, of) for row, of in rows]


def _profiled(data: Data) -> tuple[pd.DataFrame, list[str]]:
    """The records of the step that the chapter on kernels speaks of, and their names; none of a printed table."""
    records = _rows(data, "kernels")
    if claims.printed(records):
        return records.iloc[:0], []
    chosen = tidy.select(records, **kernels.head(records)) if len(records) else records
    return chosen, claims.names(chosen) if len(chosen) else []


def _product_share(data: Data, scope: str, within: tuple[float, float]) -> list[Found]:
    label = f"% of the {scope if scope == 'whole step' else scope + ' pass'}"
    if claims.printed(_rows(data, "kernels")):
        row = data["kernels"].set_index("scope").loc[scope]
        return [claims.between(label, row["matrix_product_percent"], 100 - row["else_percent"], within)]
    records, names = _profiled(data)
    share = kernels.share(records, scope, kernel_classes.PRODUCT) if len(records) else None
    return [claims.estimated(label, share, within, names)] if share else []


def products_of_forward(data: Data) -> list[Found]:
    """The share of matrix products in the forward pass."""
    return _product_share(data, "forward", (85, 100))


def products_of_step(data: Data) -> list[Found]:
    """The share of matrix products in a whole step, and that relative to their share in the forward pass."""
    found = _product_share(data, "whole step", about(68, 0.1))
    records, names = _profiled(data)
    fall = kernels.fall(records) if len(records) else None
    return found + ([claims.estimated("of the share in the forward pass", fall, LESS, names)] if fall else [])


def top_kernel(data: Data) -> list[Found]:
    """Whether the kernel that takes the most of the forward pass takes the most of forward and backward too."""
    every, label = (1.0, 1.0), "processes have the same kernel at the top of both"
    if claims.printed(_rows(data, "kernels")):
        table = published_table("kernels")
        tops = [table[table["phase"] == phase].nlargest(2, "total_us") for phase in ("forward", "forward_backward")]
        same = set(tops[0]["kernel"]) == set(tops[1]["kernel"])
        said = "the same" if same else "not the same"
        return [claims.known("two kernels at the top of both", float(same), every, shown=said)]
    records, names = _profiled(data)
    both = [kernels.leaders(records, scope) for scope in ("forward", "forward and backward")] if len(records) else []
    same = [one["kernel"] == other["kernel"] for one, other in zip(*both, strict=True)] if both else []
    return [claims.known(label, sum(same) / len(same), every, names, f"{sum(same)} of {len(same)}")] if same else []


def softmax(data: Data) -> list[Found]:
    """The shares of softmax in attention's time and in its FLOPs, forward."""
    records, names = _profiled(data)
    table = kernels.parts(records) if len(records) else pd.DataFrame(columns=["phase", "part"])
    table = table[(table["phase"] == "forward") & (table["part"] == "softmax")]
    if table.empty:
        return []
    row = table.iloc[0]
    return [
        claims.estimated("% of the time of attention", row["time_percent"], about(6.1), names),
        claims.known("% of its FLOPs", row["flops_percent"], (0, 5), names),
    ]


def sums(data: Data) -> list[Found]:
    """A thousand times 0.01, added in three ways."""
    table = precision.loops(_rows(data, "precision")) if "precision" in data else pd.DataFrame()
    said = {"fp32 += fp32": 10.0001, "fp16 += fp16": 9.9531, "fp32 += fp16": 10.0021}
    found = dict(zip(table["loop"], table["number"], strict=True)) if len(table) else {}
    names = claims.names(_rows(data, "precision", subject="accumulation")) if found else []
    limits = {name: (value - 5e-5, value + 5e-5) for name, value in said.items()}
    return [
        claims.known(f"by {name}", found[name], limits[name], names, f"{found[name]:.9g}")
        for name in said
        if name in found
    ]


def dtypes(data: Data) -> list[Found]:
    """The bits of four of the toy model's tensors under autocast to fp16."""
    said = {"logits": "fp16", "output of layer norm": "fp32", "loss": "fp16", "gradients of the parameters": "fp32"}
    if "precision" not in data:
        return []
    table = precision.dtypes(_rows(data, "precision"), "toy")
    found = dict(zip(table["tensor"], table["fp16"], strict=True)) if "fp16" in table else {}
    names = claims.names(_rows(data, "precision", subject="toy", precision="fp16")) if found else []
    bits = {"fp16": 16.0, "bf16": 16.0, "fp32": 32.0}
    rows = [(name, bits[found[name]], bits[said[name]]) for name in said if name in found]
    return [claims.known(f"in the {name}", own, (theirs, theirs), names, f"fp{own:.0f}") for name, own, theirs in rows]


def mixed_speed(data: Data) -> list[Found]:
    """The smallest and the largest of the models that were measured in both precisions."""
    steps = _steps(data)
    of, to = {"precision": "bf16"}, {"precision": "fp32"}
    rows = [case for case in claims.cases(steps, compiled=False, **of) if claims.cases(steps, **{**case, **to})]
    rows.sort(key=lambda case: (tidy.ORDER.index(case["size"]), case["context_length"]))
    if not rows or rows[0]["size"] == rows[-1]["size"]:
        return []
    ends = ((rows[0], MORE), (rows[-1], LESS))
    return [one for case, side in ends for one in claims.ratio(steps, "total_ms", case, {**case, **to}, side, STEP)]


def mixed_memory(data: Data) -> list[Found]:
    """The largest of the ratios of peaks in bf16 to fp32."""
    label = "times as much " + STEP + ", {mode}, the most of {{}} cases"
    bf16, fp32 = {"precision": "bf16"}, {"precision": "fp32"}
    found = claims.ratios(_rows(data, "memory", checkpoint=0), "peak_mib", bf16, fp32, MORE, label)
    most = max(found, key=lambda one: one.value.value, default=None)
    return [claims.known(most.of.format(len(found)), most.value.value, MORE, most.records)] if most else []


def residual(_: Data) -> list[Found]:
    """The size of an activation of the residual stream of xl at context 256, by its shape."""
    shape = memory.shape("xl", 256)
    mib = shape.batch_size * shape.context_length * shape.d_model * 4 / 2**20
    return [claims.known("MiB by its shape, 4 bytes a number", mib, about(12.5, 0.01))]


def largest_allocation(data: Data) -> list[Found]:
    """The largest allocation of the forward pass that has the most tokens, beside the scores of a layer in theory."""
    records = _rows(data, "memory", mode="forward", precision="fp32", attention="naive")
    case = tidy.largest(records, "context_length") if len(records) else {}
    record = memory.one(records, case) if case.get("size") else pd.Series(dtype=object)
    if not isinstance(record.get("largest"), dict):
        return []
    size, maker = record["largest"]["each_mib"][0], record["largest"]["function"][0]
    names, where = claims.names(tidy.select(records, **case)), STEP.format(**case)
    return [
        claims.known(f"times the scores of a layer, {where}", size / record["scores_mib"][0], about(1, 1e-6), names),
        claims.known("is the function that made it", float("attention" in maker), MORE, names, maker),
    ]


def attention_grows(data: Data) -> list[Found]:
    """The exponents of time and memory of naive attention, up to 8,192 tokens."""
    records = _rows(data, "attention", variant="naive", precision="fp32", causal=True, cold=False)
    lengths = {"seq_len": [length for length in set(records.get("seq_len", [])) if 256 <= length <= 8192]}
    folds = {"total_ms": (80, "time"), "forward_end_mib": (60, "memory")}
    return [
        one
        for metric, (fold, word) in folds.items()
        for one in claims.exponent(
            records, metric, "seq_len", tuple(math.log(end) / math.log(8192 / 256) for end in about(fold)),
            f"is the exponent of {word} up to {{seq_len:,}} tokens, head size {{d_head}}", **lengths,
        )
    ]  # fmt: skip


def compiled_attention(data: Data) -> list[Found]:
    """Compiled against naive attention at the most tokens, of each head size."""
    records = _rows(data, "attention")
    where = _had(records, {"precision": "fp32", "causal": True, "cold": False})
    longest = max((case["seq_len"] for case in claims.cases(records, variant="compiled", **where)), default=None)
    of, to = {"variant": "compiled", "seq_len": longest}, {"variant": "naive"}
    return claims.ratios(records, "total_ms", of, to, LESS, TOKENS, **where)


def compiled_step(data: Data) -> list[Found]:
    """The compiled step against the eager one, of each size and context."""
    of, to = {"compiled": True}, {"compiled": False}
    return claims.ratios(_steps(data), "total_ms", of, to, LESS, STEP, precision="fp32")


def tf32(data: Data) -> list[Found]:
    """At the largest size: what TF32 brings to the compiled step, beside what compiling brings to the eager one."""
    steps = _steps(data)
    case = max(
        claims.cases(steps, precision="tf32", compiled=True), default=None,
        key=lambda case: (tidy.ORDER.index(case["size"]), case["context_length"]),
    )  # fmt: skip
    if case is None:
        return []
    compiled, eager = {**case, "precision": "fp32"}, {**case, "precision": "fp32", "compiled": False}
    return claims.contrast(
        steps, "total_ms", (case, compiled), (compiled, eager), LESS, "is the gain of TF32 to that of compiling " + STEP
    )


LISTS = {"shapes": "equal", "amsgrad": True, "cold": False}  # of parameters, and how the step on them runs


def compiled_against(*rivals: str, within: tuple[float, float], **where) -> Callable[[Data], list[Found]]:
    """The compiled single-tensor step against others, on lists of parameters with these values."""

    def find(data: Data) -> list[Found]:
        records = _rows(data, "adam")
        of, chosen = {"variant": "compiled_single_tensor"}, where | _had(records, LISTS)
        found = []
        for rival in rivals:
            found += claims.ratios(
                records, "total_ms", of, {"variant": rival}, within, f"times {rival} {CASE}", **chosen
            )
        return found

    return find


def many_parameters(data: Data) -> list[Found]:
    """How the ratio of compiled to eager changes from at most 8 parameters to the most."""
    records, found = _rows(data, "adam", **LISTS), []
    rows = claims.cases(records, variant="compiled_single_tensor")
    for size in sorted({case["param_size"] for case in rows}):
        counts = sorted(case["num_params"] for case in rows if case["param_size"] == size)
        few = max((count for count in counts if count <= 8), default=None)
        if few is None or counts[-1] <= 16:
            continue
        many = next(case for case in rows if case["param_size"] == size)
        sides = [{**many, "num_params": count} for count in (counts[-1], few)]
        pairs = [(side, {**side, "variant": "single_tensor"}) for side in sides]
        found += claims.contrast(records, "total_ms", *pairs, MORE, f"times the ratio for {few}, " + CASE)
    return found
