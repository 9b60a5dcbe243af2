"""Says in sentences what the records of sums, norms and dtypes in narrow types show; measures nothing."""

import pandas as pd

from lib.chapters.precision import NORMS, TERM, TITLES, dtypes, loops, overflows, published_speed, rows, speed
from lib.report import sentences, tidy
from lib.report.sentences import NO_DATA, Statement, of_records, together
from lib.stats import digits


@of_records()
def sums(records: pd.DataFrame, narrow: str) -> Statement:
    """The results of the four loops of a narrow dtype."""
    table = loops(records)
    found = dict(zip(table["loop"], table["sum"], strict=True)) if len(table) else {}
    names = ["fp32 += fp32", f"{narrow} += {narrow}", f"fp32 += {narrow}", f"fp32 += {narrow} as fp32"]
    if not set(names) <= set(found):
        return Statement(f"The four loops of {narrow} were not run here.", NO_DATA, "accumulation")
    text = (
        f"A thousand terms of {digits.exact(TERM)} add up to {found[names[0]]} in fp32, to {found[names[1]]} in "
        f"{narrow}, to {found[names[2]]} where {narrow} terms go into an fp32 sum, and to {found[names[3]]} where they "
        "are converted to fp32 before."
    )
    errors = table.set_index("loop")["sum_error"]
    return Statement(text, "measured", "; ".join(f"{name}: error {errors[name]}" for name in names) + ".")


@of_records()
def reasons(records: pd.DataFrame, narrow: str) -> Statement:
    """Why the loops of a narrow dtype are wrong: the term as stored, and the additions."""
    table = loops(records)
    table = table.set_index("loop") if len(table) else table
    own, wide, cast = f"{narrow} += {narrow}", f"fp32 += {narrow}", f"fp32 += {narrow} as fp32"
    if own not in table.index:
        return Statement(f"The loops of {narrow} were not run here.", NO_DATA, "accumulation")
    row, other = table.loc[own], table.loc[wide]
    alone = "which is all of the error" if other["sum_error"] == other["stored_error"] else "beside the error"
    text = (
        f"In {narrow}, {digits.exact(TERM)} is stored with an error that makes {row['stored_error']} over the thousand "
        f"terms, {alone} of the sum in fp32, {other['sum_error']}. The additions in {narrow} bring "
        f"{row['added_error']}: at its end the sum can change by steps of {row['spacing']} only, and rounding to such "
        f"a step may lose {digits.number(row['half_percent'])}% of a term."
    )
    if row["stalls_after"] != "never":
        text += (
            f" Half a step is more than a term from there on: after {row['stalls_after']} terms the sum stays at "
            f"{row['sum']}, whatever is added."
        )
    if table.loc[cast, "number"] == other["number"]:
        text += " To convert the term to fp32 first changes nothing, since the addition converts it anyway."
    return Statement(text, "measured", f"Loops {own}, {wide} and {cast}; spacing from the dtype's significand.")


@of_records()
def observed(records: pd.DataFrame, narrow: str) -> Statement:
    """The answer to the assignment's question after the dtypes of the toy model, in its order."""
    table = dtypes(records, "toy")
    if narrow not in table:
        return Statement(f"The toy model under {narrow} autocast was not observed here.", NO_DATA, "toy")
    found = table.set_index("tensor")[narrow]
    asked = {
        "parameters": "the parameters are in",
        "output of the first layer": "the output of the first layer in",
        "output of layer norm": "that of layer norm in",
        "logits": "the logits in",
        "loss": "the loss in",
        "gradients of the parameters": "the gradients in",
    }
    parts = [f"{words} {found[name]}" for name, words in asked.items()]
    text = f"Under {narrow} autocast on {table['device'].iloc[0]}, {', '.join(parts[:-1])} and {parts[-1]}."
    return Statement(text, "measured", "As hooks saw them: " + "; ".join(f"{n}: {d}" for n, d in found.items()) + ".")


@of_records()
def sensitive(records: pd.DataFrame, subject: str, precision: str) -> Statement:
    """Which step of a norm leaves the range of a dtype, from which scale on, and what comes out."""
    name = TITLES[subject]
    errors = rows(records, "norm_errors")
    errors = errors[(errors["subject"] == subject) & (errors["precision"] == precision)]
    if errors.empty:
        return Statement(f"A {name} in {precision} was not computed here.", NO_DATA, subject)
    errors = errors[errors["offset"] == 0]
    at_one = errors[errors["scale"] == 1]["relative_error"].iloc[0]
    found = rows(records, "norm_limits")
    found = found[(found["subject"] == subject) & (found["precision"] == precision) & (found["offset"] == 0)]
    text = (
        f"Computed in {precision} throughout, {name} has an error of {digits.number(at_one)} on standard normal inputs"
    )
    over = found[found["what"] == "overflows"].sort_values("scale") if len(found) else found
    if over.empty:
        largest, smallest = errors["scale"].max(), errors["scale"].min()
        ends = f"{digits.exact(smallest)} to {digits.exact(largest)}"
        text += f", and nothing overflows on inputs from {ends} times as large."
        return Statement(text, "measured", f"{len(errors)} scales.")
    first = over.iloc[0]
    text += f"; on inputs {digits.exact(first['scale'])} times as large its {first['step']} overflows"
    result = errors[errors["scale"] == first["scale"]]["relative_error"]
    if len(result) and result.iloc[0] == 1:
        text += ", and the norm is silently zero, since it divides by infinity"
    under = found[(found["what"] == "underflows") & (found["scale"] < 1)].sort_values("scale", ascending=False)
    if len(under):
        last = under.iloc[0]
        text += f". On inputs {digits.exact(last['scale'])} times as large half or more of its {last['step']} is zero"
        small = errors[errors["scale"] == last["scale"]]["relative_error"]
        text += f", which eps hides: the error is {digits.number(small.iloc[0])}" if len(small) else ""
    return Statement(text + ".", "measured", f"{len(errors)} of the scales give a finite norm.")


@of_records()
def kernel(records: pd.DataFrame, precision: str) -> Statement:
    """Whether PyTorch's own layer norm fails where the one that is computed step by step overflows."""
    table = rows(records, "kernel_errors")
    table = table[(table["subject"] == "layer_norm") & (table["precision"] == precision)] if len(table) else table
    lost = sorted(set(overflows(rows(records, "norm_limits"), "layer_norm", precision)) & set(table.get("scale", [])))
    if not lost:
        return Statement(
            f"PyTorch's own layer norm was not tried in {precision} where steps overflow.", NO_DATA, "kernel"
        )
    worst = table[table["scale"].isin(lost)]["relative_error"].max()
    scales = " to ".join(map(digits.exact, dict.fromkeys((lost[0], lost[-1]))))
    text = (
        f"PyTorch's own layer norm, one kernel, takes the same {precision} inputs at scales {scales}, where the one "
        f"computed step by step overflows, with an error of {digits.number(worst)} at most."
    )
    return Statement(text, "measured", f"Scales {', '.join(f'{scale:g}' for scale in lost)}.")


def published_trend() -> Statement:
    """At which sizes a write-up's eager passes in bf16 took less time than in fp32, and at which more."""
    table = tidy.select(published_speed(), compiled=False)
    faster = table["forward_backward_ratio"] < 1
    more, less = (", ".join(table[which]["size"]) for which in (~faster, faster))
    of = f"{table['source'].iloc[0]}, on {table['hardware'].iloc[0]} and without compiling"
    text = f"In {of}, forward and backward together take more time in bf16 than in fp32 at {more}, and less at {less}."
    return Statement(text, "published", "Published means, each size in both precisions on the same hardware.")


@of_records()
def offset_error(records: pd.DataFrame, precision: str) -> Statement:
    """How a mean that is large beside the deviation spoils layer norm, and not RMS norm, which subtracts none."""
    errors = rows(records, "norm_errors")
    at = errors[(errors["precision"] == precision) & (errors["scale"] == 1)] if len(errors) else errors
    found = {norm: at[at["subject"] == norm].set_index("offset")["relative_error"] for norm in NORMS if len(at)}
    common = sorted(set.intersection(*(set(series.index) for series in found.values()))) if found else []
    if len(common) < 2:
        return Statement(f"Inputs with a large mean were not tried in {precision} here.", NO_DATA, "offset")
    most = common[-1]
    text = (
        f"In {precision}, a mean of {digits.exact(most)} standard deviations takes the error of layer norm from "
        f"{_ends(found['layer_norm'], common)}, and that of RMS norm from {_ends(found['rms_norm'], common)}."
    )
    return Statement(text, "measured", f"Offsets {', '.join(f'{offset:g}' for offset in common)} at scale one.")


def _ends(errors: pd.Series, offsets: list[float]) -> str:
    return " to ".join(digits.number(errors[offset]) for offset in (offsets[0], offsets[-1]))


def trend(steps: pd.DataFrame) -> Statement:
    """A step in bf16 against fp32 at each size measured, and whether the ratio falls with the size."""
    table = speed(steps)
    if table.empty:
        text = "Steps in bf16 and in fp32 were not both measured here."
        return Statement(text, NO_DATA, "step")
    fields = steps.attrs["fields"]
    label = tidy.labelled(table, fields)["label"] if len(table) > 1 else table["size"]
    every = [
        sentences.compare(
            steps, "total_ms", row[fields].to_dict(), {**row[fields], "precision": "fp32"}, "a step in bf16",
            "one in fp32", f"at {name}, context {row['context_length']:,}",
        )
        for (_, row), name in zip(table.iterrows(), label, strict=True)
    ]  # fmt: skip
    return together(*every, _with_size(table))


def _with_size(table: pd.DataFrame) -> Statement:
    alike = table[table["context_length"] == table["context_length"].max()].sort_values("parameters")
    alike = tidy.select(alike, compiled=False)
    if len(alike) < 2 or alike["size"].duplicated().any():
        return Statement("How the ratio changes with the size takes more than one size.", NO_DATA, "one size")
    first, last = alike.iloc[0], alike.iloc[-1]
    a, b = first["ratio"], last["ratio"]
    known = a.known and b.known
    way = "falls" if known and b.high < a.low else "rises" if known and b.low > a.high else "is not shown to change"
    text = (
        f"From size {first['size']} to {last['size']} the ratio {way}: {digits.interval(a)} at the one and "
        f"{digits.interval(b)} at the other."
    )
    return Statement(text, "measured" if "shown" not in way else "inconclusive", "Whether the two intervals overlap.")
