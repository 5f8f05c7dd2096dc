"""`taskd run`: real launchers and ranks on loopback. What ranks get, how jobs start, restart and end, with which code."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import check_marks
import harness
import pytest
from deadlines import HANG_S
from harness import TASKD, clean_environment, wait_until
from launchers import complaints, wait_log, wait_manager
from needs import needs_torch
from ports import free_port

# ---- What ranks get

def test_environment_of_one_node(jobs):
    port = free_port()
    job = jobs.static(0, port, "--rdzv-id=seven", "--max-restarts=3", "--role=trainer", nodes=1, procs=4)
    assert job.wait() == 0, job.log()
    ranks = {int(e["RANK"]): e for e in jobs.started()}
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, environment in ranks.items():
        expected = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "ROLE_RANK": rank, "ROLE_NAME": "trainer",
                    "LOCAL_WORLD_SIZE": 4, "WORLD_SIZE": 4, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": 4,
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0,
                    "TORCHELASTIC_MAX_RESTARTS": 3, "TORCHELASTIC_RUN_ID": "seven",
                    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1}
        assert {k: environment.get(k) for k in expected} == {k: str(v) for k, v in expected.items()}
        assert environment["TORCHELASTIC_ERROR_FILE"].endswith(f"/attempt_0/{rank}/error.json")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_nodes_in_either_order(jobs, order):
    port = free_port()
    nodes = {}
    for node in order:
        nodes[node] = jobs.static(node, port, procs=node + 1, action=["wait"])
        if node == 1 and len(nodes) == 1:
            wait_until(lambda: socket_looks_for(nodes[1].pid), "node 1 looks for node 0 before that is there")
    ranks = {int(e["RANK"]): e for e in jobs.wait_started(3)}
    for rank, (group_rank, local_rank, local_world_size) in {0: (0, 0, 1), 1: (1, 0, 2), 2: (1, 1, 2)}.items():
        expected = {"GROUP_RANK": group_rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world_size,
                    "ROLE_RANK": rank, "WORLD_SIZE": 3, "ROLE_WORLD_SIZE": 3, "GROUP_WORLD_SIZE": 2,
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        assert {k: ranks[rank].get(k) for k in expected} == {k: str(v) for k, v in expected.items()}
    jobs.put("go")
    assert [nodes[n].wait() for n in (0, 1)] == [0, 0]


def socket_looks_for(pid):
    """Whether the launcher is about to make its first try: its guard is there."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return bool(children.read().split())


def test_port_is_served_until_the_last_node_is_done(jobs):
    port = free_port()
    node0 = jobs.static(0, port, procs=1)  # its rank ends at once
    node1 = jobs.static(1, port, procs=1, action=["wait"])
    jobs.wait_started(1, RANK=1)
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S):
        pass
    assert node0.alive()
    jobs.put("go")
    assert (node0.wait(), node1.wait()) == (0, 0)
    with socket.socket() as server:  # free again at once
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))


def test_status_says_whom_a_job_waits_for(jobs):
    port = free_port()
    managed = {"TASKD_MANAGER": ""}
    node0 = jobs.static(0, port, "--rdzv-id=night/run", nodes=4, action=["wait"], environment=managed)
    manager = wait_manager(node0)

    def status(*options):
        return jobs.stage.run("status", "--manager", manager, *options)
    shown = wait_until(lambda: "rendezvous: " in (text := status().stdout) and text, "it waits for somebody")
    assert re.search(r"^rendezvous: waits for nodes 1-3 \(1 of 4 here\) for \d+ s$", shown, re.M), shown
    assert json.loads(status("--json").stdout)["job"] == "default/night_run", "nobody has named it, but its rendezvous has a name"
    node2 = jobs.static(2, port, "--rdzv-id=night/run", nodes=4, action=["wait"], environment=managed)
    waits = wait_until(lambda: (told := json.loads(status("--json").stdout)["supervision"])["waits_for"].startswith("nodes 1, 3") and told,
                       "node 2 is there")
    assert waits["waits_for"] == "nodes 1, 3 (2 of 4 here)" and waits["waits_s"] > 0
    others = [jobs.static(n, port, "--rdzv-id=night/run", nodes=4, action=["wait"], environment=managed) for n in (1, 3)]
    jobs.wait_started(8)
    wait_until(lambda: "rendezvous: " not in status().stdout, "it waits for nobody")
    jobs.put("go")
    assert [node.wait() for node in (node0, node2, *others)] == [0] * 4


# ---- Marks from the start

STEPS = """
import os, sys
from taskd import mstx
for n in range(30):
    for name in (f"step {n}", "forward"):
        mstx.range_end(mstx.range_start(name, None))
    mstx.range_end(mstx.range_start('{"all_reduce": 1}', None, domain="communication"))
"""


@pytest.mark.parametrize("given, recorded", [
    (["--marks", "all"], {"step", "fp", "communication"}),
    ({"TASKD_MARKS": "step,communication"}, {"step", "communication"}),
], ids=["option", "variable"])
def test_marks_from_the_start(jobs, given, recorded):
    marks, script = os.path.join(jobs.stage.folder, "marks"), os.path.join(jobs.stage.folder, "steps.py")
    with open(script, "w", encoding="ascii") as file:
        file.write(STEPS)
    options, environment = (given, {}) if isinstance(given, list) else ([], given)
    job = jobs.launch("node", "--standalone", *options, script=script, script_arguments=[],
                      environment={"TASKD_MANAGER": "", "TASKD_PROFILING_DIR": marks, "MINDX_TASK_ID": "now", "TASKD_JOB": "my-run",
                                   "PYTHONPATH": harness.PYTHON_PACKAGE, **environment})
    assert job.wait() == 0 and "TASKD_JOB" not in job.log(), job.log()
    counts = check_marks.check(os.path.join(marks, "now"), communication_json=False).ranks[0].counts
    assert {kind: count for kind, count in counts.items() if count} == dict.fromkeys(recorded, 30), "from the first step on"


def test_marks_of_an_unknown_kind(jobs):
    job = jobs.launch("node", "--standalone", "--marks=step,setp")
    assert job.wait() == 2 and job.log() == ("taskd run: --marks 'step,setp': all, or a list of step, forward, dataloader, "
                                             "checkpoint, communication\n")


# ---- Failures

@pytest.mark.parametrize("script, said", [("/nowhere/train.py", "No such file or directory"), ("trian.py", "No such file or directory in ")])
def test_a_script_that_is_missing_starts_nothing(jobs, script, said):
    job = jobs.launch("node", "--standalone", "--nproc-per-node=2", script=script,
                      environment={"TASKD_MANAGER": "", "PYTHON_EXEC": None})
    assert job.wait() == 2
    assert job.log().startswith(f"taskd run: SCRIPT '{script}': {said}") and job.log().count("\n") == 1, job.log()


def test_a_program_that_is_not_in_path_starts_nothing(jobs):
    job = jobs.launch("node", "--standalone", "--no-python", script="nosuchcommand", environment={"TASKD_MANAGER": ""})
    assert job.wait() == 2
    assert job.log().startswith("taskd run: cannot execute 'nosuchcommand': not found in PATH ") and job.log().count("\n") == 1, job.log()


@pytest.mark.parametrize("code, expected, said", [(7, 7, "7"), (-signal.SIGSEGV, 139, "SIGSEGV")])
def test_first_failure_ends_all_with_its_code(jobs, code, expected, said):
    port = free_port()
    nodes = [jobs.static(n, port, action=["fail", 3, int(code), "child"]) for n in (0, 1)]
    jobs.wait_started(4)
    jobs.put("fail")
    assert [n.wait() for n in nodes] == [expected, expected]
    jobs.wait_none_left()
    for node in nodes:
        assert re.search(rf"rank 3\b.*{said}", node.log()), node.log()


def test_restarts_until_none_is_left(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, "--max-restarts=2", action=["fail", 0, 9, 2, "child"]) for n in (0, 1)]
    jobs.put("fail")
    ranks = jobs.wait_started(4, TORCHELASTIC_RESTART_COUNT=2)
    assert len(ranks) == 4 and len(jobs.started()) == 12
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0]

    port = free_port()
    nodes = [jobs.static(n, port, "--max-restarts=1", action=["fail", 0, 9]) for n in (0, 1)]
    assert [n.wait() for n in nodes] == [9, 9]


def test_command_that_cannot_be_started(jobs):
    job = jobs.launch("job", "--no-python", "--standalone", script="/no/such/program")
    assert job.wait() == 1
    assert "/no/such/program" in job.log()


# ---- Signals and death of launchers

def test_sigterm_ends_both_nodes_with_143(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, action=["wait", "child"]) for n in (0, 1)]
    jobs.wait_started(4)
    wait_until(lambda: len(jobs.read("child")) == 4, "each rank has a child")
    nodes[1].child.send_signal(signal.SIGTERM)
    assert [n.wait() for n in nodes] == [143, 143]
    assert re.search(r"node 1 .*left: SIGTERM", nodes[0].log())
    jobs.wait_none_left()


def test_usr1_is_passed_on(jobs):
    job = jobs.static(0, free_port(), nodes=1, action=["wait"])
    jobs.wait_started(2)
    job.child.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(jobs.read(f"signal-{signal.SIGUSR1:d}")) == 2, "both ranks got SIGUSR1")
    assert job.alive()
    jobs.put("go")
    assert job.wait() == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_launcher_of_a_static_job(jobs, victim):
    port = free_port()
    nodes = [jobs.static(n, port, action=["wait", "child"]) for n in (0, 1)]
    jobs.wait_started(4)
    wait_until(lambda: len(jobs.read("child")) == 4, "each rank has a child")
    nodes[victim].kill()
    assert nodes[1 - victim].wait() == 1
    said = r"node 1 .*lost" if victim == 1 else rf"node 0's launcher at 127.0.0.1:{port} is gone"
    assert re.search(said, nodes[1 - victim].log()), nodes[1 - victim].log()
    jobs.wait_none_left(10)


def test_lost_node_of_a_static_job_comes_back(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, "--max-restarts=1", action=["wait"]) for n in (0, 1)]
    jobs.wait_started(4)
    nodes[1].kill()
    wait_log(nodes[0], "node 1 .*lost")
    nodes[1] = jobs.static(1, port, "--max-restarts=1", action=["wait"])
    jobs.wait_started(4, TORCHELASTIC_RESTART_COUNT=1)
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0]


# ---- Elastic

def test_elastic_job_goes_on_without_a_lost_node_and_with_a_new_one(jobs):
    port = free_port()
    first = jobs.elastic("first", port, action=["wait"])
    jobs.wait_started(1, WORLD_SIZE=1)
    second = jobs.elastic("second", port, action=["wait"])
    jobs.wait_started(2, WORLD_SIZE=2, TORCHELASTIC_RESTART_COUNT=0)
    second.kill()
    jobs.wait_started(1, WORLD_SIZE=1, RANK=0, TORCHELASTIC_RESTART_COUNT=0)
    third = jobs.elastic("third", port, action=["wait"])
    jobs.wait_started(2, WORLD_SIZE=2, TORCHELASTIC_RESTART_COUNT=0)
    third.child.send_signal(signal.SIGTERM)
    assert third.wait() == 143
    jobs.wait_started(1, WORLD_SIZE=1)
    jobs.put("go")
    assert first.wait() == 0, first.log()


# ---- What can be wrong

def test_node_that_never_comes(jobs):
    static = jobs.static(0, free_port(), "--rdzv-conf=timeout=1", nodes=3)
    elastic = jobs.elastic("elastic", free_port(), "--rdzv-conf=join_timeout=1", nodes="2:4")
    assert (static.wait(), elastic.wait()) == (1, 1)
    assert "missing node ranks 1, 2" in static.log()
    assert "1 of 2:4 nodes" in elastic.log()
    assert not jobs.started()


def test_master_that_is_not_there(jobs):
    port = free_port()
    refused = jobs.static(1, port, "--rdzv-conf=timeout=1")
    unknown = jobs.static(1, port, "--rdzv-conf=timeout=1", master="no-such-host.invalid")
    assert (refused.wait(), unknown.wait()) == (1, 1)
    assert re.search(rf"taskd run: .*127.0.0.1:{port} .*Connection refused", refused.log())
    assert re.search(rf"taskd run: .*no-such-host.invalid:{port} ", unknown.log())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_master_that_is_something_else(jobs, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            while True:
                try:
                    with server.accept()[0] as connection:
                        connection.recv(100)
                        connection.sendall(answer)
                except OSError:
                    return
        threading.Thread(target=serve, daemon=True).start()
        port = server.getsockname()[1]
        job = jobs.static(1, port)
        assert job.wait() == 1
        assert re.search(rf"taskd run: 127.0.0.1:{port} is no taskd launcher", job.log()), job.log()
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", ["static", "elastic"])
def test_port_in_use(jobs, kind):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job = jobs.static(0, port) if kind == "static" else jobs.elastic("job", port)
        if kind == "elastic":  # it joins whoever has the port, who is no launcher
            with server.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                assert job.wait() == 1
        assert job.wait() == 1
        assert re.search(rf"taskd run: .*address in use by pid {os.getpid()} \(", job.log()), job.log()
        assert kind == "elastic" or "(--master-port names another" in job.log()


def test_what_does_not_fit_is_refused(jobs):
    port = free_port()
    node0 = jobs.static(0, port, action=["wait"])
    other_id = jobs.static(1, port, "--rdzv-id=other")
    assert other_id.wait() == 1
    assert re.search("--rdzv-id is 'other' here and 'none' at", other_id.log()), other_id.log()
    node1 = jobs.static(1, port, action=["wait"])
    jobs.wait_started(4)
    twice = jobs.static(1, port)
    assert twice.wait() == 1
    assert re.search(rf"--node-rank 1 is taken by .*{node1.pid}.*{twice.pid}", twice.log()), twice.log()
    jobs.put("go")
    assert (node0.wait(), node1.wait()) == (0, 0)


# ---- Several jobs

def test_jobs_beside_each_other(jobs):
    ports = [free_port(), free_port()]
    nodes = [jobs.static(n, port, f"--rdzv-id=job{port}", procs=1, action=["wait"]) for port in ports for n in (0, 1)]
    alone = [jobs.launch(f"alone{i}", "--standalone", "--nproc-per-node=2", action=["wait"]) for i in (0, 1)]
    ranks = jobs.wait_started(8)
    assert len({e["TORCHELASTIC_RUN_ID"] for e in ranks}) == 4
    assert len({e["MASTER_PORT"] for e in ranks}) == 4
    jobs.put("go")
    assert [p.wait() for p in nodes + alone] == [0] * 6


def test_again_at_once_on_the_same_port(jobs):
    port = free_port()
    for _ in range(3):
        nodes = [jobs.static(n, port, procs=1) for n in (0, 1)]
        assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()


def test_ipv6(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, master="[::1]", procs=1) for n in (0, 1)]
    assert [n.wait() for n in nodes] == [0, 0], nodes[1].log()
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in jobs.started()} == {("::1", str(port))}


# ---- PyTorch, and the lines of the documents

ALL_REDUCE = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
assert value.item() == 10.0, value
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {value.item()} through {os.environ['MASTER_PORT']}",
      flush=True)
dist.barrier()
"""


@needs_torch
@pytest.mark.parametrize("tiered", [False, True])
def test_all_reduce(jobs, tiered):
    script = os.path.join(jobs.stage.folder, "all_reduce.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(ALL_REDUCE)
    port = free_port()
    option = ["--enable-tiered-parallel-tcpstore=true"] if tiered else []
    nodes = [jobs.static(n, port, *option, script=script) for n in (0, 1)]
    assert [n.wait(timeout_s=100) for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()
    said = [re.findall(r"rank (\d) of 4: sum 10.0 through (\d+)", node.log()) for node in nodes]
    assert sorted(rank for rank, _ in said[0] + said[1]) == ["0", "1", "2", "3"]
    ports = [{port for _, port in each} for each in said]
    assert all(len(each) == 1 for each in ports)
    if tiered:
        assert len(ports[0] | ports[1] | {str(port)}) == 3
    else:
        assert ports == [{str(port)}, {str(port)}]


ELASTIC_SUM = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
value = torch.ones(1)
dist.all_reduce(value)
print(f"sum {value.item():g} of {dist.get_world_size()}", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@needs_torch
def test_all_reduce_of_an_elastic_job(jobs):
    """The key space is new after each change of membership, also for PyTorch 1.x, which only knows of restarts."""
    script = os.path.join(jobs.stage.folder, "elastic_sum.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(ELASTIC_SUM)
    port = free_port()

    def launch(name):
        return jobs.elastic(name, port, script=script, script_arguments=[os.path.join(jobs.folder, "go")])

    first = launch("first")
    wait_log(first, "sum 1 of 1", 60)
    second = launch("second")
    wait_log(first, "sum 2 of 2", 60)
    second.kill()
    wait_until(lambda: first.log().count("sum 1 of 1") == 2, "the first node goes on alone", 60)
    jobs.put("go")
    assert first.wait() == 0, first.log()


LINES = {  # of the document on torch_npu_run
    "single": ["torch_npu_run --rdzv_backend=parallel --master_addr=$MASTER_IP_ADDR --master_port=$MASTER_PORT "
               "--nnodes=1 --nproc_per_node=8 ddp_test.py"],
    "flat": ["torch_npu_run --rdzv_backend=parallel --master_addr=$MASTER_IP_ADDR --master_port=$MASTER_PORT "
             f"--nnodes=2 --node_rank {node} --nproc_per_node=8 ddp_test.py" for node in (0, 1)],
    "tiered": ["torch_npu_run --rdzv_backend=parallel --master_addr=$MASTER_IP_ADDR --master_port=$MASTER_PORT "
               f"--nnodes=2 --node_rank {node} --nproc_per_node=8 --enable_tiered_parallel_tcpstore=true ddp_test.py"
               for node in (0, 1)],
}


LOADERS = """
import os, sys
import torch, torch.multiprocessing
from torch.utils.data import DataLoader
torch.multiprocessing.set_sharing_strategy("file_system")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(4)

if __name__ == "__main__":
    loaders = [DataLoader(Data(), num_workers=1, persistent_workers=True, pin_memory=torch.cuda.is_available(),
                          multiprocessing_context=context) for context in ("fork", "spawn", "forkserver")]
    for loader in loaders:
        assert len(list(loader)) == 8
"""


@needs_torch
def test_helpers_of_a_rank_are_not_left_behind(jobs):
    """Loaders of a job end with it, and so does multiprocessing's resource tracker, some of them a moment later."""
    script = os.path.join(jobs.stage.folder, "loaders.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(LOADERS)
    job = jobs.launch("job", "--standalone", script=script)
    assert job.wait(timeout_s=100) == 0, job.log()
    assert complaints(job.log()) == [], job.log()


def test_processes_that_a_rank_leaves_behind_are_named(jobs):
    job = jobs.launch("job", "--standalone", "--no-python", script="sh",
                      script_arguments=("-c", "setsid sleep 600 & echo $! > left"))
    assert job.wait() == 0
    with open(os.path.join(jobs.stage.folder, "left"), encoding="ascii") as file:
        left = int(file.read())
    assert re.search(rf"ending processes that ranks left running: sleep \(pid {left}\)$", job.log(), re.M), job.log()


@pytest.mark.parametrize("kind", sorted(LINES))
def test_lines_of_the_document(jobs, kind):
    os.symlink(TASKD, os.path.join(jobs.stage.folder, "torch_npu_run"))
    with open(os.path.join(jobs.stage.folder, "ddp_test.py"), "w", encoding="utf-8") as script:
        # One write for a line: the ranks share the file.
        script.write("import os\nos.write(1, b'rank %b of %b\\n' % (os.environb[b'RANK'], os.environb[b'WORLD_SIZE']))\n")
    environment = clean_environment(TASKD_MANAGER="off", MASTER_IP_ADDR="127.0.0.1", MASTER_PORT=free_port(),
                                    TMPDIR=jobs.stage.folder, PATH=f"{jobs.stage.folder}:/usr/bin:/bin")
    nodes = [jobs.stage._add(harness.Process(f"line{i}", ["bash", "-c", line], environment, jobs.stage.folder))
             for i, line in enumerate(LINES[kind])]
    assert [n.wait() for n in nodes] == [0] * len(nodes), nodes[0].log()
    said = re.findall(r"rank (\d+) of (\d+)", "".join(n.log() for n in nodes))
    size = 8 * len(nodes)
    assert sorted(said) == sorted((str(rank), str(size)) for rank in range(size))


# ---- A network that is cut

@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them: (command prefixes, function that sets it "up" or "down")."""
    names = [f"taskd-{os.getpid()}-{i}" for i in (0, 1)]
    made = []

    def ip(*arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "taskd0", "netns", names[0], "type", "veth", "peer", "name", "taskd1", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.99.0.{i + 1}/24", "dev", f"taskd{i}")
            ip("-n", name, "link", "set", f"taskd{i}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        # Both ends stay up; packets go nowhere.
        yield ([["ip", "netns", "exec", name] for name in names],
               lambda state: ip("-n", names[1], "link", "set", "taskd1", state))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.root("network namespaces")
def test_cut_network(jobs, two_hosts):
    prefixes, set_cable = two_hosts
    port = 29500
    nodes = [jobs.static(n, port, "--node-timeout=6", procs=1, master="10.99.0.1", prefix=prefixes[n], action=["wait", "child"])
             for n in (0, 1)]
    jobs.wait_started(2)
    set_cable("down")
    wait_log(nodes[0], "node 1 .*lost: its launcher was silent for 6 s")
    wait_log(nodes[1], "node 0's launcher at 10.99.0.1:29500 is gone")
    assert [n.wait() for n in nodes] == [1, 1]
    jobs.wait_none_left()


@pytest.mark.root("network namespaces")
def test_network_that_comes_back(jobs, two_hosts):
    """As a VM is moved: for 9 s its kernel answers nobody."""
    prefixes, set_cable = two_hosts
    nodes = [jobs.static(n, 29500, "--enable-tiered-parallel-tcpstore", procs=1, master="10.99.0.1", prefix=prefixes[n],
                         action=["wait"]) for n in (0, 1)]
    pids = {e["pid"] for e in jobs.wait_started(2)}
    set_cable("down")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun >= 9, "the time is over")
    set_cable("up")
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()
    assert {e["pid"] for e in jobs.started()} == pids
    assert "without the store above" not in nodes[1].log()


# ---- CPUs

AFFINITY = """
import os, sys
with open(os.path.join(sys.argv[1], "cpus." + os.environ["RANK"]), "w") as file:
    file.write(",".join(map(str, sorted(os.sched_getaffinity(0)))))
"""


def numa_nodes():
    """NUMA nodes that have CPUs."""
    folder = "/sys/devices/system/node"
    nodes = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if re.fullmatch(r"node\d+", name):
            with open(f"{folder}/{name}/cpulist", encoding="ascii") as cpus:
                nodes += bool(cpus.read().strip())
    return nodes


@pytest.mark.parametrize("how", ["node", "socket", "exclusive", "core-complex"])
def test_numa_binding_stays_within_the_launchers_cpus(jobs, how):
    script = os.path.join(jobs.stage.folder, "affinity.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(AFFINITY)
    allowed = {max(os.sched_getaffinity(0))}
    prefix = ["taskset", "-c", str(max(allowed))]
    job = jobs.static(0, free_port(), f"--numa-binding={how}", nodes=1, procs=2, prefix=prefix, script=script,
                      script_arguments=[jobs.folder], environment={"PET_NUMA_BINDING": "ignored"})
    one_node = numa_nodes() < 2
    assert job.wait() == (0 if one_node or how != "exclusive" else 1), job.log()
    assert all({int(cpu) for cpu in cpus.split(",")} == allowed for cpus in jobs.read("cpus"))
    if one_node:
        assert len(jobs.read("cpus")) == 2 and "numa" not in job.log().lower()


@pytest.mark.parametrize("option, value, rule", [
    ("--numa-binding", "moon", "one of node, socket, exclusive, core-complex"),
    ("--signals-to-handle", "SIGTERM,SIGMOON", "names of signals")])
def test_values_that_there_are_not(jobs, option, value, rule):
    job = jobs.static(0, free_port(), option, value, nodes=1)
    assert job.wait() == 2
    assert re.search(rf"{option} '{value}': {rule}", job.log()), job.log()
    assert not jobs.started()


# ---- Signals that end

ENDS_BY_USR2 = """
import os, signal, sys, time

def ended(number, frame):
    open(os.path.join(sys.argv[1], f"ended.{os.environ['RANK']}"), "w").close()
    os._exit(0)

signal.signal(signal.SIGUSR2, ended)
open(os.path.join(sys.argv[1], f"ready.{os.environ['RANK']}"), "w").close()
while True:
    time.sleep(600)
"""


def test_a_launcher_under_nohup_outlives_its_terminal(jobs):
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", action=["wait"], prefix=["nohup"])
    jobs.wait_started(2)
    job.child.send_signal(signal.SIGHUP)
    jobs.put("go")
    assert job.wait() == 0, job.log()


def test_a_signal_that_is_named_ends_the_job_also_under_nohup(jobs):
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", "--signals-to-handle=SIGHUP", action=["wait"], prefix=["nohup"])
    jobs.wait_started(2)
    job.child.send_signal(signal.SIGHUP)
    assert job.wait() == 128 + signal.SIGHUP, job.log()


def test_signals_to_handle_end_the_job(jobs):
    """SIGUSR2 is one that is passed on; now it ends the ranks, which get it first, and the launcher's code says so."""
    script = os.path.join(jobs.stage.folder, "usr2.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(ENDS_BY_USR2)
    job = jobs.static(0, free_port(), nodes=1, script=script, script_arguments=[jobs.folder],
                      environment={"PET_SIGNALS_TO_HANDLE": "SIGINT,SIGUSR2"})
    wait_until(lambda: job.require_alive() and len(jobs.read("ready")) == 2, "both ranks are ready")
    job.child.send_signal(signal.SIGUSR2)
    assert job.wait() == 128 + signal.SIGUSR2
    assert len(jobs.read("ended")) == 2


# ---- What is said of ranks that say the same

SAYS_THE_SAME = """
import os, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]

def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.02)

open(os.path.join(folder, f"ready.{rank}"), "w").close()
wait_for("say")
print("CUDA error", f"I am {rank}", sep="\\n", file=sys.stderr, flush=True)
open(os.path.join(folder, f"said.{rank}"), "w").close()
wait_for("fail")
sys.exit(3)
"""


@pytest.mark.parametrize("options", [["--tee=2"], ["--redirects=2"], []], ids=["teed", "redirected", "straight"])
def test_equal_lines_and_equal_failures(jobs, options):
    script = os.path.join(jobs.stage.folder, "same.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(SAYS_THE_SAME)
    job = jobs.static(0, free_port(), *options, nodes=1, procs=4, script=script, script_arguments=[jobs.folder])
    wait_until(lambda: job.require_alive() and len(jobs.read("ready")) == 4, "all ranks are ready")
    job.child.send_signal(signal.SIGSTOP)  # however slow this machine is, all lines are there when the launcher reads
    jobs.put("say")
    wait_until(lambda: len(jobs.read("said")) == 4, "all ranks have said it")
    job.child.send_signal(signal.SIGCONT)
    if options == ["--tee=2"]:
        wait_until(lambda: sorted(re.findall(r"(?m)^\[default(\d)\]:I am \1$", job.log())) == ["0", "1", "2", "3"],
                   "each rank's own line is shown")
        assert re.findall(r"(?m)^.*CUDA error$", job.log()) == ["[default0-3]:CUDA error"], job.log()
    jobs.put("fail")
    assert job.wait() == 3
    first = re.search(r"(?m)^  rank: +(\d)", job.log()).group(1)
    if options:
        assert f"Its last lines on stderr:\n  | CUDA error\n  | I am {first}\n" in job.log()
    else:
        assert re.search(r"(?m)^  stderr: +went past the launcher; with --tee 2 or --redirects 2 ", job.log()), job.log()
