"""Judge the ratios of interleaved pairs, for the table of one machine."""

from collections.abc import Mapping

import pandas as pd

from lib import catalog
from lib.stats import estimates, verdicts


def judge(used: pd.DataFrame, cases: pd.DataFrame, is_by_hand: bool) -> pd.DataFrame:
    """Judge the ratio of the baseline's time to each case's, whole and by phase.

    `used` are the records of one machine that are ok, each with the number of its `case`; `cases` has the fields of
    each case by that number. By hand a ratio has the error of its own pairs. Columns: `baseline`; `pairs`,
    `lowest_pair` and `highest_pair`, which count single pairs and have the extremes of their ratios; and those of
    `verdicts.judge`, for the whole and with each phase in front. The texts of a case without pairs are empty."""
    columns = {"baseline": pd.Series(dtype=str), **_extremes(used)}
    is_stale = used.groupby("case")["stale"].all()
    for phase in ["", *_phases(used)]:
        estimated = _estimate(used, phase, is_by_hand)
        counts = ~is_stale.reindex(estimated.index)
        # where all are stale, as records kept in git become, they count
        judgement = verdicts.judge(estimated, counts | ~counts.any())
        for name in judgement:
            columns[f"{phase}{name}"] = judgement[name]
    for number, case in cases.loc[columns["speedup"].index].iterrows():
        columns["baseline"].loc[number] = baseline(used["experiment"].iloc[0], case)
    table = pd.DataFrame(columns, index=cases.index)
    texts = table.filter(regex="baseline|verdict|advice").columns
    return table.fillna(dict.fromkeys(texts, ""))


def _extremes(used: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the number of pairs of each case, and the extremes of their ratios."""
    pairs = used.reindex(columns=["case", "paired_ms", "baseline_ms"]).dropna().explode(["paired_ms", "baseline_ms"])
    ratios = (pairs["baseline_ms"].astype(float) / pairs["paired_ms"].astype(float)).groupby(pairs["case"])
    return {"pairs": ratios.size(), "lowest_pair": ratios.min(), "highest_pair": ratios.max()}


def _phases(used: pd.DataFrame) -> list[str]:
    """List the phases that ran in pairs, as a prefix of columns: `forward_`."""
    names = used.filter(regex="^paired_.+_ms$").columns
    return [name.removeprefix("paired_").removesuffix("ms") for name in names]


def _estimate(used: pd.DataFrame, phase: str, is_by_hand: bool) -> pd.DataFrame:
    """Estimate the logarithm of each case's ratio, for `verdicts.judge`."""
    pairs = used.reindex(columns=["case", f"paired_{phase}ms", f"baseline_{phase}ms"]).dropna()
    rows = []
    for case, variant_ms, baseline_ms in pairs.itertuples(index=False):
        rows.append((case, *estimates.of_pairs(variant_ms, baseline_ms), len(variant_ms) - 1))
    ratios = pd.DataFrame(rows, columns=["case", "log", "noise", "freedom"])
    ratios = ratios.astype({"case": int, "log": float, "noise": float, "freedom": float})
    if not is_by_hand:
        return estimates.of_processes(ratios["log"], ratios["case"], ratios["noise"])
    within = ratios.drop_duplicates("case").set_index("case")
    # a single pair says nothing about noise
    return within.assign(error=within["noise"].where(within["freedom"] > 0))


def baseline(experiment: str, case: Mapping) -> str:
    """Name a case's baseline by the value in which it differs.

    So it is naive, not compiled, without checkpoint. A case that ran in pairs without a baseline ran against itself."""
    rival = catalog.baseline(experiment, case)
    if rival is None:
        return "itself"
    name, value = next((name, value) for name, value in rival.items() if value != case[name])
    if value is False:
        return f"not {name}"
    if value == 0:
        return f"without {name}"
    return value if isinstance(value, str) else f"{name} {value}"
