"""Where attention alone meets the limits of a machine: its memory, by parts, and the rates of products and of memory;
reads records and formulas, measures nothing.
"""

import bisect
import math
import re
from collections.abc import Mapping

import pandas as pd

from lib.cost import flops as cost
from lib.cost import memory as footprint
from lib.records import results
from lib.report import claims, tidy
from lib.report.claims import Found, about
from lib.report.published import datasheets
from lib.report.sentences import NO_DATA, Statement, fields, of_records
from lib.stats import digits
from lib.stats.intervals import Interval

LENGTHS, HEADS = (256, 1024, 4096, 8192, 16384), (16, 32, 64, 128)  # the assignment's grid (CS336, pytorch_attention)
BATCH, CAUSAL = 8, True  # its batch; the mask is ours, as in the language model
SHAPE = ("batch_size", "seq_len", "d_head", "causal")
GIB = 2**30


def peak_bytes(seq_len: int, d_head: int, batch_size: int = BATCH, causal: bool = CAUSAL) -> int:
    """The peak of naive attention in fp32 by the formula."""
    return sum(footprint.attention_peak_bytes(batch_size, seq_len, d_head, causal).values())


def longest(memory_bytes: int, d_head: int) -> int:
    """The most tokens whose naive attention in fp32, of the assignment's batch, has its peak within so many bytes."""
    return bisect.bisect_right(range(1 << 24), memory_bytes, lo=1, key=lambda tokens: peak_bytes(tokens, d_head)) - 1


def memories(records: pd.DataFrame, machine: str) -> dict[str, int]:
    """Bytes of memory by hardware: of this machine's, of the others whose records are kept, and of the GPUs in public
    write-ups that have it in their names."""
    found = {}
    for frame in (records, results.reference("attention", but=machine)):
        for hardware, environment in zip(frame["hardware"], frame["environment"], strict=True) if len(frame) else ():
            found[hardware] = environment.get("gpu_memory_mib", environment["memory_mib"]) * 2**20
    named = {name: re.search(r"(\d+) ?GB", name) for name in datasheets()["hardware"].unique()}
    return found | {name: int(size[1]) * GIB for name, size in named.items() if size}


def fitting(memory: Mapping[str, int]) -> pd.DataFrame:
    """One row a machine: its memory, and for the least and the largest head size the most tokens that fit by formula,
    beside the first of the assignment's lengths that do not."""
    rows = []
    for hardware, size in memory.items():
        row = {"hardware": hardware, "memory, GiB": size / GIB}
        for d_head in (HEADS[0], HEADS[-1]):
            most = longest(size, d_head)
            row[f"most tokens, head size {d_head}"] = most
            row[f"first of the grid that does not fit, {d_head}"] = next((t for t in LENGTHS if t > most), None)
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def first_refused(records: pd.DataFrame) -> dict | None:
    """The smallest case of naive attention in fp32 that ran out of memory or was predicted to: its fields and what the
    record says of it. None where all that were tried fit."""
    naive = tidy.select(records, variant="naive", precision="fp32", status=["too_large", "oom"])
    return None if naive.empty else naive.sort_values(["seq_len", "d_head"]).iloc[0].to_dict()


def accounted(records: pd.DataFrame, memory_bytes: int) -> dict:
    """The fields of the case whose memory is worth an account: the smallest that did not fit, or, where everything fit,
    the first of the assignment's lengths that would not by formula, doubled beyond them where they all would."""
    refused = first_refused(records)
    if refused:
        return {name: refused[name] for name in SHAPE}
    most, length = longest(memory_bytes, HEADS[0]), LENGTHS[0]
    while length <= most:
        length = next((t for t in LENGTHS if t > length), 2 * length)
    return dict(zip(SHAPE, (BATCH, length, HEADS[0], CAUSAL), strict=True))


def account(case: Mapping) -> pd.DataFrame:
    """One row a part of the peak of naive attention in fp32: as a product, in bytes, GiB; the sum last."""
    parts = footprint.attention_peak_bytes(*(case[name] for name in SHAPE))
    b, t, d = (case[name] for name in SHAPE[:3])
    formulas = {
        12 * b * t * d: f"3 × 4 × {b:,} × {t:,} × {d:,}",
        4 * b * t * d: f"4 × {b:,} × {t:,} × {d:,}",
        4 * b * t * t: f"4 × {b:,} × {t:,}²",
        t * t: f"{t:,}²",
    }
    products = [formulas[size] for size in parts.values()]
    table = pd.DataFrame({"part": list(parts), "product": products, "bytes": list(parts.values())})
    total = pd.DataFrame({"part": ["together"], "product": [""], "bytes": [sum(parts.values())]})
    table = pd.concat([table, total], ignore_index=True)
    return table.assign(GiB=table["bytes"] / GIB)


@of_records()
def out_of_memory(records: pd.DataFrame, machine: str) -> Statement:
    """At which size naive attention does not fit on this machine, and what the account of it adds up to."""
    memory = memories(records, machine) if len(records) else {}
    if not memory:
        return Statement("Which sizes fit was not measured here.", NO_DATA, "no records")
    hardware, size = next(iter(memory.items()))
    case, refused = accounted(records, size), first_refused(records)
    needed = peak_bytes(case["seq_len"], case["d_head"], case["batch_size"], case["causal"])
    what = f"{case['batch_size']} × {case['seq_len']:,} tokens with heads of {case['d_head']}"
    shares = f"of its {digits.number(needed / GIB)} GiB, three squares of scores are "
    shares += f"{digits.number(100 * _squares(case) / needed)}%"
    evidence = f"naive, fp32; {size / GIB:.1f} GiB in {hardware}; the peak by formula, which a test holds to the byte."
    if refused is None:
        text = f"All sizes measured here fit; by the formula the first that would not is {what}: {shares}."
        return Statement(text, "derived", evidence)
    said = "ran out of memory" if refused["status"] == "oom" else "is predicted not to fit, and so was not run"
    text = f"On this machine, with {digits.number(size / GIB)} GiB, naive attention in fp32 of {what} {said}: {shares}."
    if refused["status"] == "too_large":
        evidence += f" Available were {refused['available_bytes'] / GIB:.1f} GiB, nine tenths of what was free."
    return Statement(text, "measured" if refused["status"] == "oom" else "derived", evidence)


def _squares(case: Mapping) -> int:
    return 3 * 4 * case["batch_size"] * case["seq_len"] ** 2


@of_records()
def nearer_limit(records: pd.DataFrame, of: Mapping) -> Statement:
    """For each variant of a case, which limit it comes nearer to: that of the matrix products (`ceiling_percent`) or
    that of the memory (`bandwidth_percent`), both by what it must compute and move at least."""
    table = tidy.medians(tidy.select(records, **of), "ceiling_percent", "bandwidth_percent")
    table = table[table["ceiling_percent"].notna() & table["bandwidth_percent"].notna()]
    if table.empty:
        return Statement("Which limit is nearer was not measured here.", NO_DATA, "no ceilings or no times")
    said = []
    for _, row in table.iterrows():
        products, bytes_ = (row[name] for name in ("ceiling_percent", "bandwidth_percent"))
        said.append(
            f"{row['variant']} {_percent(products)} of the products' ceiling and {_percent(bytes_)} of the memory's"
        )
    nearer = table["bandwidth_percent"].map(_value) > table["ceiling_percent"].map(_value)
    memory, products = (", ".join(table.loc[side, "variant"]) for side in (nearer, ~nearer))
    ends = [
        f"the nearer limit is {what} for {names}" for what, names in (("memory", memory), ("the products", products))
    ]
    ends = [end for end, names in zip(ends, (memory, products), strict=True) if names]
    text = f"At {of['seq_len']:,} tokens, {'; '.join(said)}. So {', and '.join(ends)}."
    return Statement(text, "measured", f"{fields(of)}; medians, the bytes being the least that each variant must move.")


def _value(found: Interval) -> float:
    return found.value


def _percent(found: Interval) -> str:
    return f"{digits.number(found.value, found.reach)}%"


def with_kept(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `by_formula`, the MiB that the variant keeps for its backward pass by the formula; missing for what
    compiles and for what runs in another precision than fp32."""
    kept = [
        sum(footprint.attention_kept_bytes(row["variant"], *(int(row[name]) for name in SHAPE[:3]), CAUSAL).values())
        / 2**20
        if row["precision"] == "fp32" and row["variant"] in ("naive", "tiled", "sdpa")
        else None
        for _, row in rows.iterrows()
    ]
    return rows.assign(by_formula=pd.Series(kept, index=rows.index, dtype=float))


def flops(row: Mapping) -> int:
    """FLOPs of the forward and the backward pass of a case, over the whole square of scores."""
    return 3 * cost.attention_flops(*(int(row[name]) for name in SHAPE[:3]))


def with_several_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the lengths for which several head sizes have times: of three lengths, where there are more."""
    timed = table[table["total_ms"].notna()]
    counts = timed.groupby("seq_len")["d_head"].nunique()
    lengths = sorted(counts[counts > 1].index)
    some = {lengths[i] for i in (0, len(lengths) // 2, -1)} if lengths else set()
    return timed[timed["seq_len"].isin(some)]


def attention_grows(data: claims.Data) -> list[Found]:
    """Find the exponents of time and memory of naive attention, up to 8,192 tokens."""
    records = claims.rows(data, "attention", variant="naive", precision="fp32", causal=True, cold=False)
    lengths = [length for length in set(records.get("seq_len", [])) if 256 <= length <= 8192]
    folds = {"total_ms": (80, "time"), "forward_end_mib": (60, "memory")}
    return [
        one
        for metric, (fold, word) in folds.items()
        for one in claims.exponent(
            records, metric, "seq_len", tuple(math.log(end) / math.log(8192 / 256) for end in about(fold)),
            f"is the exponent of {word} up to {{seq_len:,}} tokens, head size {{d_head}}", seq_len=lengths,
        )
    ]  # fmt: skip
