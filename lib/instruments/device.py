"""Answer what differs between devices: a CPU, a CUDA GPU, Apple's GPU by MPS.

Other modules ask torch.cuda only for what is there for CUDA alone: `nsight`, and ranks with a GPU each. Asking for a
fact starts nothing on a device.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType

import psutil
import torch

from lib import timing, validate
from lib.instruments import container, processor
from lib.timing import HostClock

NATIVE_BF16 = (8, 0)  # least compute capability with TF32 and bf16 products; older GPUs emulate bf16
NEEDS_CUDA = "tf32 needs a CUDA device of compute capability 8.0 or more"
FLUSH_LEAST_BYTES = 256 * 2**20  # some GPUs' caches are larger than what they report as their second level
FLUSH_TIMES = 4  # times the caches' size that is read; after fewer, some caches may keep lines of the case
GPU_LEAST_S = 0.2  # least length of warming up and of sampling; Triton's do_bench and nvbench last as long or less
WATCH_S = 0.1  # between readings of a GPU's clock and power
WATCHED_MOST = 600  # readings of a case
MPS_SHORT_NS = 2_000_000  # ten times what waiting for the GPU takes (github.com/pytorch/pytorch/pull/152199)


class EventClock(HostClock):
    """Record an event at each mark; wait only before and after the iteration."""

    def __init__(self, event: Callable, synchronize: Callable[[], None], now: Callable[[], int] = time.perf_counter_ns):
        super().__init__(now, synchronize, timing.BATCHED_NS, GPU_LEAST_S)
        self.event = event
        # made once and recorded again in each iteration, since making one takes the host microseconds
        self.events = []
        self.marks = 0

    def start(self) -> None:
        self.synchronize()
        self.marks = 0
        self.mark()

    def mark(self) -> None:
        if self.marks == len(self.events):
            self.events.append(self.event())
        self.events[self.marks].record()
        self.marks += 1

    def stop(self) -> list[int]:
        """Return the nanoseconds of each phase, by the device."""
        self.synchronize()
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in pairwise(self.events[: self.marks])]


class Cpu:
    """Describe the processor; other devices inherit what they do not override."""

    profiled = True  # torch.profiler sees what runs on it

    def missing(self) -> str | None:
        """Return why PyTorch does not see the device, or None."""
        return None

    def lacks(self, precision: str) -> str | None:
        """Return why the device cannot compute in a precision, or None."""
        has_products = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if precision == "tf32":
            nearest = " (nearest: bf16_products)" if has_products else ""
            return f"{NEEDS_CUDA}{nearest}"
        if precision == "bf16_products" and not has_products:
            return "bf16_products needs a CPU whose fp32 products oneDNN may compute in bf16"
        return None

    def capability(self) -> tuple[int, int] | None:
        """Return the compute capability of a GPU of NVIDIA, None of other devices."""
        return None

    def hardware(self) -> str:
        """Name the processor or GPU."""
        return processor.name()

    def facts(self) -> dict:
        """Return what a record's environment says of this device alone."""
        return {}

    @contextlib.contextmanager
    def watch(self) -> Iterator[dict[str, list]]:
        """Yield a dict that gets clock, temperature and power during the block.

        A CPU has none of these."""
        yield {}

    def cache_bytes(self) -> int:
        """Return the size of the last caches before memory, 0 if it is not known."""
        return processor.last_caches_bytes()

    def free_bytes(self) -> int:
        """Return the bytes that are still free, within the container's limit.

        No caller needs those of CUDA, whose allocator raises if a case does not fit."""
        return min(psutil.virtual_memory().available, container.memory_bytes()[1])

    def clock(self) -> HostClock:
        """Return a clock for the phases of an iteration."""
        return HostClock()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    def release(self) -> None:
        """Give back memory that PyTorch keeps for the device."""

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes of live tensors (`end`), and their `peak` since the last call.

        Each is there only where the device counts it; nothing for a CPU."""
        return {}


class Cuda(Cpu):
    """Describe the first GPU of NVIDIA that this process sees."""

    def missing(self) -> str | None:
        if torch.cuda.is_available():
            return None
        return "PyTorch sees no CUDA device"

    def lacks(self, precision: str) -> str | None:
        if precision == "bf16_products":
            return "bf16_products is for CPUs (nearest: tf32)"
        if self.capability() >= NATIVE_BF16:
            return None
        if precision == "tf32":
            return NEEDS_CUDA
        if precision == "bf16":
            return "bf16 is only emulated below compute capability 8.0"
        return None

    def hardware(self) -> str:
        return torch.cuda.get_device_name()

    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def models(self) -> list[str]:
        """Name all GPUs that this process sees, in CUDA's order."""
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]

    def facts(self) -> dict:
        """Return the GPU's hashed identity, memory and power limit, and the versions."""
        properties = torch.cuda.get_device_properties(0)
        uuid = str(properties.uuid)
        facts = {
            # the hash tells GPUs apart, but names none
            "gpu": hashlib.sha256(uuid.encode()).hexdigest()[:8],
            "gpu_memory_mib": properties.total_memory // 2**20,
            "cuda": torch.version.cuda,
        }
        # the driver's version and the power limit need the package nvidia-ml-py and a driver
        with contextlib.suppress(Exception):
            nvml = _nvml()
            facts["driver"] = nvml.nvmlSystemGetDriverVersion()
            # a MIG part has no handle of this name
            card = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            facts["power_limit_w"] = nvml.nvmlDeviceGetPowerManagementLimit(card) / 1000
        return facts

    @contextlib.contextmanager
    def watch(self) -> Iterator[dict[str, list]]:
        states: dict[str, list] = {}
        ended = threading.Event()

        def read() -> None:
            # no reading after the block, when the GPU is idle
            while not ended.is_set() and len(states.get("power_w", [])) < WATCHED_MOST:
                for name, value in self._state().items():
                    states.setdefault(name, []).append(value)
                ended.wait(WATCH_S)

        # a thread, since readings after a case would be of an idle GPU
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield states
        finally:
            ended.set()
            thread.join()

    def _state(self) -> dict[str, float]:
        """Return clock, temperature and power at this moment; those that can be read."""
        readings = {
            "sm_clock_mhz": torch.cuda.clock_rate,
            "temperature_c": torch.cuda.temperature,
            "power_w": lambda: torch.cuda.power_draw() / 1000,
        }
        state = {}
        for name, read in readings.items():
            # a missing driver or package and a MIG part raise errors of their own classes
            with contextlib.suppress(Exception):
                state[name] = read()
        return state

    def cache_bytes(self) -> int:
        return torch.cuda.get_device_properties(0).L2_cache_size

    def clock(self) -> EventClock:
        return EventClock(lambda: torch.cuda.Event(enable_timing=True), self.synchronize)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def memory_bytes(self) -> dict[str, int]:
        """Return what the allocator counts: bytes as requested."""
        stats = torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        # without any allocation yet, there are no statistics
        return {"peak": stats.get("requested_bytes.all.peak", 0), "end": stats.get("requested_bytes.all.current", 0)}


class Mps(Cpu):
    """Describe the GPU of an Apple processor."""

    profiled = False

    def missing(self) -> str | None:
        if torch.backends.mps.is_available():
            return None
        return "PyTorch sees no Apple GPU"

    def lacks(self, precision: str) -> str | None:
        if precision in ("tf32", "bf16_products"):
            return f"{precision} is not for Apple's GPU (nearest: bf16)"
        return None

    def free_bytes(self) -> int:
        """Return what Metal recommends to use at most, less what live tensors use."""
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()

    def clock(self) -> HostClock:
        """Return a clock that waits for the GPU at each mark."""
        # before PyTorch 2.14, events end in any order (github.com/pytorch/pytorch/pull/196395)
        # waiting at a mark takes time of its own, which short iterations share in batches
        return HostClock(synchronize=self.synchronize, short_ns=MPS_SHORT_NS, least_s=GPU_LEAST_S)

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def release(self) -> None:
        torch.mps.empty_cache()

    def memory_bytes(self) -> dict[str, int]:
        self.synchronize()
        return {"end": torch.mps.current_allocated_memory()}


KINDS: dict[str, Cpu] = {"cuda": Cuda(), "mps": Mps(), "cpu": Cpu()}  # the fastest first


def on(name: str) -> Cpu:
    """Return what is known of the device of that name: cpu, cuda or mps."""
    return KINDS[name]


def flush(name: str) -> Callable[[], torch.Tensor]:
    """Return a function that reads more than the caches hold, which empties them.

    Call it outside the timed region. It writes nothing, since the timed iteration would have to write that back."""
    size_bytes = max(FLUSH_LEAST_BYTES, FLUSH_TIMES * on(name).cache_bytes())
    return torch.zeros(size_bytes // 4, device=name).sum


def choose(name: str = "auto") -> str:
    """Return the name of a device that PyTorch sees; `auto` picks the fastest one.

    Raises ValueError for a device that is unknown or not seen. So does `auto` where the driver lists a GPU that PyTorch
    does not see: measuring the processor instead would surprise."""
    validate.choice("device", name, ("auto", *KINDS))
    seen = [kind for kind in KINDS if on(kind).missing() is None]
    if name in ("auto", "cuda") and "cuda" not in seen and _listed_gpu():
        raise ValueError(
            f"device: got {_listed_gpu()}, expected a PyTorch that sees it, unlike {torch.__version__} "
            f"(device=cpu measures the processor)"
        )
    if name == "auto":
        return seen[0]
    if name not in seen:
        raise ValueError(f"device: got {name!r}, expected one on this machine: {', '.join(seen)}; {on(name).missing()}")
    return name


def _listed_gpu() -> str | None:
    """Return the name of a GPU that the driver lists, if the user does not hide it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    # without the package or the driver, each raises an error of its own
    with contextlib.suppress(Exception):
        nvml = _nvml()
        return nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
    return None


def _nvml() -> ModuleType:
    """Return NVIDIA's management library, initialised; that starts nothing on a GPU."""
    import pynvml  # only where there may be a GPU of NVIDIA

    pynvml.nvmlInit()
    return pynvml
