"""Ranks that srun or mpirun starts, each with a `taskd run` of its own: one world, one manager, one proxy a node.

srun is played by its variables (lib/tasks.py); tests/engines has the real one. mpirun and mpiexec are real.
"""
import contextlib
import errno
import json
import os
import signal
import socket

import pytest

import deadlines
import harness
from harness import PYTHON, TASKD, wait_until
from launchers import OWN_PORTS, complaints, running, wait_manager
from needs import needs_torch
from tasks import Step

MANAGERS_PORT = 9601
# The launcher's line about its manager, and its line about a manager that is slow to start.
MANAGER_LINES = ("info run: the manager is at port ", "warning run: the manager does not answer yet")
WITH_MANAGER = {"TASKD_MANAGER": ""}


def named(environments, *names):
    return sorted(tuple(one[name] for name in names) for one in environments)


def proxies(step):
    """Sockets of the nodes' proxies, as the ranks know them."""
    return {one["TASKD_SOCKET"] for one in step.jobs.started()}


def accepts(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def require_told_by_task_0(step, *beginnings):
    """A line that begins so, or in one of several ways, is in the log of task 0 and in no other one. No task complains."""
    for beginning in beginnings:
        assert [any(line.startswith(beginning) for line in lines) for lines in step.lines()] == [
            rank == 0 for rank in range(step.size())], (beginning, step.lines())
    assert not [line for task in step.tasks for line in complaints(task.log())], step.lines()


def test_all_tasks_are_one_world(jobs):
    marks = os.path.join(jobs.stage.folder, "marks")
    step = Step(jobs, [3, 1], **WITH_MANAGER, TASKD_PROFILING_DIR=marks).launch(action=("wait",))
    jobs.wait_started(4)
    assert named(jobs.started(), "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE") == [
        ("0", "0", "3", "0", "2", "4"), ("1", "1", "3", "0", "2", "4"), ("2", "2", "3", "0", "2", "4"),
        ("3", "0", "1", "1", "2", "4")]
    port = str(step.plan()["binds"][0]["port"])
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"], one["TORCHELASTIC_USE_AGENT_STORE"]) for one in jobs.started()} == {
        ("127.0.0.1", port, "True")}
    assert {one["TASKD_JOB"] for one in jobs.started()} == {f"slurm/train-{step.job}"}
    assert {one["TASKD_TASK_ID"] for one in jobs.started()} == {f"{step.job}.0"}
    assert len(proxies(step)) == 2, "one proxy a node, and all its tasks know it"
    wait_until(lambda: all(accepts(path) for path in proxies(step)), "both proxies take ranks")
    jobs.put("go")
    assert step.codes() == [0] * 4
    assert not any(os.path.exists(os.path.dirname(path)) for path in proxies(step)), "folders are left behind"
    require_told_by_task_0(step, f"taskd run: under Slurm job {step.job} step 0: 4 ranks on 2 nodes, rank by SLURM_PROCID, "
                                 f"master 127.0.0.1:{port}", MANAGER_LINES)


@pytest.mark.parametrize("code, expected", [(7, 7), (-9, 137)])
def test_a_rank_that_fails_ends_all_and_is_reported_once(jobs, code, expected):
    step = Step(jobs, [2, 2]).launch(action=("fail", 2, code))
    jobs.wait_started(4)
    jobs.put("fail")
    assert step.codes() == [expected] * 4
    reports = ["FAILED" in task.log() for task in step.tasks]
    assert reports == [True, False, False, False]
    assert "rank:        2 (local rank 0)" in step.tasks[0].log() and "node:        n2 (node 1)" in step.tasks[0].log()
    assert ["rank 2 on n2" in task.log() for task in step.tasks[1:]] == [False, True, False], step.lines()


def test_each_task_has_its_own_ranks_result(jobs):
    # Rank 2 fails once rank 1 has ended and its launcher knows it.
    program = ("import os, sys, time\nrank = int(os.environ['RANK'])\n"
               "if rank == 1:\n  open('pid~', 'w').write(str(os.getpid())); os.rename('pid~', 'pid'); sys.exit(0)\n"
               "while rank == 2 and (not os.path.exists('pid') or os.path.exists('/proc/' + open('pid').read())): time.sleep(0.02)\n"
               "if rank == 2: sys.exit(5)\ntime.sleep(600)")
    step = Step(jobs, [3]).launch(PYTHON, "-c", program)
    # Rank 0 has none: it was ended because of rank 2.
    assert step.codes() == [5, 0, 5]


def test_a_signal_for_all_ends_all(jobs):
    step = Step(jobs, [2, 2], **WITH_MANAGER).launch(action=("wait",))
    ranks = jobs.wait_started(4)
    for task in step.tasks:
        task.child.send_signal(signal.SIGTERM)
    assert step.codes() == [143] * 4
    assert not [one for one in ranks if running(one["pid"])]
    assert max(map(len, step.lines()[1:])) <= 1, step.lines()


def test_an_eviction_of_one_task_is_one_in_the_ledger(jobs):
    ledger = os.path.join(jobs.stage.folder, "ledger")
    named_so = {**WITH_MANAGER, "TASKD_LEDGER": ledger, "TASKD_JOB": "research/train", "TASKD_TASK_ID": "7"}
    evicted = Step(jobs, [2], **named_so).launch(action=("wait",))
    jobs.wait_started(2)
    evicted.tasks[1].child.send_signal(signal.SIGTERM)
    assert evicted.codes() == [143] * 2
    jobs.put("go")
    assert Step(jobs, [2], step=1, **named_so).launch(action=("wait",)).codes() == [0] * 2
    done = jobs.stage.run("goodput", "--ledger", ledger, "--json")
    assert done.returncode == 0, done.stderr
    assert [incident["kind"] for incident in json.loads(done.stdout)["incidents"]] == ["eviction"], done.stdout


def test_a_launcher_that_is_killed_ends_all(jobs):
    step = Step(jobs, [2, 2]).launch(action=("wait",))
    jobs.wait_started(4)
    step.tasks[3].kill()
    assert step.codes() == [1, 1, 1, -9]
    assert "rank 3 (n2) was lost" in step.tasks[0].log()


def test_the_proxy_outlives_every_task_of_its_node(jobs):
    """Local rank 0 ends at the signal; local rank 1 takes its time, and what it marks then is wanted, too."""
    program = ("import os, signal, sys, time\n"
               "def late(*_):\n"
               "  while os.environ['RANK'] == '1' and not os.path.exists('go'): time.sleep(0.02)\n"
               "  os._exit(0)\n"
               "signal.signal(signal.SIGTERM, late)\n"
               "print('ready', os.environ['TASKD_SOCKET'], flush=True)\n"
               "time.sleep(600)\n")
    step = Step(jobs, [2], TASKD_LOG_LEVEL="warning", **WITH_MANAGER).launch(PYTHON, "-c", program)
    sockets = [wait_until(lambda: [l for l in task.log().splitlines() if l.startswith("ready")], "the rank runs")[0].split()[1]
               for task in step.tasks]
    assert sockets[0] == sockets[1]
    wait_until(lambda: accepts(sockets[0]), "the proxy takes ranks")
    (rank0,) = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and parent(pid) == step.tasks[0].pid and is_rank(pid)]
    for task in step.tasks:
        task.child.send_signal(signal.SIGTERM)
    wait_until(lambda: not running(rank0), "rank 0 has ended")
    assert accepts(sockets[0]) and step.tasks[1].alive()
    with open(os.path.join(jobs.stage.folder, "go"), "w", encoding="ascii"):
        pass
    assert step.codes() == [143, 143]
    assert not os.path.exists(os.path.dirname(sockets[0]))


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def is_rank(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return command.read().startswith(PYTHON.encode())
    except OSError:
        return False


@contextlib.contextmanager
def hold(ports, silent):
    """Somebody else's sockets, on all addresses of this machine, that refuse who connects, or are silent; those that could be had."""
    held = []
    with contextlib.ExitStack() as stack:
        for port in ports:
            other = stack.enter_context(socket.socket())
            if silent:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("0.0.0.0", port))
            except OSError as error:  # of another test, which may let it go
                assert error.errno == errno.EADDRINUSE
                continue
            if silent:
                other.listen()
            held.append(port)
        yield held


@pytest.mark.parametrize("silent", [False, True])
def test_a_port_that_is_taken_is_passed_over_by_all(jobs, silent):
    """Without a word about it, and the manager's likewise: who reads it is told where each one is."""
    step = Step(jobs, [2, 1], **WITH_MANAGER, TASKD_PROFILING_DIR=os.path.join(jobs.stage.folder, "marks"))
    port = step.plan()["binds"][0]["port"]
    with hold([port, MANAGERS_PORT], silent) as held:
        step.launch(action=("exit",))
        assert step.codes() == [0] * 3
    ports = {one["MASTER_PORT"] for one in jobs.started()}
    assert len(ports) == 1 and port < int((taken := ports.pop())) < port + 16
    (manager,) = {one["TASKD_MANAGER"] for one in jobs.started()}
    assert manager != f"127.0.0.1:{MANAGERS_PORT}" or MANAGERS_PORT not in held
    require_told_by_task_0(
        step, f"taskd run: under Slurm job {step.job} step 0: 3 ranks on 2 nodes, rank by SLURM_PROCID, master 127.0.0.1:{taken}",
        (f"info run: the manager is at port {manager.rpartition(':')[2]}: taskd status, or with --manager {manager} where several jobs run",
         MANAGER_LINES[1]))


def test_where_all_ports_are_taken_it_says_by_whom(jobs):
    step = Step(jobs, [2, 1])
    port = step.plan()["binds"][0]["port"]
    with hold(range(port, port + 16), silent=True):
        step.launch(action=("exit",))
        assert step.tasks[0].wait(timeout_s=60) == 1
    said = f"taskd run: no port is free from {port} to {port + 15} (--master-port names another): *:{port + 15}: address in use by "
    assert any(line.startswith(said) for line in step.lines()[0]), step.lines()[0]
    for task in step.tasks[1:]:  # which wait for a launcher that may come again
        task.child.send_signal(signal.SIGTERM)
    assert step.codes() == [1, 143, 143]
    assert jobs.started() == []


def test_two_steps_of_a_job_at_once(jobs):
    steps = [Step(jobs, [2], job=77, step=number, **WITH_MANAGER).launch(action=("wait",)) for number in (0, 1)]
    jobs.wait_started(4)
    assert {one["WORLD_SIZE"] for one in jobs.started()} == {"2"}
    assert len({one["MASTER_PORT"] for one in jobs.started()}) == 2
    assert len({one["TASKD_SOCKET"] for one in jobs.started()}) == 2
    jobs.put("go")
    assert [step.codes() for step in steps] == [[0, 0], [0, 0]]


def test_what_the_user_sets_stays(jobs):
    port = harness.free_port()
    step = Step(jobs, [2], MASTER_PORT=port, WORLD_SIZE=1, RANK=0).launch(action=("exit",))
    assert step.codes() == [0, 0]
    assert named(jobs.started(), "RANK", "WORLD_SIZE", "MASTER_PORT") == [("0", "2", str(port)), ("1", "2", str(port))]
    assert sum("WORLD_SIZE '1' becomes 2" in line for lines in step.lines() for line in lines) == 1


@pytest.mark.parametrize("mode, tasks, shown", [("auto", [2], "mode      slurm"), ("auto", [1, 1], "node-rank: 0"),
                                                ("slurm", [1, 1], "mode      slurm")])
def test_auto_asks_how_many_tasks_a_node_has(jobs, mode, tasks, shown):
    done = jobs.stage.run("run", "--mode", mode, "--dry-run", "--", "x",
                          environment=harness.clean_environment(**Step(jobs, tasks).variables(0)))
    assert done.returncode == 0 and shown in done.stdout and done.stderr == "", done


@pytest.mark.parametrize("variables, words", [
    ({"SLURM_STEP_ID": None}, ["SLURM_STEP_ID", "put srun before"]),
    ({"SLURM_STEP_TASKS_PER_NODE": "3"}, ["SLURM_STEP_TASKS_PER_NODE '3'", "2 tasks"]),
    ({"SLURM_PROCID": "2"}, ["SLURM_PROCID '2'", "0 to 1"])])
def test_one_line_for_what_is_wrong(jobs, variables, words):
    environment = harness.clean_environment(**{**Step(jobs, [2]).variables(0), **variables})
    done = jobs.stage.run("run", "--mode", "slurm", "--", "touch", "started", environment=environment)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert all(word in done.stderr for word in words), done.stderr
    assert not os.path.exists(os.path.join(jobs.stage.folder, "started"))


def test_a_slow_rank_is_named(jobs):
    """A true training in the tasks of two nodes: attached, switched on and judged, by the manager of task 0."""
    folder = jobs.stage.folder
    train = os.path.join(os.path.dirname(harness.__file__), "..", "..", "deploy", "quickstart", "train.py")
    with open(os.path.join(folder, "trouble"), "w", encoding="ascii") as file:
        file.write("compute 2")
    step = Step(jobs, [2, 2], WORK=folder, STOP_FILE=f"{folder}/stop", TROUBLE_FILE=f"{folder}/trouble",
                PYTHONPATH=harness.PYTHON_PACKAGE, TASKD_PROFILING_DIR=f"{folder}/profiling", **WITH_MANAGER)
    step.launch(PYTHON, train)
    manager = wait_manager(step.tasks[0])

    def ask(command, *arguments):
        done = jobs.stage.run(command, "--manager", manager, *arguments, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def attached():
        status = ask("status") or {"nodes": []}
        return {(node["node"], rank["rank"]) for node in status["nodes"] for rank in node["ranks"] if rank["attached"]} == {
            (0, 0), (0, 1), (1, 2), (1, 3)}

    wait_until(attached, "all four ranks are attached, each to its node's proxy", 60)
    assert ask("switch", "all=on", "--job", f"slurm/train-{step.job}") is not None

    def slow():
        verdicts = (ask("diagnose") or {"verdicts": []})["verdicts"]
        return [(v["ids"], v["cause"]) for v in verdicts if v["scope"] == "rank" and v["state"] == "open"]
    # On a busy machine another one may be slow, too, for a while.
    wait_until(lambda: slow() == [([2], "compute")], "rank 2 is named, and nobody else", 120, 0.5)
    with open(f"{folder}/stop", "w", encoding="ascii"):
        pass
    assert step.codes() == [0] * 4


# ---- mpirun and mpiexec

STARTERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,tcp"],
            "mpich": ["mpiexec.hydra"]}
WORLD = ("import os, torch.distributed as d\nd.init_process_group('gloo')\n"
         "os.write(1, f\"rank {d.get_rank()} of {d.get_world_size()} {os.environ['LOCAL_RANK']} {os.environ['TASKD_SOCKET']}\\n\""
         ".encode())")  # whole, whoever writes beside it


def under_mpi(jobs, starter, *command, mode="auto", **environment):
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1, "HOME": jobs.stage.folder,
                 "TASKD_PROFILING_DIR": os.path.join(jobs.stage.folder, "marks"), **OWN_PORTS, **environment}
    return deadlines.run([*STARTERS[starter], "-np", "3", TASKD, "run", "--mode", mode, "--", *command],
                         env=harness.clean_environment(**variables), cwd=jobs.stage.folder, capture_output=True, text=True,
                         timeout_s=120, check=False)


@needs_torch
@pytest.mark.parametrize("starter, mode", [("openmpi", "auto"), ("openmpi", "mpi"), ("mpich", "auto")])
def test_mpi_starts_one_world_of_one_node(jobs, starter, mode):
    done = under_mpi(jobs, starter, PYTHON, "-c", WORLD, mode=mode)
    assert done.returncode == 0, done.stderr
    found = sorted(line.split() for line in done.stdout.splitlines())
    assert [one[:5] for one in found] == [["rank", str(rank), "of", "3", str(rank)] for rank in range(3)]
    assert len({one[5] for one in found}) == 1
    assert "3 ranks on 1 node" in done.stderr and complaints(done.stderr) == [], done.stderr
    assert any(line in done.stderr for line in MANAGER_LINES), done.stderr


@pytest.mark.parametrize("starter", STARTERS)
def test_mpi_returns_the_failed_ranks_code(jobs, starter):
    done = under_mpi(jobs, starter, "sh", "-c", 'test "$RANK" != 1 || exit 6; sleep 600', TASKD_MANAGER="off")
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("FAILED") <= 1  # mpirun may be faster than the report


def test_mpi_over_several_nodes_needs_a_master(jobs):
    environment = harness.clean_environment(OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_RANK=1,
                                            OMPI_COMM_WORLD_LOCAL_SIZE=2)
    done = jobs.stage.run("run", "--mode", "mpi", "--", "true", environment=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "MASTER_ADDR" in done.stderr, done
