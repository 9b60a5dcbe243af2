"""The switches of a step are ranked by their gain over the plain step, and the best combination is named."""

import re

import pytest

from lib.chapters import step, switches
from lib.records import results

PLAIN = {
    "size": "tiny", "context_length": 128, "batch_size": 4, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip
FACTS = {
    "forward_flops": 10**9, "backward_flops": 2 * 10**9, "forward_bytes": 10**6, "backward_bytes": 10**6,
    "optimizer_bytes": 10**6, "tokens": 512, "parameters": 10**6, "logits_error": [0.004],
}  # fmt: skip
ALL = {"precision": "bf16", "attention": "sdpa", "optimizer": "fused", "compiled": True}


@pytest.fixture
def save(save_record):
    """Save a case of three rounds that takes `ratio` of the plain time of 100 ms, with FLOPs of its size."""

    def save(ratio=1.0, times=1, **switched):
        several = len(switched.keys() - {"size"}) > 1
        for round in (1, 2, 3):
            plain = [100 + 0.1 * round + 0.01 * i for i in range(8)]
            own = [ms * ratio * (1 + 0.002 * ((i + round) % 3)) for i, ms in enumerate(plain)]
            pairs = {"paired_ms": own, "baseline_ms": plain} if switched else {}
            pairs |= {"plain_paired_ms": own, "plain_baseline_ms": plain} if several else {}
            phases = {f"{phase}_ms": [ms / 3 for ms in own] for phase in step.PHASES}
            compiled = {"first_iteration_ms": [5000.0], "wall_ms": own, "compile_cache_hits": 0}
            facts = FACTS | {"forward_flops": times * FACTS["forward_flops"]}
            save_record("step", PLAIN | switched, round, total_ms=own, **pairs, **phases, **compiled, **facts)

    return save


def found():
    steps = step.prepared(results.load("step", "test-1c"), results.load("ceilings", "test-1c"))
    return steps, switches.table(steps, results.load("allocator", "test-1c"))


def test_the_best_combination_and_the_best_switch_are_named(save):
    save()
    for ratio, switch in ((0.8, {"precision": "bf16"}), (1.0, {"attention": "sdpa"}), (0.5, ALL)):
        save(ratio, **switch)
    steps, rows = found()
    assert list(rows["switch"]) == ["plain", "sdpa", "bf16", "bf16 + fused + sdpa + compiled"]
    said = switches.answer(steps, rows)
    assert said.verdict == "faster"
    assert said.text.startswith(
        "Switch on bf16, fused, sdpa and compiled: a step of tiny (4 × 128 tokens) is then 1.99"
    )
    assert [round(one.value.value, 2) for one in (said.quantities[0], said.quantities[3])] == [0.5, 0.8]
    assert "Of the switches tried alone, bf16 brings the most: 1.2" in said.text
    assert re.search("Compiling takes 4.9[0-9]* s, repaid after [19][0-9.]* steps", said.text)
    assert said.text.endswith("the logits differ by 0.40% from those in fp32.")
    options = (
        "torch.autocast(device, torch.bfloat16); AdamW(parameters, fused=True); "
        "F.scaled_dot_product_attention(q, k, v, is_causal=True); torch.compile(model)"
    )
    assert switches.use_line(rows).text == options
    shown = switches.show(rows)._repr_html_()
    assert "AdamW" not in shown  # only what was measured alone has its option
    assert "torch.<wbr>autocast(<wbr>device, torch.<wbr>bfloat16)" in shown
    assert "4.9" in switches.prices(rows)._repr_html_()


def test_the_largest_size_with_several_switches_is_taken(save):
    save()
    save(0.5, **ALL)
    assert set(found()[1]["size"]) == {"tiny"}
    save(size="small", times=100)
    assert set(found()[1]["size"]) == {"tiny"}
    save(0.9, size="small", times=100, **ALL)
    assert set(found()[1]["size"]) == {"small"}


def test_without_the_plain_step_nothing_is_recommended(save):
    save(0.5, **ALL)
    assert found()[1].empty


def test_switches_that_bring_nothing_are_not_recommended(save):
    save()
    save(1.2, attention="sdpa")
    steps, rows = found()
    assert switches.answer(steps, rows).text.startswith("No switch makes a step of tiny")
    assert switches.use_line(rows).verdict == "no data"


def test_keeping_freed_memory_stands_in_a_row_of_its_own(save, save_record):
    save()
    save(0.8, precision="bf16")
    for round in (1, 2, 3):
        for name, factor in (("keeps", 1.0), ("default", 2.0)):
            times = [factor * (10 + 0.01 * round + 0.001 * i) for i in range(8)]
            case = {"program": "tiny_step", "allocator": name, "device": "cpu"}
            save_record("allocator", case, round, total_ms=times, minor_faults=[100] * 8)
    _, rows = found()
    assert list(rows["switch"]) == ["plain", switches.KEEPS, "bf16"]
    kept = rows.iloc[1]
    assert (kept["verdict"], kept["gain"].value) == ("faster", pytest.approx(2))
    assert switches.use_line(rows).text == f"{switches.ALLOCATOR}; torch.autocast(device, torch.bfloat16)"


def test_without_records_nothing_is_said(own_results):
    steps, rows = found()
    assert rows.empty
    assert switches.answer(steps, rows).verdict == switches.use_line(rows).verdict == "no data"
    assert switches.show(rows)._repr_html_() == switches.prices(rows)._repr_html_() == ""
