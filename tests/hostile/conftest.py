import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from fixtures import freezing_disk, jobs, manager, proxy, pytest_runtest_makereport, pytest_runtest_setup, recording, stage  # noqa: E402, F401


@pytest.fixture(autouse=True)
def short_turns(request):
    """Whatever a test does to a store, it never keeps its other clients waiting."""
    stage = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    yield
    from stores import LONGEST_TURN_MS, StoreProcess
    for process in stage.processes if stage else ():
        if isinstance(process, StoreProcess):
            turn_ms = process.longest_turn_ms()
            assert turn_ms <= LONGEST_TURN_MS, f"{process.name}: a turn of its event loop took {turn_ms} ms of CPU time"


@pytest.fixture
def job(manager):
    """Of proxies that are this process."""
    from folded_job import FoldedJob  # here, because most tests of this folder do without gRPC in Python
    job = FoldedJob()
    job.connect(manager)
    yield job
    job.close()
