"""A clock that tests drive, and programs of known cost on it."""

from lib.instruments.device import EventClock
from lib.timing import HostClock


class Simulated:
    """A clock that stands still unless work passes, and a device that works through what it is given."""

    def __init__(self):
        self.ns = 0  # the host's time
        self.free_ns = 0  # when the device has nothing left to do

    def now(self):
        return self.ns

    def synchronize(self):
        self.ns = max(self.ns, self.free_ns)

    def work(self, ns):
        self.ns += ns

    def queue(self, ns):
        """Work that a device does later, and that only waiting for it makes pass."""
        self.free_ns = max(self.free_ns, self.ns) + ns

    def clock(self):
        return HostClock(self.now, self.synchronize)

    def event_clock(self):
        return EventClock(lambda: Event(self), self.synchronize, self.now)

    def program(self, factors, cost_ns=1_000_000):
        """An iteration of that cost, times the next of the factors."""
        factors = iter(factors)

        def iteration(mark):
            self.work(round(cost_ns * next(factors)))
            mark("run")

        return iteration

    def phases(self, **costs_ns):
        """An iteration whose phases each take the host so long to launch, and then the device."""

        def iteration(mark):
            for name, (launch_ns, cost_ns) in costs_ns.items():
                self.work(launch_ns)
                self.queue(cost_ns)
                mark(name)

        return iteration


class Event:
    """An instant in the device's work: when all that was queued before it is done."""

    def __init__(self, simulated):
        self.simulated = simulated

    def record(self):
        self.ns = max(self.simulated.ns, self.simulated.free_ns)

    def elapsed_time(self, later):
        return (later.ns - self.ns) / 1e6
