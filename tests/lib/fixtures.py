"""Fixtures of tests/e2e and tests/hostile: `stage`, a temporary folder in which a test starts managers, proxies and ranks,
all of which end with the test, and what often stands on it. Besides, what the mark "root" means."""
import os
import re
import subprocess

import pytest

import harness
import launchers


def pytest_runtest_setup(item):
    """@pytest.mark.root("why"): whoever is not root skips it."""
    mark = item.get_closest_marker("root")
    if mark and os.geteuid() != 0:
        pytest.skip(f"needs root: {mark.args[0]}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Where root has tests run by a user (tests/as_user.sh), what this one may not do has to be marked: root does not run it else."""
    report = (yield).get_result()
    if report.skipped and "TASKD_TESTS_OF_ROOT" in os.environ and not item.get_closest_marker("root"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if re.search(r"(?<![/\w])root\b(?!/)|not permitted|[Pp]ermission denied|mount.* not allowed", reason):
            report.outcome = "failed"
            report.longrepr = f'{item.nodeid}: "{reason}"; only tests marked "root" are run by root'


@pytest.fixture
def stage(tmp_path):
    stage = harness.Stage(tmp_path)
    yield stage
    stage.close()
    stage.print_logs()  # pytest shows it when the test failed


@pytest.fixture
def manager(stage):
    return stage.manager()


@pytest.fixture
def recording(manager):
    """Everything is switched on. Before `proxy` in a test's arguments: then no proxy ever knows of another state."""
    manager.all_on()


@pytest.fixture
def proxy(stage, manager, request):
    """With `recording`: the proxy knows of it, however soon a test ends its ranks and it."""
    proxy = stage.proxy(manager)
    if "recording" in request.fixturenames:
        harness.wait_until(proxy.knows_what_is_on, "the proxy knows what is switched on")
    return proxy


@pytest.fixture
def jobs(stage):
    jobs = launchers.Jobs(stage)
    yield jobs
    stage.close()
    jobs.wait_none_left()


@pytest.fixture
def freezing_disk(stage):
    """A file system of its own that can be frozen: then write(2) cannot even be killed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    image, path = os.path.join(stage.folder, "image"), os.path.join(stage.folder, "disk")
    with open(image, "wb") as file:
        file.truncate(1 << 30)
    os.mkdir(path)
    if subprocess.run(["mkfs.ext4", "-q", image], check=False).returncode != 0:
        pytest.skip("no mkfs.ext4 here")
    if subprocess.run(["mount", "-o", "loop", image, path], check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting an image is not allowed here")
    yield path
    subprocess.run(["fsfreeze", "-u", path], check=False, capture_output=True)
    stage.close()
    subprocess.run(["umount", "-l", path], check=True)
