"""Say how far to trust the records: noise, the self-check's findings, and what is missing."""

import itertools
import math
import statistics
from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from ruamel.yaml import YAML

from lib import notebooks, paths
from lib.catalog import CATALOG
from lib.config import SIZES
from lib.records import results, staleness
from lib.report import compare, plots, roofline, self_check, sentences, tables, tidy, verdicts
from lib.report.quantities import Quantity
from lib.report.sentences import Statement
from lib.stats import comparisons, digits
from lib.stats.intervals import Interval

FEW = 3  # cases or reasons that a row lists
UNSEEN = {  # metrics that give a reason, with the instrument and what it would have shown
    "profiler_missing": ("torch.profiler", "kernels and their times"),
    "nsys_missing": ("Nsight Systems", "kernels by name"),
}
NOISE = [
    "experiment", "records", "median spread, %", "20 samples or more", "noisy machine", "others at most, %",
    "above the ceiling", "series that change", "throttled", "launch-bound",
]  # fmt: skip

RANGES = {  # entries of the environment that vary, and what they are called
    "load": "load over a minute",
    "others_percent": "used by others meanwhile, % of all cores",
    "sm_clock_mhz": "clock of the GPU, MHz",
    "power_w": "power of the GPU, W",
    "temperature_c": "temperature of the GPU, °C",
    "other_gpu_processes": "other processes on the GPU",
}


def badge(machine: str) -> Statement:
    """Say how noisy the machine was, what the self-check found, and how many comparisons are unclear."""
    noise = disturbances({name: results.load(name, machine) for name in notebooks.experiments()})
    if noise.empty:
        return sentences.missing("Nothing was timed here.")
    said = [_noise_text(noise), _too_fast_text(noise), _check_text(machine), _unclear_text(machine)]
    evidence = (
        "A timed record is noisy if the noise probe beside it was slow or unsteady, or if other programs used more "
        f"than {tidy.BUSY_PERCENT}% of the cores. The verdicts are those of the tables."
    )
    return Statement(" ".join(filter(None, said)), "derived", evidence)


def _noise_text(noise: pd.DataFrame) -> str:
    noisy, timed, slowed, launched = (
        digits.count(noise[name].sum()) if name in noise else "0"
        for name in ("noisy machine", "records", "throttled", "launch-bound")
    )
    gpu = f" The GPU was throttled beside {slowed} of {timed} records." if slowed != "0" else ""
    if launched != "0":
        gpu += f" In {launched} of {timed} records launching sets the time (launch-bound)."
    if noisy == "0":
        return f"Quiet machine: nothing disturbed its {timed} timed records.{gpu}"
    busy = noise["others at most, %"].max()
    others = f"; other programs used up to {digits.count(busy)}% of the cores" if busy > tidy.BUSY_PERCENT else ""
    return f"Noisy machine: other work disturbed {noisy} of {timed} timed records{others}.{gpu}"


def _too_fast_text(noise: pd.DataFrame) -> str:
    fast = noise["above the ceiling"].sum()
    if not fast:
        return ""
    return f"Training steps faster than the ceiling allows: {digits.count(fast)}. Their time or the ceiling is wrong."


def _check_text(machine: str) -> str:
    found = self_check.table(results.load("calibration", machine))
    judged = found[found["holds"] != ""]
    if judged.empty:
        return "The measurement was not checked here; make calibrate checks it."
    holding, failed = (judged["holds"] == "yes").sum(), list(judged.loc[judged["holds"] == "no", "tried"])
    undecided = (judged["holds"] == comparisons.UNCLEAR).sum()
    said = f"{digits.count(holding)} of {digits.count(len(judged))} self-checks of the measurement hold"
    said += f", {digits.count(undecided)} could not be decided on this noisy machine" if undecided else ""
    return f"{said}; these fail: {'; '.join(failed)}." if failed else f"{said}."


def checks(machine: str) -> tables.Table:
    """Return the findings of the self-check, each with what must hold."""
    found = self_check.table(results.load("calibration", machine))
    bounds = [
        f"{one} (must be {bound})" if bound else one
        for one, bound in zip(found["found"], found["must hold"], strict=True)
    ]
    noisy = digits.count((found["quiet"] == "no").sum())
    note = f"The machine was noisy during {noisy} of these {digits.count(len(found))} checks." if noisy != "0" else ""
    shown = pd.DataFrame({"tried": found["tried"], "found": bounds, "holds": found["holds"]})
    return tables.Table(shown, "The self-check: the measuring tried on what is known beforehand", note)


def _unclear_text(machine: str) -> str:
    count, of, minutes = verdicts.unclear(verdicts.tables(machine))
    if not count:
        return ""
    said = f"{digits.count(count)} of {digits.count(of)} comparisons are unclear"
    if not minutes or not (paths.results() / machine).is_dir():
        return f"{said}."
    name = paths.unclear().name
    again = f"make sweep SWEEP={name} measures them again in {digits.count(minutes)} min"
    return f"{said}: python -m lib.report verdicts writes {name}, and {again}."


def limits(ceilings: pd.DataFrame) -> Statement:
    """State the machine's ceilings: products by precision, memory, and the cost of a call."""
    products, memory = roofline.limit_intervals(ceilings)
    call = roofline.call_us(ceilings)
    if not products or math.isnan(memory.value):
        return sentences.missing("No ceiling was measured here.")

    def quantity(name: str, found: Interval) -> Quantity:
        return Quantity(f"{ceilings['machine'].iloc[0]}/ceilings/{name}", found, digits.brief(found))

    ordered = sorted(products, key=tidy.ORDER.index)
    numbers = [quantity(f"products-{name}", products[name].scaled(1e-9)) for name in ordered]
    rates = [f"{rate} GFLOP/s in {name}" for name, rate in zip(ordered, numbers, strict=True)]
    numbers.append(quantity("memory", memory.scaled(1e-9)))
    text = f"Matrix products reach {sentences.listed(rates)}; memory moves {numbers[-1]} GB/s"
    if call:
        numbers.append(quantity("call", call))
        text += f"; a call that computes next to nothing takes {numbers[-1]} µs"
    evidence = "The case with the largest median over its processes; 95% intervals."
    return Statement(f"{text}.", "measured", evidence, sentences.names(ceilings, {}), tuple(numbers))


def own_products(ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the rate of each step's own products, and its share of the ceiling."""
    chosen = tidy.with_rate(tidy.select(ceilings, operation="products"), "gflops", "flops", scale=1e-9)
    chosen = roofline.with_percent_of(chosen, "ceiling_percent", "flops", roofline.limit_intervals(ceilings)[0])
    table = tidy.medians(chosen, "gflops", "ceiling_percent", "total_ms")
    sizes = {config.d_model: size for size, config in SIZES.items()}
    return table.assign(size=table["columns"].map(sizes), tokens=table["rows"])


def probed(experiments: Mapping[str, pd.DataFrame]) -> str:
    """Name the hardware of the records and what makes one noisy, for a figure's note."""
    around = pd.DataFrame([one for records in experiments.values() for one in records["environment"]])
    noisy = "Noisy: the noise probe was slow or unsteady, or other programs used over "
    return tables.hardware(around, f"{noisy}{tidy.BUSY_PERCENT}% of the cores.") if len(around) else ""


@mpl.rc_context(plots.STYLE)
def draw_noise(noise: pd.DataFrame) -> Axes:
    """Draw the timed records of each experiment as a bar, hollow where they are noisy."""
    (ax,) = plots.axes(height=0.9 + 0.24 * len(noise))
    names, noisy = [name.replace("_", " ") for name in noise["experiment"]], noise["noisy machine"]
    quiet = noise["records"] - noisy
    style = {"height": 0.62, "edgecolor": plots.BLUE, "linewidth": 1}
    ax.barh(names, quiet, color=plots.BLUE, label="quiet", **style)
    ax.barh(names, noisy, left=quiet, facecolor="none", label="noisy", **style)
    for row, (some, every) in enumerate(zip(noisy, noise["records"], strict=True)):
        plots.beside(ax, every, row, f"{some} of {every}" if some else "none")
    ax.invert_yaxis()
    ax.set(xlabel="timed records", xlim=(0, 1.12 * noise["records"].max() if len(noise) else 1))
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
    ax.grid(axis="x")
    ax.legend(loc="lower right", frameon=False)
    return ax


def missing(machine: str) -> pd.DataFrame:
    """List what was not measured here and why, in the columns `what`, `not measured` and `why`."""
    rows, said = [], {}
    for name in notebooks.experiments():
        records = results.load(name, machine)
        if records.empty:
            rows.append((name, "all of it", "no records"))
            continue
        cases = tidy.medians(records)
        cases = tidy.labelled(cases, records.fields, but="device")
        for _, ended in cases[cases["why"] != ""].groupby("status", sort=False):
            rows.append((name, _some(list(ended["label"]), len(ended)), _some(list(dict.fromkeys(ended["why"])))))
        for reason in itertools.chain.from_iterable(one.get("lacks", []) for one in records["environment"]):
            said[reason] = (reason.partition(" ")[0], "everywhere", reason)
        for metric, what in UNSEEN.items():
            for reason in tidy.column(records, metric).dropna():
                said[reason] = (*what, reason)
    if self_check.table(results.load("calibration", machine)).empty:
        rows.append(("self-check", "all of it", "no records; make calibrate measures them"))
    return pd.DataFrame([*said.values(), *rows], columns=["what", "not measured", "why"])


def _some(texts: list[str], count: int = 0) -> str:
    """Join a few texts, and say how many more there are."""
    listed = "; ".join(texts[:FEW])
    return f"{listed}; and {max(count, len(texts)) - FEW} more" if len(texts) > FEW else listed


def coverage(experiments: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count the cases of each experiment, one row per experiment.

    Compares the cases here with the whole grid, that of the sweep `gpu`, and counts rounds and how cases ended."""
    rows, grids = [], whole_grids()
    for name, records in experiments.items():
        table, grid = tidy.medians(records), grids.get(name, set())
        own = table[records.fields].drop(columns="device", errors="ignore").astype(str)
        tried = set(own.itertuples(index=False, name=None))
        row = {"experiment": name, "cases of the whole grid": len(grid), "of them here": len(grid & tried)}
        row |= {"cases here": len(table), "rounds at most": int(records["round"].max()) if len(records) else 0}
        ends = table["status"].map(lambda status: tidy.STATUS[status] or "measured")
        rows.append(row | ends.value_counts().to_dict())
    frame = pd.DataFrame(rows)
    counted = frame.columns[5:]
    frame[counted] = frame[counted].fillna(0).astype(int)
    return frame


def whole_grids() -> dict[str, set[tuple[str, ...]]]:
    """Return the cases of the sweep `gpu` by experiment, their values as text, without the device."""
    sweep, grids = YAML(typ="safe", pure=True).load(notebooks.SWEEPS / "gpu.yaml"), {}
    for experiment in sweep.keys() & set(notebooks.experiments()):
        names, content = notebooks.fields(experiment), sweep[experiment]
        for block in content if isinstance(content, list) else [content]:
            axes = notebooks.parameters(experiment) | block
            values = (
                axes[name] if isinstance(axes[name], list) else [axes[name]] for name in names if name != "device"
            )
            grids.setdefault(experiment, set()).update(itertools.product(*(map(str, each) for each in values)))
    return grids


def environments(experiments: list[pd.DataFrame]) -> pd.DataFrame:
    """List the recorded environments in the columns `what` and `value`.

    Differing values are all listed, except those that differ between any two records."""
    every = [record for records in experiments for record in records.to_dict("records")]
    found: dict[str, dict] = {}
    for record in every:
        for name, value in record["environment"].items():
            found.setdefault(name, {})[str(value)] = value
    steps = sorted(found.pop("clock_stepped_s", {}).values())
    ranges = {what: _numbers(found.pop(name, {})) for name, what in RANGES.items()}
    for name in ("run", "machine"):
        found.pop(name, None)
    rows = {name.replace("_mib", ", MiB").replace("_", " "): _format_values(values) for name, values in found.items()}
    rows |= {what: f"{min(values):g} to {max(values):g}" for what, values in ranges.items() if values}
    rows |= {"steps of the wall clock, s": ", ".join(f"{one:+,g}" for one in steps).replace("-", "−")} if steps else {}
    rows["measuring code"] = ", ".join(sorted({record["code"] for record in every}))
    rows |= {"stale": stale} if (stale := staleness.left_out(*experiments)) else {}
    rows["measured on"] = ", ".join(sorted({record["started"][:10] for record in every}))
    return pd.DataFrame(rows.items(), columns=["what", "value"])


def _numbers(values: Mapping[str, object]) -> list[float]:
    """Return all numbers of values that are numbers or lists of them."""
    return [number for value in values.values() for number in (value if isinstance(value, list) else [value])]


def _format_values(values: Mapping[str, object]) -> str:
    kinds = {type(value) for value in values.values()}
    if kinds == {dict}:
        return ", ".join(sorted({f"{key}={v}" for value in values.values() for key, v in value.items()})) or "none set"
    if kinds == {list}:
        return "; ".join(sorted({text for value in values.values() for text in value})) or "nothing"
    return ", ".join({"True": "yes", "False": "no"}.get(text, text) for text in values)


def disturbances(experiments: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count noisy records and series that change, one row per experiment.

    `others at most` is what other programs used of the cores beside a record, if the system tells. `median spread` is
    the interquartile range of a case's samples relative to their median. A record is noisy if the noise probe was slow
    or unsteady, or if other processes used much of the machine. It is above the ceiling if a training step is faster
    than the ceiling allows. A series changes if its samples drift, jump or slow down late. Records that are `throttled`
    or `launch-bound` are counted if there are any."""
    rows = []
    for name, records in experiments.items():
        timed = records[tidy.column(records, "total_ms").map(lambda times: isinstance(times, list))]
        if timed.empty:
            continue
        rounds = timed.to_dict("records")
        found = [tidy.disturbances(record) for record in rounds]
        spread = statistics.median(map(_spread_percent, timed["total_ms"]))
        many = sum(len(times) >= 20 for times in timed["total_ms"])
        noisy, fast = (sum(kind in said for said in found) for kind in (tidy.NOISY, tidy.TOO_FAST))
        changed = sum(bool(set(said.split(", ")) - {"", tidy.NOISY, tidy.TOO_FAST}) for said in found)
        others = max(one.get("others_percent", 0.0) for one in timed["environment"])
        marked = (sum(bool(of(record)) for record in rounds) for of in (tidy.throttled, tidy.launch_bound))
        rows.append((name, len(timed), spread, many, noisy, others, fast, changed, *marked))
    frame = pd.DataFrame(rows, columns=NOISE)
    return frame.drop(columns=[name for name in ("throttled", "launch-bound") if not frame[name].any()])


def _spread_percent(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return 100 * (high - low) / middle


def priors(machine: str) -> pd.DataFrame:
    """Return how much comparisons spread between processes, one row per prior.

    `spread, %` is the standard deviation of a process's ratio for a case of the median length."""
    names: dict[tuple, list[str]] = {}
    version = results.version(machine)
    for name in (name for name, entry in CATALOG.items() if entry.baseline):
        for by in (comparisons.PAIRS, comparisons.MEDIANS):
            if prior := compare.prior(name, machine, "total_ms", by, version):
                names.setdefault((by, prior), []).append(name)
    rows = [
        {
            "experiment": ", ".join(each), "compared by": by, "comparisons": len(prior.tails),
            "spread, %": 100 * math.exp(prior.level / 2), "growth with time, power": prior.slope / 2,
            "degrees of freedom": prior.freedom,
        }
        for (by, prior), each in names.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)
