"""Ways to train with PyTorch under `taskd run`: every step and operation is marked, and nothing of the training changes."""
import pytest

import harness
import torch_ways
from needs import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

# In every run: one way for each place where communication is seen, and for each kind of step.
QUICK = {"ddp", "fsdp", "coalesced", "grad-scaler"}


def slow_but(quick, ways):
    return [way if way in quick else pytest.param(way, marks=pytest.mark.slow) for way in ways]


@pytest.mark.parametrize("way", slow_but(QUICK, sorted(torch_ways.OPERATIONS)))
def test_is_marked_and_not_changed(way, tmp_path):
    if "compile" in way and not hasattr(torch, "compile"):
        pytest.skip(f"PyTorch {torch.__version__} has no torch.compile; tests/distros/torch_ways.sh has releases that do")
    try:
        plain = torch_ways.without_taskd(way, str(tmp_path))
    except torch_ways.NotPossible as error:
        pytest.skip(str(error))
    torch_ways.check(way, plain, torch_ways.with_taskd(harness.TASKD, way, str(tmp_path)))


@pytest.mark.parametrize("way", slow_but({"ddp", "ddp-logged"}, ["ddp", "ddp-logged", "ddp-bucket-view", "ddp-join"]))
def test_a_slow_rank_is_named(way, tmp_path):
    torch_ways.check_slow(way, torch_ways.with_taskd(harness.TASKD, way, str(tmp_path), slow_rank=1))
