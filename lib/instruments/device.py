"""Answer what differs between devices: a CPU, a CUDA GPU, Apple's GPU by MPS.

No other module asks torch.cuda or torch.mps, but `nsight`, which is for CUDA alone. `KINDS` has the devices by name,
the fastest first. Asking for a device starts nothing on it; `Cuda.trial_error` does, and only when it is called.
"""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from lib import timing, validate
from lib.instruments import container, processor
from lib.timing import HostClock

SMI_S = 20  # seconds within which nvidia-smi must answer; loading the driver first takes long
TRIAL_S = 120  # for a process that tries the GPU, with its import of torch
TRIAL = "import torch; torch.ones(8, 8, device='cuda').matmul(torch.ones(8, 8, device='cuda')).sum().item()"
NATIVE_BF16 = (8, 0)  # least compute capability with TF32 and bf16 products; older GPUs emulate bf16
GPU_LEAST_S = 0.2  # of warming up and of sampling; Triton's do_bench and nvbench last as long or less
MPS_SHORT_NS = 2_000_000  # ten times what waiting for the GPU takes (github.com/pytorch/pytorch/pull/152199)


class EventClock(HostClock):
    """Record an event of the device at each mark, and wait for it once, after the iteration."""

    queues = True
    least_s = GPU_LEAST_S

    def __init__(self, event: Callable, synchronize: Callable[[], None], now: Callable[[], int] = time.perf_counter_ns):
        super().__init__(now, synchronize, timing.BATCHED_NS)
        self.event = event

    def start(self) -> None:
        self.synchronize()
        self.began_ns = self.now()
        self.events = []
        self.mark()

    def mark(self) -> None:
        event = self.event()
        event.record()
        self.events.append(event)
        self.marked_ns = self.now()

    def stop(self) -> tuple[list[int], int, int]:
        """Return nanoseconds as `HostClock` does, between marks by the device."""
        self.synchronize()
        wall_ns = self.now() - self.began_ns
        durations = []
        for begin, end in zip(self.events, self.events[1:], strict=False):
            durations.append(round(begin.elapsed_time(end) * 1e6))
        return durations, wall_ns, self.marked_ns - self.began_ns


class Cpu:
    """Describe the processor, and any device as far as it does not say otherwise."""

    name = "cpu"
    profiled = True  # torch.profiler sees what runs on it
    least_s = 0.0  # that warming up and sampling each last; a GPU's clock rises meanwhile

    def missing(self) -> str | None:
        """Return why PyTorch does not see the device, or None."""
        return None

    def trial_error(self) -> str | None:
        """Return why a process of its own cannot compute on the device, or None."""
        return None

    def lacks(self, precision: str) -> str | None:
        """Return why the device cannot compute in a precision, or None."""
        if precision == "tf32":
            return "tf32 needs a CUDA device of compute capability 8.0 or more"
        return None

    def capability(self) -> tuple[int, int] | None:
        """Return the compute capability, which GPUs of NVIDIA have."""
        return None

    def hardware(self) -> str:
        """Name the processor or GPU."""
        return processor.name()

    def facts(self) -> dict:
        """Return what a record's environment says of this device alone."""
        return {}

    def state(self) -> dict[str, list]:
        """Return what changes while it works, as lists of one reading: clock, temperature, power."""
        return {}

    def cache_bytes(self) -> int:
        """Return the size of the last caches before memory."""
        return processor.last_caches_bytes()

    def free_bytes(self) -> int:
        """Return the bytes that this process could still take, within the container's limit."""
        return min(psutil.virtual_memory().available, container.memory_bytes()[1])

    def total_bytes(self) -> int:
        """Return the bytes of memory, free or not, within the container's limit."""
        return min(psutil.virtual_memory().total, container.memory_bytes()[0])

    def clock(self) -> HostClock:
        """Return a clock for the phases of an iteration."""
        return HostClock()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    def release(self) -> None:
        """Give back memory that PyTorch keeps for the device."""

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes of live tensors (`end`), their `peak` since the reset, and those `reserved`.

        Each is there only where the device counts it; nothing for a CPU."""
        return {}

    def retries(self) -> int | None:
        """Return how often the allocator gave memory back to find room; None if not counted."""
        return None

    def reset_peaks(self) -> None:
        """Count the peak from now on."""

    def take(self, number: int) -> torch.device | None:
        """Compute on this one of several GPUs from now on, and return it; None for a processor."""
        return None

    def activities(self) -> list:
        """List what torch.profiler is to record."""
        return [torch.profiler.ProfilerActivity.CPU]


class Cuda(Cpu):
    """Describe the first GPU of NVIDIA that this process sees."""

    name = "cuda"
    least_s = GPU_LEAST_S

    def missing(self) -> str | None:
        if torch.cuda.is_available():
            return None
        return "PyTorch sees no CUDA device"

    @functools.cache  # noqa: B019 - there is one object of this class, as long as the process
    def trial_error(self) -> str | None:
        """Compute a product in a process of its own, which then frees its memory; return what went wrong, or None."""
        try:
            trial = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, timeout=TRIAL_S)
        except subprocess.TimeoutExpired:
            return f"a product on the GPU took longer than {TRIAL_S} s"
        if trial.returncode == 0:
            return None
        errors = trial.stderr.strip() or "a product on the GPU failed"
        return errors.splitlines()[-1]

    def lacks(self, precision: str) -> str | None:
        if self.capability() >= NATIVE_BF16:
            return None
        if precision == "bf16":
            return "bf16 is only emulated below compute capability 8.0"
        return super().lacks(precision)

    def hardware(self) -> str:
        return torch.cuda.get_device_name()

    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def models(self) -> list[str]:
        """Name all GPUs that this process sees, in CUDA's order."""
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]

    def facts(self) -> dict:
        """Return a hash of the GPU's identity, its memory, CUDA's version, and what nvidia-smi says of it."""
        properties = torch.cuda.get_device_properties(0)
        uuid = str(properties.uuid)
        # the hash tells GPUs apart, but names none
        facts = {
            "gpu": hashlib.sha256(uuid.encode()).hexdigest()[:8],
            "gpu_memory_mib": properties.total_memory // 2**20,
            "cuda": torch.version.cuda,
        }
        # for a part of a GPU, nvidia-smi may find no device
        for driver, power_limit, largest_sm_clock in nvidia_smi(
            "driver_version", "power.limit", "clocks.max.sm", card=f"GPU-{uuid}"
        ):
            facts |= {"driver": driver, "power_limit": power_limit, "largest_sm_clock": largest_sm_clock}
        return facts

    def state(self) -> dict[str, list]:
        readings = {
            "sm_clock_mhz": torch.cuda.clock_rate,
            "temperature_c": torch.cuda.temperature,
            "power_w": lambda: torch.cuda.power_draw() / 1000,
        }
        state = {}
        for name, read in readings.items():
            # a missing driver or package and a part of a GPU raise errors of their own classes; a state is no must
            with contextlib.suppress(Exception):
                state[name] = [read()]
        return state

    def cache_bytes(self) -> int:
        """Return the size of the second level's cache."""
        return torch.cuda.get_device_properties(0).L2_cache_size

    def free_bytes(self) -> int:
        """Return the bytes free on the GPU, with those that PyTorch keeps unused."""
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def total_bytes(self) -> int:
        return torch.cuda.get_device_properties(0).total_memory

    def clock(self) -> EventClock:
        """Return a clock that reads events of the stream."""
        return EventClock(lambda: torch.cuda.Event(enable_timing=True), self.synchronize)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def memory_bytes(self) -> dict[str, int]:
        """Return what the allocator counts: live bytes as requested, their peak, the most it held of the GPU."""
        stats = torch.cuda.memory_stats()
        return {
            "peak": stats["requested_bytes.all.peak"],
            "end": stats["requested_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.peak"],
        }

    def retries(self) -> int:
        return torch.cuda.memory_stats().get("num_alloc_retries", 0)

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def history(self, run: Callable[[], None], pickle: Path | None) -> tuple[dict, int]:
        """Run something; return the allocator's snapshot of it, and the bytes requested before.

        `pickle` is a path for the snapshot, to be opened at pytorch.org/memory_viz."""
        # by default each C++ frame would start addr2line
        os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "dladdr")
        # what still runs would allocate and free inside the history
        self.synchronize()
        bytes_before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        stacks = "python"
        if (platform.system(), platform.machine()) == ("Linux", "x86_64"):  # elsewhere PyTorch sees no C++ frames
            stacks = "all"
        torch.cuda.memory._record_memory_history(context="alloc", stacks=stacks)
        try:
            run()
            if pickle:
                torch.cuda.memory._dump_snapshot(str(pickle))
            return torch.cuda.memory._snapshot(), bytes_before
        finally:
            torch.cuda.memory._record_memory_history(None)

    def take(self, number: int) -> torch.device:
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def activities(self) -> list:
        """List what torch.profiler is to record: calls of the CPU and kernels of the GPU."""
        return [*super().activities(), torch.profiler.ProfilerActivity.CUDA]


class Mps(Cpu):
    """Describe the GPU of an Apple processor."""

    name = "mps"
    profiled = False
    least_s = GPU_LEAST_S

    def missing(self) -> str | None:
        if torch.backends.mps.is_available():
            return None
        return "PyTorch sees no Apple GPU"

    def free_bytes(self) -> int:
        """Return what Metal recommends to use at most, less what live tensors use."""
        return self.total_bytes() - torch.mps.current_allocated_memory()

    def total_bytes(self) -> int:
        """Return what Metal recommends to use at most."""
        return torch.mps.recommended_max_memory()

    def clock(self) -> HostClock:
        """Return a clock that waits for the GPU at each mark."""
        # before PyTorch 2.14, events end in any order (github.com/pytorch/pytorch/pull/196395)
        # waiting at a mark takes time of its own, which short iterations share in batches
        clock = HostClock(synchronize=self.synchronize, short_ns=MPS_SHORT_NS)
        clock.least_s = self.least_s
        return clock

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def release(self) -> None:
        torch.mps.empty_cache()

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes of live tensors and those that the driver holds; peaks are not counted."""
        self.synchronize()
        return {"end": torch.mps.current_allocated_memory(), "reserved": torch.mps.driver_allocated_memory()}


KINDS: dict[str, Cpu] = {"cuda": Cuda(), "mps": Mps(), "cpu": Cpu()}
NAMES = ("auto", *KINDS)


def on(name: str) -> Cpu:
    """Return what is known of the device of that name: cpu, cuda or mps."""
    return KINDS[name]


def named(name: str = "auto") -> str:
    """Return the device of that name; `auto` picks the fastest one that PyTorch sees.

    Raises ValueError for a device that is unknown or not seen, and for `auto` where nvidia-smi lists a GPU that PyTorch
    does not see: measuring the processor instead would surprise."""
    validate.choice("device", name, NAMES)
    candidates = [name]
    if name == "auto":
        candidates = list(KINDS)
    for candidate in candidates:
        reason = on(candidate).missing()
        if reason is None:
            return candidate
        if candidate == "cuda" and _listed_gpu():
            built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
            raise ValueError(
                f"device: nvidia-smi lists {_listed_gpu()}, but PyTorch {torch.__version__}, built for {built_for}, "
                f"does not see it; device=cpu measures the processor"
            )
    seen = [kind for kind in KINDS if on(kind).missing() is None]
    raise ValueError(f"device: got {name!r}, expected one on this machine: {', '.join(seen)}; {reason}")


def _listed_gpu() -> str | None:
    """Return the name of a GPU that nvidia-smi lists; None if it lists none or the user hides all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    gpus = nvidia_smi("name")
    if not gpus:
        return None
    return gpus[0][0]


@functools.cache  # its answers stay while a process lives, and asking takes up to a second
def nvidia_smi(*fields: str, card: str = "") -> list[list[str]]:
    """Return these fields of nvidia-smi, a row for each GPU or only for `card`; nothing if it fails."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    if card:
        command.append(f"--id={card}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.strip().splitlines()]
    # instead of a table it may print that it found no device
    if any(len(row) != len(fields) for row in rows):
        return []
    return rows
