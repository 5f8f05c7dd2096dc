"""Waiting for what is to come: how long a test may wait, on a machine that tests and builds share."""
import re
import threading
import time

# Time for things that have no promise of their own.
PATIENCE_S = 30.0
# What a starved machine may add to a bound.
STARVED_S = 90.0


def starved_s():
    """For how long so far processes of this machine have waited for a CPU, or a disk, that others had; 0 where the kernel does
    not count it."""
    waited_us = 0
    for what in ("cpu", "io"):
        try:
            with open(f"/proc/pressure/{what}", encoding="ascii") as pressure:
                waited_us += int(re.search(r"^some .*total=(\d+)", pressure.read())[1])
        except OSError:
            pass
    return waited_us / 1e6


class Deadline:
    """A bound of time that is about what is tested, not about what else the machine does: time in which processes waited for
    others does not count, up to STARVED_S."""

    def __init__(self, timeout_s):
        self.timeout_s = timeout_s
        self.begun, self.starved = time.monotonic(), starved_s()

    def is_over(self):
        late_s = time.monotonic() - self.begun - self.timeout_s
        return late_s > 0 and late_s > min(starved_s() - self.starved, STARVED_S)


def wait_until(condition, what, timeout_s=PATIENCE_S, interval_s=0.02):
    """Waits until `condition()` is true and returns its value; AssertionError names `what` after the time."""
    deadline = Deadline(timeout_s)
    pause = threading.Event()
    while True:
        is_over = deadline.is_over()  # before the last look: it may have taken long to get to it
        value = condition()
        if value:
            return value
        if is_over:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        pause.wait(interval_s)
