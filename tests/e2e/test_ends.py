"""How a job ends that runs on several nodes: by a signal to all of its processes or to one, by a failure, in time; and how little is said of it."""
import glob
import os
import re
import signal
import time

import harness
import pytest
from harness import wait_until
from launchers import complaints, wait_log, wait_manager
from ports import free_port
from test_run_faults import WITH_DAEMONS, daemons, processes_of, script, wait_nothing_left

# Notes each signal that it gets. Told to end it marks, waits for the file `end`, marks again and ends.
NOTING = r"""
import os, signal, sys, time
from taskd import mstx
folder = sys.argv[1]
numbers = {}

def note(number, frame):
    numbers[number] = numbers.get(number, 0) + 1
    open(os.path.join(folder, f"got.{signal.Signals(number).name}.{os.environ['RANK']}.{numbers[number]}"), "w").close()
    if number == signal.SIGTERM and numbers[number] == 1:
        mstx.mark(f"checkpoint begins {os.environ['RANK']}")
        while not os.path.exists(os.path.join(folder, "end")):
            time.sleep(0.02)
        mstx.mark(f"checkpoint ends {os.environ['RANK']}")
        os._exit(0)

for one in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(one, note)
mstx.mark("first")
open(os.path.join(folder, f"ready.{os.environ['RANK']}"), "w").close()
while True:
    time.sleep(600)
"""


def signals_got(jobs, name):
    """How often each rank had the signal."""
    ranks = [path.split(".")[-2] for path in glob.glob(f"{jobs.folder}/got.{name}.*")]
    return {int(rank): ranks.count(rank) for rank in ranks}


def start_noting(jobs, *options, **environment):
    """Two nodes of two ranks, all of which note their signals."""
    port = free_port()
    environment = {**WITH_DAEMONS, "PYTHONPATH": harness.PYTHON_PACKAGE, **environment}
    nodes = [jobs.static(node, port, *options, environment=environment, script=script(jobs, "noting.py", NOTING),
                         script_arguments=[jobs.folder]) for node in (0, 1)]
    wait_until(lambda: all(node.require_alive() for node in nodes) and len(glob.glob(f"{jobs.folder}/ready.*")) == 4,
               "all ranks are ready")
    # A signal to every process that misses a rank because it was just being started is passed on.
    wait_until(lambda: all(os.path.getmtime(path) + 1.5 < time.time()
                           for path in glob.glob(f"{jobs.folder}/ready.*")), "they have run for a while")
    return nodes


def signal_all(jobs, number, order=lambda pids: pids):
    """As a scheduler: every process of the job, one after the other, daemons and guards included."""
    for pid in order([pid for pid, _ in processes_of(jobs.stage.folder)]):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def lines_since(nodes, before):
    return [[line for line in node.log()[len(log):].splitlines() if line] for node, log in zip(nodes, before)]


def require_no_other_complaint(said, *expected):
    """Each of the lines that nodes have said has a level below warning or matches one of `expected`."""
    assert not [line for lines in said for line in complaints("\n".join(lines), *expected)], said


# ---- A signal to every process, as of Slurm

@pytest.mark.parametrize("order", ["as they are", "launchers first", "daemons first", "ranks first"])
def test_sigterm_to_every_process(jobs, order):
    marks = os.path.join(jobs.stage.folder, "marks")
    os.mkdir(marks)
    nodes = start_noting(jobs, TASKD_PROFILING_DIR=marks)
    assert jobs.stage.run("switch", "--manager", wait_manager(nodes[0]), "all=on").returncode == 0
    before = [node.log() for node in nodes]
    kind = {**{node.pid: "launchers" for node in nodes},
            **{pid: "daemons" for name in ("manager", "proxy") for pid in daemons(jobs, name)},
            **{pid: "ranks" for pid, name in processes_of(jobs.stage.folder) if name == "python3"}}
    first = order.split()[0]
    signal_all(jobs, signal.SIGTERM, lambda pids: sorted(pids, key=lambda pid: kind.get(pid) != first))
    wait_until(lambda: len(signals_got(jobs, "SIGTERM")) == 4, "all ranks write their checkpoint")
    # Whoever would pass the signal on, or start a daemon again, has done it by then.
    wait_until(lambda: all("the job is ended" in log for log in (node.log() for node in nodes)), "the launchers end")
    wait_until(lambda: time.time() > max(os.path.getmtime(path) for path in glob.glob(f"{jobs.folder}/got.*")) + 1.5,
               "a while has passed")
    jobs.put("end")
    assert [node.wait() for node in nodes] == [143, 143], nodes[0].log()
    wait_nothing_left(jobs, nodes)
    assert signals_got(jobs, "SIGTERM") == dict.fromkeys(range(4), 1)  # not once by the scheduler and once by us
    said = lines_since(nodes, before)
    assert all(any("SIGTERM: the job is ended" in line for line in lines) for lines in said), said
    require_no_other_complaint(said, "SIGTERM: the job is ended")
    written = "".join(open(path, encoding="utf-8").read() for path in glob.glob(f"{marks}/**/*", recursive=True)
                      if os.path.isfile(path))
    for rank in range(4):
        assert f"checkpoint begins {rank}" in written and f"checkpoint ends {rank}" in written


def test_sigterm_to_every_process_twice(jobs):
    """As Slurm's at a time limit, within milliseconds: that is no wish to end at once."""
    nodes = start_noting(jobs)
    for _ in range(2):
        signal_all(jobs, signal.SIGTERM)
    wait_until(lambda: len(signals_got(jobs, "SIGTERM")) == 4, "all ranks write their checkpoint")
    wait_until(lambda: time.time() > max(os.path.getmtime(path) for path in glob.glob(f"{jobs.folder}/got.*")) + 1,
               "a while has passed")
    assert len([name for _, name in processes_of(jobs.stage.folder) if name == "python3"]) == 4
    jobs.put("end")
    assert [node.wait() for node in nodes] == [143, 143], nodes[0].log()


def test_second_signal_to_the_launcher_means_at_once(jobs):
    nodes = start_noting(jobs)
    nodes[0].child.send_signal(signal.SIGTERM)
    wait_until(lambda: len(signals_got(jobs, "SIGTERM")) == 4, "all ranks write their checkpoint")
    for node in nodes:  # of node 1 it is the first, as of Kubernetes, which signals all pods
        node.child.send_signal(signal.SIGTERM)
    wait_until(lambda: len([name for _, name in processes_of(jobs.stage.folder) if name == "python3"]) == 2,
               "node 0 has killed its ranks")
    assert nodes[1].alive()
    jobs.put("end")
    assert [node.wait() for node in nodes] == [143, 143]


@pytest.mark.parametrize("whom", ["every process", "launchers"])
def test_usr1_comes_to_each_rank_once(jobs, whom):
    nodes = start_noting(jobs)
    before = [node.log() for node in nodes]
    for count in (1, 2):
        if whom == "launchers":
            for node in nodes:
                node.child.send_signal(signal.SIGUSR1)
        else:
            signal_all(jobs, signal.SIGUSR1)
        wait_until(lambda count=count: signals_got(jobs, "SIGUSR1") == dict.fromkeys(range(4), count),
                   f"each rank has had it {count} times")
        wait_until(lambda: time.time() > max(os.path.getmtime(path) for path in glob.glob(f"{jobs.folder}/got.*")) + 1,
                   "a while has passed")
        assert signals_got(jobs, "SIGUSR1") == dict.fromkeys(range(4), count)
    require_no_other_complaint(lines_since(nodes, before))
    jobs.put("end")
    nodes[0].child.send_signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_a_daemon_leaves_it_to_the_launcher(jobs, number):
    nodes = start_noting(jobs)
    before = [node.log() for node in nodes]
    pids = {kind: sorted(daemons(jobs, kind)) for kind in ("manager", "proxy")}
    for pid in sum(pids.values(), []):
        os.kill(pid, number)
    manager = wait_manager(nodes[0])
    assert jobs.stage.run("switch", "--manager", manager, "all=on").returncode == 0  # by way of both proxies
    assert {kind: sorted(daemons(jobs, kind)) for kind in pids} == pids
    jobs.put("end")
    nodes[1].child.send_signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143]
    said = lines_since(nodes, before)
    assert any(re.fullmatch(r"taskd run: node 1 \(.*\) left: SIGTERM", line) for line in said[0]), said
    assert any("SIGTERM: the job is ended" in line for line in said[1]), said
    require_no_other_complaint(said, "SIGTERM: the job is ended")
    wait_nothing_left(jobs, nodes)


# ---- The report of a failure

def test_report_stands_once(jobs):
    port = free_port()
    nodes = [jobs.static(node, port, action=["fail", 3, 7], environment=WITH_DAEMONS) for node in (0, 1)]
    jobs.wait_started(4)
    before = [node.log() for node in nodes]
    jobs.put("fail")
    assert [node.wait() for node in nodes] == [7, 7]
    said = lines_since(nodes, before)
    assert nodes[0].log().count("First failure, the one to look at") == 1, nodes[0].log()
    assert re.search(r"rank: +3 \(local rank 1\)", nodes[0].log())
    pointer = r"taskd run: rank 3 on node 1 \(.*\) exited with code 7; the report is on node 0"
    assert any(re.fullmatch(pointer, line) for line in said[1]), said
    assert "First failure" not in nodes[1].log(), nodes[1].log()
    wait_nothing_left(jobs, nodes)


DEAF = r"""
import os, signal, sys, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = sys.argv[1]
open(os.path.join(folder, "ready." + os.environ["RANK"]), "w").close()
while os.environ["RANK"] == "1" or not os.path.exists(os.path.join(folder, "fail")):
    time.sleep(0.02)
sys.exit(9)
"""


def start_deaf(jobs, timeout_s, **environment):
    port = free_port()
    nodes = [jobs.static(node, port, f"--shutdown-timeout={timeout_s}", procs=1, script=script(jobs, "deaf.py", DEAF),
                         environment={**WITH_DAEMONS, **environment}, script_arguments=[jobs.folder]) for node in (0, 1)]
    wait_until(lambda: len(glob.glob(f"{jobs.folder}/ready.*")) == 2, "both ranks are ready")
    return nodes


def test_report_waits_for_no_other_node(jobs):
    nodes = start_deaf(jobs, 20)
    jobs.put("fail")
    wait_log(nodes[0], "First failure, the one to look at")
    assert nodes[0].alive() and nodes[1].alive()  # rank 1 does not want to end
    nodes[1].child.send_signal(signal.SIGTERM)
    nodes[1].child.send_signal(signal.SIGINT)
    assert nodes[0].wait() == 9 and nodes[1].wait() in (130, 143)


def test_report_of_a_node_whose_node_0_is_lost(jobs):
    port = free_port()
    nodes = [jobs.static(node, port, action=["fail", 3, 7]) for node in (0, 1)]
    jobs.wait_started(4)
    nodes[0].child.send_signal(signal.SIGSTOP)
    jobs.put("fail")
    wait_until(lambda: len(jobs.alive()) == 3, "rank 3 has failed")
    nodes[0].child.kill()
    assert nodes[1].wait() == 1
    assert re.search(r"rank: +3 \(local rank 1\)", nodes[1].log()), nodes[1].log()
    assert f"node 0's launcher at 127.0.0.1:{port} is gone" in nodes[1].log()


# ---- In time

@pytest.mark.parametrize("whom", ["every process", "launchers"])
def test_launchers_are_gone_before_the_schedulers_patience_ends(jobs, whom):
    """A rank that is deaf, daemons that are stopped: 8 s after the shutdown time-out nothing of the job is there."""
    nodes = start_deaf(jobs, 2)
    for kind in ("manager", "proxy"):
        for pid in daemons(jobs, kind):
            os.kill(pid, signal.SIGSTOP)
    if whom == "launchers":
        for node in nodes:
            node.child.send_signal(signal.SIGTERM)
    else:
        signal_all(jobs, signal.SIGTERM)
    assert [node.wait(timeout_s=2 + 8) for node in nodes] == [143, 143], nodes[0].log()
    wait_nothing_left(jobs, nodes)


def test_node_0_is_gone_in_time_though_another_launcher_is_stopped(jobs):
    nodes = start_deaf(jobs, 2)
    nodes[1].child.send_signal(signal.SIGSTOP)
    nodes[0].child.send_signal(signal.SIGTERM)
    assert nodes[0].wait(timeout_s=2 + 8) == 143
    nodes[1].kill()
