"""Nobody reads what TaskD says: everything works all the same, and what was not written is counted when somebody does."""
import os
import re
import signal
import socket
import time

import harness
import pytest
import tcpstore
from consoles import StalledConsole
from deadlines import HANG_S
from harness import TASKD, clean_environment, wait_until
from launchers import daemons_of
from modes import ModeJob
from ports import free_port
from stores import StoreProcess

WITH_DAEMONS = {"TASKD_MANAGER": None}


@pytest.fixture
def console(stage):
    return StalledConsole(stage.folder)


def refused_often(port, times=200):
    """Strangers, of each of whom a line may be said."""
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as stranger:
            stranger.sendall(b"\x16\x03\x01nonsense")


def job_that_records(manager, proxy, stage):
    """A switch is applied, and a rank's marks are all there."""
    rank = stage.rank(0, proxy)
    manager.wait_attached([0])
    code, answer = manager.switch("step=on", "communication=on")
    assert code == 0, answer
    rank.wait_made(200)
    code, answer = manager.switch("all=off")
    assert code == 0, answer
    assert rank.terminate() in (0, -signal.SIGTERM)


def test_manager(stage, console):
    manager = stage.manager(wrap=console.to_both, environment=clean_environment(TASKD_LOG_LEVEL="trace"))
    proxy = stage.proxy(manager)
    refused_often(manager.port)
    job_that_records(manager, proxy, stage)
    assert manager.terminate() == 0


def test_proxy(stage, console, manager):
    environment = clean_environment(MINDX_TASK_ID=harness.TASK, TASKD_LOG_LEVEL="trace")
    proxy = stage.proxy(manager, wrap=console.to_both, environment=environment)
    job_that_records(manager, proxy, stage)
    assert proxy.terminate() == 0


def test_store(stage, console):
    store = stage._add(StoreProcess(stage.folder, prefix=console.to_stderr, flags=("--stats-s", "0.001")))
    with store.client() as client:
        client.set("key", b"value")
        assert client.get("key") == b"value"
    console.begin_to_read()
    wait_until(lambda: '"keys":1' in console.text(), "statistics are printed")
    assert store.terminate() == 0


def test_store_whose_stdout_is_not_read_either(stage, console):
    port = free_port()
    store = stage._add(harness.Process("store", [*console.to_both, TASKD, "store", "--listen", f"127.0.0.1:{port}", "--stats-s",
                                                 "0.001"], clean_environment(), stage.folder))

    def answers():
        store.require_alive()
        try:
            with tcpstore.TCPStore("127.0.0.1", port, "2.x") as client:
                client.set("key", b"value")
                return client.get("key") == b"value"
        except ConnectionError:
            return False
    wait_until(answers, "the store answers")
    assert store.terminate() == 0


def test_launcher(jobs, console):
    """With its daemons: the job runs, is switched, and fails with its rank's code."""
    port = free_port()
    job = jobs.static(0, port, nodes=1, action=["fail", 0, 7], environment={**WITH_DAEMONS, "TASKD_LOG_LEVEL": "trace"},
                      prefix=console.to_stderr)
    (rank, _) = jobs.wait_started(2)
    refused_often(port)
    manager = ("--manager", rank["TASKD_MANAGER"])
    wait_until(lambda: jobs.stage.run("status", *manager).returncode == 0, "the manager answers", interval_s=0.2)
    assert jobs.stage.run("switch", *manager, "all=on").returncode == 0
    jobs.put("fail")
    assert job.wait() == 7


def test_what_was_said_comes_when_somebody_reads(jobs, console):
    job = jobs.static(0, free_port(), nodes=1, procs=1, action=["fail", 0, 7], prefix=console.to_stderr)
    jobs.wait_started(1)
    console.begin_to_read()
    jobs.put("fail")
    assert job.wait() == 7
    wait_until(lambda: re.search(r"taskd run: .*rank 0.*7", console.text()), "the launcher says why it has ended")


def test_node_whose_console_stalls_is_not_lost(jobs, console):
    """Its launcher has to say that its proxy was killed, and answers the pings of node 0's for longer than they may be silent."""
    port = free_port()
    nodes = [jobs.static(0, port, "--node-timeout=5", procs=1, action=["wait"], environment=WITH_DAEMONS),
             jobs.static(1, port, procs=1, action=["wait"], environment=WITH_DAEMONS, prefix=console.to_stderr)]
    ranks = jobs.wait_started(2)
    begun = time.monotonic()
    for _ in range(3):
        (victim,) = wait_until(lambda: daemons_of(nodes[1].pid, "proxy"), "node 1's proxy runs")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: set(daemons_of(nodes[1].pid, "proxy")) - {victim}, "it is started again")
    wait_until(lambda: time.monotonic() - begun > 8, "the time-out is over")
    assert jobs.alive() == ranks
    jobs.put("go")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log()
    assert "was lost" not in nodes[0].log()


def test_node_of_a_mode_whose_console_stalls_is_not_lost(stage, console):
    job = ModeJob(stage)
    environment = {"TASKD_LOG_LEVEL": "trace"}
    nodes = [job.run(0, "torch", ("go",), "--node-timeout=5"),
             job.run(1, "torch", ("go",), prefix=console.to_stderr, environment=environment)]
    wait_until(lambda: len(job.started()) == 2, "both commands run")
    begun = time.monotonic()
    (victim,) = wait_until(lambda: daemons_of(nodes[1].pid, "proxy"), "node 1's proxy runs")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: set(daemons_of(nodes[1].pid, "proxy")) - {victim}, "it is started again")
    wait_until(lambda: time.monotonic() - begun > 8, "the time-out is over")
    assert len(job.alive()) == 2, nodes[0].log()
    job.put("go")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log()


def test_rank(stage, console, manager, proxy):
    """libtaskd.so has something to say in the rank's first mark, and nobody reads it."""
    counter = os.path.join(stage.folder, "count")
    environment = clean_environment(LD_PRELOAD=harness.LIBRARY, TASKD_SOCKET=proxy.socket, RANK=0, TASKD_MARK_NAMES="no rule")
    command = [*console.to_stderr, harness.RANK_MAIN, "--rank", "0", "--threads", "1", "--rate", "200", "--pattern", "sequence",
               "--counter", counter, "--count", "0", "--name-bytes", "0", "--hold", "1", "--init", "1"]
    rank = stage._add(harness.Process("rank", command, environment, stage.folder))
    manager.wait_attached([0])
    manager.all_on()
    wait_until(lambda: rank.require_alive() and sum(proxy.counts(0).values()) > 0, "its marks are there")


@pytest.mark.parametrize("arguments", [["manager", "--listen", "nowhere"], ["proxy", "--manager", "nowhere"],
                                       ["store", "--listen", "nowhere"], ["run", "--nnodes=none", "x.py"]], ids=lambda one: one[0])
def test_wrong_usage_ends(stage, console, arguments):
    process = stage._add(harness.Process("wrong", [*console.to_stderr, TASKD, *arguments], clean_environment(), stage.folder))
    assert process.wait() == 2


LOUD = r"""
import os, sys
for stream in (sys.stdout, sys.stderr):
    for i in range(3000):
        print(f"rank {os.environ['RANK']} {i} " + "x" * 1000, file=stream, flush=True)
"""


@pytest.mark.parametrize("read", ["in the end", "never"])
def test_ranks_whose_output_is_teed(jobs, console, read):
    """As with torchrun: they write their files, whoever reads the console; which has it all when somebody does."""
    script = os.path.join(jobs.stage.folder, "loud.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(LOUD + f"open({jobs.folder!r} + '/done.' + os.environ['RANK'], 'w').close()\n")
    job = jobs.static(0, free_port(), "--tee=3", f"--log-dir={jobs.stage.folder}/logs", nodes=1, script=script,
                      prefix=console.to_both)
    wait_until(lambda: job.require_alive() and len([name for name in os.listdir(jobs.folder) if name.startswith("done.")]) == 2,
               "both ranks have said all")
    if read == "in the end":
        console.begin_to_read()
    assert job.wait() == 0
    expected = {rank: "".join(f"rank {rank} {i} " + "x" * 1000 + "\n" for i in range(3000)) for rank in (0, 1)}
    for folder, _, names in os.walk(f"{jobs.stage.folder}/logs"):
        for name in set(names) & {"stdout.log", "stderr.log"}:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                assert file.read() == expected[int(os.path.basename(folder))]
    if read == "in the end":
        wait_until(lambda: console.text().count("\n") >= 4 * 3000, "all is on the console")
        for rank in (0, 1):
            lines = [line for line in console.text().splitlines(keepends=True) if line.startswith(f"[default{rank}]:")]
            assert sorted(lines) == sorted(2 * [f"[default{rank}]:{line}" for line in expected[rank].splitlines(keepends=True)])
