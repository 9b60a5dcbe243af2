"""Compile the kernels of `lib.flash` for GPUs that are not here, by their launches."""

import contextlib
import subprocess
import tempfile
import unittest.mock
from collections.abc import Iterator

import pandas as pd
import torch
import triton
from triton.backends.compiler import GPUTarget

from lib.flash import tiles

NUMBERS = {
    "bf16": (torch.bfloat16, "highest"),
    "fp16": (torch.float16, "highest"),
    "tf32": (torch.float32, "high"),
    "ieee": (torch.float32, "highest"),
}
HEADS = (16, 32, 64, 128)


class PretendedGpu:
    """Take the place of Triton's driver: compile for an architecture, and list launches in place of starting them."""

    def __init__(self, arch: int):
        self.arch = arch
        self.utils = self
        self.launches = []

    def get_current_device(self):
        # Triton keeps what it compiled by this number, which is that of no GPU that may be here
        return self.arch

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_device_properties(self, device):
        kib = tiles.SHARED_KIB.get(divmod(self.arch, 10), tiles.LEAST_KIB)
        return {"max_shared_mem": kib * 1024}

    def load_binary(self, name, binary, shared_bytes, device):
        """Return a module, what stands for a function in launches, registers, spills, and the most threads."""
        return True, (name, binary, shared_bytes), 0, 0, 1024

    def unload_module(self, module):
        pass

    def launcher_cls(self, source, metadata):
        return lambda *launch: triton.runtime.driver.active.launches.append(launch)


@contextlib.contextmanager
def pretend(arch: int) -> Iterator[list[tuple]]:
    """Yield a list of launches, each a grid of three, stream, function, what is for hooks (4), and the arguments."""
    gpu = PretendedGpu(arch)
    # Triton's own `reset_active` raises where there is no GPU
    with unittest.mock.patch.object(triton.runtime.driver, "_active", gpu):
        yield gpu.launches


def measure(arch: int, numbers: str, d_head: int, causal: bool) -> pd.DataFrame:
    """Tabulate what the three kernels of a variant need; Triton raises if it is more than an architecture has."""
    dtype, precision = NUMBERS[numbers]
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    q = torch.zeros(1, 2, 128, d_head, dtype=dtype)
    with pretend(arch) as launches:
        out, logsumexp = tiles.attend(q, q, q, causal)
        tiles.differentiate(q, q, q, out, out, logsumexp, causal)
    torch.set_float32_matmul_precision(former)
    rows = []
    for launch in launches:
        kernel, binary, shared_bytes = launch[4]
        usage, code = disassemble(binary)
        rows.append({
            "arch": arch, "kernel": kernel, "numbers": numbers, "d_head": d_head, "causal": causal,
            "registers": int(usage["REG"]), "spilled_bytes": int(usage["STACK"]), "shared_bytes": shared_bytes,
            "copies": code.count("LDGSTS"), "hopper_products": code.count("HGMMA"),
        })  # fmt: skip
    return pd.DataFrame(rows)


def disassemble(binary: bytes) -> tuple[dict[str, str], str]:
    """Return the resources that a program uses, by name, and its instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage, _, code = text[text.index("REG:") :].partition("\n")
    return dict(field.split(":") for field in usage.split()), code
