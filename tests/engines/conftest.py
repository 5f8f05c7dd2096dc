import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import slurm_ranks  # noqa: E402
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


@pytest.fixture(autouse=True)
def script(slurm):
    for name in os.listdir(slurm.work):
        path = os.path.join(slurm.work, name)
        if os.path.isfile(path):
            os.remove(path)
    with open(os.path.join(slurm.work, "train.py"), "w", encoding="utf-8") as file:
        file.write(slurm_ranks.RANK)
