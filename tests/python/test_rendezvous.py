"""A rank of `taskd run` reaches the launcher's store also with a PyTorch that was built without libuv.

The PyTorch here is played: what it says is what 2.6 and 2.14 of Debian say. tests/distros.sh has the real ones.
"""
import os

import pytest

PTH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker_sdk", "python", "taskd_torch.pth")
WITHOUT_LIBUV = {
    "2.6": "RuntimeError('use_libuv was requested but PyTorch was build without libuv support')",
    "2.14": "DistStoreError('use_libuv was requested but PyTorch was built without libuv support, run with USE_LIBUV=0')",
}
LAUNCHED = {"RANK": "0", "TASKD_RUN_COOKIE": "c0ffee", "TORCHELASTIC_USE_AGENT_STORE": "True"}
START = f"exec(open({PTH!r}).read())\n"
# As torch's rendezvous calls it, and what became of it.
CLIENT = """
import torch.distributed
from torch.distributed import rendezvous
print("store", rendezvous.TCPStore(host_name="h", port=1, world_size=2, is_master=False).use_libuv)
"""


@pytest.fixture
def play(world):
    """play(error): a torch whose TCPStore raises it where libuv is asked for."""
    def make(error):
        os.makedirs(world.path("torch/distributed"))
        world.write("torch/__init__.py", "")
        world.write("torch/distributed/__init__.py", f"""
class DistStoreError(RuntimeError):
    pass


class TCPStore:
    def __init__(self, host_name, port, world_size=None, is_master=False, use_libuv=True):
        if use_libuv and {error is not None}:
            raise {error}
        self.use_libuv = use_libuv


from torch.distributed import rendezvous
""")
        world.write("torch/distributed/rendezvous.py", "from torch.distributed import TCPStore\n")
    return make


@pytest.mark.parametrize("release", WITHOUT_LIBUV)
def test_the_client_is_made_without_libuv_where_there_is_none(world, play, release):
    play(WITHOUT_LIBUV[release])
    assert world.run(START + CLIENT, **LAUNCHED) == "store False\n"


def test_as_ever_with_libuv(world, play):
    play(None)
    assert world.run(START + CLIENT, **LAUNCHED) == "store True\n"


def test_only_under_a_launcher_that_serves_the_store(world, play):
    play(WITHOUT_LIBUV["2.6"])
    for missing in ("RANK", "TASKD_RUN_COOKIE", "TORCHELASTIC_USE_AGENT_STORE"):
        environment = {k: v for k, v in LAUNCHED.items() if k != missing}
        assert "without libuv" in world.run(f"{START}\ntry:\n import torch.distributed.rendezvous as r\n"
                                            " r.TCPStore('h', 1, is_master=False)\n"
                                            "except RuntimeError as error:\n print(error)", **environment), missing


@pytest.mark.parametrize("arguments", ["is_master=True", "is_master=False, use_libuv=True", "is_master=False, port=None"])
def test_servers_wishes_and_other_errors_are_torchs(world, play, arguments):
    play("RuntimeError('no port')" if "port" in arguments else WITHOUT_LIBUV["2.6"])
    code = f"""
import torch.distributed.rendezvous as r
options = dict(host_name="h", port=1)
options.update(dict({arguments}))
try:
    r.TCPStore(**options)
except RuntimeError as error:
    print("said", error)
"""
    assert world.run(START + code, **LAUNCHED).startswith("said ")


def test_whoever_comes_first(world, play):
    play(WITHOUT_LIBUV["2.6"])
    after = "import torch.distributed\nimport taskd\n" + CLIENT
    assert world.run(after, **LAUNCHED) == "store False\n"
    disabled = START + "import taskd.torch\ntaskd.torch.enable()\ntaskd.torch.disable()\n" + CLIENT
    assert world.run(disabled, **LAUNCHED) == "store False\n"
