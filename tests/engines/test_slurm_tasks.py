"""Ranks that a real srun starts, each with a `taskd run --mode slurm` of its own, as an ordinary user types it."""
import json
import os
import re
import signal

import pytest

import slurm_rig
from deadlines import wait_child, wait_until
from harness import PYTHON
from slurm_ranks import LINE, ended_themselves, errors_of_taskd, go, lines_of_taskd, one_world, wait_output, wait_up

pytestmark = pytest.mark.timeout(300)

TASK = ["taskd", "run", "--mode", "slurm", "--", PYTHON, "train.py"]
# A world of PyTorch's own, which asks the store that taskd serves.
TORCH = ("import os, torch, torch.distributed as d\nd.init_process_group('gloo')\nt = torch.ones(1)\nd.all_reduce(t)\n"
         "os.write(1, f'rank {d.get_rank()} sums {int(t)}\\n'.encode())\n")


def said(text):
    return [line for line in lines_of_taskd(text) if line.startswith("taskd run: ")]


@pytest.mark.parametrize("srun, size, nodes", [(["-N3", "--ntasks-per-node=2"], 6, 3), (["-N2", "-n3"], 3, 2),
                                               (["-N2", "-n4", "--distribution=cyclic"], 4, 2)])
def test_tasks_are_one_world(rig, srun, size, nodes):
    done = rig.login(["srun", *srun, *TASK])
    assert done.returncode == 0, done.stderr
    _, master, port, job = one_world(done.stdout, size)
    number = job.rpartition("-")[2]
    assert said(done.stderr) == [f"taskd run: under Slurm job {number} step 0: {size} ranks on {nodes} nodes, rank by SLURM_PROCID, "
                                 f"master n1:{port}"]
    assert master == "n1" and not [node for node in slurm_rig.NODES if rig.processes(node)]


def test_auto_takes_the_tasks_for_ranks_and_torch_agrees(rig):
    done = rig.login(["srun", "-N2", "--ntasks-per-node=2", "taskd", "run", "--mode", "auto", "--", PYTHON, "-c", TORCH])
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) sums (\d)", done.stdout)) == [(str(rank), "4") for rank in range(4)]


def test_what_the_batch_script_sets_stays(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2\nexport MASTER_ADDR=$(scontrol show hostnames | head -n1) "
                       "MASTER_PORT=29777\nsrun taskd run --mode slurm -- /usr/bin/python3 train.py\n")
    rig.wait_for_state(number, "COMPLETED", "FAILED")
    assert one_world(rig.output(number), 4)[1:3] == ("n1", "29777")


def test_a_failing_rank_ends_all_and_is_reported_once(rig):
    done = rig.login(["srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=0", *TASK, "fail", "wait"])
    assert done.returncode == 7
    assert done.stderr.count("FAILED") == 1 and "rank:        1 (local rank 1)" in done.stderr
    ended = [line for line in said(done.stderr) if "exited" in line]
    assert len(ended) == 2 and re.fullmatch(r"taskd run: rank 1 on n\d exited with code 7", ended[0]), done.stderr
    assert ended[0] == ended[1], "task 0 and the other node say the same"
    assert not errors_of_taskd(done.stderr), done.stderr
    rig.wait_idle()


def test_scancel_ends_everything(rig):
    child = rig.start(["srun", "-N2", "--ntasks-per-node=2", *TASK, "wait"])
    number = wait_output(child, 4)[3].rpartition("-")[2]
    assert rig.login(["scancel", number]).returncode == 0
    assert wait_child(child, 60) == 143
    text = slurm_rig.output_of(child)[1]
    ended_themselves(text, 4)
    rig.wait_idle()
    assert len([line for line in lines_of_taskd(text) if line.endswith("SIGTERM: the job is ended")]) == 1, "task 0 says it"
    assert not errors_of_taskd(text), text


def test_status_sees_every_rank_on_its_node(rig):
    # Marks come from a rank that marks.
    marks = ("import time\nfrom taskd import mstx\nimport os\nopen('go.up.' + os.environ['RANK'], 'w').close()\n"
             "while not os.path.exists('go'):\n mstx.mark('x')\n time.sleep(0.05)\n")
    child = rig.start(["srun", "-N2", "--ntasks-per-node=2", "taskd", "run", "--mode", "slurm", "--", PYTHON, "-c", marks])
    wait_up(rig, "go", 4)
    number = wait_until(lambda: re.search(r"Slurm job (\d+)", slurm_rig.output_of(child)[1]), "it says which job it is")[1]

    def attached():
        shown = rig.login(["srun", "--overlap", "--jobid", number, "-N1", "-n1", "-w", "n2", "taskd", "status", "--json"])
        if shown.returncode != 0:
            return None
        return {(node["node"], rank["rank"]) for node in json.loads(shown.stdout)["nodes"] for rank in node["ranks"]
                if rank["attached"]}
    wait_until(lambda: attached() == {(0, 0), (0, 1), (1, 2), (1, 3)}, "all are attached", 60, 0.2)
    go(rig)
    assert wait_child(child, 60) == 0


def test_a_node_that_loses_its_power_ends_the_job(rig):
    """Nobody closes a connection: the others notice that nothing is heard any more."""
    child = rig.start(["srun", "-N2", "--no-kill", "-w", "n[1,4]", "--ntasks-per-node=2", *TASK, "wait"],
                      environment={"TASKD_NODE_TIMEOUT": "20"})
    wait_up(rig, "go", 4)
    rig.lose_power(4)
    try:
        wait_until(lambda: not rig.processes(1), "the other node's tasks end", 90)
        wait_until(lambda: re.search(r"rank [23] \(n4\).*lost: its launcher was silent for 20 s", slurm_rig.output_of(child)[1]), "it says why")
    finally:
        child.send_signal(signal.SIGKILL)
        rig.login(["scancel", "--user=alice"])
        rig.power_on(4)
        wait_until(lambda: rig.login(["sinfo", "-h", "-n", "n4", "-o", "%t"]).stdout.strip() == "idle", "n4 is back", 120)


def test_ranks_of_mpirun_below_srun(rig):
    """mpirun starts its helper by srun, whose variables its ranks see, too."""
    if not os.path.exists("/usr/bin/mpirun.openmpi"):
        pytest.skip("Debian's openmpi-bin is not installed")
    number = rig.batch("#!/bin/bash\n#SBATCH -N1 --ntasks-per-node=3\n"
                       "mpirun.openmpi --oversubscribe -np 3 taskd run --mode auto -- /usr/bin/python3 train.py\n")
    rig.wait_for_state(number, "COMPLETED", "FAILED")
    worlds = sorted(int(rank) for rank, *_ in LINE.findall(rig.output(number)))
    assert worlds == [0, 1, 2] and "3 ranks on 1 node, rank by OMPI_COMM_WORLD_RANK" in rig.output(number), rig.output(number)
