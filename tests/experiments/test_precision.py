"""Sums and dtypes in narrow types are those that plain PyTorch gives."""

import pytest
import torch

from lib.experiments.case import Recording
from lib.experiments.precision import Precision


def measured(subject, precision):
    case = Precision(subject=subject, precision=precision, device="cpu")
    record = Recording(case)
    case.measure(record, seconds=0)
    return record.metrics


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_the_four_sums_are_those_of_the_assignments_loops(name, dtype):
    table = measured("accumulation", name)["loops"]
    sums = dict(zip(table["loop"], table["sum"], strict=True))
    narrow = torch.tensor(0, dtype=dtype)
    mixed = torch.tensor(0, dtype=torch.float32)
    for _ in range(1000):
        narrow += torch.tensor(0.01, dtype=dtype)
        mixed += torch.tensor(0.01, dtype=dtype)
    assert sums[f"{name} += {name}"] == narrow.item()
    assert sums[f"fp32 += {name}"] == sums[f"fp32 += {name} as fp32"] == mixed.item()


def test_a_language_model_keeps_its_residual_stream_in_fp32():
    table = measured("transformer", "fp16")["dtypes"]
    seen = dict(zip(table["tensor"], table["dtype"], strict=True))
    assert seen["residual stream after a layer"] == "fp32"
    assert seen["queries"] == "fp16"


def test_what_is_no_case_is_refused_or_left_out():
    with pytest.raises(ValueError, match=r"subject: got 'tpy'.*nearest: toy"):
        Precision(subject="tpy", precision="bf16", device="cpu")
    assert "each include" in Precision(subject="accumulation", precision="fp32", device="cpu").unavailable()
    assert "not a dtype" in Precision(subject="toy", precision="tf32", device="cpu").unavailable()
