"""TLS before any proof: handshakes that another user of the machine begins and leaves cost the job little, and keep nobody of
it out."""
import os
import subprocess

import grpc
import harness
import pytest
import stubs
from deadlines import HANG_S
from harness import peak_bytes, thread_count, wait_until
from strangers import STRANGER, VICTIM, host  # noqa: F401
from tcpstore import StoreTimeout, TCPStore

pytestmark = pytest.mark.root("processes of other users")

MIB = 1 << 20
SECRET = "what the victim's manager and tools have"

# Begins handshakes from addresses of its own choice and leaves them, until its input ends; whoever is closed is replaced.
FLOOD = """
import itertools, resource, select, socket, ssl, struct, sys
port, count, frames = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "frames"
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
outgoing = ssl.MemoryBIO()
session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="job.taskd")
try:
    session.do_handshake()
except ssl.SSLWantReadError:
    pass
hello = outgoing.read()
if frames:  # as launchers speak on a store's port
    hello = b"\\0TKL1" + struct.pack("=I", len(hello)) + hello
poll, held, begun = select.epoll(), {}, 0
poll.register(0, select.EPOLLIN)
sources = itertools.cycle(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
while True:
    for _ in range(min(50, count - len(held))):
        one = socket.socket()
        one.bind((next(sources), 0))
        one.connect(("127.0.0.1", port))
        one.send(hello)
        held[one.fileno()] = one
        poll.register(one, select.EPOLLRDHUP | select.EPOLLHUP)
        begun += 1
        if begun == count:
            print("flooded", flush=True)
    for fd, _ in poll.poll(0.01):
        if fd == 0:
            sys.exit()
        poll.unregister(fd)
        held.pop(fd).close()
"""


class Flood:
    def __init__(self, command, port, count=3000, frames=False):
        # pylint: disable-next=consider-using-with
        self.child = subprocess.Popen([*command, harness.PYTHON, "-c", FLOOD, str(port), str(count), "frames" if frames else "-"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self):
        assert self.child.stdout.readline() == "flooded\n"

    def require_alive(self):
        assert self.child.poll() is None, "the flood has ended by itself"

    def close(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@pytest.mark.parametrize("descriptors", [600, 0])
def test_handshakes_of_a_stranger_are_bounded_and_keep_nobody_out(host, descriptors):
    manager, address = host.manager(VICTIM, "mine", TASKD_TOKEN=SECRET)
    if descriptors:
        manager.kill()
        address = f"127.0.0.1:{harness.free_port()}"
        manager = harness.Process("few", host.command(VICTIM, "prlimit", f"--nofile={descriptors}:{descriptors}",
                                                      "/run/build/bin/taskd", "manager", "--listen", address, "--http", "127.0.0.1:0"),
                                  host.environment(TASKD_TOKEN=SECRET), host.stage.folder)
        host.stage.processes.append(manager)
        wait_until(lambda: manager.require_alive() and "answers gRPC" in manager.log(), "it is ready")

    def status():
        return host.run(VICTIM, "taskd", "status", "--manager", address, "--json").returncode

    assert status() == 0
    with harness.secure_channel(address, SECRET) as channel:
        ask_status = harness.prompt_status(channel)
        before, threads = peak_bytes(manager), thread_count(manager)
        flood = Flood(as_user(STRANGER), address.rpartition(":")[2])
        try:
            flood.wait()
            for _ in range(5):
                ask_status()
                # A tool has a patience of its own, which a starved machine may use up.
                assert any(status() == 0 for _ in range(harness.ANSWER_TRIES)), manager.log()[-2000:]
                flood.require_alive()
            after, more = peak_bytes(manager), thread_count(manager)
        finally:
            flood.close()
    assert after - before < 64 * MIB
    assert more - threads < 40
    assert status() == 0


def test_handshakes_at_the_proxys_port_cost_nothing(host):
    """It serves health in plain text, and no TLS: there is nothing to prove."""
    _, manager_address = host.manager(VICTIM, "mine", TASKD_TOKEN=SECRET)
    address = f"127.0.0.1:{harness.free_port()}"
    proxy = host.start(VICTIM, "proxy", "proxy", "--manager", manager_address, "--listen", address, TASKD_TOKEN=SECRET)
    messages, services = stubs.health()

    def healthy():
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as probe:
            answer = services.HealthStub(probe).Check(messages.HealthCheckRequest(), timeout=HANG_S, wait_for_ready=True)
            return answer.status == messages.HealthCheckResponse.SERVING

    assert healthy()
    with harness.secure_channel(manager_address, SECRET) as channel:
        ask_status = harness.prompt_status(channel)
        before, threads = peak_bytes(proxy), thread_count(proxy)
        flood = Flood(as_user(STRANGER), address.rpartition(":")[2])
        try:
            flood.wait()
            for _ in range(5):
                assert healthy(), proxy.log()[-2000:]
                ask_status()
                flood.require_alive()
            after, more = peak_bytes(proxy), thread_count(proxy)
        finally:
            flood.close()
    assert after - before < 64 * MIB
    assert more - threads < 40


@pytest.mark.parametrize("token", ["", "the-jobs-own-token"])
def test_launchers_join_while_a_stranger_floods_their_port(jobs, token):
    port = harness.free_port()
    environment = {"TASKD_TOKEN": token} if token else None
    first = jobs.static(0, port, action=("wait",), environment=environment)
    wait_until(lambda: first.require_alive() and subprocess.run(
        ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], capture_output=True, check=False).returncode == 0, "the store listens")
    ranks = [TCPStore("127.0.0.1", port) for _ in range(harness.ANSWER_TRIES)]
    for rank in ranks:
        rank.reply_timeout_s = harness.ANSWER_S

    def count():
        """What a rank's ADD answers in time; one that comes late may still be under way, so the next rank asks."""
        while True:
            try:
                return ranks[0].add("count", 1)
            except StoreTimeout:
                ranks.pop(0).close()
                assert ranks, "no answer in time"

    before, threads = peak_bytes(first), thread_count(first)
    flood = Flood(as_user(STRANGER), port, frames=True)
    try:
        flood.wait()
        for _ in range(5):
            count()
            flood.require_alive()
        second = jobs.static(1, port, action=("wait",), environment=environment)
        wait_until(lambda: first.require_alive() and second.require_alive() and
                   len([name for name in os.listdir(jobs.folder) if name.startswith("started.")]) == 4, "all ranks have begun")
        count()
        flood.require_alive()
        assert peak_bytes(first) - before < 64 * MIB and thread_count(first) - threads < 40
    finally:
        flood.close()
        for rank in ranks:
            rank.close()
    jobs.put("go")
    assert first.wait() == 0 and second.wait() == 0
