"""Turns the records of sums, norms and dtypes in narrow types into tables, sentences and figures; measures nothing."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib import claims, compare, estimates, plots, results, tables, verdicts
from lib.claims import NO_DATA, Statement, together

NORMS = ("layer_norm", "rms_norm")
MARKERS = {"fp32": "o", "fp16": "^", "bf16": "D"}


def rows(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric that is a table, of all records below each other, each row with the fields of its case and its hardware;
    of several rounds the last, since nothing here varies."""
    found = []
    for _, record in records.sort_values("round").drop_duplicates(records.attrs["fields"], keep="last").iterrows():
        table = record.get(metric)
        if isinstance(table, dict):
            case = {name: record[name] for name in ("subject", "precision", "device", "hardware")}
            found.append(pd.DataFrame(table).assign(**case))
    every = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["subject", "precision", "device"])
    return every.sort_values(["subject", "precision"], key=estimates.in_order, kind="stable", ignore_index=True)


def loops(records: pd.DataFrame) -> pd.DataFrame:
    """The loops of all dtypes, one a row, as `rounding.accumulation` describes them; the sum with all its digits, and
    the loop in fp32 once."""
    table = rows(records, "loops")
    if table.empty:
        return table
    table = table.drop_duplicates("loop", ignore_index=True).assign(number=table["sum"])
    ended = table["stalls_after"] == table["stalls_after"].max()
    stalls = table["stalls_after"].astype(str).mask(ended, "never")
    return table.assign(sum=table["sum"].map(lambda value: f"{value:.9g}"), stalls_after=stalls)


def dtypes(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """One row a tensor of a model, in the order in which they came, with its dtype in a column for each precision."""
    table = rows(records, "dtypes")
    chosen = table[table["subject"] == subject]
    if chosen.empty:
        return pd.DataFrame(columns=["tensor"])
    wide = chosen.pivot_table(index="tensor", columns="precision", values="dtype", aggfunc="last", sort=False)
    order = list(dict.fromkeys(chosen["tensor"]))
    return wide.reindex(order).reset_index().assign(device=chosen["device"].iloc[0], hardware=chosen["hardware"].iloc[0])


def limits(records: pd.DataFrame) -> pd.DataFrame:
    """Where a norm leaves the range of its dtype: one row a norm, precision, offset, step and what happens there, with
    the scales of the inputs in words."""
    table = rows(records, "norm_limits")
    if table.empty:
        return table
    keys = ["subject", "precision", "offset", "step", "what"]
    scales = table.groupby(keys, sort=False)["scale"].agg(lambda found: ", ".join(f"{scale:g}" for scale in found))
    return scales.reset_index().assign(hardware=table["hardware"].iloc[0])


def step_errors(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """One row a step of a norm: the error of the norm if that step alone is rounded, a column for each precision."""
    table = rows(records, "step_errors")
    chosen = table[table["subject"] == subject]
    if chosen.empty:
        return pd.DataFrame(columns=["step"])
    wide = chosen.pivot_table(index="step", columns="precision", values="relative_error", sort=False)
    return wide.reindex(dict.fromkeys(chosen["step"])).reset_index().assign(hardware=chosen["hardware"].iloc[0])


def sums(records: pd.DataFrame) -> Statement:
    """The results of the four loops, and how far from ten they are."""
    table = loops(records)
    if table.empty:
        return Statement("The four loops were not run here.", NO_DATA, "accumulation")
    said = [f"{row['sum']} in the loop {row['loop']}" for _, row in table.iterrows()]
    text = f"A thousand terms of 0.01 add up to {', '.join(said[:-1])} and {said[-1]}."
    return Statement(text, "measured", "; ".join(f"{r['loop']}: error {r['sum_error']:.3g}" for _, r in table.iterrows()))


def reasons(records: pd.DataFrame, narrow: str) -> Statement:
    """Why the loops of a narrow dtype are wrong: the term as stored, and the additions."""
    table = loops(records).set_index("loop") if len(loops(records)) else pd.DataFrame()
    own, wide, cast = f"{narrow} += {narrow}", f"fp32 += {narrow}", f"fp32 += {narrow} as fp32"
    if own not in table.index:
        return Statement(f"The loops of {narrow} were not run here.", NO_DATA, "accumulation")
    row, other = table.loc[own], table.loc[wide]
    text = (
        f"In {narrow}, 0.01 is stored with an error that adds up to {row['stored_error']:.2g} over the thousand terms; "
        f"the sum in fp32 has an error of {other['sum_error']:.2g}, so that it is "
        f"{'this alone' if _near(other['sum_error'], other['stored_error']) else 'more than this'}. "
        f"The additions in {narrow} bring {row['added_error']:.2g}: at its end the sum can change by steps of "
        f"{row['spacing']:.2g} only, and rounding to such a step may lose {row['half_percent']:.3g}% of a term."
    )
    if row["stalls_after"] != "never":
        text += (
            f" Half a step is more than a term from there on: after {row['stalls_after']} terms the sum stays at "
            f"{row['sum']}, whatever is added."
        )
    if table.loc[cast, "number"] == other["number"]:
        text += " To convert the term to fp32 first changes nothing, since the addition converts it anyway."
    return Statement(text, "measured", f"Loops {own}, {wide} and {cast}; spacing from the dtype's significand.")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.05 * abs(b)


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


def sensitive(records: pd.DataFrame, subject: str, precision: str) -> Statement:
    """Which step of a norm leaves the range of a dtype, from which scale on, and what comes out."""
    name = subject.replace("_", " ")
    errors = rows(records, "norm_errors")
    errors = errors[(errors["subject"] == subject) & (errors["precision"] == precision)]
    if errors.empty:
        return Statement(f"A {name} in {precision} was not computed here.", NO_DATA, subject)
    errors = errors[errors["offset"] == 0]
    at_one = errors[errors["scale"] == 1]["relative_error"].iloc[0]
    found = rows(records, "norm_limits")
    found = found[(found["subject"] == subject) & (found["precision"] == precision) & (found["offset"] == 0)]
    text = f"Computed in {precision} throughout, {name} has an error of {at_one:.2g} on standard normal inputs"
    over = found[found["what"] == "overflows"].sort_values("scale") if len(found) else found
    if over.empty:
        largest, smallest = errors["scale"].max(), errors["scale"].min()
        text += f", and nothing overflows on inputs from {smallest:g} to {largest:g} times as large."
        return Statement(text, "measured", f"{len(errors)} scales.")
    first = over.iloc[0]
    text += f"; on inputs {first['scale']:g} times as large its {first['step']} overflows"
    result = errors[errors["scale"] == first["scale"]]["relative_error"]
    if len(result) and result.iloc[0] == 1:
        text += ", and the norm is silently zero, since it divides by infinity"
    under = found[(found["what"] == "underflows") & (found["scale"] < 1)].sort_values("scale", ascending=False)
    if len(under):
        last = under.iloc[0]
        text += f". On inputs {last['scale']:g} times as large half or more of its {last['step']} is zero"
        small = errors[errors["scale"] == last["scale"]]["relative_error"]
        text += f", which eps hides: the error is {small.iloc[0]:.2g}" if len(small) else ""
    return Statement(text + ".", "measured", f"{len(errors)} of the scales give a finite norm.")


def kernel(records: pd.DataFrame, precision: str) -> Statement:
    """Whether PyTorch's own layer norm fails where the one that is computed step by step overflows."""
    table = rows(records, "kernel_errors")
    table = table[(table["subject"] == "layer_norm") & (table["precision"] == precision)] if len(table) else table
    lost = sorted(set(_overflows(rows(records, "norm_limits"), "layer_norm", precision)) & set(table.get("scale", [])))
    if not lost:
        return Statement(f"PyTorch's own layer norm was not tried in {precision} where steps overflow.", NO_DATA, "kernel")
    worst = table[table["scale"].isin(lost)]["relative_error"].max()
    scales = " to ".join(f"{scale:g}" for scale in dict.fromkeys((lost[0], lost[-1])))
    text = (
        f"PyTorch's own layer norm, one kernel, takes the same {precision} inputs at scales {scales}, where the one "
        f"computed step by step overflows, with an error of {worst:.2g} at most."
    )
    return Statement(text, "measured", f"Scales {', '.join(f'{scale:g}' for scale in lost)}.")


def claimed(records: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """What the write-ups claim of mixed precision (`claim`, `said_by`) beside what was found `here`."""
    said = results.published("claims").set_index("id")
    found = {
        "accumulate-fp32": sums(records),
        "autocast-dtypes": observed(records, "fp16"),
        "mixed-slower-small": trend(steps),
    }
    rows = [
        {"claim": said.at[name, "claim"], "said_by": said.at[name, "source"], "here": statement.text}
        for name, statement in found.items()
    ]
    return pd.DataFrame(rows)


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
        f"In {precision}, a mean of {most:g} standard deviations takes the error of layer norm from "
        f"{found['layer_norm'][common[0]]:.2g} to {found['layer_norm'][most]:.2g}, and that of RMS norm from "
        f"{found['rms_norm'][common[0]]:.2g} to {found['rms_norm'][most]:.2g}."
    )
    return Statement(text, "measured", f"Offsets {', '.join(f'{offset:g}' for offset in common)} at scale one.")


def speed(steps: pd.DataFrame, metric: str = "total_ms") -> pd.DataFrame:
    """The rows of `verdicts.against_baselines` of steps in bf16 against fp32, with `parameters`."""
    table = verdicts.against_baselines(steps, metric)
    table = table[(table["baseline"] == "fp32") & (table["precision"] == "bf16")]
    counts = estimates.column(steps, "parameters").groupby(steps["size"]).max() if len(steps) else {}
    return table.assign(parameters=table["size"].map(counts))


def speed_of_phases(steps: pd.DataFrame) -> pd.DataFrame:
    """The same for each `phase` of a step."""
    found = [speed(steps, f"{phase}_ms").assign(phase=phase) for phase in ("forward", "backward", "optimizer")]
    return pd.concat([table for table in found if len(table)] or found[:1], ignore_index=True)


def trend(steps: pd.DataFrame) -> Statement:
    """A step in bf16 against fp32 at each size measured, and whether the ratio falls with the size."""
    table = speed(steps)
    if table.empty:
        text = "Steps in bf16 and in fp32 were not both measured here."
        return Statement(text, NO_DATA, "step")
    fields = steps.attrs["fields"]
    label = estimates.labelled(table, fields)["label"] if len(table) > 1 else table["size"]
    every = [
        claims.compare(
            steps, "total_ms", row[fields].to_dict(), {**row[fields], "precision": "fp32"}, "a step in bf16",
            "one in fp32", f"at {name}, context {row['context_length']:,}",
        )
        for (_, row), name in zip(table.iterrows(), label, strict=True)
    ]  # fmt: skip
    return together(*every, _with_size(table))


def _with_size(table: pd.DataFrame) -> Statement:
    alike = table[table["context_length"] == table["context_length"].max()].sort_values("parameters")
    alike = estimates.select(alike, compiled=False)
    if len(alike) < 2 or alike["size"].duplicated().any():
        return Statement("How the ratio changes with the size takes more than one size.", NO_DATA, "one size")
    first, last = alike.iloc[0], alike.iloc[-1]
    a, b = first["ratio"], last["ratio"]
    known = a.known and b.known
    way = "falls" if known and b.high < a.low else "rises" if known and b.low > a.high else "is not shown to change"
    text = (
        f"From size {first['size']} to {last['size']} the ratio {way}: {tables.interval(a)} at the one and "
        f"{tables.interval(b)} at the other."
    )
    return Statement(text, "measured" if "shown" not in way else "inconclusive", "Whether the two intervals overlap.")


def published_speed() -> pd.DataFrame:
    """Published passes in bf16 relative to fp32 on the same hardware, one row a source and case: `forward_ratio` and
    `forward_backward_ratio`; what is called fp32 there may have run in TF32."""
    table = compare.published_step()
    keys = ["source", "hardware", "compiled", "size", "context_length"]
    wide = table.pivot_table(index=keys, columns="precision", values=["forward_ms", "forward_backward_ms"])
    found = pd.DataFrame(
        {f"{phase}_ratio": wide[f"{phase}_ms"]["bf16"] / wide[f"{phase}_ms"]["fp32"]
         for phase in ("forward", "forward_backward")}
    ).dropna(how="all").reset_index()  # fmt: skip
    return estimates.ordered(found.assign(source=compare.named(found["source"])), "source hardware compiled size")


def draw_sums(records: pd.DataFrame) -> Axes:
    """The error of the sum against the number of terms, one line a loop."""
    table = rows(records, "trace")
    (ax,) = plots.axes(height=3.4)
    with mpl.rc_context(plots.STYLE):
        for loop, line in table.drop_duplicates(["loop", "terms"]).groupby("loop", sort=False) if len(table) else ():
            if loop.endswith("as fp32"):
                continue  # the same numbers as without the conversion
            total, term = loop.split(" += ")
            style = "-" if total == term else "--"
            ax.plot(line["terms"], line["sum_error"], style, color=plots.COLOURS[term])
            ax.annotate(
                loop, (line["terms"].iloc[-1], line["sum_error"].iloc[-1]), xytext=(6, 0), textcoords="offset points",
                va="center", color=plots.COLOURS[term], fontsize=10, annotation_clip=False,
            )  # fmt: skip
        ax.set(xlabel="terms of 0.01", ylabel="error of the sum")
        ax.set_yscale("symlog", linthresh=1e-4)
        ax.grid(axis="y")
    return ax


def draw_norms(records: pd.DataFrame) -> Axes:
    """The error of each norm against the scale of its inputs, one line a precision, with a gap where it is not finite
    and a cross where it overflows on the way."""
    table, troubles = rows(records, "norm_errors"), rows(records, "norm_limits")
    grid = plots.axes(2, 3.2, sharey=True)
    with mpl.rc_context(plots.STYLE):
        for norm, ax in zip(NORMS, grid, strict=True):
            of = table[(table["subject"] == norm) & (table["offset"] == 0)] if len(table) else table
            for precision, line in of.groupby("precision", sort=False) if len(of) else ():
                ax.plot(
                    line["scale"], line["relative_error"], marker=MARKERS[precision], markersize=4,
                    color=plots.COLOURS[precision], label=precision,
                )  # fmt: skip
                over = _overflows(troubles, norm, precision)
                lost = line[line["scale"].isin(over)]
                ax.plot(lost["scale"], lost["relative_error"], "x", color=plots.COLOURS[precision], markersize=10)
            ax.set(xscale="log", yscale="log", xlabel="scale of the inputs", title=norm.replace("_", " "))
            ax.grid(axis="y")
        grid[0].set_ylabel("relative error")
        if len(table):
            grid[0].legend(frameon=False, loc="center left")
    return grid[-1]


def _overflows(troubles: pd.DataFrame, norm: str, precision: str) -> list[float]:
    if troubles.empty:
        return []
    chosen = troubles[(troubles["subject"] == norm) & (troubles["precision"] == precision) & (troubles["offset"] == 0)]
    return list(chosen[chosen["what"] == "overflows"]["scale"])


def note(records: pd.DataFrame, subject: str) -> str:
    """The hardware behind a figure; empty where nothing was computed."""
    done = records[(records["subject"] == subject) & (records["status"] == "ok")]
    return "" if done.empty else f"{', '.join(dict.fromkeys(done['hardware']))}. Computed once, since nothing in it varies."
