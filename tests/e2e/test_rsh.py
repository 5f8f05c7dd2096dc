"""`taskd rsh`: a command on another node of the job, through the manager. The node is a small one made of the stubs."""
import contextlib
import os
import queue
import signal
import subprocess
import threading

import grpc
import pytest

import deadlines
import harness
import stubs

TOKEN = "e2e-token"


class Node:
    """Joins the job, and runs the commands that it receives with /bin/sh."""

    def __init__(self, manager, index, nodes, name, addresses=(), remote_start=True):
        self.messages, services = stubs.job_link()
        self.channel = manager.secure_channel()
        self.reports = queue.Queue()
        self.children = {}
        self.cancelled = []
        self.orders = []
        self.state = None
        join = self.messages.JoinJob(index=index, nodes=nodes, name=name, addresses=addresses, run_id=f"run-{index}", plan="e2e",
                                     remote_start=remote_start)
        self.reports.put(self.messages.NodeReport(join=join))
        self.stream = services.JobLinkStub(self.channel).Join(iter(self.reports.get, None))
        threading.Thread(target=self.listen, daemon=True).start()
        harness.wait_until(lambda: self.state is not None, f"node {index} has joined")

    def listen(self):
        try:
            for notice in self.stream:
                kind = notice.WhichOneof("kind")
                if kind == "state":
                    self.state = notice.state
                elif kind == "remote":
                    self.orders.append(notice.remote)
                    self.obey(notice.remote)
        except grpc.RpcError:
            pass

    def report(self, id, **output):
        self.reports.put(self.messages.NodeReport(
            remote=self.messages.RemoteReport(id=id, output=self.messages.RemoteOutput(**output))))

    def obey(self, order):
        kind = order.WhichOneof("kind")
        if kind == "start":
            child = subprocess.Popen(["/bin/sh", "-c", order.start], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, start_new_session=True)
            self.children[order.id] = child
            relays = [threading.Thread(target=self.relay, args=(order.id, name, pipe), daemon=True)
                      for name, pipe in (("out", child.stdout), ("err", child.stderr))]
            threading.Thread(target=self.wait, args=(order.id, child, relays), daemon=True).start()
            return
        child = self.children.get(order.id)
        if child is None:
            return
        try:
            if kind == "input":
                child.stdin.write(order.input)
                child.stdin.flush()
            elif kind == "input_end":
                child.stdin.close()
            elif kind == "cancel":
                self.cancelled.append(order.id)
                child.kill()
        except (BrokenPipeError, ValueError):
            pass

    def relay(self, id, name, pipe):
        while chunk := os.read(pipe.fileno(), 65536):
            self.report(id, **{name: chunk})

    def wait(self, id, child, relays):
        for relay in relays:
            relay.start()
        code = child.wait()
        for relay in relays:
            relay.join()
        self.report(id, ended=code if code >= 0 else 128 - code)

    def close(self):
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):  # another thread waits for it
                os.killpg(child.pid, signal.SIGKILL)
        self.reports.put(None)
        self.stream.cancel()
        self.channel.close()


@pytest.fixture
def job(stage):
    manager = stage.manager(environment=harness.clean_environment(TASKD_TOKEN=TOKEN), wait=False)
    harness.wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    manager.node = Node(manager, 0, 1, "job-worker-0.job", ["10.9.8.7", "fd00::7"])
    manager.rsh_environment = harness.clean_environment(TASKD_MANAGER=manager.address, TASKD_TOKEN=TOKEN)
    yield manager
    manager.node.close()


def rsh(job, *words, timeout_s=deadlines.PATIENCE_S, **arguments):
    environment = arguments.pop("env", job.rsh_environment)
    if "input" not in arguments:
        arguments.setdefault("stdin", subprocess.DEVNULL)
    return deadlines.run([harness.TASKD, "rsh", *words], env=environment, capture_output=True, timeout_s=timeout_s,
                         check=False, **arguments)


def start(job, *words, **arguments):
    for name in ("stdin", "stdout", "stderr"):
        arguments.setdefault(name, subprocess.PIPE)
    return subprocess.Popen([harness.TASKD, "rsh", *words], env=job.rsh_environment, **arguments)


def assert_one_line(stderr, *parts):
    lines = stderr.decode().splitlines()
    assert len(lines) == 1 and lines[0].startswith("taskd rsh: "), stderr
    assert all(part in lines[0] for part in parts), lines[0]


def test_output_input_and_code(job):
    done = rsh(job, "job-worker-0", "echo", "$((1+2))", ";", "cat;", "echo oops >&2; exit 42", input=b"bytes \0\xff\n")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"3\nbytes \0\xff\n", b"oops\n")


def test_options_of_ssh_are_ignored(job):
    for words in (["-x", "10.9.8.7"], ["-q", "-T", "-p", "36666", "10.9.8.7"], ["-p36666", "-oStrictHostKeyChecking=no", "fd00::7"],
                  ["-xq", "-o", "A=b", "-l", "root", "-i", "key", "-F", "none", "-A", "[fd00::7]"], ["--", "root@JOB-worker-0.job"]):
        done = rsh(job, *words, "echo", "-n", "-x", "--help")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"-x --help", b""), words
    done = rsh(job, "-n", "10.9.8.7", "cat", input=b"not this")
    assert (done.returncode, done.stdout) == (0, b"")


def test_code_of_a_signal(job):
    assert rsh(job, "10.9.8.7", "kill -9 $$").returncode == 137


def test_much_both_ways(job):
    data = os.urandom(1 << 20) * 24
    done = rsh(job, "10.9.8.7", "cat", input=data, timeout_s=60)
    assert done.returncode == 0 and done.stdout == data and done.stderr == b""


def test_wrong_usage(job):
    for words, part in (([], "HOST"), (["10.9.8.7"], "COMMAND"), (["-Z", "10.9.8.7", "true"], "-Z"), (["-p"], "-p"),
                        (["root@", "true"], "HOST")):
        done = rsh(job, *words)
        assert done.returncode == 2 and done.stdout == b""
        assert_one_line(done.stderr, part)
    done = rsh(job, "10.9.8.7", "true", env=harness.clean_environment())
    assert done.returncode == 2
    assert_one_line(done.stderr, "TASKD_MANAGER")
    done = rsh(job, "--help")
    assert done.returncode == 0 and b"plm_rsh_agent" in done.stdout and done.stderr == b""


def test_failures_are_255_and_a_line(job):
    done = rsh(job, "job-worker-9", "true")
    assert done.returncode == 255
    assert_one_line(done.stderr, "job-worker-9")
    nobody = harness.clean_environment(TASKD_MANAGER=f"127.0.0.1:{harness.free_port()}", TASKD_TOKEN=TOKEN)
    done = rsh(job, "10.9.8.7", "true", env=nobody)
    assert done.returncode == 255
    assert_one_line(done.stderr, "10.9.8.7")
    done = rsh(job, "10.9.8.7", "true", env=harness.clean_environment(TASKD_MANAGER=job.address, TASKD_TOKEN="other"))
    assert done.returncode == 255
    assert_one_line(done.stderr, "TASKD_TOKEN")


def test_not_on_the_strength_of_a_stand_in_for_a_secret(stage):
    environment = harness.clean_environment(TASKD_TOKEN="taskd-stand-in:job")
    manager = stage.manager(environment=environment, wait=False)
    harness.wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    done = deadlines.run([harness.TASKD, "rsh", "10.9.8.7", "true"], stdin=subprocess.DEVNULL, capture_output=True,
                         env={**environment, "TASKD_MANAGER": manager.address}, check=False)
    assert done.returncode == 255
    assert_one_line(done.stderr, "TASKD_TOKEN")


def test_a_node_without_remote_start_takes_no_commands(stage):
    environment = harness.clean_environment(TASKD_TOKEN=TOKEN)
    manager = stage.manager(environment=environment, wait=False)
    harness.wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    with contextlib.closing(Node(manager, 0, 1, "job-worker-0", remote_start=False)) as node:
        done = deadlines.run([harness.TASKD, "rsh", "job-worker-0", "true"], stdin=subprocess.DEVNULL, capture_output=True,
                             env={**environment, "TASKD_MANAGER": manager.address}, check=False)
        assert done.returncode == 255 and node.orders == []
        assert_one_line(done.stderr, "--remote-start")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_signals_end_the_command(job, number):
    caller = start(job, "10.9.8.7", "echo up; exec sleep 1000")
    assert caller.stdout.readline() == b"up\n"
    caller.send_signal(number)
    _, stderr = deadlines.communicate(caller)
    assert caller.returncode == (-number if number == signal.SIGKILL else 255) and stderr == b""
    harness.wait_until(lambda: job.node.cancelled, "the node is told to end the command")
    assert "input_end" not in [order.WhichOneof("kind") for order in job.node.orders]


def test_closed_stdin_and_outputs(job):
    # As mpirun leaves them, at worst.
    script = 'exec "$0" rsh 10.9.8.7 "cat; echo out; echo err >&2; exit 9" <&- >&- 2>&-'
    done = deadlines.run(["/bin/sh", "-c", script, harness.TASKD], env=job.rsh_environment, check=False)
    assert done.returncode == 9


def test_reader_that_has_gone_does_not_matter(job):
    caller = start(job, "10.9.8.7", "echo first; read line; echo second; exit 5")
    assert caller.stdout.readline() == b"first\n"
    caller.stdout.close()
    caller.stdin.write(b"go\n")
    caller.stdin.flush()
    assert deadlines.wait_child(caller) == 5
    caller.stdin.close()
    assert caller.stderr.read() == b""
    caller.stderr.close()


def test_full_stdout_holds_up_neither_stderr_nor_signals(job):
    caller = start(job, "10.9.8.7", "head -c 4000000 /dev/zero; echo all >&2; exec sleep 1000", stdin=subprocess.DEVNULL)
    assert caller.stderr.readline() == b"all\n"  # stdout has not been read
    caller.send_signal(signal.SIGTERM)
    assert deadlines.wait_child(caller) == 255
    harness.wait_until(lambda: job.node.cancelled, "the node is told to end the command")
    caller.stdout.close()
    caller.stderr.close()


def test_endless_output_that_nobody_reads_fails(job):
    caller = start(job, "10.9.8.7", "exec cat /dev/zero", stdin=subprocess.DEVNULL)
    assert deadlines.wait_child(caller, timeout_s=60) == 255
    assert_one_line(caller.stderr.read(), "output", "MiB")
    caller.stdout.close()
    caller.stderr.close()


def test_node_that_goes(job):
    caller = start(job, "10.9.8.7", "echo up; exec sleep 1000")
    assert caller.stdout.readline() == b"up\n"
    job.node.close()
    _, stderr = deadlines.communicate(caller)
    assert caller.returncode == 255
    assert_one_line(stderr, "node 0", "job-worker-0.job")


def test_manager_that_goes(job):
    caller = start(job, "10.9.8.7", "echo up; exec sleep 1000")
    assert caller.stdout.readline() == b"up\n"
    job.kill()
    _, stderr = deadlines.communicate(caller)
    assert caller.returncode == 255
    assert_one_line(stderr, "10.9.8.7")
