"""The time of a profiled step is that of its kinds of kernels and of gaps, and so is what it loses to its bound."""

import numpy as np
import pandas as pd
import pytest

from lib.report import bounds, profiles, table


@pytest.fixture(scope="module")
def records(reference):
    return reference["kernels"]


@pytest.fixture(scope="module")
def parts(records):
    return profiles.by_kind(records)


def of_small(frame):
    return frame[(frame["size"] == "small") & (frame["mode"] == "train_step")]


def test_kinds_are_the_classes_of_the_record_and_share_their_phase_as_it_is_timed(records, parts):
    (run,) = of_small(profiles.choose(records)).itertuples()
    classes = pd.DataFrame(run.classes, columns=["phase", "class", "calls", "total_us"])
    kinds = of_small(parts)
    for phase in ("forward", "backward", "optimizer"):
        slowed = np.median(getattr(run, f"profiled_{phase}_ms")) / np.median(getattr(run, f"{phase}_ms"))
        expected_ms = classes.loc[classes["phase"] == phase, "total_us"].sum() / 1e3 / slowed
        assert kinds.loc[kinds["phase"] == phase, "kernels_ms"].sum() == pytest.approx(expected_ms)
    assert kinds["calls"].sum() == classes["calls"].sum()


def test_of_several_profiles_the_shortest_is_told_with_its_own_attention(records):
    one = of_small(profiles.choose(records)).drop(columns="round")
    several = [one.assign(round=number, total_ms=[[ms]]) for number, ms in enumerate([30.0, 10.0, 20.0, 40.0])]
    lost = one.assign(round=4, status="out of memory", total_ms=float("nan"))
    chosen = profiles.choose(pd.concat([*several, lost], ignore_index=True))
    assert chosen["round"].to_list() == [1]
    times_ms = [profiles.in_attention(frame)["time_ms"].sum() for frame in (pd.concat(several), one.assign(round=1))]
    assert times_ms[0] == times_ms[1] > 0


def test_the_shares_of_all_profiles_are_told_beside_the_shortest(records):
    one = of_small(profiles.choose(records))
    every = profiles.list_shares(one, one)
    assert profiles.tell_range(every) == ""
    (own,) = every.filter(like="_percent").to_dict("records")
    assert own == pytest.approx(profiles.shares(profiles.by_kind(one)).add_suffix("_percent").to_dict())
    slower = every.assign(optimizer_percent=99.0)
    text = profiles.tell_range(pd.concat([every, slower]))
    assert text.startswith(" It is the shortest of 2 such steps (in all of them matrix products ")
    assert f"optimizer {own['optimizer_percent']:.0f} to 99%" in text


def test_losses_and_the_bound_add_up_to_the_step(parts, records):
    step = of_small(parts)
    (whole,) = of_small(table(profiles.choose(records))).itertuples()
    losses_ms = profiles.lose(step)
    longer_ms = max(whole.total_ms, step["kernels_ms"].sum())
    assert losses_ms.sum() == pytest.approx(longer_ms - whole.bound_ms)
    assert list(losses_ms) == sorted(losses_ms, reverse=True)
    assert profiles.shares(step).sum() == pytest.approx(100 * longer_ms / whole.total_ms)
    assert profiles.lose(step.assign(bound_ms=float("nan"))).empty


def test_a_cascade_leads_from_the_bound_to_the_step(records, monkeypatch):
    facts = {"device": "cpu", "status": "ok", "rows": 512, "columns": 768, "flops": 1e12, "output_error": [0.0]}
    runs = [
        # another library, which rounds nothing, does 1 TFLOP/s, the one that is called 200 GFLOP/s at best
        {**facts, "operation": "matmul", "precision": "bf16_products", "total_ms": [1_000.0]},
        {**facts, "operation": "matmul", "precision": "fp32", "total_ms": [5_000.0]},
        {**facts, "operation": "copy", "precision": "fp32", "moved_bytes": 1e9, "total_ms": [100.0]},
    ]
    monkeypatch.setattr(bounds, "load_ceilings", lambda _: pd.DataFrame(runs))
    parts = of_small(profiles.by_kind(records))
    step = of_small(profiles.sum_up(parts))
    spent_ms = profiles.cascade(parts, step)["ms"]
    assert spent_ms[:-1].sum() == pytest.approx(spent_ms[profiles.TOTAL])
    assert spent_ms[profiles.TOTAL] == pytest.approx(max(*step["total_ms"], parts["kernels_ms"].sum()))
    gflops = (step["forward_flops"] + step["backward_flops"]).sum() / 1e9
    assert spent_ms[profiles.LIBRARY] == pytest.approx(gflops * (1e3 / 200 - 1e3 / 1000))
    in_products_ms = spent_ms[[profiles.LIBRARY, profiles.IN_STEP]].sum()
    assert in_products_ms == pytest.approx(profiles.lose(parts)[profiles.PRODUCTS])
    assert profiles.cascade(parts.assign(bound_ms=float("nan")), step).isna().all(axis=None)


def test_a_profile_is_summed_up_and_said(parts):
    (step,) = of_small(profiles.sum_up(parts)).itertuples()
    products_ms = of_small(parts).query("kind == 'matrix products'")["kernels_ms"].sum()
    assert step.products_percent == pytest.approx(100 * products_ms / step.total_ms)
    ahead_ms = of_small(parts).query("kind == 'matrix products' and phase == 'forward'")["kernels_ms"].sum()
    assert step.products_in_forward_percent == pytest.approx(100 * ahead_ms / step.forward_ms)
    assert step.step == "train step of small at 4 × 128 tokens in fp32 (naive attention, single_tensor)"
    assert profiles.split(of_small(parts)).startswith(f"matrix products {step.products_percent:.0f}% (1.")
    assert profiles.join(pd.Series({"optimizer": 181.49, "matrix products": 78.74})) == (
        "optimizer 181, matrix products 78.7"
    )


def test_the_largest_loss_has_its_cure_and_the_most_that_this_can_gain(parts, records):
    step = of_small(profiles.sum_up(parts))
    kinds = of_small(parts)
    record = of_small(profiles.choose(records))
    lost_ms = profiles.lose(kinds)
    text = profiles.advise("plain step", step, kinds, record)
    assert f"{lost_ms.sum():,.0f} ms beyond its bound: {profiles.join(lost_ms)}. So " in text
    assert profiles.CURES[lost_ms.index[0]] in text
    # of another kind than products at most all that it loses
    slow = kinds.assign(
        beyond_ms=kinds["beyond_ms"].mask(kinds["kind"] == profiles.OTHERS, step["total_ms"].iloc[0] / 4)
    )
    others_ms = profiles.lose(slow)[profiles.OTHERS]
    assert f"(at most {1 / (1 - others_ms / step['total_ms'].iloc[0]):.2f}×). The longest of them is `" in (
        profiles.advise("plain step", step, slow, record)
    )
    assert profiles.advise("plain step", step, kinds.assign(bound_ms=float("nan")), record) == ""


def test_attention_has_the_time_of_its_parts(records):
    single = of_small(profiles.choose(records))
    (run,) = single.itertuples()
    spent = pd.DataFrame(run.parts, columns=["phase", "part", "class", "calls", "total_us"])
    slowed = np.median(run.profiled_forward_ms) / np.median(run.forward_ms)
    softmax = spent[(spent["part"] == "softmax") & (spent["phase"] == "forward")]
    (row,) = profiles.in_attention(single).query("part == 'softmax' and phase == 'forward'").itertuples()
    assert row.softmax_ms == row.time_ms == pytest.approx(softmax["total_us"].sum() / 1e3 / slowed)
    assert row.flops_percent < 5


def test_what_a_compiler_fuses_is_named_by_its_operations():
    columns = ["phase", "kernel", "class", "calls", "total_us", "share_percent"]
    rows = [("forward", "graph_1_cpp_fused__to_copy_mul_7", "elementwise", 2, 3000.0, 60.0)]
    rows.append(("forward", "aten::mm", "matrix product", 1, 2000.0, 40.0))
    named = profiles.by_name(by_hand_profile(kernels=rows, columns=columns))
    assert list(named["op"]) == ["to_copy_mul", "aten::mm"]
    assert list(named["is_other"]) == [True, False]


def by_hand_profile(kernels, columns):
    """Return the frame of one record, whose tables are lists of columns as in a file."""
    case = {
        "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
        "attention": "naive", "optimizer": "fused", "mode": "forward", "device": "cpu", "machine": "test-1c",
    }  # fmt: skip
    table = dict(zip(columns, map(list, zip(*kernels, strict=True)), strict=True))
    return pd.DataFrame([case | {"experiment": "kernels", "status": "ok", "stale": False, "kernels": table}])


def test_without_profiles_there_is_nothing(records):
    assert profiles.by_kind(records[:0]).empty
    assert profiles.sum_up(profiles.by_kind(records[:0])).empty
    assert profiles.lose(profiles.by_kind(records[:0])).empty
    assert profiles.in_attention(records[:0]).empty
