"""deadlines.py: a bound of a test is about the program under test, and not about the load of the machine."""
import signal
import subprocess
import sys
import time
import types

import pytest

import deadlines

SHORT_S = 0.2  # a bound that is to be exceeded


@pytest.fixture
def pressure(monkeypatch):
    """A function that sets the seconds for which processes of this machine have waited so far."""
    waited = [100.0]
    monkeypatch.setattr(deadlines, "starved_s", lambda: waited[0])
    return lambda seconds: waited.__setitem__(0, seconds)


@pytest.fixture
def clock(monkeypatch):
    """A function that moves the clock of deadlines.py."""
    now = [1000.0]
    monkeypatch.setattr(deadlines, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def python(script, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", script, *arguments], **options)


def test_idle_machine_gets_the_time_alone(pressure, clock):
    deadline = deadlines.Deadline(10)
    clock(10)
    assert not deadline.is_over()
    clock(0.1)
    assert deadline.is_over()


def test_starved_machine_gets_as_much_more(pressure, clock):
    deadline = deadlines.Deadline(10)
    pressure(105)
    clock(14.9)
    assert not deadline.is_over()
    clock(0.2)
    assert deadline.is_over()


def test_extension_is_limited(pressure, clock):
    deadline = deadlines.Deadline(10)
    pressure(10_000)
    clock(10 + deadlines.STARVED_S)
    assert not deadline.is_over()
    clock(0.1)
    assert deadline.is_over()


@pytest.mark.parametrize("before, after", [("inf", "inf"), ("inf", "7"), ("7", "inf")])
def test_kernel_that_does_not_count_gives_the_whole_extension(pressure, clock, before, after):
    pressure(float(before))
    deadline = deadlines.Deadline(10)
    pressure(float(after))
    clock(10 + deadlines.STARVED_S)
    assert not deadline.is_over()
    clock(0.1)
    assert deadline.is_over()


@pytest.mark.parametrize("error", [FileNotFoundError, OSError])
def test_kernel_without_psi_is_recognized(monkeypatch, error):
    def refuse(path, **_):
        assert path.startswith("/proc/pressure/")
        raise error
    monkeypatch.setattr(deadlines, "open", refuse, raising=False)
    assert deadlines.starved_s() == float("inf")


def test_wait_until_returns_the_value():
    values = iter([None, 0, "", 7])
    assert deadlines.wait_until(lambda: next(values), "a value is true", interval_s=0.01) == 7


def test_wait_until_looks_once_more_after_the_time(pressure, clock):
    """The test's own process may have been stopped since its last look."""
    looks = iter([False, True])

    def look():
        clock(20)
        return next(looks)
    assert deadlines.wait_until(look, "the second look is true", timeout_s=10)


def test_wait_until_names_what_did_not_happen(pressure):
    with pytest.raises(AssertionError, match="not within 0.2 s: it rains"):
        deadlines.wait_until(lambda: False, "it rains", SHORT_S)


def test_wait_child_returns_the_code():
    with python("raise SystemExit(7)") as child:
        assert deadlines.wait_child(child) == 7


def test_wait_child_leaves_a_child_that_hangs_alive(pressure):
    with python("import time; time.sleep(600)") as child:
        with pytest.raises(subprocess.TimeoutExpired) as error:
            deadlines.wait_child(child, SHORT_S)
        assert error.value.timeout == SHORT_S and error.value.cmd == child.args
        assert child.poll() is None
        child.kill()


# A child that begins to read only after communicate() was called several times, more than a pipe holds, and answers as much.
LATE = "import sys, time; time.sleep(2.5); text = sys.stdin.read(); sys.stdout.write(text[::-1]); sys.stderr.write(str(len(text)))"


@pytest.mark.parametrize("text", [True, False])
def test_communicate_passes_on_all_input_and_output_to_a_slow_child(text):
    given = "".join(map(str, range(100_000)))
    given = given if text else given.encode()
    with python(LATE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text) as child:
        out, err = deadlines.communicate(child, given)
    assert child.returncode == 0
    assert out == given[::-1] and int(err) == len(given)


def test_communicate_closes_stdin_if_the_input_is_empty():
    with python("import sys; print(len(sys.stdin.read()))", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert deadlines.communicate(child, "") == ("0\n", None)


def test_communicate_ignores_a_child_that_does_not_read():
    with python("import os; os.close(0); print(1)", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert deadlines.communicate(child, "x" * 1_000_000) == ("1\n", None)


def test_communicate_waits_for_a_child_that_closes_its_output_first():
    with python("import os, time; os.close(1); time.sleep(1.5); os._exit(7)", stdout=subprocess.PIPE) as child:
        assert deadlines.communicate(child) == (b"", None)
        assert child.returncode == 7


def test_communicate_goes_on_after_its_time(pressure, tmp_path):
    """The error has the output so far; a second call has all of it."""
    go = tmp_path / "go"
    script = "import os, sys, time\nprint(1, flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint(2)"
    with python(script, str(go), stdout=subprocess.PIPE, text=True) as child:
        wanted = b""
        while not wanted:  # the interpreter may take longer to start
            with pytest.raises(subprocess.TimeoutExpired) as error:
                deadlines.communicate(child, timeout_s=SHORT_S)
            assert error.value.timeout == SHORT_S
            wanted = error.value.output or b""
        assert wanted == b"1\n" and child.poll() is None
        go.touch()
        assert deadlines.communicate(child) == ("1\n2\n", None)


def test_run_is_subprocess_run():
    done = deadlines.run([sys.executable, "-c", "import sys; print(input()); print('late', file=sys.stderr); sys.exit(3)"],
                         input="given\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "given\n", "late\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        deadlines.run(["sh", "-c", "echo why >&2; exit 3"], check=True, capture_output=True, text=True)
    assert error.value.returncode == 3 and error.value.stderr == "why\n"


@pytest.mark.parametrize("given", [None, b"x" * 1_000_000], ids=["no input", "input that it does not read"])
def test_run_kills_a_child_that_hangs(pressure, monkeypatch, given):
    """A child that does not read its input is killed, too."""
    children = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            children.append(self)
    monkeypatch.setattr(deadlines.subprocess, "Popen", Recorded)
    with pytest.raises(subprocess.TimeoutExpired) as error:
        deadlines.run(["sleep", "600"], SHORT_S, input=given, capture_output=True)
    assert error.value.timeout == SHORT_S and error.value.cmd == ["sleep", "600"]
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_run_lets_a_starved_machine_finish(monkeypatch):
    """Each look at the pressure finds that processes have waited all the time."""
    monkeypatch.setattr(deadlines, "starved_s", time.monotonic)
    assert deadlines.run([sys.executable, "-c", "import time; time.sleep(2)"], SHORT_S).returncode == 0
