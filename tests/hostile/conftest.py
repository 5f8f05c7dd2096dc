import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from fixtures import freezing_disk, jobs, manager, proxy, pytest_runtest_makereport, pytest_runtest_setup, recording, stage  # noqa: E402, F401


@pytest.fixture(autouse=True)
def short_turns(request):
    """Whatever a test does to a store, it never keeps its other clients waiting. @pytest.mark.longest_turn(ms, "why") allows more."""
    stage = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    yield
    from stores import LONGEST_TURN_MS, StoreProcess
    mark = request.node.get_closest_marker("longest_turn")
    bound_ms = mark.args[0] if mark else LONGEST_TURN_MS
    for process in stage.processes if stage else ():
        if not isinstance(process, StoreProcess):
            continue
        if not process.turns_are_measured:
            request.node.warn(pytest.PytestWarning("turns of stores are not measured: this build's program takes no preload"))
            return
        turn_ms = process.longest_turn_ms()
        assert turn_ms <= bound_ms, f"{process.name}: a turn of its event loop took {turn_ms} ms of CPU time, more than {bound_ms}"


@pytest.fixture
def job(manager):
    """Of proxies that are this process."""
    from folded_job import FoldedJob  # here, because most tests of this folder do without gRPC in Python
    job = FoldedJob()
    job.connect(manager)
    yield job
    job.close()
