"""Strangers who speak gRPC in plain text: whatever they send, manager and proxy stay small, and the job's own are answered."""
import os
import subprocess

import deadlines
import harness
import pytest
from harness import wait_until

STRANGER = 2002
MIB = 1 << 20
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plain_peer.py"), encoding="utf-8") as source:
    PEER = source.read()  # as text: the tree may lie where a stranger cannot read
ATTACKS = ("reflection", "watches", "places", "big_headers", "empty_fields", "long_string", "table_bomb", "unfinished", "resets", "settings",
           "pings", "windows", "priorities", "silence")
# These end the connection; the others are what a client may do, within limits.
CLOSED = set(ATTACKS) - {"places", "unfinished", "silence"}


def figures(process):
    """(resident memory in bytes, its peak, threads)."""
    return harness.resident_bytes(process), harness.peak_bytes(process), harness.thread_count(process)


class Peers:
    """Connections of a stranger's, who has sent all that the server takes and holds on to them."""

    def __init__(self, attack, port, connections):
        become = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"] if os.geteuid() == 0 else []
        # pylint: disable-next=consider-using-with
        self.child = subprocess.Popen([*become, harness.PYTHON, "-c", PEER, attack, f"127.0.0.1:{port}", str(connections)], cwd="/",
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline() == "holding\n"

    def closed(self, wait=False):
        """Lets go of them, if `wait` once the server has closed all; how many it had closed."""
        out, _ = deadlines.communicate(self.child, "wait" if wait else "", timeout_s=2 * deadlines.HANG_S)
        return int(out.split()[1])


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A manager that serves strangers, and a proxy, for all attacks one after the other: they shall not add up either."""
    stage = harness.Stage(tmp_path_factory.mktemp("plain"))
    manager = stage.manager(flags=["--allow-plaintext"])
    proxy = stage.proxy(manager)
    for _ in range(3):
        manager.get()
        manager.status()
    with manager.secure_channel() as channel:
        yield {"manager": manager, "proxy": proxy, "ask status": harness.prompt_status(channel)}
    stage.close()
    stage.print_logs()


@pytest.mark.parametrize("connections", [1, 128])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("role", ["manager", "proxy"])
def test_memory_and_threads_are_bounded(servers, role, attack, connections):
    server, manager = servers[role], servers["manager"]
    memory, _, threads = figures(server)
    peers = Peers(attack, server.port, connections)
    try:
        _, after, after_threads = figures(server)
        assert after - memory < 64 * MIB and after_threads < threads + 40
        servers["ask status"]()
        assert manager.status()["wanted"] is not None
        if os.geteuid() == 0:  # else the job's own user is who holds all connections that a peer may have
            assert manager.get()[0] == 200
    finally:
        closed = peers.closed(wait=attack in CLOSED)
    assert closed == connections or attack not in CLOSED
    server.require_alive()


def test_all_of_it_at_once(servers):
    manager = servers["manager"]
    memory, _, threads = figures(manager)
    peers = [Peers(attack, manager.port, 9) for attack in ATTACKS]
    try:
        servers["ask status"]()
        assert manager.status()["wanted"] is not None
        _, after, after_threads = figures(manager)
        assert after - memory < 64 * MIB and after_threads < threads + 40
    finally:
        for one in peers:
            one.closed()
    assert manager.modify(step="on") == 200


@pytest.mark.root("a process of another user")
@pytest.mark.parametrize("environment", [{}, {"TASKD_TOKEN": "the-jobs-own"}], ids=["no token", "token"])
def test_without_permission_a_stranger_is_closed_at_the_first_byte(stage, environment):
    manager = stage.manager(environment=harness.clean_environment(TASKD_LOG_LEVEL="debug", **environment), wait=False)
    wait_until(lambda: manager.require_alive() and "answers gRPC" in manager.log(), "the manager is ready")
    threads = figures(manager)[2]
    peers = Peers("silence", manager.port, 100)
    assert figures(manager)[2] < threads + 40
    assert peers.closed(wait=True) == 100
    assert "in plain text is closed: --allow-plaintext" in manager.log()
    assert manager.status()["wanted"] is not None
    if not environment:
        assert manager.modify(step="on") == 200, "its own user is served"


def test_what_strangers_hold_is_given_back(servers):
    """Peers that neither end their calls nor read are closed in time, and there is room again."""
    manager = servers["manager"]
    for _ in range(3):
        Peers("unfinished", manager.port, 128).closed()
    peers = Peers("big_headers", manager.port, 128)
    assert manager.status()["wanted"] is not None
    peers.closed()
    wait_until(lambda: manager.get()[0] == 200, "clients in plain text are served")
