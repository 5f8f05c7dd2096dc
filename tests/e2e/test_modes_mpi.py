"""`taskd run --mode mpi` and horovod between nodes: real mpirun, by ssh and by `taskd rsh`. Needs root for namespaces."""
import os
import signal

import pytest

import harness
from harness import wait_until
from launchers import wait_log
from mpi_nodes import MpiNodes, make_nodes

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
    job.put()  # nobody waits
    text = f"{job.mpirun('fail', 1, 5)}; echo first $?; {job.mpirun('fail', 0, 9)}; echo second $?; {job.mpirun()}; echo third $?"
    processes = job.all(text)
    assert codes(processes) == [0, 0, 0]
    for process in processes:
        assert [line for line in process.log().splitlines() if line.startswith(("first ", "second ", "third "))] == [
            "first 5", "second 9", "third 0"]


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


def test_ssh_sigterm_at_a_worker_ends_mpirun(by_ssh):
    job = by_ssh.job("ssh-term")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[1].child.send_signal(signal.SIGTERM)
    assert codes(processes, ENDS_S) == [143] * NODES
    wait_until(lambda: not job.alive(), "no rank is left")


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
        last = processes[0].log().strip().splitlines()[-1]
        assert "job-worker-2.job" in last and "tcp port 22" in last and "job-worker-1" not in last, last
        assert job.ranks() == []
        # sshd is there, but does not let in
        os.rename(rig.client_key, rig.client_key + ".away")
        rig.start_sshd(nodes=rig.nodes[2:])
        job = MpiNodes(rig, environment).job("no-key")
        processes = job.all(job.mpirun(), "--wait-s", "6")
        assert codes(processes) == [1, 1, 1], processes[0].log()
        last = processes[0].log().strip().splitlines()[-1]
        assert "job-worker-1.job" in last and "ssh" in last and "tcp" not in last, last


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
    assert codes([process for index, process in enumerate(processes) if index != killed], ENDS_S) == [1, 1]
    by_taskd.require_nothing_left()


def test_taskd_rsh_sigterm(by_taskd):
    job = by_taskd.job("rsh-term")
    processes = job.all(job.mpirun("wait"))
    job.wait_ranks()
    processes[2].child.send_signal(signal.SIGTERM)
    assert codes(processes, ENDS_S) == [143] * NODES
    by_taskd.require_nothing_left()


def test_taskd_rsh_another_token(by_taskd):
    job = by_taskd.job("rsh-token")
    first = job.shell(0, job.mpirun(), "--wait-s", "20")
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
