"""The program as a user calls it: exit codes, one line of error, flags and variables, signals."""
import os
import socket

import harness
import pytest
from harness import JOB, wait_until


def usage_error(done, *words):
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, f"not one line: {done.stderr!r}"
    assert done.stdout == ""
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"


@pytest.mark.parametrize("arguments,words", [
    (["frobnicate"], ["frobnicate"]),
    (["manager", "--frobnicate"], ["--frobnicate"]),
    (["manager", "--listen", "nonsense"], ["nonsense"]),
    (["manager", "--listen", "127.0.0.1:99999"], ["99999"]),
    (["manager", "--nodes", "-1"], ["-1"]),
    (["manager", "--nodes", "many"], ["many"]),
    (["manager", "--job", "no-slash"], ["no-slash"]),
    (["manager", "--clusterd", "nonsense:"], ["nonsense"]),
    (["manager", "--tls-dir", "/nonexistent"], ["/nonexistent"]),
    (["proxy", "--manager", "nonsense"], ["nonsense"]),
    (["proxy", "--node-rank", "-3"], ["-3"]),
    (["proxy", "--node-rank", "x"], ["x"]),
    (["act", "evict"], ["node is missing: the node's rank"]),
    (["proxy", "--disk-limit-mb", "-1"], ["-1"]),
    (["proxy", "--socket", "/" + "x" * 200], ["103"]),
    (["switch", "--manager", "127.0.0.1:1"], []),
    (["switch", "--manager", "127.0.0.1:1", "step"], ["step"]),
    (["switch", "--manager", "127.0.0.1:1", "step=maybe"], ["maybe"]),
    (["switch", "--manager", "127.0.0.1:1", "colour=on"], ["colour"]),
    (["switch", "--manager", "nonsense", "all=on"], ["nonsense"]),
    (["status", "--manager", "nonsense"], ["nonsense"]),
    (["status", "--frobnicate"], ["--frobnicate"]),
], ids=" ".join)
def test_wrong_usage_is_one_line_and_code_2(stage, arguments, words):
    if arguments[:1] == ["manager"]:
        arguments += ["--state-dir", os.path.join(stage.folder, "state")]
    usage_error(stage.run(*arguments), *words)


@pytest.mark.parametrize("command", [[], ["manager"], ["proxy"], ["switch"], ["status"], ["report"]], ids=lambda c: " ".join(c) or "taskd")
def test_help(stage, command):
    done = stage.run(*command, "--help")
    assert done.returncode == 0 and "sage" in done.stdout and done.stderr == ""


def test_version(stage):
    done = stage.run("--version")
    assert done.returncode == 0 and done.stdout.strip()


def test_what_the_training_tells_its_allocator_is_not_for_taskd(stage):
    done = stage.run("--version", environment=harness.clean_environment(MALLOC_CONF="no_such_option:1,abort_conf:true,stats_print:true"))
    assert done.returncode == 0 and done.stdout.strip() and done.stderr == ""


def test_variables_and_flags(stage):
    """TASKD_<FLAG> stands for a flag; the flag wins."""
    port, other = harness.free_port(), harness.free_port()
    environment = harness.clean_environment(TASKD_LISTEN=f"127.0.0.1:{port}", TASKD_JOB="default/by-variable",
                                            TASKD_STATE_DIR=os.path.join(stage.folder, "state"),
                                            TASKD_HTTP=f"127.0.0.1:{harness.free_port()}")
    first = harness.Process("by-variable", [harness.TASKD, "manager"], environment, stage.folder)
    stage.processes.append(first)
    done = wait_until(lambda: first.require_alive() and (lambda d: d if d.returncode == 0 else None)(
        stage.run("status", "--json", environment=harness.clean_environment(TASKD_MANAGER=f"127.0.0.1:{port}"))),
        "status by TASKD_MANAGER")
    assert "default/by-variable" in done.stdout
    environment["TASKD_STATE_DIR"] = os.path.join(stage.folder, "state2")
    second = harness.Process("by-flag", [harness.TASKD, "manager", f"--listen=127.0.0.1:{other}", "--http",
                                         f"127.0.0.1:{harness.free_port()}"], environment, stage.folder)
    stage.processes.append(second)
    wait_until(lambda: second.require_alive() and
               stage.run("status", "--manager", f"127.0.0.1:{other}").returncode == 0, "--listen=... wins")


def test_broken_variable_is_wrong_usage(stage):
    usage_error(stage.run("proxy", environment=harness.clean_environment(TASKD_NODE_RANK="first")), "first")
    usage_error(stage.run("manager", environment=harness.clean_environment(TASKD_LISTEN="nowhere")), "nowhere")


def test_listen_that_is_taken_is_an_error(stage):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["manager", "--listen", address, "--state-dir", os.path.join(stage.folder, "state")],
                        ["proxy", "--listen", address, "--socket", os.path.join(stage.folder, "p.sock"),
                         "--profiling-dir", stage.folder]):
            done = stage.run(*command)
            assert done.returncode == 1 and address in done.stderr, (command, done.returncode, done.stderr)


def test_two_managers_on_one_port(stage, manager):
    done = stage.run("manager", "--job", JOB, "--listen", manager.address, "--state-dir", os.path.join(stage.folder, "other"))
    assert done.returncode == 1 and manager.address in done.stderr
    manager.require_alive()


def test_second_proxy_on_one_socket(stage, manager, proxy):
    """The first one lives and keeps its ranks."""
    done = stage.run("proxy", "--manager", manager.address, "--socket", proxy.socket, "--listen",
                     f"127.0.0.1:{harness.free_port()}", "--profiling-dir", os.path.join(stage.folder, "other"))
    assert done.returncode == 1 and proxy.socket in done.stderr
    proxy.require_alive()
    stage.rank(0, proxy, rate=100)
    manager.wait_attached([0])


def test_sigterm_ends_both_with_code_0(stage, manager, proxy):
    assert proxy.terminate() == 0
    assert not os.path.exists(proxy.socket)
    assert manager.terminate() == 0


@pytest.mark.parametrize("command", [["switch", "all=on"], ["status"]], ids=" ".join)
def test_no_manager_there(stage, command):
    address = f"127.0.0.1:{harness.free_port()}"
    done = stage.run(*command, "--manager", address, timeout_s=30)
    assert done.returncode == 1 and address in done.stderr and done.stdout == ""


def test_another_job(stage, manager):
    done = stage.run("switch", "--manager", manager.address, "--job", "default/another", "all=on")
    assert done.returncode == 1 and "default/another" in done.stderr
    assert manager.get()[1]["step"] == "off"


def test_json_is_all_there_is_on_stdout(stage, manager, proxy):
    stage.rank(0, proxy, pattern="training", rate=50)
    manager.wait_attached([0])
    code, answer = manager.switch("all=on")
    assert code == 0
    assert set(answer) == {"job", "wanted", "total", "applied", "kept", "ranks"}
    assert set(answer["ranks"][0]) == {"rank", "node", "state", "ms", "reason"}
    status = manager.status()
    assert {"job", "task_id", "wanted", "manager", "nodes"} <= set(status)
    assert status["task_id"] == harness.TASK and status["manager"]["uptime_s"] >= 0
    node = status["nodes"][0]
    assert {"node", "host", "connected", "ranks"} <= set(node) and node["connected"] is True
    assert {"rank", "pid", "attached", "applied", "step", "step_ms", "marks", "lost", "overhead_ns_per_mark"} <= set(
        node["ranks"][0])
