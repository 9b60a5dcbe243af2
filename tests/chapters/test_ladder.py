"""The rungs stand in order, with gains over the rung before and over the plain step, and the best one is named."""

import re

import pytest

from lib.chapters import ladder, step
from lib.records import results
from lib.report import plots

pytestmark = pytest.mark.usefixtures("closed_figures")

PLAIN = {
    "size": "tiny", "context_length": 128, "batch_size": 4, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip
FACTS = {
    "forward_flops": 10**9, "backward_flops": 2 * 10**9, "forward_bytes": 10**6, "backward_bytes": 10**6,
    "optimizer_bytes": 10**6, "tokens": 512, "parameters": 10**6, "logits_error": [0.004],
}  # fmt: skip
OFF = {"projections": False, "cast_once": False, "compile_mode": "default"}
FUSED = {"optimizer": "fused"}
COMPILED = FUSED | {"compiled": True}
ALL = COMPILED | {"precision": "bf16"}


@pytest.fixture
def save(save_timed):
    """Save a case by its ratios to the plain step of 100 ms and to the rung before, and how many times the FLOPs."""

    def save(ratio=1.0, rung=1.0, times=1, **switched):
        switches, ms = switched.keys() - {"size"}, 100 * ratio
        pairs = {"baseline_ms": ms / rung if switches else None, "plain_ms": 100 if len(switches) > 1 else None}
        phases = {f"{phase}_ms": [ms / 3] * 8 for phase in step.PHASES}
        compiled = {"first_iteration_ms": [5000.0], "wall_ms": [ms] * 8, "compile_cache_hits": 0}
        facts = FACTS | {"forward_flops": times * FACTS["forward_flops"]}
        name, case = ("ladder", PLAIN | OFF) if switches else ("step", PLAIN)
        save_timed(name, case | switched, ms, **pairs, **phases, **compiled, **facts)

    return save


def found():
    ceilings = results.load("ceilings", "test-1c")
    rungs, steps = (step.prepared(results.load(name, "test-1c"), ceilings) for name in ("ladder", "step"))
    return rungs, ladder.table(rungs, steps, results.load("allocator", "test-1c"))


def test_the_rungs_stand_in_order_and_the_best_one_is_named(save):
    save()
    save(0.9, 0.9, **FUSED)
    save(0.8, 0.89, **COMPILED)
    save(0.4, 0.5, **ALL)
    save(0.3, 0.75, **ALL, projections=True)
    save(0.36, 1.2, **ALL, projections=True, attention="sdpa")
    rungs, rows = found()
    assert list(rows["switch"]) == ["plain", "fused", "compiled", "bf16", "projections", "sdpa"]
    assert list(rows["rung_verdict"].iloc[1:]) == ["faster"] * 4 + ["slower"]
    said = ladder.answer(rungs, rows)
    assert said.verdict == "faster"
    assert said.text.startswith(
        "Switch on fused, compiled, bf16 and projections: a step of tiny (4 × 128 tokens) then takes 30"
    )
    assert "The switch that brings the most is bf16: " in said.text
    assert "is unclear" not in said.text
    undecided = rows.assign(rung_verdict=rows["rung_verdict"].mask(rows["switch"] == "compiled", "unclear"))
    assert "Whether compiled brings anything is unclear." in ladder.answer(rungs, undecided).text
    own, plain, gain, rung_gain, *_ = said.quantities
    assert [one.value.value for one in (own, plain)] == pytest.approx([30, 100], rel=0.01)
    assert [one.value.value for one in (gain, rung_gain)] == pytest.approx([0.3, 0.5], rel=0.01)
    assert said._repr_html_().count("data-q=") == len(said.quantities)
    assert re.search("Compiling takes 4.9[0-9]* s, repaid after [0-9.]+ steps", said.text)
    assert said.text.endswith("the logits differ by 0.40% from those in fp32.")
    assert ladder.use_line(rows).text == (
        'lib.fast.accelerate(model, ["projections"]); AdamW(parameters, fused=True); torch.compile(model); '
        "torch.autocast(device, torch.bfloat16)"
    )
    shown = ladder.show(rows)._repr_html_()
    assert "torch.<wbr>autocast(<wbr>device, torch.<wbr>bfloat16)" in shown
    assert "4.9" in ladder.prices(rows)._repr_html_()


def test_two_values_of_one_field_begin_at_the_same_rung(save):
    save()
    save(0.9, 0.9, **FUSED)
    save(0.8, 0.89, **COMPILED)
    save(0.6, 0.75, **COMPILED, precision="tf32")
    save(0.4, 0.5, **ALL)
    save(0.36, 0.9, **ALL, attention="sdpa_flash")
    save(0.34, 0.85, **ALL, attention="sdpa_cudnn")
    rungs, rows = found()
    switches = ["plain", "fused", "compiled", "tf32", "bf16", "sdpa_flash", "sdpa_cudnn"]
    assert list(rows["switch"]) == switches
    ax = ladder.draw(rows)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["plain", *(f"+ {name}" for name in switches[1:])]
    assert [bar.get_x() for bar in ax.patches] == pytest.approx([0, 100, 90, 80, 80, 40, 40], rel=0.02)
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert ends == pytest.approx([100, 90, 80, 60, 40, 36, 34], rel=0.02)
    assert plots.show(ladder.draw(rows.iloc[:0]), "", "", rows.iloc[:0])._repr_html_() == ""
    assert ladder.answer(rungs, rows).text.startswith("Switch on fused, compiled, bf16 and sdpa_cudnn")
    assert ladder.use_line(rows).text.endswith("sdpa_kernel(SDPBackend.CUDNN_ATTENTION)")


def test_the_largest_size_with_a_plain_step_is_taken(save):
    save(0.5, 0.5, **FUSED)
    assert found()[1].empty
    save()
    save(0.9, 0.9, size="small", times=100, **FUSED)
    assert set(found()[1]["size"]) == {"tiny"}
    save(size="small", times=100)
    assert set(found()[1]["size"]) == {"small"}


def test_switches_that_bring_nothing_are_not_recommended(save):
    save()
    save(1.2, 1.2, **FUSED)
    rungs, rows = found()
    assert ladder.answer(rungs, rows).text.startswith("No switch makes a step of tiny")
    assert ladder.use_line(rows).verdict == "no data"


def test_keeping_freed_memory_stands_in_a_row_of_its_own(save, save_timed):
    save()
    save(0.8, 0.8, **FUSED)
    for name, ms in (("keeps", 10.0), ("default", 20.0)):
        case = {"program": "tiny_step", "allocator": name, "device": "cpu"}
        save_timed("allocator", case, ms, minor_faults=[100] * 8)
    _, rows = found()
    assert list(rows["switch"]) == ["plain", "fused", ladder.KEEPS]
    kept = rows.iloc[-1]
    assert (kept["verdict"], kept["gain"].value) == ("faster", pytest.approx(2))
    assert ladder.use_line(rows).text == f"{ladder.ALLOCATOR}; AdamW(parameters, fused=True)"


def test_losses_and_the_search_are_told(save_record):
    case = PLAIN | OFF | COMPILED
    trials = {"rung": [1, 1, 2], "switch": ["optimizer", "compiled", "compiled"], "ratio": [0.8, 0.9, 1.1]}
    trials |= {"low": [0.7, 0.8, 1.0], "high": [0.9, 1.0, 1.2], "taken": ["yes", "no", "no"]}
    losses = {"loss_nats": [9.0, 4.0], "plain_loss_nats": [9.0, 5.0]}
    save_record("ladder", case, 1, total_ms=[1.0], search=trials, **losses)
    records = results.load("ladder", "test-1c")
    learnt = ladder.learning(records).iloc[0]
    told = ["switches", "steps", "last_loss", "apart_percent"]
    assert list(learnt[told]) == ["fused + compiled", 2, 4, 20]
    order = ladder.order(records)
    assert list(order["switch"]) == ["fused", "compiled", "compiled"]
    assert list(order["taken"]) == ["yes", "no", "no"]
