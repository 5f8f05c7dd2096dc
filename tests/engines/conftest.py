import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import slurm_rig  # noqa: E402


@pytest.fixture(scope="session")
def slurm():
    """A Slurm that all tests share; each leaves no job behind."""
    reason = slurm_rig.missing()
    if reason:
        pytest.skip(reason)
    with slurm_rig.SlurmRig() as rig:
        yield rig


@pytest.fixture
def rig(slurm):
    yield slurm
    slurm.end_all()
