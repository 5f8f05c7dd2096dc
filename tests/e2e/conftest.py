"""`stage`: a temporary folder in which a test starts managers, proxies and ranks; all of them end with the test."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import harness  # noqa: E402
import launchers  # noqa: E402


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
def proxy(stage, manager):
    return stage.proxy(manager)


@pytest.fixture
def jobs(stage):
    jobs = launchers.Jobs(stage)
    yield jobs
    stage.close()
    jobs.wait_none_left()
