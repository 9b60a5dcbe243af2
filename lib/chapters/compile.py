"""Sets what compiling costs beside what it returns, by records and by public write-ups."""

import math
import statistics
from collections.abc import Mapping

import pandas as pd

from lib.config import SIZES
from lib.cost import flops
from lib.report import claims, compare, hypotheses, sentences, tidy
from lib.report.claims import LESS, Found
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_attention, published_step, published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import digits, intervals

NEVER, UNKNOWN = "does not pay back", "not shown to pay back"
ERRORS = ("out_error", "logits_error", "gradient_error")


def with_compile_time(records: pd.DataFrame) -> pd.DataFrame:
    """The records with `compile_s`, how much longer the first iteration took than the median of the later ones, and
    with the pairs' forward and backward together."""
    columns = (tidy.column(records, name) for name in ("first_iteration_ms", "wall_ms"))
    values = [
        [(first[0] - statistics.median(later)) / 1e3] if isinstance(first, list) and isinstance(later, list) else None
        for first, later in zip(*columns, strict=True)
    ]
    wider = records.assign(compile_s=pd.Series(values, index=records.index, dtype=object))
    for side in ("paired", "baseline"):
        wider = tidy.with_sum(wider, f"{side}_forward_backward_ms", f"{side}_forward_ms", f"{side}_backward_ms")
    return wider


def by_phase(records: pd.DataFrame, *phases: str) -> pd.DataFrame:
    """Each compiled case against the eager one, phase by phase: the rows of `compare.against_baselines` for each, with
    `phase`."""
    found = [compare.against_baselines(records, f"{phase}_ms").assign(phase=phase) for phase in phases]
    table = pd.concat(found, ignore_index=True)
    return table[table["compiled"].astype(bool)].reset_index(drop=True)


def wide(records: pd.DataFrame, *phases: str) -> pd.DataFrame:
    """The same with a row a case: `<phase>_ratio` and `<phase>_verdict` of each phase, missing where it has none."""
    fields, found = records.attrs["fields"], by_phase(records, *phases)
    rows = found.loc[found["phase"] == phases[-1], [*fields, "hardware", "codes", "noisy"]]
    for phase in phases:
        own = found[found["phase"] == phase].set_index(fields)[["ratio", "verdict"]]
        rows = rows.join(own.add_prefix(f"{phase}_"), on=fields)
    return rows.reset_index(drop=True)


def paid(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case that ran in turns with its eager baseline, from the records of `with_compile_time`: the fields,
    the medians of `compile_s` and of an iteration in these turns, `compiled_ms` and `eager_ms`, the `verdict` on their
    `total_ratio`,
    and `payback_steps`: after how many iterations compiling has paid for itself, by the times of each process, or
    words where the pairs do not show that compiled is faster."""
    table, fields = by_phase(records, "total"), records.attrs["fields"]
    medians = tidy.medians(records, "compile_s", "paired_ms", "baseline_ms")
    table = table.merge(medians[[*fields, "compile_s", "paired_ms", "baseline_ms"]], on=fields)
    groups = [tidy.select(records, **row[fields]) for _, row in table.iterrows()]
    steps = [_steps(group, verdict) for group, verdict in zip(groups, table["verdict"], strict=True)]
    names = {"paired_ms": "compiled_ms", "baseline_ms": "eager_ms", "ratio": "total_ratio"}
    return table.assign(payback_steps=steps).rename(columns=names)


def _steps(group: pd.DataFrame, verdict: str) -> intervals.Interval | str:
    """Compile time over the time saved, in each process."""
    if verdict != "faster":
        return UNKNOWN if verdict == "inconclusive" else NEVER
    compile_s, eager, compiled = (
        {r: statistics.median(samples) for r, samples in tidy.samples(group, metric).items()}
        for metric in ("compile_s", "baseline_ms", "paired_ms")
    )
    saved = {r: (eager[r] - compiled[r]) / 1e3 for r in eager.keys() & compile_s.keys()}
    if not saved or min(saved.values()) <= 0:
        return UNKNOWN
    return intervals.median([[compile_s[r] / saved[r]] for r in sorted(saved)])


@of_records("compiled")
def payback(records: pd.DataFrame, case: Mapping, what: str) -> Statement:
    """How long `what` took to compile and when that had paid for itself."""
    rows = tidy.select(paid(records), **case)
    if rows.empty:
        return Statement(f"Compiling {what} was not measured here.", NO_DATA, "compile_s")
    row = rows.iloc[0]
    lead, steps = f"Compiling {what} took {digits.interval(row['compile_s'])} s", row["payback_steps"]
    evidence = f"{row['total_ratio'].n} pairs, {row['total_ratio'].rounds} processes; verdict {row['verdict']}."
    ends = {
        NEVER: "and does not pay for itself, since a compiled iteration takes as long as an eager one or longer",
        UNKNOWN: "and the data do not show that it ever pays for itself",
    }
    end = ends.get(steps) or f"and had paid for itself after {digits.interval(steps)} iterations"
    return Statement(f"{lead}, {end}.", row["verdict"], evidence)


def breaks(records: pd.DataFrame) -> pd.DataFrame:
    """One row a compiled case: the fields, how many `graphs` it became in its latest process, how often one broke, and
    the `reasons`."""
    known = records[tidy.column(records, "graphs").notna()].sort_values("round")
    fields = records.attrs["fields"]
    columns = [*fields, "hardware", "graphs", "graph_breaks", "graph_break_reasons"]
    last = known.drop_duplicates(fields, keep="last").reindex(columns=columns)
    reasons = ["; ".join(table["reason"]) or "none" for table in last.pop("graph_break_reasons")]
    whole = last.assign(reasons=reasons).astype({"graphs": int, "graph_breaks": int})
    return tidy.ordered(whole, " ".join(fields))


def _lack(records: pd.DataFrame, means: str) -> str:
    """Why the machine of these records is without that, as they say, behind a colon; nothing where they do not."""
    lacks = records["environment"].iloc[-1].get("lacks", []) if len(records) else []
    return next((f": {reason}" for reason in lacks if reason.startswith(means)), "")


@of_records()
def unbroken(records: pd.DataFrame, others: pd.DataFrame) -> Statement:
    """How many of the compiled programs are one graph, or why there are none, as `others` of this machine say."""
    table = breaks(records)
    if table.empty:
        return Statement(f"Nothing was compiled here{_lack(others, 'torch.compile')}.", NO_DATA, "graph_breaks")
    one = int((table["graph_breaks"] == 0).sum())
    text = f"Of {digits.count(len(table))} compiled programs, {digits.count(one)} became graphs without a break."
    return Statement(text, "measured", "counted by torch._dynamo while each was compiled.")


@of_records()
def equal_results(records: pd.DataFrame) -> Statement:
    """Whether the compiled programs gave the reference's results from the same seed, in fp32. That of a model is the
    eager program, which can be met bit for bit; that of attention computes in double precision."""
    chosen = tidy.select(records, precision="fp32", compiled=True, status="ok")
    errors = [max(row[name][0] for name in ERRORS if isinstance(row.get(name), list)) for _, row in chosen.iterrows()]
    if not errors:
        return Statement("Whether equal seeds give equal results was not measured here.", NO_DATA, "errors in fp32")
    models = [error for error, name in zip(errors, chosen["model"], strict=True) if name != "attention"]
    exact = f", models bit for bit in {digits.count(models.count(0))} of {digits.count(len(models))}" if models else ""
    text = (
        f"From equal seeds, output and gradients in fp32 differ from the reference's by at most "
        f"{digits.number(max(errors))} of their size: equal up to rounding{exact}."
    )
    return Statement(text, "measured", f"the largest of {', '.join(ERRORS)} over {len(errors)} records.")


def tf32(records: pd.DataFrame, others: pd.DataFrame, cases: Mapping[str, Mapping]) -> Statement:
    """Compiled in TF32 beside compiled in fp32, for cases keyed by where they are, or why there are none, as `others`
    of this machine say."""
    if (records["precision"] == "tf32").any():
        return sentences.together(*[
            sentences.compare(
                records, "total_ms", {**case, "precision": "tf32"}, {**case, "precision": "fp32"},
                "the compiled program in tf32", "that in fp32", where,
            )
            for where, case in cases.items()
        ])  # fmt: skip
    return Statement(f"TF32 was not measured here{_lack(others, 'tf32')}.", NO_DATA, "no records in tf32")


def theory(records: pd.DataFrame) -> list[Hypothesis]:
    """Predict compiled to eager attention by their least bytes, and the optimizer, which is not compiled."""
    fp32 = {"precision": "fp32", "compiled": True}
    longest = tidy.largest(records, "seq_len", model="attention", **fp32)
    largest = tidy.largest(records, "forward_flops", model=list(SIZES), **fp32)
    at, of = sentences.at(", {seq_len:,} tokens", longest), sentences.at(", {model}", largest)
    shape = [longest[name] or math.nan for name in ("batch_size", "seq_len", "d_head")]
    ours, theirs = (flops.attention_moved_bytes(name, *shape, True, "fp32") for name in ("compiled", "naive"))

    def measured(phase: str, case: Mapping) -> intervals.Interval | None:
        return hypotheses.ratio(records, f"{phase}_ms", case, {**case, "compiled": False})

    return [
        *(
            Hypothesis(
                f"the {phase} pass of attention, compiled to eager{at}", "least bytes of both",
                ours[phase] / theirs[phase], measured(phase, longest),
            )
            for phase in ("forward", "backward")
        ),
        Hypothesis(
            f"both passes of attention, compiled to eager{at}", "least bytes of both",
            sum(ours.values()) / sum(theirs.values()), measured("total", longest),
        ),
        Hypothesis(
            f"the optimizer beside a compiled model{of}", "the same program on both sides", 1.0,
            measured("optimizer", largest),
        ),
    ]  # fmt: skip


def published() -> pd.DataFrame:
    """Published times of compiled programs relative to eager ones of the same write-up and hardware, one row a case:
    `model, seq_len, d_head, batch_size, precision, source, hardware` and the ratios of forward, of forward and backward
    and so on, as far as given. A program compiled in TF32 whose eager partner in TF32 is not given stands against the
    one in fp32, and `precision` says so."""
    attention = published_attention().assign(model="attention")
    attention["compiled"] = attention["variant"] == "compiled"
    steps = published_step().rename(columns={"size": "model", "context_length": "seq_len"})
    return pd.concat([_relative(table) for table in (attention, steps)], ignore_index=True)


def _relative(times: pd.DataFrame) -> pd.DataFrame:
    cases = ("model", "seq_len", "d_head", "batch_size", "precision", "source", "hardware")
    keys = [name for name in cases if name in times]
    metrics = [name for name in times if name.endswith("_ms")]
    compiled = times["compiled"].astype(bool)
    eager = times[~compiled].set_index(keys)[metrics].to_dict("index")
    rows = []
    for _, row in times[compiled].iterrows():
        plain, said = eager.get(tuple(row[keys])), row["precision"]
        if plain is None and said == "tf32":
            plain, said = eager.get(tuple(row[keys].replace("tf32", "fp32"))), "tf32, eager in fp32"
        if plain:
            ratios = {f"{name.removesuffix('_ms')}_ratio": row[name] / plain[name] for name in metrics}
            rows.append(row[keys].to_dict() | {"precision": said} | ratios)
    return pd.DataFrame(rows)


def beside_published(own: pd.DataFrame, **where) -> pd.DataFrame:
    """The rows of `wide` in fp32 and the published ones selected, this report's first."""
    theirs = tidy.ordered(tidy.select(published(), **where), "model seq_len precision source")
    if theirs["d_head"].notna().all():
        theirs = theirs.astype({"d_head": int})  # a float beside models, of whose heads nothing is said
    both = [own.assign(source="this report"), theirs.assign(noisy="")]
    return pd.concat([rows for rows in both if len(rows)] or both, ignore_index=True)


def published_growth() -> Statement:
    """What a write-up says of how its steps grow with the context, beside what its own table shows."""
    table = published_table("end_to_end")
    table = table[(table["source"] == "write-up 004") & (table["phase"] == "train_step")]
    keys = ["model", "compiled", "tf32"]
    times = table.pivot_table(index=keys, columns="context_length", values="mean_ms")
    short, long = times.columns.min(), times.columns.max()
    most, tokens = (times[long] / times[short]).max(), long / short
    power = math.log(most) / math.log(tokens)
    agrees = "as its table shows" if most > tokens else "which its own table contradicts"
    text = (
        f"Write-up 004 calls the growth of its Transformer's step with the context superlinear, {agrees}: "
        f"{digits.exact(tokens)} times the tokens take at most {digits.number(most)} times as long, an exponent of "
        f"{digits.number(power)}."
    )
    return Statement(text, "published", f"{len(times)} pairs of steps at {short} and {long} tokens.")


def compiled_attention(data: claims.Data) -> list[Found]:
    """Find compiled against naive attention at the most tokens, of each head size."""
    records, where = claims.rows(data, "attention"), {"precision": "fp32", "causal": True, "cold": False}
    longest = max((case["seq_len"] for case in claims.cases(records, variant="compiled", **where)), default=None)
    of, to = {"variant": "compiled", "seq_len": longest}, {"variant": "naive"}
    label = "at {seq_len:,} tokens, head size {d_head}"
    return claims.ratios(records, "total_ms", of, to, LESS, label, **where)


def compiled_step(data: claims.Data) -> list[Found]:
    """Find the compiled step against the eager one, of each size and context."""
    steps = claims.rows(data, "step", mode="train_step")
    of, to = {"compiled": True}, {"compiled": False}
    return claims.ratios(steps, "total_ms", of, to, LESS, claims.SIZED, precision="fp32")


def tf32_to_compiling(data: claims.Data) -> list[Found]:
    """Find what TF32 brings to the compiled step at the largest size, beside what compiling brings to the eager one."""
    steps = claims.rows(data, "step", mode="train_step")
    measured = claims.cases(steps, precision="tf32", compiled=True)
    if not measured:
        return []
    case = measured[-1]
    compiled = {**case, "precision": "fp32"}
    pairs = (case, compiled), (compiled, {**compiled, "compiled": False})
    label = f"is the gain of TF32 to that of compiling {claims.SIZED}"
    return claims.contrast(steps, "total_ms", *pairs, LESS, label)
