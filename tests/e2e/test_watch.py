"""`taskd status --watch` on a real terminal (a pty): what is drawn, what keys and signals do, and how it is left."""
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios

import deadlines
import harness
import pytest
from harness import JOB, TASKD, wait_until

COLUMNS, ROWS = 100, 30


class Terminal:
    """The program's stdin, stdout and stderr; what it drew last."""

    def __init__(self, *arguments, columns=COLUMNS, rows=ROWS, background=False, prefix=(), **variables):
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.output = b""
        environment = harness.clean_environment(TERM="xterm-256color", **variables)
        prefix = ["bash", "-mc", '"$@" & wait $!', "bash"] if background else prefix
        # setsid makes it the session's terminal. A preexec_fn would, too, but gRPC's threads here may hold up such a fork for ever.
        self.process = subprocess.Popen(["setsid", "--ctty", *prefix, TASKD, "status", "--watch", *arguments], env=environment,
                                        stdin=self.theirs, stdout=self.theirs, stderr=self.theirs)

    def read(self):
        while select.select([self.ours], [], [], 0)[0]:
            self.output += os.read(self.ours, 65536)
        return self.output.decode()

    def screen(self):
        """The lines of the newest drawing, without colors; empty before the first."""
        return re.sub(r"\x1b\[[0-9;]*[mKJ]", "", self.drawing()).replace("\r", "").split("\n") if self.drawing() else []

    def drawing(self):
        """The newest drawing that came whole."""
        drawings = self.read().split("\x1b[H")
        return next((drawing for drawing in drawings[:0:-1] if drawing.endswith("\x1b[K\x1b[J")), "")

    def wait_screen(self, *parts):
        return wait_until(lambda: (found := self.screen()) and all(part in "\n".join(found) for part in parts) and found,
                          f"the screen shows {parts}")

    def press(self, key):
        os.write(self.ours, key)

    def end(self):
        code = deadlines.wait_child(self.process)
        self.read()
        assert termios.tcgetattr(self.theirs) == self.before
        return code

    def close(self):
        subprocess.run(["pkill", "-KILL", "-s", str(self.process.pid)], check=False)  # all of its session
        deadlines.wait_child(self.process)
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal():
    made = []

    def make(*arguments, **keywords):
        made.append(Terminal(*arguments, **keywords))
        return made[-1]
    yield make
    for one in made:
        one.close()


def simulate(manager, *arguments):
    command = [TASKD, "simulate", "--manager", manager.address, "--ranks", "16", "--steps", "120", *arguments]
    deadlines.run(command, env=harness.clean_environment(), check=True, stdout=subprocess.DEVNULL, timeout_s=100)


def test_a_slow_rank_is_named_and_seen(manager, terminal):
    simulate(manager, "--fault", "compute:7:1.5@50")
    shown = terminal("--manager", manager.address)
    screen = shown.wait_screen("slow: rank 7", "self time by the step's median", JOB, "q ends")
    assert screen[0].startswith("slow: rank 7")
    assert len(screen) <= ROWS and max(map(len, screen)) <= COLUMNS
    # A row holds two of the 16 ranks; the largest of them is drawn, and told from the others by its grey.
    row = {int(found[1]): found[2] for found in re.finditer(r"^ +(\d+)-\d+ (\x1b.*)", shown.drawing(), re.M)}
    assert sorted(row) == [0, 2, 4, 6, 8, 10, 12, 14], row
    greys = {first: set(re.findall(r"48;5;(\d+)m", cells)) for first, cells in row.items()}
    assert {"248"} <= greys[6] and all("248" not in seen for first, seen in greys.items() if first != 6), greys
    shown.press(b"x")
    shown.press(b"q")
    assert shown.end() == 0
    assert shown.output.endswith(b"\n")


def test_without_colors(manager, terminal):
    simulate(manager, "--fault", "compute:7:1.5@50")
    shown = terminal("--manager", manager.address, NO_COLOR="1")
    screen = shown.wait_screen("slow: rank 7", "q ends")
    assert any(re.match(r" +6-7 .*[*#]", line) for line in screen), screen
    assert re.search(r"\x1b\[[0-9;]*m", shown.read()) is None
    shown.press(b"q")
    assert shown.end() == 0


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, "key"])
def test_a_signal_leaves_the_terminal_as_it_was(manager, terminal, ending):
    shown = terminal("--manager", manager.address)
    shown.wait_screen("q ends")
    wait_until(lambda: termios.tcgetattr(shown.theirs) != shown.before, "it takes keys")
    if ending == "key":
        shown.press(b"\x03")
    else:
        shown.process.send_signal(ending)
    assert shown.end() == -(signal.SIGINT if ending == "key" else ending)


def test_a_terminal_that_grows(manager, terminal):
    simulate(manager)
    shown = terminal("--manager", manager.address, columns=60, rows=12)
    screen = shown.wait_screen("a higher terminal shows more")
    assert len(screen) == 12 and max(map(len, screen)) <= 60
    fcntl.ioctl(shown.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
    shown.wait_screen("#ranks", "each rank: --all")


def test_a_manager_that_goes_and_comes_back(stage, manager, terminal):
    shown = terminal("--manager", manager.address)
    shown.wait_screen("nodes: 0")
    port = manager.address.rsplit(":", 1)[1]
    manager.kill()
    screen = shown.wait_screen("cannot be reached")
    assert "cannot be reached" in screen[0] and any("nodes: 0" in line for line in screen)
    stage.manager(port=int(port), name="again")
    wait_until(lambda: "cannot be reached" not in shown.screen()[0], "the manager is back")
    shown.wait_screen("nodes: 0")
    shown.press(b"q")
    assert shown.end() == 0


def test_it_ends_with_its_terminal_though_the_manager_is_away(manager, terminal):
    shown = terminal("--manager", manager.address, prefix=("bash", "-c", 'trap "" HUP; exec "$@"', "bash"))
    shown.wait_screen("q ends")
    manager.kill()
    shown.wait_screen("cannot be reached")
    os.close(shown.ours)
    shown.ours = os.open("/dev/null", os.O_RDONLY)
    assert deadlines.wait_child(shown.process) == 1


def test_where_stdout_is_no_terminal_lines_follow_lines(stage, manager):
    watcher = harness.Process("watcher", [TASKD, "status", "--watch", "--manager", manager.address],
                              harness.clean_environment(TERM="xterm-256color"), stage.folder)
    stage.processes.append(watcher)
    wait_until(lambda: watcher.log().count("job: ") >= 2, "two states")
    assert "\x1b" not in watcher.log()


def test_in_the_background_it_is_not_stopped(manager, terminal):
    """The kernel stops a process of the background that sets the terminal's modes, also in a signal's handler."""
    shown = terminal("--manager", manager.address, background=True)
    shown.wait_screen("q ends")
    drawn = shown.read().count("q ends")
    wait_until(lambda: shown.read().count("q ends") >= drawn + 2, "it draws again")
    watcher = int(subprocess.run(["pgrep", "-P", str(shown.process.pid)], capture_output=True, text=True, check=True).stdout)
    os.kill(watcher, signal.SIGTERM)
    assert deadlines.wait_child(shown.process) == 128 + signal.SIGTERM
