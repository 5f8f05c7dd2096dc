"""Which rank a process is that nobody started with RANK: by the variables of its launcher, or as late as by torch."""
import socket

import pytest

import harness
from needs import needs_torch

SEVERAL = {"SLURM_STEP_NUM_TASKS": 4}
# Without a rank until init_process_group: its first steps are marked by then.
LATE = """
import sys
import taskd.torch
taskd.torch.enable()
import torch, torch.distributed
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


for _ in range(5):
    step()
torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
for _ in range(5):
    step()
print("trained", flush=True)
sys.stdin.read()
open(f"{folder}/trained.{rank}", "w").close()
while True:
    step()
    torch.distributed.barrier()
"""


@pytest.mark.parametrize("variables", [
    {"OMPI_COMM_WORLD_RANK": 3}, {"PMIX_RANK": 3}, {"PMI_RANK": 3}, {"RANK_ID": 3, "PMI_RANK": 1},
    {"SLURM_PROCID": 3, **SEVERAL}], ids=lambda one: "+".join(one))
def test_launchers_variables_attach(stage, manager, recording, proxy, variables):
    rank = stage.rank(3, proxy, init=False, count=20, environment={"RANK": None, **variables})
    manager.wait_attached([3])
    rank.wait_finished(20)
    harness.wait_until(lambda: proxy.counts(3)["other"] >= 20, "all 20 marks are in the files")


@needs_torch
def test_torch_tells_the_rank_late_and_nothing_is_lost(stage, manager, recording, proxy):
    port = harness.free_port()
    environment = {"TASKD_SOCKET": proxy.socket, "LD_PRELOAD": harness.LIBRARY, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    for rank in (0, 1):
        stage.python(f"late{rank}", LATE, environment, str(rank), str(port), stage.folder)
    manager.wait_attached([0, 1])
    for rank in (0, 1):
        harness.wait_until(lambda: proxy.counts(rank)["step"] >= 10, "the steps from before the rank was known are there, too")


WAITS = """
import sys
import taskd.torch
taskd.torch.enable()
import torch.distributed
torch.distributed.init_process_group("gloo", **eval(sys.argv[1]))
"""


@pytest.mark.parametrize("arguments, seen", [({}, 3), ({"init_method": "env://"}, 3), ({"rank": 1, "world_size": 2}, 1),
                                             ({"init_method": "tcp://127.0.0.1:%d", "rank": 1, "world_size": 2}, 1),
                                             ({"init_method": "tcp://127.0.0.1:%d?rank=1&world_size=2"}, None)])
def test_a_process_is_seen_while_it_waits_for_the_others(stage, manager, recording, proxy, arguments, seen):
    """By the rank that it is given, or else that the environment has, where torch will take it from there: nobody else comes here."""
    port = harness.free_port()
    given = repr(arguments) % port if "%" in repr(arguments) else repr(arguments)
    environment = {"TASKD_SOCKET": proxy.socket, "LD_PRELOAD": harness.LIBRARY, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1,
                   "RANK": 3, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    process = stage.python("waits", WAITS, environment, given)
    if seen is not None:
        manager.wait_attached([seen])
    else:
        with socket.create_server(("127.0.0.1", port)) as master:
            with master.accept()[0]:  # it has come to the store, which never answers
                assert manager.rank_status() == {}
    assert process.alive()
