"""How long a test may wait on a machine that it shares with builds and other tests.

Every wait of a test goes through this file; tests/check_waits.py refuses a number of seconds anywhere else. A bound extends
while the kernel reports that processes wait for a CPU or a disk (/proc/pressure, PSI), so it is about the program under test
and not about the load of the machine.
"""
import contextlib
import math
import re
import subprocess
import threading
import time

# For events that have no promise of their own.
PATIENCE_S = 30.0
# The most that a starved machine adds to a bound.
STARVED_S = 90.0
# For calls that keep time themselves and cannot look at the pressure: a socket's, a gRPC call's, an HTTP request's. It ends
# what hangs and decides nothing.
HANG_S = PATIENCE_S + STARVED_S


def starved_s():
    """Seconds, since boot, in which processes of this machine have waited for a CPU or a disk; infinity if the kernel does not
    count them."""
    waited_us = 0
    for resource in ("cpu", "io"):
        try:
            with open(f"/proc/pressure/{resource}", encoding="ascii") as pressure:
                waited_us += int(re.search(r"^some .*total=(\d+)", pressure.read())[1])
        except OSError:
            return float("inf")
    return waited_us / 1e6


class Deadline:
    """`timeout_s` from now, extended by the time in which the machine is starved, by STARVED_S at most. A kernel without PSI
    gives the whole extension."""

    def __init__(self, timeout_s=PATIENCE_S):
        self.timeout_s = timeout_s
        self.begun, self.starved = time.monotonic(), starved_s()

    def extension_s(self):
        waited_s = starved_s() - self.starved
        return min(waited_s, STARVED_S) if math.isfinite(waited_s) else STARVED_S

    def is_over(self):
        late_s = time.monotonic() - self.begun - self.timeout_s
        return late_s > 0 and late_s > self.extension_s()


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


def wait_child(child, timeout_s=PATIENCE_S):
    """Waits until a subprocess.Popen ends and returns its code. subprocess.TimeoutExpired after the time; the child lives on."""
    deadline = Deadline(timeout_s)
    while True:
        is_over = deadline.is_over()
        try:
            return child.wait(0 if is_over else min(timeout_s, 1))
        except subprocess.TimeoutExpired:
            if is_over:
                raise subprocess.TimeoutExpired(child.args, timeout_s) from None


def _write_input(child, text):
    """Writes `text` to the child's stdin and closes it, in a thread: communicate() forgets input that it has not written when its
    time is over (CPython up to 3.14)."""
    stdin, child.stdin = child.stdin, None

    def write():
        with contextlib.suppress(BrokenPipeError), stdin:
            stdin.write(text)
    threading.Thread(target=write, daemon=True).start()


def communicate(child, input=None, timeout_s=PATIENCE_S):
    """Popen.communicate(): (stdout, stderr). subprocess.TimeoutExpired, with the output so far, after the time; the child lives
    on, and a second call returns all of its output."""
    if input is not None:
        _write_input(child, input)
    deadline = Deadline(timeout_s)
    while True:
        is_over = deadline.is_over()
        try:
            return child.communicate(timeout=1)  # with 0 it would raise before it reads
        except subprocess.TimeoutExpired as error:
            if is_over:
                error.timeout = timeout_s
                raise


def run(command, timeout_s=PATIENCE_S, check=False, input=None, capture_output=False, **arguments):
    """subprocess.run() with a time that extends on a starved machine: then the child is killed, and subprocess.TimeoutExpired is
    raised."""
    if capture_output:
        arguments.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        arguments["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **arguments) as child:
        try:
            stdout, stderr = communicate(child, input, timeout_s)
        except BaseException:
            child.kill()
            raise
    done = subprocess.CompletedProcess(command, child.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done
