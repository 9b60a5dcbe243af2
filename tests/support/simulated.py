"""A clock that tests drive, and programs of known cost on it."""

from lib.timing import HostClock


class Simulated:
    """A clock that stands still unless work passes."""

    def __init__(self):
        self.ns, self.waited = 0, 0

    def now(self):
        return self.ns

    def synchronize(self):
        self.ns += self.waited
        self.waited = 0

    def work(self, ns):
        self.ns += ns

    def queue(self, ns):
        """Work that a device does later, and that only waiting for it makes pass."""
        self.waited += ns

    def clock(self):
        return HostClock(self.now, self.synchronize)

    def program(self, factors, cost_ns=1_000_000):
        """An iteration of that cost, times the next of the factors."""
        factors = iter(factors)

        def iteration(mark):
            self.work(round(cost_ns * next(factors)))
            mark("run")

        return iteration
