"""A profiled step says what ran in each phase and in each part of attention."""

import statistics
from dataclasses import replace

import pandas as pd

from lib.cost import flops
from lib.experiments.kernels import PROFILED
from lib.instruments import kernel_classes
from plain import measured, one

TINY = one("kernels", context_length=32)
PHASES = ["forward", "backward", "optimizer"]


def test_a_step_falls_into_known_classes_and_phases_and_has_its_products_where_theory_has_them():
    metrics = measured(TINY)
    assert len(metrics["total_ms"]) >= 3
    assert all(len(metrics[f"profiled_{phase}_ms"]) == PROFILED for phase in [*PHASES, "total"])
    classes = pd.DataFrame(metrics["classes"])
    assert list(classes["phase"].unique()) == PHASES
    assert set(classes.loc[classes["phase"] == "optimizer", "class"]) == {"optimizer"}
    assert kernel_classes.OTHER not in set(classes["class"])
    assert classes["total_us"].sum() / 1e3 <= statistics.median(metrics["profiled_total_ms"])
    calls = pd.DataFrame(metrics["kernels"]).set_index(["phase", "kernel"])["calls"]
    layers = TINY.config.num_layers
    products = pd.DataFrame(metrics["products"]).groupby("phase")["flops"].sum()
    assert products["forward"] == flops.forward_flops(TINY.shape)
    assert products["backward"] == flops.backward_flops(TINY.shape)
    assert calls["forward", "aten::mm"] == 7 * layers + 1  # four projections, three of SwiGLU, the head
    assert calls["backward", "aten::mm"] == 2 * calls["forward", "aten::mm"]

    parts = pd.DataFrame(metrics["parts"]).set_index(["class", "part", "phase"])["calls"].sort_index()
    products = parts["matrix product"]
    assert set(products.index) == {(part, phase) for part in ("scores", "values") for phase in PHASES[:2]}
    assert products["scores", "forward"] >= layers
    assert products["values", "backward"] >= 2 * layers  # the gradients of the weights and of the values
    assert set(parts["reduction", "softmax"].index) == {"forward", "backward"}
    assert set(metrics["part_costs"]["part"]) == {"scores", "softmax", "values"}


def test_a_fused_kernel_has_no_parts():
    metrics = measured(replace(TINY, attention="sdpa", mode="no_grad"))
    assert "parts" not in metrics
    assert "part_costs" not in metrics
    assert "matrix product" in metrics["classes"]["class"]
