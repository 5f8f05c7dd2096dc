"""Launchers that are stopped, and come back: silence is no death. A closed connection is."""
import json
import os
import signal
import time

import pytest
from harness import wait_until
from modes import ModeJob
from launchers import daemons_of, wait_log
from ports import free_port
from test_run_faults import WITH_DAEMONS, daemons

# What a VM that moves and a swap storm take; longer than launchers used to wait for each other, and than a ping and the
# next ones.
STOPPED_S = 9


def stop_for(seconds, *pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def wait_for(seconds):
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun >= seconds, "the time is over", seconds + 10)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("kind", ["static", "static, tiers", "elastic"])
def test_a_launcher_that_was_stopped_goes_on(jobs, kind, node):
    port = free_port()
    if kind == "elastic":
        nodes = [jobs.elastic(f"node{n}", port, nodes="1:2", action=["wait"]) for n in (0, 1)]
        jobs.wait_started(2, WORLD_SIZE=2)
    else:
        tiers = ["--enable-tiered-parallel-tcpstore"] if "tiers" in kind else []
        # Node 0's time-out holds, whatever node 1 was given.
        nodes = [jobs.static(n, port, *tiers, *options, procs=1, action=["wait"])
                 for n, options in enumerate([[], ["--node-timeout=5"]])]
        jobs.wait_started(2)
    pids = {e["pid"] for e in jobs.alive()}
    stop_for(STOPPED_S, nodes[node].pid)
    stop_for(2, nodes[1 - node].pid)  # whoever is going to take the other for lost has done it by then
    assert {e["pid"] for e in jobs.alive()} == pids
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()
    assert {e["pid"] for e in jobs.started()} == pids
    assert "lost" not in nodes[0].log() and "gone" not in nodes[1].log()


@pytest.mark.parametrize("kind", ["static", "static, tiers"])
def test_time_in_which_no_launcher_ran_is_nobodys_silence(jobs, kind):
    """Each of them has heard nothing of the others for longer than they may be silent, because it did not run itself."""
    port = free_port()
    tiers = ["--enable-tiered-parallel-tcpstore"] if "tiers" in kind else []
    nodes = [jobs.static(n, port, "--node-timeout=5", *tiers, procs=1, action=["wait"]) for n in (0, 1)]
    jobs.wait_started(2)
    pids = {e["pid"] for e in jobs.alive()}
    stop_for(STOPPED_S, *[node.pid for node in nodes])
    wait_for(2)  # whoever is going to take the other for lost has done it by then
    assert {e["pid"] for e in jobs.alive()} == pids, nodes[0].log() + nodes[1].log()
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()


def test_silence_counts_in_the_end(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, "--node-timeout=5", procs=1, action=["wait"]) for n in (0, 1)]
    jobs.wait_started(2)
    nodes[1].child.send_signal(signal.SIGSTOP)
    assert nodes[0].wait() == 1
    assert "its launcher was silent for 5 s" in nodes[0].log()
    nodes[1].child.send_signal(signal.SIGCONT)
    assert nodes[1].wait() == 1
    jobs.wait_none_left()


def test_so_does_that_of_node_0(jobs):
    port = free_port()
    nodes = [jobs.static(n, port, procs=1, action=["wait"], environment={"TASKD_NODE_TIMEOUT": "5"}) for n in (0, 1)]
    jobs.wait_started(2)
    nodes[0].child.send_signal(signal.SIGSTOP)
    assert nodes[1].wait() == 1
    assert f"node 0's launcher at 127.0.0.1:{port} is gone: silent for 5 s" in nodes[1].log()
    nodes[0].child.send_signal(signal.SIGCONT)
    assert nodes[0].wait() == 1
    jobs.wait_none_left()


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_launcher_is_lost_at_once(jobs, node):
    """With a time-out that nobody waits for here."""
    port = free_port()
    nodes = [jobs.static(n, port, "--node-timeout=86400", procs=1, action=["wait"]) for n in (0, 1)]
    jobs.wait_started(2)
    nodes[node].child.kill()
    assert nodes[1 - node].wait() == 1
    wait_log(nodes[1 - node], "launcher .*is gone")
    jobs.wait_none_left()


@pytest.mark.parametrize("kind", ["manager", "proxy"])
def test_a_daemon_that_was_stopped_goes_on(jobs, kind):
    port = free_port()
    nodes = [jobs.static(n, port, "--hang-action=stop", procs=1, action=["wait"], environment=WITH_DAEMONS) for n in (0, 1)]
    manager = jobs.wait_started(2)[0]["TASKD_MANAGER"]

    def connected():
        shown = jobs.stage.run("status", "--manager", manager, "--json")
        return shown.returncode == 0 and [node["connected"] for node in json.loads(shown.stdout)["nodes"]] == [True, True]
    wait_until(connected, "both proxies are connected", interval_s=0.2)
    pids = {kind: sorted(daemons(jobs, kind)) for kind in ("manager", "proxy")}
    stop_for(STOPPED_S, *pids[kind])
    wait_until(connected, "both proxies are connected", interval_s=0.2)
    jobs.put("go")
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()
    for node in nodes:  # nor did a stream break
        assert "trying again" not in node.log() and "disconnected" not in node.log()


# ---- Modes

MODE_STOPPED_S = 40  # longer than gRPC's own keep-alive waits for an answer


def processes_of(node):
    """The node's `taskd run`, and its daemons: on node 0 the job's manager, too."""
    wanted = ["proxy"] + ["manager"] * (node.name == "node0")
    daemons_are = [wait_until(lambda kind=kind: daemons_of(node.pid, kind), f"the {kind} of {node.name} runs") for kind in wanted]
    return [node.pid, *(pid for pids in daemons_are for pid in pids)]


def mode_nodes(job, *options):
    """Two nodes; `options`: for each one."""
    nodes = [job.run(n, "torch", ("go",), *(options[n] if options else ())) for n in (0, 1)]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    return nodes


def test_nodes_of_a_mode_that_were_stopped_go_on(stage):
    """Of one job node 0 with its manager, of another one node 1, so that their 40 s are the same."""
    jobs = [ModeJob(stage, name=name) for name in ("first", "second")]
    nodes = [mode_nodes(job) for job in jobs]
    stop_for(MODE_STOPPED_S, *processes_of(nodes[0][0]), *processes_of(nodes[1][1]))
    stop_for(2, nodes[0][1].pid, nodes[1][0].pid)  # whoever is going to take the other for lost has done it by then
    for job, pair in zip(jobs, nodes):
        assert len(job.alive()) == 2, pair[0].log() + pair[1].log()
        job.put("go")
        assert [n.wait() for n in pair] == [0, 0], pair[0].log() + pair[1].log()
        assert "gone" not in pair[0].log() + pair[1].log()


def test_time_in_which_no_node_of_a_mode_ran_is_nobodys_silence(stage):
    job = ModeJob(stage)
    nodes = mode_nodes(job, *[["--node-timeout=5"]] * 2)
    stop_for(STOPPED_S, *processes_of(nodes[0]), *processes_of(nodes[1]))
    wait_for(2)  # whoever is going to take the other for lost has done it by then
    assert len(job.alive()) == 2, nodes[0].log() + nodes[1].log()
    job.put("go")
    assert [n.wait() for n in nodes] == [0, 0], nodes[0].log() + nodes[1].log()


@pytest.mark.parametrize("stopped", ["taskd run of node 1", "taskd run of node 0", "all of node 0"])
def test_silence_of_a_mode_counts_in_the_end(stage, stopped):
    """Node 0's time-out holds, whatever node 1 was given."""
    job = ModeJob(stage)
    nodes = mode_nodes(job, ["--node-timeout=5"], ["--node-timeout=86400"])
    node = 1 if stopped.endswith("1") else 0
    pids = processes_of(nodes[node]) if stopped.startswith("all") else [nodes[node].pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    other = nodes[1 - node]
    assert other.wait() == 1
    assert f"node {node} ({job.nodes[node]}): its `taskd run` was silent for 5 s" in other.log()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert nodes[node].wait() == 1
    wait_until(lambda: not job.alive(), "no command is left")


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_node_of_a_mode_is_lost_at_once(stage, node):
    """With a time-out that nobody waits for here."""
    job = ModeJob(stage)
    nodes = mode_nodes(job, *[["--node-timeout=86400"]] * 2)
    nodes[node].child.kill()
    assert nodes[1 - node].wait() == 1
    assert f"node {node} ({job.nodes[node]}): its `taskd run` is gone" in nodes[1 - node].log()
    wait_until(lambda: not job.alive(), "no command is left")


def test_a_wrong_time_out_starts_nothing(jobs):
    job = jobs.launch("job", "--standalone", "--node-timeout=4")
    assert job.wait() == 2
    assert "--node-timeout '4': seconds, a number from 5 to 86400" in job.log()
    assert not jobs.started()
    job = jobs.stage.run("run", "--mode", "torch", "--node-timeout=4", "--", "true")
    assert job.returncode == 2
    assert "--node-timeout '4': it is not seconds, a number from 5 to 86400" in job.stderr
