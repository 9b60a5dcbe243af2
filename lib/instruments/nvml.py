"""Read a GPU's clock, power, temperature and throttling by NVML.

The library is part of NVIDIA's driver and the base of nvidia-smi, which takes up to a second. NVML answers within a
millisecond, so right after work, before the clock falls.
"""

import ctypes
import functools

SUCCESS, INSUFFICIENT_SIZE = 0, 7
NUMBERS = {  # functions, their arguments after the device (NVML_CLOCK_SM, NVML_TEMPERATURE_GPU), and a unit of theirs
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (1,), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), 1),
}
THROTTLING = {  # nvmlClocksEventReasons; an idle GPU and clocks that somebody set are no throttling
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}


def state(uuid: str) -> dict[str, list]:
    """Return how a GPU is at this moment.

    `sm_clock_mhz`, `power_w`, `temperature_c` and `other_gpu_processes` are lists of one number, `throttled` is one of
    reasons. What NVML does not tell is left out."""
    try:
        library, gpu = _library(), ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu)) != SUCCESS:
            return {}
    except (OSError, AttributeError):  # no driver, or one without this function
        return {}
    found = {}
    for name, (function, arguments, unit) in NUMBERS.items():
        if (number := _asked(function, gpu, *arguments, into=ctypes.c_uint())) is not None:
            found[name] = [round(number * unit, 1)]
    # also the newer drivers, which call it nvmlDeviceGetCurrentClocksEventReasons, have it under this name
    reasons = _asked("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, into=ctypes.c_ulonglong())
    if reasons is not None:
        found["throttled"] = [word for bit, word in THROTTLING.items() if reasons & bit]
    # asked for none, it says how many there are; this process, which uses the GPU, is one of them
    processes = _asked("nvmlDeviceGetComputeRunningProcesses_v3", gpu, into=ctypes.c_uint(), after=(None,))
    return found if processes is None else found | {"other_gpu_processes": [max(0, processes - 1)]}


@functools.cache
def _library() -> ctypes.CDLL:
    """Load the library; it stays open as long as the process."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2() != SUCCESS:
        raise OSError("nvmlInit failed")
    return library


def _asked(function: str, *arguments, into: ctypes._SimpleCData, after: tuple = ()) -> int | None:
    """Call a function that fills in a number; return the number, or None if it fails or is missing."""
    try:
        code = getattr(_library(), function)(*arguments, ctypes.byref(into), *after)
    except AttributeError:
        return None
    return into.value if code in (SUCCESS, INSUFFICIENT_SIZE) else None
