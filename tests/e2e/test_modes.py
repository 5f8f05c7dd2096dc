"""`taskd run --mode`: nodes of a job that wait for each other, start, and end together."""
import json
import os
import re
import signal
import socket
import stat

import pytest

import deadlines
import harness
from harness import PYTHON, TASKD, wait_until
from launchers import OWN_PORTS, daemons_of, running, wait_log
from ports import free_port
from modes import ModeJob, dry_run
from needs import needs_torch

ENDS_S = 15  # what the interface promises for the end of the other nodes


@pytest.fixture
def job(stage):
    return ModeJob(stage)


def test_torch_worker_waits_for_node_0(job):
    worker = job.run(1, "torch", ("go",))
    wait_log(worker, "mode torch")
    assert job.started() == []
    first = job.run(0, "torch", ("go",))
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    job.put("go")
    assert (first.wait(), worker.wait()) == (0, 0)
    for index, one in enumerate(job.started("node0") + job.started("node1")):
        environment = one["environment"]
        assert {name: environment[name] for name in
                ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "GPU_NUM", "GPU_NUM_PER_NODE", "INDEX")} == {
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": str(index),
                    "GPU_NUM": "2", "GPU_NUM_PER_NODE": "1", "INDEX": str(index)}


def test_the_ledger_is_kept_in_the_folder_of_the_flag(stage, job):
    folder = os.path.join(stage.folder, "ledger")
    nodes = [job.run(node, "torch", ("go",), "--ledger", folder, environment={"TASKD_JOB": "default/modes"}) for node in (0, 1)]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    job.put("go")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log()
    done = stage.run("goodput", "--ledger", folder, "--json")
    assert done.returncode == 0, done.stderr
    ledger = json.loads(done.stdout)
    assert ledger["job"] == "default/modes" and ledger["slots"] == 2 and ledger["attempts"][0]["outcome"] == "ended", ledger


@pytest.mark.parametrize("failing", [0, 1])
def test_all_nodes_end_with_the_code_of_the_first_failure(stage, failing):
    job = ModeJob(stage, nodes=3)
    nodes = [job.run(index, "torch", ("fail", 7) if index == failing else ("never",)) for index in range(3)]
    wait_until(lambda: len(job.started()) == 3, "all commands run")
    job.put("fail")
    assert [node.wait(ENDS_S) for node in nodes] == [7, 7, 7]
    assert job.alive() == []
    others = next(node for index, node in enumerate(nodes) if index != failing)
    assert f"node {failing} (127.0.0.{failing + 1})" in others.log()


def test_a_command_that_ignores_sigterm_is_killed(job):
    nodes = [job.run(0, "torch", ("fail", 3)), job.run(1, "torch", ("never", "shield"))]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    job.put("fail")
    assert [node.wait(ENDS_S) for node in nodes] == [3, 3]
    assert job.alive() == []


def test_a_launcher_that_is_killed_ends_the_job(job):
    nodes = [job.run(0, "torch", ("never",)), job.run(1, "torch", ("never",))]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    nodes[1].kill()
    assert nodes[0].wait(ENDS_S) == 1
    assert "its `taskd run` is gone" in nodes[0].log()
    wait_until(lambda: job.alive() == [], "no command is left")


def test_node_0_that_is_killed_ends_the_job(job):
    nodes = [job.run(0, "torch", ("never",)), job.run(1, "torch", ("never",))]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    nodes[0].kill()
    assert nodes[1].wait(ENDS_S) == 1
    assert "node 0 (127.0.0.1): its `taskd run` is gone" in nodes[1].log()
    wait_until(lambda: job.alive() == [], "no command is left")


def test_a_manager_that_is_killed_ends_nothing(job):
    nodes = [job.run(0, "torch", ("go",)), job.run(1, "torch", ("go",))]
    wait_until(lambda: len(job.started()) == 2, "both commands run")

    (killed,) = wait_until(lambda: daemons_of(nodes[0].pid, "manager"), "node 0 has a manager")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: set(daemons_of(nodes[0].pid, "manager")) - {killed}, "it has another one")
    assert all(node.require_alive() for node in nodes) and len(job.alive()) == 2
    job.put("go")
    assert [node.wait() for node in nodes] == [0, 0]


def test_sigterm_at_one_node_ends_all(job):
    nodes = [job.run(0, "torch", ("never",)), job.run(1, "torch", ("never",))]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    nodes[1].child.send_signal(signal.SIGTERM)
    assert [node.wait(ENDS_S) for node in nodes] == [143, 143]
    assert job.alive() == []


def test_the_same_job_again_at_once(job):
    for code in (0, 5, 0):
        nodes = [job.run(0, "torch", ("exit", code)), job.run(1, "torch", ("exit", 0))]
        assert [node.wait() for node in nodes] == [code, code]


def test_with_a_manager_that_outlives_the_job(stage, job):
    port = int(job.manager.rpartition(":")[2])
    stage.manager(port=port)
    for code in (0, 5, 0):
        nodes = [job.run(1, "torch", ("exit", 0)), job.run(0, "torch", ("exit", code))]
        assert [node.wait() for node in nodes] == [code, code]


def test_node_0_that_never_comes(job):
    worker = job.run(1, "torch", ("exit", 0), "--wait-s", "2")
    assert worker.wait() == 1
    assert re.search(r"node 0 \(127\.0\.0\.1\) is missing.*--wait-s", worker.log()), worker.log()
    assert job.started() == []


def test_a_worker_that_never_comes(job):
    first = job.run(0, "torch", ("exit", 0), "--wait-s", "2")
    assert first.wait() == 1
    assert "node 1 (127.0.0.2) is missing" in first.log()


def test_nodes_that_were_told_different_things(job):
    first = job.run(0, "torch", ("never",))
    wait_until(lambda: job.started("node0"), "node 0 runs")
    other = job.run(1, "torch", ("exit", 0), environment={"NODE_LIST": "127.0.0.1:1,127.0.0.9:1"})
    assert other.wait() == 1
    assert "refused by the manager" in other.log()
    assert first.alive() and job.started("node1") == []


def test_another_token_is_refused(job):
    first = job.run(0, "torch", ("never",), environment={"TASKD_TOKEN": "right"})
    wait_until(lambda: job.started("node0"), "node 0 runs")
    other = job.run(1, "torch", ("exit", 0), environment={"TASKD_TOKEN": "wrong"})
    assert other.wait() == 1
    assert "TASKD_TOKEN" in other.log() and "right" not in other.log()
    assert first.alive() and job.started("node1") == []


def test_a_port_that_is_taken(job):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = job.run(0, "torch", ("exit", 0), environment={"MASTER_PORT": port})
        assert node.wait() == 2
    assert [str(port) in line for line in node.log().strip().splitlines()] == [True]
    assert job.started() == []


def test_one_node_without_any_platform(stage):
    folder = os.path.join(stage.folder, "local")
    os.makedirs(folder)
    environment = harness.clean_environment(TMPDIR=stage.folder, PATH="/usr/bin:/bin", **OWN_PORTS)
    result = deadlines.run([TASKD, "run", "--mode", "auto", "--", "env"], env=environment, capture_output=True,
                           text=True, timeout_s=60, check=False)
    assert result.returncode == 0, result.stderr
    seen = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert (seen["MASTER_ADDR"], seen["WORLD_SIZE"], seen["RANK"], seen["GPU_NUM_PER_NODE"]) == ("localhost", "1", "0", "1")
    assert "LD_PRELOAD" in seen and "TASKD_SOCKET" in seen
    assert "mode torch (platform none)" in result.stderr


def test_ps_end_when_the_workers_have_succeeded(stage):
    job = ModeJob(stage, nodes=3)
    nodes = [job.run(index, "ps", ("never",) if index == 0 else ("go",), "--ps-num", "1") for index in range(3)]
    wait_until(lambda: len(job.started()) == 3, "all commands run")
    configs = [json.loads(one["environment"]["TF_CONFIG"]) for name in ("node0", "node1", "node2")
               for one in job.started(name)]
    assert [config["task"] for config in configs] == [{"type": "ps", "index": 0}, {"type": "worker", "index": 0},
                                                      {"type": "worker", "index": 1}]
    job.put("go")
    assert [node.wait(ENDS_S) for node in nodes] == [0, 0, 0]
    assert job.alive() == []


def test_a_ps_that_fails_fails_the_job(stage):
    job = ModeJob(stage, nodes=2)
    nodes = [job.run(0, "ps", ("fail", 4), "--ps-num", "1"), job.run(1, "ps", ("never",), "--ps-num", "1")]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    job.put("fail")
    assert [node.wait(ENDS_S) for node in nodes] == [4, 4]


def rank_table(folder, devices, status="completed"):
    path = os.path.join(folder, "table.json")
    table = {"version": "1.0", "status": status, "server_count": "1", "server_list": [
        {"server_id": "10.0.0.1", "device": [
            {"device_id": str(i), "device_ip": f"192.168.0.{i + 1}", "rank_id": str(i)} for i in range(devices)]}]}
    with open(path + "~", "w", encoding="utf-8") as file:
        json.dump(table, file)
    os.rename(path + "~", path)
    return path


def ascend(job, *command, environment=None):
    return job.run(0, "ascend", command, "--self", "10.0.0.1",
                   environment={"NODE_LIST": None, "INDEX": None, "MA_NUM_HOSTS": "1", **environment})


def test_ascend_waits_for_the_rank_table_and_starts_a_process_a_device(job):
    path = rank_table(job.folder, 4, status="initializing")
    node = ascend(job, "go", environment={"RANK_TABLE_FILE": path, "MA_NUM_GPUS": "4", "MA_TASK_INDEX": "0"})
    wait_log(node, "waiting", timeout_s=30)
    assert job.started() == []
    rank_table(job.folder, 4)
    wait_until(lambda: len(job.started()) == 4, "four processes run")
    seen = sorted((one["environment"]["ASCEND_DEVICE_ID"], one["environment"]["RANK_ID"],
                   one["environment"]["RANK_SIZE"]) for one in job.started())
    assert seen == [(str(i), str(i), "4") for i in range(4)]
    job.put("go")
    assert node.wait() == 0


def test_ascend_first_code_counts_and_the_others_are_ended(job):
    path = rank_table(job.folder, 2)
    script = 'if [ "$ASCEND_DEVICE_ID" = 1 ]; then exit 9; fi; exec sleep 600'
    node = job.run(0, "ascend", ["bash", "-c", script], "--self", "10.0.0.1",
                   environment={"NODE_LIST": None, "INDEX": None, "MA_NUM_HOSTS": "1", "MA_NUM_GPUS": "2",
                                "MA_TASK_INDEX": "0", "RANK_TABLE_FILE": path})
    assert node.wait(ENDS_S) == 9
    assert "process 1" in node.log()


# `ray` as its documentation describes it, as far as a launcher sees: start --head listens and returns; start --address
# needs the head; stop ends what start left running.
RAY = r"""#!/usr/bin/python3
import json, os, signal, socket, subprocess, sys, time
folder = os.environ["RAY_FOLDER"]
name = os.environ["INDEX"]
with open(os.path.join(folder, f"ray.{name}"), "a") as log:
    log.write(json.dumps({"argv": sys.argv[1:], "rank": os.environ.get("RANK"), "head": os.environ.get("HEAD_ADDR")}) + "\n")
pids = os.path.join(folder, f"raylet.{name}")
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[2:] if "=" in word)
if sys.argv[1] == "start":
    if "--head" in sys.argv:
        serve = "import socket,time,sys; s=socket.create_server((sys.argv[2], int(sys.argv[1]))); open('/proc/self/comm','w').write('raylet'); print('up', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", serve, options["port"], os.environ["HEAD_ADDR"]], start_new_session=True, stdout=subprocess.PIPE)
    else:
        host, port = options["address"].rsplit(":", 1)
        try:
            socket.create_connection((host, int(port))).close()
        except OSError as error:
            sys.exit(f"cannot reach the head: {error}")
        serve = "import time; open('/proc/self/comm','w').write('raylet'); print('up', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", serve], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    with open(pids, "w") as file:
        file.write(str(child.pid))
elif sys.argv[1] == "stop":
    try:
        os.kill(int(open(pids).read()), signal.SIGTERM)
    except (OSError, ValueError):
        pass
"""


class RayJob(ModeJob):
    def __init__(self, stage, nodes=3):
        super().__init__(stage, nodes)
        self.bin = os.path.join(self.folder, "bin")
        os.makedirs(self.bin)
        path = os.path.join(self.bin, "ray")
        with open(path, "w", encoding="utf-8") as file:
            file.write(RAY)
        os.chmod(path, stat.S_IRWXU)
        self.extra = {"PATH": f"{self.bin}:/usr/bin:/bin", "RAY_FOLDER": self.folder, "HEAD_PORT": free_port()}

    def start(self, index, command, *options):
        return self.run(index, "ray", command, *options, environment=self.extra)

    def calls(self, index):
        try:
            with open(os.path.join(self.folder, f"ray.{index}"), encoding="utf-8") as log:
                return [json.loads(line) for line in log]
        except FileNotFoundError:
            return []

    def raylet(self, index):
        with open(os.path.join(self.folder, f"raylet.{index}"), encoding="utf-8") as file:
            return int(file.read())


def test_contract_ray_workers_join_before_the_command_starts(stage):
    """contract: docs.ray.io, "Starting Ray": start --head, then start --address, then ray.init() by RAY_ADDRESS."""
    job = RayJob(stage)
    early = job.start(2, ("go",))
    wait_log(early, "mode ray")
    head = job.start(0, ("go",))
    wait_until(lambda: job.calls(0), "the head starts")
    assert job.started() == []
    late = job.start(1, ("go",))
    wait_until(job.started, "the command runs")
    address = f"127.0.0.1:{job.extra['HEAD_PORT']}"
    assert job.started()[0]["environment"]["RAY_ADDRESS"] == address
    for index in range(3):
        assert f'--resources={{"Rank:{index}": 1}}' in job.calls(index)[0]["argv"]
    job.put("go")
    assert [node.wait(ENDS_S) for node in (head, late, early)] == [0, 0, 0]
    assert [job.calls(index)[-1]["argv"] for index in range(3)] == [["stop"]] * 3
    assert len(job.started()) == 1
    assert not [index for index in range(3) if running(job.raylet(index))]


def test_contract_ray_the_head_s_code_is_the_job_s(stage):
    """contract: DESIGN, "Ray: the job's code is that of the head's command"."""
    job = RayJob(stage, nodes=2)
    nodes = [job.start(index, ("exit", 6)) for index in range(2)]
    assert [node.wait(ENDS_S) for node in nodes] == [6, 6]


def test_contract_ray_a_worker_that_dies_fails_the_job(stage):
    """contract: DESIGN, "a worker that dies first fails the job"."""
    job = RayJob(stage, nodes=2)
    nodes = [job.start(index, ("never",)) for index in range(2)]
    wait_until(job.started, "the command runs")
    os.kill(job.raylet(1), signal.SIGKILL)
    assert [node.wait(ENDS_S) for node in nodes] == [1, 1]
    assert "raylet" in nodes[0].log()


def test_contract_ray_missing_worker_is_named(stage):
    job = RayJob(stage, nodes=2)
    head = job.start(0, ("exit", 0), "--wait-s", "2")
    assert head.wait() == 1
    assert "node 1 (127.0.0.2) is missing" in head.log() and job.started() == []


RING = """
import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--init_method"); parser.add_argument("--rank", type=int); parser.add_argument("--world_size", type=int)
a = parser.parse_args()
dist.init_process_group("gloo", init_method=a.init_method, rank=a.rank, world_size=a.world_size)
x = torch.ones(4) * (a.rank + 1)
dist.all_reduce(x)
assert x.tolist() == [6.0] * 4
print("sum ok", flush=True)
"""


@needs_torch
@pytest.mark.root("mounts a hosts file")
def test_pytorch_gpu_arguments_make_a_process_group(stage):
    job = ModeJob(stage, nodes=3)
    script = os.path.join(job.folder, "ring.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(RING)
    port = free_port()
    nodes = []
    with open(os.path.join(job.folder, "hosts"), "w", encoding="utf-8") as file:
        for index, node in enumerate(job.nodes):
            file.write(f"{node} job-worker-{index}.job\n")
    # Names of the nodes that resolve: a hosts file of this test's own, bound over /etc/hosts in a mount namespace.
    prefix = ("unshare", "--mount", "sh", "-c", f"mount --bind {job.folder}/hosts /etc/hosts && exec \"$@\"", "sh")
    for index in range(3):
        environment = {"NODE_LIST": None, "INDEX": None, "MA_NUM_HOSTS": "3", "MA_VJ_NAME": "job",
                       "MA_TASK_NAME": "worker", "VC_TASK_INDEX": index, "MASTER_PORT": port}
        nodes.append(job.run(index, "auto", [PYTHON, script], environment=environment, prefix=prefix))
    assert [node.wait(timeout_s=90) for node in nodes] == [0, 0, 0]
    assert all("sum ok" in node.log() and "mode pytorch-gpu (platform modelarts)" in node.log() for node in nodes)


def test_a_name_that_never_resolves_is_named(stage):
    job = ModeJob(stage)
    node = job.run(0, "torch", ("exit", 0), "--wait-s", "2",
                   environment={"NODE_LIST": "no-such-host.invalid:1,127.0.0.2:1"})
    assert node.wait() == 1
    assert "no-such-host.invalid" in node.log() and job.started() == []


def test_dry_run_writes_and_starts_nothing(stage):
    job = ModeJob(stage)
    before = sorted(os.listdir(job.folder))
    result = dry_run("torch", job.environment(1), job.command("node1", "exit", "0"))
    assert result["role"] == "worker" and result["index"] == 1
    assert sorted(os.listdir(job.folder)) == before


def route_files(job, racks):
    """A rank table with one device a node, and a topology in which node i hangs on racks[i]."""
    table = os.path.join(job.folder, "jobstart_hccl.json")
    servers = [{"server_id": node, "pod_name": f"job-worker-{index}",
                "device": [{"device_id": "0", "device_ip": f"192.168.0.{index + 1}", "rank_id": str(index)}]}
               for index, node in enumerate(job.nodes)]
    with open(table, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "status": "completed", "server_count": str(len(servers)), "server_list": servers}, file)
    topology = os.path.join(job.folder, "topology.csv")
    with open(topology, "w", encoding="utf-8") as file:
        file.write("node,level1,level2\n" + "".join(f"{node},{rack},spine\n" for node, rack in zip(job.nodes, racks)))
    return table, topology


def test_route_renumbers_the_nodes_before_the_start(stage):
    job = ModeJob(stage, nodes=4)
    table, topology = route_files(job, ["a", "b", "a", "b"])
    nodes = [job.run(index, "torch", ("exit", 0), "--route", "--rank-table", table, "--topology", topology,
                     environment={"MA_CURRENT_IP": job.nodes[index]}) for index in range(4)]
    assert [node.wait(timeout_s=60) for node in nodes] == [0] * 4
    seen = {one["environment"]["INDEX"]: one["environment"] for one in job.started()}
    assert [seen[str(index)]["RANK"] for index in range(4)] == ["0", "2", "1", "3"]
    assert [seen[str(index)]["RANK_AFTER_ACC"] for index in range(4)] == ["0", "2", "1", "3"]
    assert {one["MA_MASTER_INDEX"] for one in seen.values()} == {"0"}
    assert {one["MASTER_ADDR"] for one in seen.values()} == {"127.0.0.1"}


def test_route_is_taken_by_all_nodes_or_by_none(stage):
    job = ModeJob(stage, nodes=4)
    table, topology = route_files(job, ["a", "b", "a", "b"])
    nodes = [job.run(index, "torch", ("exit", 0), "--route", "--rank-table", table, "--wait-s", "5",
                     "--topology", topology if index != 2 else topology + ".missing",
                     environment={"MA_CURRENT_IP": job.nodes[index]}) for index in range(4)]
    assert [node.wait(timeout_s=60) for node in nodes] == [0] * 4
    seen = {one["environment"]["INDEX"]: one["environment"] for one in job.started()}
    assert [seen[str(index)]["RANK"] for index in range(4)] == ["0", "1", "2", "3"]
    assert "node 2" in nodes[0].log()
