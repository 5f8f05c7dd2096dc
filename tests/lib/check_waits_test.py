"""Waits and counts that check_waits.py refuses, and others that it lets pass."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import check_waits  # noqa: E402


def reasons(problems):
    return [why for _, why in problems]


@pytest.mark.parametrize("text, why", [
    ("child.wait(60)", "a number of seconds in wait()"),
    ("child.wait(2 * 60)", "a number of seconds in wait()"),
    ("child.wait(60 if slow else 5)", "a number of seconds in wait()"),
    ("child.wait(0.5)", "a number of seconds in wait()"),
    ("assert start(port=1).wait(60) == 0", "a number of seconds in wait()"),
    ("threading.Event().wait(2)", "a number of seconds in wait()"),
    ("thread.join(1)", "a number of seconds in join()"),
    ("future.result(30)", "a number of seconds in result()"),
    ("connection.settimeout(5)", "a number of seconds in settimeout()"),
    ("selector.select(5)", "a number of seconds in select()"),
    ("select.select([one], [], [], 0.1)", "a number of seconds in select()"),
    ("poll.poll(1000)", "a number of seconds in poll()"),
    ("socket.create_connection(address, 20)", "a number of seconds in create_connection()"),
    ("create_connection(address, 20)", "a number of seconds in create_connection()"),
    ("stub.Get(request, timeout=10)", "a number of seconds as timeout"),
    ("urlopen(url, timeout=4 * 30.0)", "a number of seconds as timeout"),
    ("messages.get(timeout=5)", "a number of seconds as timeout"),
    ("child.wait(timeout=60)", "a number of seconds as timeout"),
    ("subprocess.run(command, timeout=60)", "run() with a timeout that does not extend"),
    ("subprocess.run(command, timeout=PATIENCE_S)", "run() with a timeout that does not extend"),
    ("subprocess.check_output(command, timeout=PATIENCE_S)", "check_output() with a timeout that does not extend"),
    ("child.communicate(timeout=left_s)", "communicate() with a timeout that does not extend"),
    ("child.communicate(None, 60)", "a number of seconds in communicate()"),
    ("def ask(request, timeout=10): pass", "a number of seconds as the default of timeout"),
    ("def ask(request, *, timeout=10): pass", "a number of seconds as the default of timeout"),
    ("def ask(request, /, timeout=10, more=None): pass", "a number of seconds as the default of timeout"),
    ("async def ask(timeout=2 * 5): pass", "a number of seconds as the default of timeout"),
    ("ask = lambda timeout=10: None", "a number of seconds as the default of timeout"),
    (r"assert log.count('\n') < 9", "a count of log lines: assert which lines are there"),
    (r"assert 9 >= log.count(b'\n')", "a count of log lines: assert which lines are there"),
    ("assert ok and not len(log.splitlines()) > 3, log", "a count of log lines: assert which lines are there"),
    ("assert 1 <= len(lines_of_taskd(text)) <= count", "a count of log lines: assert which lines are there"),
    ("assert len(task.lines()) <= 3", "a count of log lines: assert which lines are there"),
    ("assert len(file.readlines()) <= 3", "a count of log lines: assert which lines are there"),
])
def test_python_that_is_refused(text, why):
    assert reasons(check_waits.python_problems(text)) == [why]


@pytest.mark.parametrize("text", [
    "child.wait()", "child.wait(0)", "selector.select(0)", "select.select([one], [], [], 0)", "child.poll()", "thread.join()",
    "deadlines.wait_child(child, 60)", "deadlines.run(command, 60)", "deadlines.run(command, timeout_s=60)",
    "deadlines.communicate(child, timeout_s=60)", "process.wait(timeout_s=60)", "wait_until(ready, 'it is ready', 60)",
    "def run(self, timeout_s=20): pass", "def get(timeout=None): pass", "def get(timeout=HANG_S): pass", "def get(timeout): pass",
    "connection.settimeout(HANG_S)", "stub.Get(request, timeout=HANG_S)", "stub.Get(request, timeout=2 * HANG_S)",
    "messages.get(timeout=0)", "stub.Get(request, timeout=None)", "subprocess.run(command, check=True)", "stage.run(*command, timeout=left_s)",
    "','.join(words)", "os.path.join('a', 'b')", "time.sleep(2)", "wait(60)", "pytest.mark.timeout(300)", "flag.wait(True)",
    r"assert log.count('\n') == 1", "assert len(log.splitlines()) == 1", "assert len(log.splitlines()) < most",
    "assert log.count('failed') <= 1", "assert len(names) >= 3", "if len(log.splitlines()) < 3: pass",
    "RANK = 'child.wait(60)'", "# child.wait(60)",
])
def test_python_that_may_stay(text):
    assert list(check_waits.python_problems(text)) == []


@pytest.mark.parametrize("text, why", [
    ("changed_.wait_for(lock, std::chrono::seconds(20), [&] { return done; });", "a number of seconds in wait_for()"),
    ("changed_.wait_for(lock, milliseconds{50});", "a number of seconds in wait_for()"),
    ("changed_.wait_for(lock,\n                  std::chrono::seconds(20));", "a number of seconds in wait_for()"),
    ("const auto deadline = steady_clock::now() + std::chrono::seconds(60);", "a number of seconds after now()"),
    ("Flush(steady_clock::now() +\n  std::chrono::minutes{1});", "a number of seconds after now()"),
    ("context.set_deadline(std::chrono::system_clock::now() + 3 * kTestDeadline);", "a number in set_deadline()"),
    ("poll(&one, 1, 30'000);", "a number of milliseconds in poll()"),
    ("if (::poll(&one, 1, 1000) != 1) return;", "a number of milliseconds in poll()"),
    ("constexpr std::chrono::seconds kPatience{60};", "a time of its own"),
    ("constexpr int kPatienceMs = 20'000;", "a time of its own"),
    ("constexpr auto kLongEnough = std::chrono::seconds(60);", "a time of its own"),
])
def test_cpp_that_is_refused(text, why):
    assert reasons(check_waits.cpp_problems(text)) == [why]


@pytest.mark.parametrize("text", [
    "testing::WaitFor(changed_, lock, [&] { return done; });", "changed_.wait_for(lock, patience, condition);",
    "std::this_thread::sleep_for(std::chrono::seconds(1));", "context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);",
    "poll(&one, 1, 0);", "poll(&one, 1, 20);", "poll(&one, 1, testing::kHangLimitMs);", "Clock(now() + kStep);",
    "options.deadline = std::chrono::seconds(5);", "if (waited > kPatience) return;",
    "wait_for(lock, kTick);\nconst auto period = std::chrono::seconds(5);",
])
def test_cpp_that_may_stay(text):
    assert list(check_waits.cpp_problems(text)) == []


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_files_that_are_tests(tmp_path):
    waits, patience = "child.wait(60)\n", "constexpr int kPatience = 60;\n"
    write(tmp_path, {
        "tests/lib/deadlines.py": waits, "common/testing/deadline.h": patience,  # the helpers themselves
        "worker_sdk/python/taskd/run.py": waits, "agent/run/launcher.cc": patience, "tests/bench/mark_benchmark.cc": patience,
        "build/release/tests/one.py": waits, ".cache/tests/one.py": waits, "tests/README.md": waits,
        "tests/e2e/test_run.py": "\n" + waits, "tests/bench/deep/viewers.py": waits, "deploy/quickstart/quickstart.py": waits,
        "agent/run/launcher_test.cc": "\n\n" + patience, "manager/test_client.h": patience, "agent/modes/testing/loop.h": patience,
        "tests/integration/store_client.h": patience,
    })
    assert check_waits.check(str(tmp_path), {}) == [
        "agent/modes/testing/loop.h:1: a time of its own", "agent/run/launcher_test.cc:3: a time of its own",
        "deploy/quickstart/quickstart.py:1: a number of seconds in wait()", "manager/test_client.h:1: a time of its own",
        "tests/bench/deep/viewers.py:1: a number of seconds in wait()", "tests/e2e/test_run.py:2: a number of seconds in wait()",
        "tests/integration/store_client.h:1: a time of its own"]


def test_an_exception_is_of_one_line_and_has_to_be_used(tmp_path):
    write(tmp_path, {"tests/one.py": "child.wait(60)\nchild.wait(5)\n"})
    assert check_waits.check(str(tmp_path), {("tests/one.py", "wait(60)"): "why"}) == ["tests/one.py:2: a number of seconds in wait()"]
    assert check_waits.check(str(tmp_path), {("tests/one.py", "wait("): "why", ("tests/two.py", "x"): "why"}) == [
        "tests/two.py: no line with 'x' is refused: the table need not allow it"]
