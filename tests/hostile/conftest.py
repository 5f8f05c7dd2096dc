import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from fixtures import jobs, manager, proxy, pytest_runtest_makereport, pytest_runtest_setup, recording, stage  # noqa: E402, F401


@pytest.fixture
def job(manager):
    """Of proxies that are this process."""
    from folded_job import FoldedJob  # here, because most tests of this folder do without gRPC in Python
    job = FoldedJob()
    job.connect(manager)
    yield job
    job.close()
