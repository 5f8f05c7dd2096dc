"""second_try.sh on a build folder of three tests that fail as often as a file of theirs says."""
import os
import subprocess

import pytest

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "second_try.sh")
TESTS = """
add_test(e2e_one sh -c "{failing} one")
add_test(e2e_two sh -c "{failing} two")
add_test(e2e_three sh -c "{failing} three")
add_test(core_test sh -c "{failing} core")
set_tests_properties(e2e_one e2e_two e2e_three PROPERTIES LABELS "integration;e2e")
set_tests_properties(core_test PROPERTIES LABELS "unit")
"""
# Takes one from the number in the file; fails while there is one to take.
FAILING = """#!/bin/sh
cd "$(dirname "$0")"
left=$(cat "$1" 2>/dev/null || echo 0)
echo "$1: $left failures are left"
[ "$left" -eq 0 ] || { echo $((left - 1)) >"$1"; exit 1; }
"""


@pytest.fixture
def build(tmp_path):
    failing = tmp_path / "failing"
    failing.write_text(FAILING)
    failing.chmod(0o755)
    (tmp_path / "CTestTestfile.cmake").write_text(TESTS.format(failing=failing))
    return tmp_path


def run_twice(build, **failures):
    """(ctest's code, second_try.sh as it ended) where each named test fails that often."""
    for name, times in failures.items():
        (build / name).write_text(str(times))
    first = subprocess.run(["ctest", "--test-dir", build], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    second = subprocess.run([SCRIPT, build, build / "log"], capture_output=True, text=True, check=False)
    return first.returncode, second


def test_two_that_pass_the_second_time_are_named(build):
    first, second = run_twice(build, one=1, three=1)
    assert first != 0 and second.returncode == 0, second
    assert second.stdout.startswith("flaky: 2 (e2e_one e2e_three)"), second
    assert "one: 1 failures are left" in (build / "log.e2e_one").read_text()
    assert "three: 1 failures" in (build / "log.e2e_three").read_text() and "one:" not in (build / "log.e2e_three").read_text()


def test_one_that_fails_again_fails_the_run(build):
    _, second = run_twice(build, one=1, two=2)
    assert second.returncode == 1 and "flaky" not in second.stdout and "two: 1 failures are left" in second.stderr


def test_three_get_no_second_try(build):
    _, second = run_twice(build, one=1, two=1, three=1)
    assert second.returncode == 1 and "no second try" in second.stderr and not (build / "log.second-try").exists()


def test_a_unit_test_gets_no_second_try(build):
    _, second = run_twice(build, one=1, core=1)
    assert second.returncode == 1 and "core_test" in second.stderr and not (build / "log.second-try").exists()


def test_a_run_without_a_failed_test_stays_failed(build):
    first, second = run_twice(build)
    assert first == 0 and second.returncode == 1
