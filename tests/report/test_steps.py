"""A step is told by what is not plain in it, beside the bounds of its parts, and grows with its model."""

import pandas as pd
import pytest

from lib.report import bounds, steps

MACHINE = "xeon-2c-0e51"  # of the records kept in git


@pytest.fixture(scope="module")
def table(reference_table):
    return steps.describe(reference_table("step").sort_values(["parameters", "context_length"]))


def test_the_most_usual_step_is_told_and_named_by_what_is_not_plain(table):
    (step,) = steps.choose(table).itertuples()
    assert step.subject == "small (129 M parameters, 4 × 128 tokens, fp32)"
    assert step.tokens_a_second == pytest.approx(1e3 * 512 / step.total_ms)
    assert step.over_bound == pytest.approx(step.total_ms / step.bound_ms)
    assert step.over_bound_low == pytest.approx(step.total_ms_low / step.bound_ms)
    variants = set(table["variant"])
    assert {"fp32", "bf16", "fp32, compiled", "fp32, no_grad"} <= variants


def test_parts_add_up_to_the_bound(table):
    step = steps.choose(table)
    parts = steps.split(step)
    assert list(parts["part"]) == ["forward", "backward", "optimizer"]
    bound_ms = parts[["products_ms", "memory_ms"]].max(axis="columns").sum()
    assert bound_ms == pytest.approx(step["bound_ms"].item())
    assert parts["share_percent"].sum() == pytest.approx(100)
    products, _ = bounds.best_rates(bounds.load_ceilings(MACHINE))
    # there no other library has better products in fp32
    assert parts["default_tflops"].unique() == pytest.approx(products["cpu", "fp32"] / 1e12)
    assert parts["default_ms"].sum() == pytest.approx(bound_ms)
    assert steps.split(step[:0]).empty


def test_sizes_have_their_shape(table):
    shapes = steps.list_sizes(table).set_index("size")
    assert list(shapes.index) == ["tiny", "small"]
    assert shapes.loc["small", "d_ff"] == 3072


def test_deviations_are_those_of_the_process_in_the_middle_and_then_of_most_steps():
    case = steps.PLAIN | {"size": "small", "parameters": 1, "batch_size": 4, "context_length": 128, "machine": "here"}
    times = [{"forward_ms": [1.0, 3.0], "backward_ms": [4.0, 4.0], "optimizer_ms": [2.0, 6.0]}]
    times.append({name: values[:1] for name, values in times[0].items()})
    records = pd.DataFrame([case | {"status": "ok"} | row for row in times])
    records = pd.concat([records, records.assign(compiled=True), records.assign(machine="there")], ignore_index=True)
    (row,) = steps.list_deviations(records).to_dict("records")
    assert row == {
        "size": "small", "batch × tokens": "4 × 128", "precision": "fp32", "samples": 2,
        "forward": "2.0 ± 1.4", "backward": "4.0 ± 0.0", "optimizer": "4.0 ± 2.8", "backward over forward": 2.0,
        "largest_percent": pytest.approx(100 / 2**0.5),
    }  # fmt: skip
    slow = {name: [320.0 * ms for ms in values] for name, values in times[0].items()}
    near = {name: [2.0 * ms for ms in values] for name, values in times[0].items()}
    middle = pd.concat([records, pd.DataFrame([case | {"status": "ok"} | row for row in (slow, near, slow)])])
    (row,) = steps.list_deviations(middle.query("not compiled and machine == 'here'")).to_dict("records")
    assert row["forward"] == "4.0 ± 2.8"
    (row,) = steps.list_deviations(pd.DataFrame([case | {"status": "ok"} | slow])).to_dict("records")
    assert row["forward"] == "640 ± 450"
    passes = pd.DataFrame([case | {"status": "ok", "mode": "forward_backward"} | slow]).drop(columns="optimizer_ms")
    (row,) = steps.list_deviations(passes).to_dict("records")
    assert (row["forward"], row["optimizer"]) == ("640 ± 450", "none")
    (row,) = steps.list_deviations(pd.concat([records.query("machine == 'here'"), passes])).to_dict("records")
    assert row["forward"] == "2.0 ± 1.4"
    assert steps.list_deviations(records[:0]).empty
