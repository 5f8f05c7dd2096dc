"""`taskd run` under a real Slurm, one launcher a node, as an ordinary user types it."""
import json
import os
import re
import signal

import pytest

import slurm_rig
from deadlines import wait_child, wait_until
from harness import PYTHON
from slurm_ranks import LINE, ended_themselves, go, lines_of_taskd, one_world, ranks, read, wait_output, wait_up

pytestmark = pytest.mark.timeout(300)  # a scheduler has waits of its own

# ---- One launcher a node

def test_the_obvious_line_trains_one_world(rig):
    done = rig.login(["srun", "-N3", "taskd", "run", "--nproc-per-node", "2", "train.py"])
    assert done.returncode == 0, done.stderr
    world, master, port, job = one_world(done.stdout, 6)
    assert (world, master) == ("6", "n1") and 20000 <= int(port) < 30016
    assert re.fullmatch(r"slurm/taskd-\d+", job)
    said = [line for line in lines_of_taskd(done.stderr) if line.startswith("taskd run: ")]
    number = job.rpartition("-")[2]
    assert "is not this machine" not in done.stderr
    assert said == [f"taskd run: under Slurm job {number} step 0: 3 nodes, node rank by SLURM_NODEID, master n1:{port}"]


@pytest.mark.parametrize("options", [["--nnodes=3"], ["--nnodes=2:3"], ["--nnodes=1:8"]])
def test_a_number_of_nodes_that_holds_the_steps(rig, options):
    done = rig.login(["srun", "-N3", "taskd", "run", *options, "train.py"])
    assert done.returncode == 0, done.stderr
    one_world(done.stdout, 3)


@pytest.mark.parametrize("srun, options, says", [
    (["-N3"], ["--nnodes=2"], "--nnodes '2': Slurm job"),
    (["-N2", "--ntasks-per-node=2"], [], "one launcher a node: --ntasks-per-node=1, or --mode slurm"),
    (["-N2"], ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"], "each would train a world of its own"),
    # Not --kill-on-bad-exit=1, with which srun now and then loses the last line of the failed task (docs/modes/slurm.md).
    (["-N2", "--wait=5"], ["--node-rank=1"], "--node-rank '1': this is node 0"),
    (["-N2"], ["--master-addr=n2"], "--master-addr 'n2': node 0 of"),
])
def test_what_would_be_several_worlds_is_refused(rig, srun, options, says):
    done = rig.login(["srun", *srun, "taskd", "run", *options, "train.py"])
    # Node 0's own code: others may be ended before they see what is wrong.
    assert done.returncode == 2 or "task 0: Exited with exit code 2" in done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_explicitly_alone(rig):
    for options in (["--standalone"], ["--nnodes=1"]):
        done = rig.login(["srun", "-N2", "taskd", "run", *options, "train.py"])
        assert done.returncode == 0, done.stderr
        assert sorted(LINE.findall(done.stdout))[0][:2] == ("0", "1") and len(LINE.findall(done.stdout)) == 2


def test_ways_that_people_write_today(rig):
    c10d = ("srun taskd run --nnodes $SLURM_NNODES --nproc-per-node 2 --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d "
            "--rdzv-endpoint $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29500 train.py")
    static = ("srun bash -c 'exec taskd run --nnodes 3 --nproc-per-node 2 --node-rank $SLURM_NODEID --master-addr n1 "
              "--master-port 29501 train.py'")
    torchrun = (f"srun {PYTHON} -m torch.distributed.run -r 9:1 -t 9:1 --nnodes 3 --nproc_per_node 2 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d "
                "--rdzv_endpoint n1:29502 train.py")
    # With MindCluster's line in torch's run.py.
    patched = torchrun.replace("-m torch.distributed.run", '-c "import taskd.python.adaptor.patch, torch.distributed.run as r; r.main()"').replace(
        "29502", "29503")
    for line in (c10d, static, torchrun, patched):
        number = rig.batch(f"#!/bin/bash\n#SBATCH -N3 --ntasks-per-node=1\n{line}\n")
        rig.wait_for_state(number, "COMPLETED", "FAILED", timeout_s=120)
        text = rig.output(number)
        assert rig.state(number) == "COMPLETED", text
        one_world(text, 6)


def test_the_batch_shell_is_one_node(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N3\ntaskd run train.py\n")
    rig.wait_for_state(number, "COMPLETED")
    text = rig.output(number)
    one_world(text, 1)
    assert text.count(f"runs on 1 of 3 nodes of Slurm job {number}; put srun before it") == 1


def test_dry_run_starts_nothing(rig):
    done = rig.login(["srun", "-N1", "taskd", "run", "--dry-run", "--nproc-per-node=2", "train.py"])
    assert done.returncode == 0
    assert re.match(r"under Slurm job \d+ step 0: 1 node, node rank by SLURM_NODEID, master n1:\d+\n", done.stdout)
    assert not LINE.search(done.stdout)


def test_a_heterogeneous_job_says_why_not(rig):
    done = rig.login(["srun", "--het-group=0,1", "--version"])  # is it known here at all?
    assert done.returncode == 0
    number = rig.batch("#!/bin/bash\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun --het-group=0,1 taskd run train.py\necho code $?\n")
    rig.wait_for_state(number, "COMPLETED", "FAILED")
    text = rig.output(number)
    assert "\ncode 2\n" in text, text
    assert "SLURM_HET_SIZE '2': the nodes of a heterogeneous job are in several lists" in text
    assert not LINE.search(text)


def test_srun_inside_of_srun_is_a_step_of_its_own(rig):
    inner = ('[ $SLURM_NODEID = 0 ] || exit 0; srun --overlap -N2 --ntasks-per-node=1 taskd run --nproc-per-node=2 train.py; echo code $?; '
             'srun --overlap -N1 -n1 taskd run train.py; echo code $?')
    done = rig.login(["srun", "-N2", "bash", "-c", inner])
    assert done.returncode == 0 and done.stdout.count("\ncode 0\n") == 2, done
    worlds, shared = ranks(done.stdout)
    assert {run_id.split(".")[1]: world for run_id, world in worlds.items()} == {"1": [0, 1, 2, 3], "2": [0]}, worlds
    assert len({words[3] for words in shared.values()}) == 1, "one job, and its name"


# A rank that starts a step on both nodes, and says what came of it.
STARTS_A_STEP = """
import os, subprocess, sys
if os.environ["RANK"] == "0":
    done = subprocess.run(["srun", "--overlap", "-N2", "--ntasks-per-node=1", *sys.argv[1:], "taskd", "run", "train.py"], capture_output=True, text=True)
    print(done.stdout, done.stderr, "code", done.returncode, flush=True)
"""


@pytest.mark.parametrize("options, code", [([], 2), (["--export=PATH,HOME"], 0)])
def test_a_rank_that_calls_srun_trains_one_world_or_says_why_not(rig, options, code):
    with open(os.path.join(rig.work, "outer.py"), "w", encoding="utf-8") as file:
        file.write(STARTS_A_STEP)
    done = rig.login(["srun", "-N2", "taskd", "run", "outer.py", *options])
    assert done.returncode == 0 and done.stdout.endswith(f" code {code}\n"), done
    if code == 0:
        one_world(done.stdout, 2)
    else:
        assert not LINE.search(done.stdout)
        assert re.search(r"taskd run: TASKD_TASK_ID '\d+\.0': Slurm job \d+ step 1 was started by a rank of that launcher", done.stdout), done.stdout


STALE_JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "bash", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURM_NNODES": "3"}
STALE_STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0",
              "SLURMD_NODENAME": "n1"}


def test_variables_of_a_job_that_is_over(rig):
    """In a shell on the login node, say: one that salloc or `srun --pty` had started, or that has the variables of such a one."""
    done = rig.login(["taskd", "run", "train.py"], environment=STALE_JOB)
    assert done.returncode == 0, done.stderr
    one_world(done.stdout, 1)
    assert done.stderr.count("runs on 1 of 3 nodes of Slurm job 4711; put srun before it") == 1
    done = rig.login(["taskd", "run", "train.py"], environment={**STALE_JOB, **STALE_STEP})
    assert done.returncode == 0, done.stderr
    one_world(done.stdout, 1)
    assert done.stderr.count("n1, where node 0 of Slurm job 4711 step 0 is to be, is not this machine (login): variables of another job?") == 1
    done = rig.login(["taskd", "switch", "all=on"], environment=STALE_JOB)
    assert (done.returncode, done.stderr) == (1, "taskd switch: no job of this user runs on this machine; name one with --manager HOST:PORT\n")


def test_a_node_whose_host_name_means_loopback(rig):
    """Debian's installer writes `127.0.1.1 HOST`."""
    hosts = "".join(f"{slurm_rig._address(node)} n{node}\n" for node in slurm_rig.NODES)
    for node in (1, 2):
        rig.root(f"n{node}", f"printf '127.0.1.1 n{node}\\n127.0.0.1 localhost\\n{hosts}' > /etc/hosts")
    try:
        done = rig.login(["srun", "-w", "n[1-2]", "taskd", "run", "train.py"])
    finally:
        for node in (1, 2):
            rig.root(f"n{node}", f"cp {rig.folder}/etc/hosts /etc/hosts")
    assert done.returncode == 0, done.stderr
    assert "is not this machine" not in done.stderr
    one_world(done.stdout, 2)


# ---- Ports

def test_the_next_port_where_the_first_is_taken(rig):
    dry = rig.login(["srun", "-N2", "--jobid", rig.allocation(2), "taskd", "run", "--dry-run", "train.py"])
    port = int(re.search(r"master n1:(\d+)", dry.stdout)[1])
    number = re.search(r"Slurm job (\d+)", dry.stdout)[1]
    # The next step's port is not known beforehand, but a script can hold its own before it becomes the launcher.
    hold = (f"import os, socket, sys\nif os.environ['SLURM_NODEID'] == '0':\n import subprocess\n"
            f" text = subprocess.run(['taskd', 'run', '--dry-run', 'x.py'], capture_output=True, text=True).stdout\n"
            f" port = int(text.split('master n1:')[1].split()[0])\n"
            f" held = socket.create_server(('', port)); held.set_inheritable(True)\n print('held', port, flush=True)\n"
            f"os.execvp('taskd', ['taskd', 'run', 'train.py'])\n")
    done = rig.login(["srun", "-N2", "--jobid", number, PYTHON, "-c", hold])
    assert done.returncode == 0, done.stderr
    held = int(re.search(r"held (\d+)", done.stdout)[1])
    master = one_world(done.stdout, 2)[2]
    assert int(master) == held + 1 != port
    # Where it is, and not a word about where it is not. Whoever holds the port is silent: the other node may have waited.
    said = [line for line in lines_of_taskd(done.stderr) if "waiting" not in line and " marks are off " not in line]
    assert said[0] == f"taskd run: under Slurm job {number} step 1: 2 nodes, node rank by SLURM_NODEID, master n1:{master}"
    assert len(said) == 2 and re.fullmatch(r"\S+ info run: the manager is at port (\d+): taskd status, or with --manager 127.0.0.1:\1 .*", said[1])
    assert "0.0.0.0" not in done.stderr


def test_two_steps_of_a_job_at_once(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2\n"
                       "for name in a b; do NAME=$name srun -n2 --ntasks-per-node=1 --overlap taskd run train.py wait & done\nwait\n")
    wait_up(rig, "a", 2)
    wait_up(rig, "b", 2)
    go(rig, "a")
    go(rig, "b")
    rig.wait_for_state(number, "COMPLETED")
    worlds, shared = ranks(rig.output(number))
    assert sorted(worlds.values()) == [[0, 1], [0, 1]]
    assert {words[0] for words in shared.values()} == {"2"}
    assert len({words[2] for words in shared.values()}) == 2


def test_twenty_jobs_at_once(rig):
    children = [rig.start(["srun", "-N2", "taskd", "run", "train.py"]) for _ in range(20)]
    names = set()
    for child in children:
        assert wait_child(child, 120) == 0, slurm_rig.output_of(child)[1]
        names.add(one_world(slurm_rig.output_of(child)[0], 2)[3])
    assert len(names) == 20 and all(re.fullmatch(r"slurm/taskd-\d+", name) for name in names), names


# ---- Looking

def test_status_and_switch_inside_and_from_outside(rig):
    child = rig.start(["srun", "-N3", "taskd", "run", "train.py", "wait"])
    number = wait_output(child, 3)[3].rpartition("-")[2]

    def look(node):
        shown = rig.login(["srun", "--overlap", "--jobid", number, "-N1", "-n1", "-w", node, "taskd", "status", "--json"])
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)
    for node in ("n1", "n2"):
        status = look(node)
        assert (status["job"], status["task_id"]) == (f"slurm/taskd-{number}", f"{number}.0")
        wait_until(lambda node=node: len(look(node)["nodes"]) == 3, "all nodes are there")
    outside = rig.login(["taskd", "switch", "all=on"])
    assert outside.returncode != 0 and "no job of this user runs on this machine" in outside.stderr
    go(rig)
    assert wait_child(child, 60) == 0


def test_a_token_opens_the_job_to_the_login_node(rig):
    token = {"TASKD_TOKEN": "a secret of the user's"}
    child = rig.start(["srun", "-N2", "taskd", "run", "train.py", "wait"], environment=token)
    wait_up(rig, "go", 2)
    shown = rig.login(["taskd", "status", "--json", "--manager", "n1:9601"], environment=token)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["job"].startswith("slurm/taskd-")
    refused = rig.login(["taskd", "status", "--manager", "n1:9601"])
    assert refused.returncode != 0
    go(rig)
    assert wait_child(child, 60) == 0


def test_ranks_of_srun_alone_are_seen(rig):
    """`srun python train.py`: neither a launcher nor a mode. A proxy on each node and the preload are all that they need."""
    with open(os.path.join(rig.work, "train.py"), "w", encoding="utf-8") as file:
        file.write("import os, time\nfrom taskd import mstx\nopen('go.up.x.' + os.environ['SLURM_PROCID'], 'w').close()\n"
                   "while not os.path.exists('go'):\n mstx.mark('x')\n time.sleep(0.05)\n")
    token = {"TASKD_TOKEN": "a secret of the user's"}
    number = rig.allocation(2, "--ntasks-per-node=2", "--nodelist=n[1-2]")
    step = ["srun", "--overlap", "--jobid", number]
    rig.start([*step, "-N1", "-n1", "-w", "n1", "taskd", "manager", "--listen", "n1:9601", "--job", "slurm/bare"], environment=token)
    rig.start([*step, "-N2", "-n2", "bash", "-c", "exec taskd proxy --node-rank $SLURM_NODEID --manager n1:9601 --socket /tmp/bare/proxy.sock "
                                                  "--profiling-dir marks"], environment=token)
    child = rig.start([*step, "-N2", "-n4", f"--export=ALL,LD_PRELOAD={rig.folder}/lib/libtaskd.so", PYTHON, "train.py"],
                      environment={"TASKD_SOCKET": "/tmp/bare/proxy.sock"})
    wait_up(rig, "go", 4)

    def seen(what):
        shown = rig.login(["taskd", "status", "--json", "--manager", "n1:9601"], environment=token)
        return shown.returncode == 0 and {(node["node"], rank["rank"]) for node in json.loads(shown.stdout)["nodes"] for rank in node["ranks"]
                                          if what(rank)}
    everybody = {(0, 0), (0, 1), (1, 2), (1, 3)}
    wait_until(lambda: seen(lambda rank: rank["attached"]) == everybody, "all are attached by SLURM_PROCID", 60, 0.2)
    switched = rig.login(["taskd", "switch", "--manager", "n1:9601", "all=on"], environment=token)
    assert switched.returncode == 0, switched.stdout + switched.stderr
    wait_until(lambda: seen(lambda rank: rank["marks"]["other"] > 0) == everybody, "everybody's marks are counted", 60, 0.2)
    go(rig)
    assert wait_child(child, 60) == 0, slurm_rig.output_of(child)[1]


# ---- Nodes that go

@pytest.fixture
def firewall(rig):
    """Nothing of n2's gets to n1, and nothing comes back: no refusal either. The login node is not concerned."""
    rig.root("n2", "ip neighbour replace 10.98.0.11 lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
    yield
    rig.root("n2", "ip neighbour delete 10.98.0.11 dev eth0")


def test_a_firewall_between_the_nodes(rig, firewall):
    child = rig.start(["srun", "-w", "n[1-2]", "taskd", "run", "train.py"])
    wait_until(lambda: "waiting for node 0's launcher" in (text := slurm_rig.output_of(child)[1]) and "waiting: " in text, "both say it", 60)
    text = slurm_rig.output_of(child)[1]
    port = re.search(r"master n1:(\d+)", text)[1]
    assert f"waiting for node 0's launcher at n1:{port}: Connection timed out" in text
    assert "waiting: 1 of 2 nodes are there, missing node rank 1" in text
    rig.login(["scancel", "--user=alice"])
    assert wait_child(child, 60) == 143
    static = ("exec taskd run --nnodes 2 --node-rank $SLURM_NODEID --master-addr n1 --master-port 29501 --rdzv-conf join_timeout=11 train.py")
    done = rig.login(["srun", "-w", "n[1-2]", "bash", "-c", static])
    ended_themselves(done.stderr, 2, 1)
    assert done.returncode == 1 and done.stdout == ""
    assert "taskd run: rendezvous timed out after 11 s: 1 of 2 nodes are there, missing node rank 1" in done.stderr, done.stderr
    assert "taskd run: no launcher to be reached at n1:29501 within 11 s: Connection timed out" in done.stderr, done.stderr


@pytest.fixture
def n4_dies(rig):
    """A function that takes n4's power; after the test it is back."""
    yield lambda: rig.lose_power(4)
    rig.login(["scancel", "--user=alice"])
    rig.power_on(4)
    wait_until(lambda: rig.login(["sinfo", "-h", "-n", "n4", "-p", "main", "-o", "%t"]).stdout.strip() == "idle", "n4 is back", 120)


def test_power_loss_during_the_rendezvous(rig, n4_dies):
    late = 'if [ "$SLURMD_NODENAME" = n4 ]; then sleep 600; fi; exec taskd run train.py'
    child = rig.start(["srun", "-N3", "--no-kill", "-w", "n[1-2],n4", "bash", "-c", late])
    wait_until(lambda: "waiting: 2 of 3 nodes are there, missing node rank 2" in slurm_rig.output_of(child)[1], "it is said who is missing")
    number = wait_until(lambda: re.search(r"under Slurm job (\d+)", slurm_rig.output_of(child)[1]), "it says which job it is")[1]
    n4_dies()
    assert rig.login(["scancel", number]).returncode == 0
    wait_until(lambda: not rig.processes(1) and not rig.processes(2), "the others end", 60)
    assert not LINE.search(slurm_rig.output_of(child)[0])


def test_power_loss_during_the_end(rig, n4_dies):
    child = rig.start(["srun", "-N3", "--no-kill", "-w", "n[1-2],n4", "taskd", "run", "--shutdown-timeout=60", "train.py", "wait", "stubborn"])
    wait_output(child, 3)
    rig.root("n1", f"pkill -TERM --oldest --euid {slurm_rig.USER_ID} --exact taskd")  # the launcher
    wait_until(lambda: all(read(rig, f"go.signal-{signal.SIGTERM:d}.{rank}") for rank in range(3)), "all ranks are ending")
    n4_dies()
    go(rig)
    wait_until(lambda: not rig.processes(1) and not rig.processes(2), "the others end", 60)


def test_a_host_with_a_second_name(rig):
    done = rig.login(["srun", "-N2", "taskd", "run", "--master-addr=n1-ib0", "train.py"])
    assert done.returncode == 0, done.stderr
    assert one_world(done.stdout, 2)[1] == "n1-ib0"


def test_power_loss_of_a_node_of_an_elastic_job(rig, n4_dies):
    child = rig.start(["srun", "-N3", "--no-kill", "-w", "n[1-2],n4", "taskd", "run", "--nnodes=2:3", "train.py", "wait"])
    wait_output(child, 3)  # what n4 has written goes with it
    wait_up(rig, "go", 3)
    n4_dies()
    wait_until(lambda: len(LINE.findall(slurm_rig.output_of(child)[0])) >= 5, "the others go on", 90)
    assert [line[1] for line in LINE.findall(slurm_rig.output_of(child)[0])] == ["3"] * 3 + ["2"] * 2
    go(rig)
    wait_until(lambda: not rig.processes(1) and not rig.processes(2), "they end", 60)


# ---- What the repository shows

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "deploy", "slurm")


@pytest.mark.parametrize("name", sorted(os.listdir(SCRIPTS)))
def test_the_repositorys_scripts_run_as_they_stand(rig, name):
    with open(os.path.join(SCRIPTS, name), encoding="utf-8") as file:
        number = rig.batch(file.read())
    rig.wait_for_state(number, "COMPLETED", "FAILED", timeout_s=90)
    text = rig.output(number)
    assert rig.state(number) == "COMPLETED", text
    assert one_world(text, 6)[3] == f"slurm/train-{number}"
    rig.wait_idle()


TRAINING = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 64)
        self.over = torch.nn.Parameter(torch.zeros(1))  # its gradient, which all ranks have in common, says that one has seen the file
    def forward(self, batch, over):
        return super().forward(batch).sum() + self.over.sum() * over
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while model.module.over.grad is None or model.module.over.grad.item() == 0:
    if dist.get_rank() == 1: time.sleep(0.06)
    loss = model(torch.ones(8, 64), float(os.path.exists("go")))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.03)
"""


def test_a_training_is_named_switched_and_diagnosed_without_a_further_word(rig):
    with open(os.path.join(rig.work, "train.py"), "w", encoding="utf-8") as file:
        file.write(TRAINING)
    child = rig.start(["srun", "-N3", "taskd", "run", "train.py"])
    number = wait_until(lambda: re.search(r"under Slurm job (\d+)", slurm_rig.output_of(child)[1]), "it has begun", 60)[1]

    def inside(*command):
        return rig.login(["srun", "--overlap", "--jobid", number, "-N1", "-n1", "-w", "n2", "taskd", *command])
    # Three PyTorchs are imported on two CPUs.
    wait_until(lambda: sum(len(node["ranks"]) for node in json.loads(inside("status", "--json").stdout or '{"nodes":[]}')["nodes"]) == 3,
               "all ranks are attached", 120, 1)
    switched = inside("switch", "all=on")
    assert switched.returncode == 0, switched.stderr + switched.stdout

    def verdict():
        report = json.loads(inside("diagnose", "--json").stdout or "{}")
        return report if report.get("verdicts") else None
    report = wait_until(verdict, "somebody is named", 200, 2)
    assert report["job"] == f"slurm/taskd-{number}"
    assert [one["ids"] for one in report["verdicts"] if one["state"] == "open"] == [[1]], report
    status = json.loads(inside("status", "--json").stdout)
    (folder,) = {node["mark_files"]["dir"] for node in status["nodes"]}
    assert re.fullmatch(rf"{re.escape(rig.work)}/taskd-slurm-taskd-{number}-\d{{8}}-\d{{6}}", folder), "one for all nodes"
    go(rig)
    assert wait_child(child, 60) == 0
    rig.wait_idle()
