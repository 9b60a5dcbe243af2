"""Run a kernel for a sweep, and leave nothing of it behind."""

import concurrent.futures
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from jupyter_core.utils import run_sync

from lib import execution, notebooks, paths
from lib.experiments.measure import KERNEL, SLOTS
from lib.instruments import environment
from lib.sweep.plan import Job

END_S = 10  # for a notebook to end after an interrupt, or after its kernel was killed


@dataclass(frozen=True)
class Place:
    """Describe where the kernels of one slot run."""

    scratch: Path  # a folder for their files
    slots: int = 1  # kernels that divide the machine's threads
    gpu: str = ""  # the value of CUDA_VISIBLE_DEVICES that pins a kernel to one GPU; "" leaves it as inherited

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment variables of a kernel whose files are in a folder."""
        variables = {
            KERNEL: str(folder),
            SLOTS: str(self.slots),
            # what a killed kernel leaves goes with the scratch folder
            "TMPDIR": str(folder),
            # empty at the start of a sweep, so that the first compilation of a graph is a cold one
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "compiled"),
        }
        if self.slots > 1:
            # a number that the user has set holds for each slot
            threads = max(1, environment.cores() // self.slots)
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(threads)
        if self.gpu:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpu
        return variables


class Kernel:
    """Execute the notebook of a job, as often as asked, in one kernel."""

    def __init__(self, job: Job, place: Place):
        place.scratch.mkdir(parents=True, exist_ok=True)
        # a new folder for each kernel: the client of the former one may still remove its sockets
        self.folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=place.scratch))
        self.variables = place.variables(self.folder)
        if job.device == "cuda":
            # two large models in pairs leave gaps in fixed segments, and then do not fit
            self.variables["PYTORCH_ALLOC_CONF"] = os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        self.job = job
        self.log = self._new_file().with_suffix(".log")
        self.manager = execution.KernelManager(str(self.folder))
        # one for all executions, as connections belong to a thread's event loop
        self.thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self.executing = Future()

    def _new_file(self) -> Path:
        """Return a new file for an executed notebook."""
        name = f"{self.job.experiment}.r{self.job.round}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
        return paths.runs() / self.job.machine / f"{name}.ipynb"

    def execute(self, parameters: dict, on_measure: Callable[[], None]) -> Future:
        """Start the notebook up to its cell `measure`, whose start calls `on_measure`."""
        self.executing = self.thread.submit(
            execution.execute, self.manager, notebooks.NOTEBOOKS / f"{self.job.experiment}.ipynb", self._new_file(),
            parameters, self.variables, self.log, until="measure", on_last=on_measure,
        )  # fmt: skip
        return self.executing

    def interrupt(self) -> None:
        """Interrupt the cell that runs, and wait a while for the notebook's end."""
        # the kernel may have died meanwhile
        with contextlib.suppress(RuntimeError, OSError):
            run_sync(self.manager.interrupt_kernel)()
        concurrent.futures.wait([self.executing], END_S)

    def end(self) -> None:
        """Kill the kernel and what it has started."""
        _kill(self.folder)
        # the thread ends soon after its kernel
        concurrent.futures.wait([self.executing], END_S)
        self.thread.shutdown(wait=False)


def clear(scratch: Path) -> None:
    """End the kernels of a scratch folder, and remove it.

    The caller holds the lock, if it is a shard's."""
    _kill(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _kill(folder: Path) -> None:
    """Kill all processes whose kernel has its files in this folder.

    They are found by the variable that they inherit, also in sessions of their own."""
    # several times, as a process that is being killed may just have started another
    for _ in range(10):
        processes = []
        for process in psutil.process_iter():
            # gone meanwhile, or another user's
            with contextlib.suppress(psutil.Error, OSError):
                is_own = Path(process.environ().get(KERNEL, "/")).is_relative_to(folder)
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)
