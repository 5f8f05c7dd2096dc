"""Who may speak at the port of a job's store: over loopback this user, root and those whom ranks run as; as node 0 the launcher
that hosts the store alone; as a tier whoever proves TASKD_TOKEN."""
import json
import socket
import ssl
import struct
import subprocess

import harness
import ports
import pytest
from deadlines import HANG_S
from harness import PYTHON, wait_until
from launchers import OWN_PORTS
from stores import StoreProcess
from strangers import LIB, STRANGER, VICTIM, host  # noqa: F401
from tcpstore import StoreClosed, TCPStore

root_only = pytest.mark.root("processes of other users")
HELLO, REQUEST, WAIT, PING = 1, 2, 6, 18  # kinds of frames, and operations (store/tier_frame.h, store/request.h)
TIER_PROTOCOL = 2

# What somebody says at the port, and what comes of it: "closed", or the answer's first bytes.
SAY = """
import socket, struct, sys
port, how = int(sys.argv[1]), sys.argv[2]
text = lambda value: struct.pack("=Q", len(value)) + value
validate = b"\\0" + struct.pack("=I", 0x3C85F7CE)
hello = struct.pack("=BBBQQq", 1, 18, 0, 0, 0, 2) + bytes(12)
says = {"client": validate + b"\\x0d" + struct.pack("=I", 7), "gone": validate + b"\\x01" + text(b"/gone") + text(b"value"),
        "tier": b"\\0TKS1" + struct.pack("=I", len(hello)) + hello, "launcher": b"\\0TKL1"}[how]
connection = socket.create_connection(("127.0.0.1", port), timeout=120)
try:
    connection.sendall(says)
    if how == "gone":
        sys.exit()
    print(connection.recv(100) or "closed")
except OSError as error:
    print("closed" if not isinstance(error, TimeoutError) else "open")
"""

RANK = """
import os, sys, time
sys.path.insert(0, %r)
from tcpstore import TCPStore
with TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as store:
    store.set("here", str(os.geteuid()))
    assert store.get("here") == str(os.geteuid()).encode()
    while not os.path.exists("/tmp/open/go"):
        time.sleep(0.02)
    assert not store.check(["gone"]), "a stranger has written a key"
""" % LIB


def start_job(host, uid, *command, **environment):
    """A job of one node, whose rank runs; its launcher and the port of its store."""
    host.sh(0, "mkdir -p -m 777 /tmp/open && cat > /tmp/open/rank.py <<'EOF'\n" + RANK + "\nEOF\nchmod 644 /tmp/open/rank.py")
    port = ports.free_port()
    job = host.start(uid, "job", "run", "--nproc-per-node=1", f"--master-port={port}", "--no-python", *command, PYTHON,
                     "/tmp/open/rank.py", TASKD_MANAGER="off", **OWN_PORTS, **environment)
    here = "from tcpstore import TCPStore; import sys; TCPStore('127.0.0.1', int(sys.argv[1])).get('here')"
    wait_until(lambda: job.require_alive() and host.run(uid, "env", f"PYTHONPATH={LIB}", PYTHON, "-c", here, str(port)).returncode == 0,
               "the rank runs")
    return job, port


@root_only
@pytest.mark.parametrize("how", ["client", "tier", "launcher"])
def test_over_loopback_strangers_are_not_answered(host, how):
    job, port = start_job(host, VICTIM)
    assert host.run(STRANGER, PYTHON, "-c", SAY, str(port), how).stdout == "closed\n"
    wait_until(lambda: f"user {STRANGER}" in job.log(), "the log says who was refused")
    host.sh(0, "touch /tmp/open/go")
    assert job.wait() == 0, job.log()


@root_only
def test_who_is_gone_when_it_is_looked_at_has_not_spoken(host):
    job, port = start_job(host, VICTIM)
    for _ in range(20):
        assert host.run(STRANGER, PYTHON, "-c", SAY, str(port), "gone").returncode == 0
    host.sh(0, "touch /tmp/open/go")
    assert job.wait() == 0, job.log()


@root_only
def test_whom_ranks_run_as_is_served(host):
    """A launcher of root's that starts ranks as another user."""
    job, port = start_job(host, 0, "setpriv", f"--reuid={VICTIM}", f"--regid={VICTIM}", "--clear-groups")
    assert host.run(STRANGER, PYTHON, "-c", SAY, str(port), "client").stdout == "closed\n"
    assert host.run(VICTIM, PYTHON, "-c", SAY, str(port), "client").stdout != "closed\n"
    for how in ("tier", "launcher"):
        assert host.run(VICTIM, PYTHON, "-c", SAY, str(port), how).stdout == "closed\n", how
    host.sh(0, "touch /tmp/open/go")
    assert job.wait() == 0, job.log()


class Launcher:
    """A launcher without a secret, which believes whoever answers."""

    def __init__(self, port, **info):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="job.taskd")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        self.socket.sendall(b"\0TKL1")
        self.frames, self.plain = b"", b""
        self.do(self.tls.do_handshake)
        body = json.dumps({"type": "join", "run_id": "none", "version": version(), "host": "mine", "pid": 1, "node_rank": -1,
                           "local_world_size": 1, "role": "default", "min_nodes": 1, "max_nodes": 1, "max_restarts": 0,
                           "nonce": "", "tier_port": 0, **info}).encode()
        self.do(lambda: self.tls.write(struct.pack("=I", len(body)) + body))

    def flush(self):
        sealed = self.outgoing.read()
        if sealed:
            self.socket.sendall(struct.pack("=I", len(sealed)) + sealed)

    def do(self, step):
        while True:
            try:
                result = step()
                self.flush()
                return result
            except ssl.SSLWantReadError:
                self.flush()
                piece = self.socket.recv(65536)
                if not piece:
                    raise StoreClosed("closed") from None
                self.frames += piece
                while len(self.frames) >= 4 and len(self.frames) >= 4 + struct.unpack_from("=I", self.frames)[0]:
                    size = 4 + struct.unpack_from("=I", self.frames)[0]
                    self.incoming.write(self.frames[4:size])
                    self.frames = self.frames[size:]

    def answer(self):
        while len(self.plain) < 4 or len(self.plain) < 4 + struct.unpack_from("=I", self.plain)[0]:
            self.plain += self.do(lambda: self.tls.read(65536))
        size = 4 + struct.unpack_from("=I", self.plain)[0]
        body, self.plain = self.plain[4:size], self.plain[size:]
        return json.loads(body)


def version():
    return subprocess.run([harness.TASKD, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def test_who_says_that_it_is_node_0_is_not(jobs):
    """Before node 0's own launcher has joined, and after it."""
    port = ports.free_port()
    node = jobs.static(0, port, procs=1, environment={"TASKD_MANAGER": None})
    # From the first moment that the port listens.
    answers = []
    while len(answers) < 5:
        try:
            stranger = Launcher(port, node_rank=0, min_nodes=2, max_nodes=2)
            answers.append(stranger.answer())
            stranger.socket.close()
        except ConnectionRefusedError:
            node.require_alive()
    assert {answer["type"] for answer in answers} == {"refused"}, answers
    assert all("--node-rank 0 is" in answer["text"] for answer in answers), answers
    other = jobs.static(1, port, procs=1, environment={"TASKD_MANAGER": None})
    assert node.wait() == 0, node.log()
    assert other.wait() == 0, other.log()


def test_who_is_refused_asks_once(jobs):
    """Or the answers that it does not read would be kept."""
    port = ports.free_port()
    node = jobs.static(0, port, procs=1)
    stranger = None
    while stranger is None:
        try:
            stranger = Launcher(port, run_id="another", min_nodes=2, max_nodes=2)
        except ConnectionRefusedError:
            node.require_alive()
    assert stranger.answer()["type"] == "refused"
    with pytest.raises(StoreClosed):
        stranger.answer()
    other = jobs.static(1, port, procs=1)
    assert node.wait() == 0, node.log()
    assert other.wait() == 0, other.log()


def test_of_an_elastic_job_node_0_is_the_stores_launcher(jobs):
    port = ports.free_port()
    node = jobs.elastic("first", port, action=("wait",))
    joined = None
    while joined is None:
        try:
            joined = Launcher(port, min_nodes=1, max_nodes=2)
        except ConnectionRefusedError:
            node.require_alive()
    while (answer := joined.answer())["type"] != "start":
        assert answer["type"] in ("waiting", "ping", "stop"), answer
    assert answer["group_rank"] == 1
    joined.socket.close()
    jobs.put("go")
    assert node.wait() == 0, node.log()


NAMES = """
import socket, sys
held = []
for name in ["taskd-manager-starts", *(f"taskd-manager-at-{port}" for port in range(9601, 9711))]:
    held.append(socket.socket(socket.AF_UNIX))
    try:
        held[-1].bind("\\0" + name)
    except OSError:  # another test's launcher has it
        pass
print("bound", flush=True)
sys.stdin.read()
"""


@root_only
def test_names_that_a_stranger_has_take_no_ports(jobs):
    with subprocess.Popen(["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", PYTHON, "-c", NAMES],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as stranger:
        assert stranger.stdout.readline() == "bound\n"
        job = jobs.static(0, ports.free_port(), nodes=1, procs=1, environment={"TASKD_MANAGER": None})
        assert job.wait() == 0
        stranger.stdin.close()
    assert "no free port" not in job.log()
    assert "no manager" not in job.log()


# Tiers.

def strings(*values):
    return struct.pack("=I", len(values)) + b"".join(struct.pack("=I", len(value)) + value for value in values)


def hello(*values):
    body = struct.pack("=BBBQQq", HELLO, PING, 0, 0, 0, TIER_PROTOCOL) + strings() + strings(*values) + strings()
    return struct.pack("=I", len(body)) + body


def store_with_token(stage, name, token, **arguments):
    store = StoreProcess(stage.folder, name=name, prefix=("env", f"TASKD_TOKEN={token}"), **arguments)
    stage.processes.append(store)
    return store


def test_a_tier_proves_the_token(stage):
    root = store_with_token(stage, "root", "the-jobs-own-token")
    tier = store_with_token(stage, "tier", "the-jobs-own-token", upstream=root.address)
    with tier.client() as writer, root.client() as reader:
        writer.set("key", "value")
        assert reader.get("key") == b"value"
    below = store_with_token(stage, "below", "the-jobs-own-token", upstream=tier.address)
    with below.client() as reader:
        assert reader.get("key") == b"value"
    store_with_token(stage, "stranger", "another", upstream=root.address)
    wait_until(lambda: "another TASKD_TOKEN" in root.log(), "the root says why it refuses the other one")


@pytest.mark.parametrize("says", [b"", hello(), hello(b"x" * 32), hello(b"x"), hello(b"x" * 32, b"y")],
                         ids=["nothing more", "hello", "guess", "short", "two"])
def test_without_a_proof_a_tier_has_asked_nothing(stage, says):
    root = store_with_token(stage, "root", "the-jobs-own-token")
    with TCPStore("127.0.0.1", root.port) as good, socket.create_connection(("127.0.0.1", root.port), timeout=HANG_S) as tier:
        good.ping(1)
        before = root.stats()["requests"]
        waits = [struct.pack("=BBBQQq", REQUEST, WAIT, 0, number, 0, 0) + strings(b"key") + strings() + strings()
                 for number in range(1000)]
        tier.sendall(b"\0TKS1" + hello() + says + b"".join(struct.pack("=I", len(wait)) + wait for wait in waits))
        received = b""
        try:
            while piece := tier.recv(65536):
                received += piece
        except ConnectionResetError:
            pass
        assert len(received) <= len(hello(b"x" * 32))
        assert good.check(["key"]) is False
        seen = root.wait_stats(lambda stats: stats["tiers"] == 0 and stats["requests"] > before, "the tier is gone")
        assert seen["requests"] <= before + 1

