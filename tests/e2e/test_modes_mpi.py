"""`taskd run --mode mpi` and horovod between nodes: real mpirun, by ssh and by `taskd rsh`. Needs root for namespaces."""
import os
import signal
import subprocess

import pytest

import harness
from harness import wait_until
from launchers import wait_log
from mpi_nodes import MpiNodes, make_nodes

pytestmark = pytest.mark.root("network namespaces")
ENDS_S = 15  # what the interface promises for the end of the other nodes
JOB_S = 60   # three nodes that come, ssh and mpirun, on a busy machine
NODES = 3


@pytest.fixture(scope="module")
def ssh_rig(tmp_path_factory):
    rig, reason = make_nodes(tmp_path_factory.mktemp("ssh"), NODES)
    if reason:
        pytest.skip(reason)
    with rig:
        rig.start_sshd()
        yield rig


@pytest.fixture(scope="module")
def bare_rig(tmp_path_factory):
    rig, reason = make_nodes(tmp_path_factory.mktemp("bare"), NODES)
    if reason:
        pytest.skip(reason)
    with rig:
        # The ports that tests below ask for: else a connection of an earlier job may have one, for a minute after its end too.
        for node in rig.nodes:
            done = rig.finish(node, ["sh", "-c", "echo 36666,40022,40023 > /proc/sys/net/ipv4/ip_local_reserved_ports"])
            assert done.returncode == 0, done.stderr
        yield rig


def nodes_of(rig, environment):
    nodes = MpiNodes(rig, environment)
    before = len(rig.processes)
    try:
        yield nodes
        nodes.require_nothing_left()
    finally:
        for process in rig.processes[before:]:
            process.kill()
            print(f"--- {process.name} (pid {process.pid}, code {process.child.returncode})\n{process.log()[-4000:]}")
        del rig.processes[before:]
        for pid in nodes.left():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def by_ssh(ssh_rig):
    """Nodes with sshd on port 22, and `ssh` that gets in. After each test nothing of the job is left on any of them."""
    environment = ssh_rig.ssh_environment()
    del environment["OMPI_MCA_plm_rsh_agent"]  # a user's ssh is the one in PATH
    yield from nodes_of(ssh_rig, environment)


@pytest.fixture
def by_taskd(bare_rig):
    """Nodes without any sshd, and a token."""
    environment = {name: value for name, value in {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_oob_tcp_if_include": "eth0",
        "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
        "TASKD_TOKEN": "of-the-job"}.items()}
    yield from nodes_of(bare_rig, environment)


def codes(processes, timeout_s=JOB_S):
    return [process.wait(timeout_s) for process in processes]


def hosts(rig):
    return sorted(node.name for node in rig.nodes)


# ---- TI-ONE by ssh

def test_ssh_ranks_run_on_all_nodes_and_fronts_wait(by_ssh):
    job = by_ssh.job("ssh-all")
    for node in by_ssh.rig.nodes:  # left behind by an earlier job
        with open(os.path.join(node.private["/etc/mpi"], "hostfile"), "w", encoding="utf-8") as file:
            file.write("stale slots=8\n")
    processes = job.all(job.mpirun("wait") + "; code=$?; echo ended with $code; exit $code")
    ranks = job.wait_ranks()
    assert [one["rank"] for one in ranks] == [0, 1, 2] and {one["sum"] for one in ranks} == {6}
    assert sorted(one["host"] for one in ranks) == hosts(by_ssh.rig)
    assert not [process for process in processes if "ended with" in process.log()]
    hostfile = "".join(f"{node.name} slots=1\n" for node in by_ssh.rig.nodes)
    for node in by_ssh.rig.nodes:
        with open(os.path.join(node.private["/etc/mpi"], "hostfile"), encoding="utf-8") as file:
            assert file.read() == hostfile
    job.put()
    assert codes(processes) == [0, 0, 0]
    assert all("ended with 0" in process.log() for process in processes)
    assert [process.log().count("sum 6") for process in processes] == [1, 0, 0]


def test_ssh_code_of_a_rank_is_every_node_s(by_ssh):
    job = by_ssh.job("ssh-fail")
    processes = job.all(job.mpirun("fail", 2, 7))
    job.wait_ranks()
    assert codes(processes, ENDS_S) == [7, 7, 7]


@pytest.mark.slow
def test_ssh_default_hostfile(by_ssh):
    """Names with a domain in OMPI_MCA_orte_default_hostfile."""
    job = by_ssh.job("ssh-hostfile")
    processes = job.all(job.mpirun().replace("-H $NODE_IP_SLOT_LIST", ""))
    assert codes(processes) == [0, 0, 0]
    assert sorted(one["host"] for one in job.ranks()) == hosts(by_ssh.rig)


def test_ssh_prepare_runs_everywhere(by_ssh):
    job = by_ssh.job("ssh-prepare")
    prepare = f"{harness.PYTHON} -c 'import os; open(\"{job.folder}/prepared.\" + os.environ[\"INDEX\"], \"w\")'"
    processes = job.all(f"{prepare} && {job.mpirun()}")
    assert codes(processes) == [0, 0, 0]
    assert len([name for name in os.listdir(job.folder) if name.startswith("prepared.")]) == NODES
    assert len(job.ranks()) == NODES


def test_ssh_two_mpiruns_reach_the_fronts_in_order(by_ssh):
    job = by_ssh.job("ssh-two")
    job.put()  # without a waiter
    text = f"{job.mpirun('fail', 1, 5)}; echo first $?; {job.mpirun('fail', 0, 9)}; echo second $?; {job.mpirun()}; echo third $?"
    processes = job.all(text)
    assert codes(processes) == [0, 0, 0]
    for process in processes:
        assert [line for line in process.log().splitlines() if line.startswith(("first ", "second ", "third "))] == [
            "first 5", "second 9", "third 0"]


@pytest.mark.slow
def test_ssh_a_front_that_node_0_never_calls_is_let_go(by_ssh):
    job = by_ssh.job("ssh-never")
    processes = job.all(f"if [ $INDEX != 0 ]; then {job.mpirun()}; echo front $?; fi")
    assert codes(processes) == [0, 0, 0]
    assert job.ranks() == [] and all("front 0" in process.log() for process in processes[1:])


def test_ssh_a_worker_that_is_killed_while_ranks_run(by_ssh):
    job = by_ssh.job("ssh-kill-during")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[1].kill()
    assert codes([processes[0], processes[2]], ENDS_S) == [1, 1]
    assert "node 1 (job-worker-1.job): its `taskd run` is gone" in processes[0].log()
    wait_until(lambda: not job.alive(), "no rank is left")


@pytest.mark.slow
def test_ssh_a_worker_that_is_killed_before_and_after_mpirun(by_ssh):
    for when in ("before", "after"):
        job = by_ssh.job(f"ssh-kill-{when}")
        wait = f"touch {job.folder}/here.$INDEX; until [ -e {job.folder}/on ]; do sleep 0.05; done"
        processes = job.all(f"{wait}; {job.mpirun()}" if when == "before" else f"{job.mpirun()} && {{ {wait}; }}")
        wait_until(lambda: all(os.path.exists(f"{job.folder}/here.{index}") for index in range(NODES)), "all wait", JOB_S)
        processes[2].kill()
        assert codes(processes[:2], ENDS_S) == [1, 1], when
        assert len(job.ranks()) == (0 if when == "before" else NODES)


def test_ssh_node_0_that_is_killed(by_ssh):
    job = by_ssh.job("ssh-kill-0")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[0].kill()
    assert codes(processes[1:], ENDS_S) == [1, 1]
    wait_until(lambda: not job.alive(), "no rank is left")


def test_ssh_the_same_job_again_at_once(by_ssh):
    for attempt, code in enumerate((0, 4, 0)):
        job = by_ssh.job(f"ssh-again-{attempt}")
        job.put()
        processes = job.all(job.mpirun("fail", 1, code))
        assert codes(processes) == [code] * NODES
        assert len(job.ranks()) == NODES


@pytest.mark.slow
def test_ssh_sigterm_at_a_worker_ends_mpirun(by_ssh):
    job = by_ssh.job("ssh-term")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[1].child.send_signal(signal.SIGTERM)
    assert codes(processes, ENDS_S) == [143] * NODES
    wait_until(lambda: not job.alive(), "no rank is left")


def gave_up(process):
    """The line with which a node has ended its wait for the others."""
    return next(line for line in process.log().splitlines() if "(--wait-s)" in line)


def test_ssh_missing_on_one_node_is_named(tmp_path):
    rig, reason = make_nodes(tmp_path, NODES)
    if reason:
        pytest.skip(reason)
    with rig:
        rig.start_sshd(nodes=rig.nodes[:2])
        environment = rig.ssh_environment()
        del environment["OMPI_MCA_plm_rsh_agent"]
        job = MpiNodes(rig, environment).job("no-sshd")
        processes = job.all(job.mpirun(), "--wait-s", "6")
        assert codes(processes) == [1, 1, 1], processes[0].log()
        given_up = gave_up(processes[0])
        assert "job-worker-2.job" in given_up and "tcp port 22" in given_up and "job-worker-1" not in given_up, given_up
        assert job.ranks() == []
        # sshd is there, but does not let in
        os.rename(rig.client_key, rig.client_key + ".away")
        rig.start_sshd(nodes=rig.nodes[2:])
        job = MpiNodes(rig, environment).job("no-key")
        processes = job.all(job.mpirun(), "--wait-s", "6")
        assert codes(processes) == [1, 1, 1], processes[0].log()
        given_up = gave_up(processes[0])
        assert "job-worker-1.job" in given_up and "ssh" in given_up and "tcp" not in given_up, given_up


# ---- TI-ONE by `taskd rsh`

def test_taskd_rsh_ranks_run_on_all_nodes(by_taskd):
    job = by_taskd.job("rsh-all", cards=2)
    processes = job.all(job.mpirun("wait"))
    ranks = job.wait_ranks(2 * NODES)
    assert {one["sum"] for one in ranks} == {21}
    assert sorted(one["host"] for one in ranks) == sorted(2 * hosts(by_taskd.rig))
    assert not [one for one in ranks if "LD_PRELOAD" not in one["environment"]]
    job.put()
    assert codes(processes) == [0, 0, 0]
    assert "sum 21" in processes[0].log()


def test_taskd_rsh_code_of_a_rank_is_every_node_s(by_taskd):
    for attempt, (rank, code) in enumerate(((2, 7), (0, 3), (1, 0))):
        job = by_taskd.job(f"rsh-fail-{attempt}")
        if code == 0:
            job.put()
        processes = job.all(job.mpirun("fail", rank, code))
        job.wait_ranks()
        assert codes(processes, ENDS_S) == [code] * NODES
        by_taskd.require_nothing_left()


@pytest.mark.slow
def test_taskd_rsh_tree_spawn(by_taskd):
    """Open MPI's own tree: a node's orted starts the next one's."""
    job = by_taskd.job("rsh-tree")
    processes = job.all(job.mpirun(options="-mca plm_rsh_no_tree_spawn false -mca routed_radix 1"))
    assert codes(processes) == [0, 0, 0]
    assert sorted(one["host"] for one in job.ranks()) == hosts(by_taskd.rig)


@pytest.mark.parametrize("killed", [0, 1])
def test_taskd_rsh_a_node_that_is_killed(by_taskd, killed):
    job = by_taskd.job(f"rsh-kill-{killed}")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[killed].kill()
    others = codes([process for index, process in enumerate(processes) if index != killed], ENDS_S)
    # mpirun may notice a worker's end first, by the end of its agent: then the code is mpirun's.
    assert others == [1, 1] if killed == 0 else others[0] == others[1] != 0
    if killed:
        assert "job-worker-1.job): its `taskd run` is gone" in processes[0].log() or "job-worker-1.job) is gone" in processes[0].log()
    by_taskd.require_nothing_left()


@pytest.mark.slow
def test_taskd_rsh_sigterm(by_taskd):
    job = by_taskd.job("rsh-term")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[2].child.send_signal(signal.SIGTERM)
    assert codes(processes, ENDS_S) == [143] * NODES
    by_taskd.require_nothing_left()


def test_taskd_rsh_another_token(by_taskd):
    job = by_taskd.job("rsh-token")
    first = job.shell(0, job.mpirun(), "--wait-s", "8")
    wait_log(first, "mode mpi")
    other = job.shell(1, job.mpirun(), environment={"TASKD_TOKEN": "wrong"})
    assert other.wait(JOB_S) == 1 and "TASKD_TOKEN" in other.log()
    assert first.wait(JOB_S) == 1 and "is missing" in first.log() or "are missing" in first.log()
    assert job.ranks() == []


def test_taskd_rsh_needs_a_secret(by_taskd):
    job = by_taskd.job("rsh-no-token")
    process = job.shell(0, job.mpirun(), "--remote-start", "taskd", environment={"TASKD_TOKEN": ""})
    assert process.wait() == 2
    (line,) = process.log().strip().splitlines()
    assert "--remote-start" in line and "TASKD_TOKEN" in line


@pytest.mark.slow
def test_taskd_rsh_a_worker_s_command_that_fails_ends_the_ranks(by_taskd):
    job = by_taskd.job("rsh-worker-fails")
    processes = job.all(f"if [ $INDEX = 1 ]; then until [ -e {job.folder}/now ]; do sleep 0.05; done; exit 6; fi; {job.mpirun('wait')}")
    job.wait_ranks()
    job.put("now")
    assert codes(processes, ENDS_S) == [6] * NODES
    assert "node 1 (job-worker-1.job) ended with code 6" in processes[2].log()
    by_taskd.require_nothing_left()


@pytest.mark.slow
def test_taskd_rsh_mpirun_that_is_killed(by_taskd):
    job = by_taskd.job("rsh-mpirun-killed")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    (mpirun,) = [pid for pid, text in by_taskd.left().items() if text.startswith("job-worker-0.job: /usr/bin/mpirun ")]
    os.kill(mpirun, signal.SIGKILL)
    assert codes(processes, ENDS_S) == [137] * NODES
    by_taskd.require_nothing_left()


# ---- ModelArts

# Blanks, ; = # quotes and more: what a tune file cannot carry.
VALUES = {"MA_JOB_NOTE": "two words; a=b # \"q\" 'x' \\ $HOME `id` *", "SHARED_LINES": "one\ntwo = 2\n", "S3_URL": "https://h/p?a=b&c=d#e",
          "CRED_KEY": "a+/b==", "SCC_X": "x,y", "PATH_OF_DATA": "/data/with blank", "VC_WORKER_HOSTS": "a.b,c.d", "MA_LIST": "[1, 2]"}


class ModelArts:
    """`run(index)`: a node of a job in ModelArts' containers, whose sshd is not started yet."""

    def __init__(self, nodes, name):
        self.nodes = nodes
        self.job = nodes.job(name)
        for node in nodes.rig.nodes:
            self.write(node, "etc/ssh/sshd_config", nodes.rig.sshd_config(node, "{{MY_SSHD_PORT}}"))

    @staticmethod
    def path(node, name):
        return os.path.join(node.private["/home/ma-user"], name)

    def write(self, node, name, text):
        os.makedirs(os.path.dirname(self.path(node, name)), exist_ok=True)
        with open(self.path(node, name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, index, name):
        with open(self.path(self.nodes.rig.nodes[index], name), encoding="utf-8") as file:
            return file.read()

    def all(self, action="exit", *arguments, options=(), mode="mpi", **environment):
        words = [harness.PYTHON, self.job.rank, self.job.folder, action, *map(str, arguments)]
        return [self.job.run(index, mode, words, *options, environment={
            "MA_NUM_HOSTS": str(NODES), "MA_VJ_NAME": "job", "MA_TASK_NAME": "worker", "MA_TASK_INDEX": str(index),
            "MA_NUM_GPUS": "1", **VALUES, **environment}) for index in range(NODES)]


@pytest.fixture
def model_arts(bare_rig):
    """Nodes with ssh's keys, but no sshd."""
    if not os.path.isdir("/run/sshd"):
        os.makedirs("/run/sshd")  # sshd insists on it
    if not hasattr(bare_rig, "ssh_config"):
        bare_rig.make_keys()
    environment = bare_rig.ssh_environment()
    del environment["OMPI_MCA_plm_rsh_agent"]
    yield from nodes_of(bare_rig, environment)


def run_mpi_lines(process):
    return [line for line in process.log().splitlines() if line.startswith("[run_mpi] ")]


def test_modelarts_ranks_have_the_exact_values(model_arts):
    platform = ModelArts(model_arts, "ma-values")
    processes = platform.all(mode="horovod")
    assert codes(processes) == [0, 0, 0]
    ranks = platform.job.ranks()
    assert sorted(one["host"] for one in ranks) == hosts(model_arts.rig)
    for one in ranks:
        environment = one["environment"]
        assert {name: environment.get(name) for name in VALUES} == VALUES, one["host"]
        assert environment["MA_TASK_INDEX"] == "0"  # as run_mpi.sh: they are node 0's
        assert [environment[name] for name in ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "HOROVOD_MPI_THREADS_DISABLE")] == [
            "INFO", "eth0,bond0", "AF_INET", "1"]


def test_modelarts_files_and_log_lines(model_arts):
    platform = ModelArts(model_arts, "ma-lines")
    addresses = [node.address for node in model_arts.rig.nodes]
    for attempt, (code, port) in enumerate(((0, 36666), (0, 36666), (7, 40022))):  # again at once; then with another port
        if code == 0:
            platform.job.put()
        elif os.path.exists(os.path.join(platform.job.folder, "go")):
            os.remove(os.path.join(platform.job.folder, "go"))
        processes = platform.all("fail", 1, code, MY_SSHD_PORT=str(port))
        assert codes(processes) == [code] * NODES, attempt
        hostfile = "".join(f"{address} slots=1\n" for address in addresses)
        assert platform.read(0, "hostfile") == hostfile
        assert not os.path.exists(platform.path(model_arts.rig.nodes[1], "hostfile"))
        tune = platform.read(0, "env_for_user_process").splitlines()
        assert "-x S3_URL=https://h/p?a=b&c=d#e" in tune and "-x MA_NUM_HOSTS=3" in tune
        assert all(line.startswith("-x ") for line in tune)
        assert "{{MY_SSHD_PORT}}" in platform.read(2, "etc/ssh/sshd_config")
        lines = run_mpi_lines(processes[0])
        for node, address in zip(model_arts.rig.nodes, addresses):
            at = lines.index(f"[run_mpi] hostname: {node.name}")
            assert lines[at + 1] == f"[run_mpi] resolved ip: {address}"
            assert f"[run_mpi] the sshd of ip {address} is up" in lines
        assert "[run_mpi] hostfile:\n" + hostfile in processes[0].log()
        (command,) = [line for line in lines if line.startswith("[run_mpi] command: mpirun -np 3 -hostfile /home/ma-user/hostfile ")]
        assert f"-mca plm_rsh_args -p {port}" in command
        assert [line for line in lines if line.startswith("[run_mpi] start exec command time: 20")]
        end = "[run_mpi] exec command successfully, exited with 0" if code == 0 else f"[run_mpi] exec command failed, exited with {code}"
        assert end in lines and lines[-1].startswith("[run_mpi] exit time: 20")
        assert [run_mpi_lines(process)[0] for process in processes[1:]] == ["[run_mpi] the training log is in worker-0"] * 2
        model_arts.require_nothing_left()


# Binds the port, goes out from it, and lets go of it without a trace.
HOLD = r"""
import socket, struct, sys
other, port = socket.create_server(("127.0.0.1", 0)), int(sys.argv[1])
held = socket.socket()
held.bind(("127.0.0.1", port))
held.connect(other.getsockname())
held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
print("held", flush=True)
sys.stdin.readline()
"""


def test_modelarts_sshd_waits_for_a_port_that_a_connection_has(model_arts):
    """Ports as high as that are given to connections, too: in use is not the same as listened on."""
    platform, port = ModelArts(model_arts, "ma-held"), 40023
    node = model_arts.rig.nodes[1]
    with subprocess.Popen(model_arts.rig.command(node, [harness.PYTHON, "-c", HOLD, str(port)]), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            processes = platform.all(MY_SSHD_PORT=str(port))
            wait_log(processes[1], f"port {port} is one end of a connection: sshd starts when it is free")
        finally:
            holder.stdin.close()
    assert codes(processes) == [0, 0, 0]


def test_modelarts_without_any_ssh(model_arts):
    platform = ModelArts(model_arts, "ma-taskd")
    processes = platform.all("fail", 2, 7, TASKD_TOKEN="of-the-job", PATH="/usr/bin:/bin")
    ranks = platform.job.wait_ranks()
    assert all({name: one["environment"].get(name) for name in VALUES} == VALUES for one in ranks)
    assert codes(processes, ENDS_S) == [7, 7, 7]


@pytest.mark.slow
def test_modelarts_a_worker_that_is_killed(model_arts):
    platform = ModelArts(model_arts, "ma-kill")
    processes = platform.all("wait")
    platform.job.wait_ranks()
    processes[2].kill()
    assert codes(processes[:2], ENDS_S) == [1, 1]
    model_arts.require_nothing_left()


def test_modelarts_sshd_that_cannot_start_is_named(model_arts):
    platform = ModelArts(model_arts, "ma-no-sshd")
    platform.write(model_arts.rig.nodes[1], "etc/ssh/sshd_config", "Port {{MY_SSHD_PORT}}\nNoSuchOption yes\n")
    processes = platform.all()
    assert codes(processes) == [1, 1, 1]
    assert all("node 1 (job-worker-1.job)" in process.log() and "sshd" in process.log().strip().splitlines()[-1]
               for process in processes)
    assert platform.job.ranks() == []


# ---- Horovod

HOROVODRUN = r"""#!/usr/bin/python3
# contract: horovodrun, https://horovod.readthedocs.io/en/stable/running_include.html: -np and -H as mpirun's own.
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("-np", "--num-proc", required=True)
parser.add_argument("-H", "--hosts", required=True)
parser.add_argument("--network-interface")
parser.add_argument("command", nargs=argparse.REMAINDER)
a = parser.parse_args()
os.execvp("mpirun", ["mpirun", "-np", a.num_proc, "-H", a.hosts, *a.command])
"""


def test_contract_horovod_command_runs_on_node_0_only(by_ssh):
    job = by_ssh.job("horovod")
    folder = os.path.join(job.folder, "bin")
    os.makedirs(folder)
    path = os.path.join(folder, "horovodrun")
    with open(path, "w", encoding="utf-8") as file:
        file.write(HOROVODRUN)
    os.chmod(path, 0o755)
    environment = {"PATH": f"{folder}:{by_ssh.environment['PATH']}"}
    for mode, code in (("horovod", 0), ("auto", 7)):
        start = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"} if mode == "auto" else {}
        processes = []
        for index in range(NODES):
            words = ["horovodrun", "-np", "3", "-H", ",".join(f"{node.address}:1" for node in by_ssh.rig.nodes),
                     "--network-interface", "eth0", harness.PYTHON, job.rank, job.folder, "fail", "2", str(code)]
            processes.append(job.run(index, mode, words, environment={**job.ti_one(index), **environment, **start}))
        if code == 0:
            job.put()
        assert codes(processes) == [code] * NODES
        assert sorted(one["host"] for one in job.ranks()) == hosts(by_ssh.rig)
        assert all("mode horovod (platform ti-one)" in process.log() for process in processes)
        assert [process.log().count("sum 6") for process in processes] == [1, 0, 0]
        for one in os.listdir(job.folder):
            if one.startswith("rank.") and one != "rank.py":
                os.remove(os.path.join(job.folder, one))
        os.remove(os.path.join(job.folder, "go")) if code == 0 else None


def test_auto_tells_mpi(by_ssh):
    job = by_ssh.job("auto")
    processes = [job.shell(index, job.mpirun(), mode="auto", environment={"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"})
                 for index in range(NODES)]
    assert codes(processes) == [0, 0, 0]
    assert all("mode mpi (platform ti-one)" in process.log() for process in processes)
