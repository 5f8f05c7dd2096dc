"""Where the nodes of a job meet, attacked by strangers and by a node that has the secret: the job link and the route
agreement (gRPC to the manager), remote commands, and the rendezvous of launchers (frames of TLS on the store's port)."""
import contextlib
import json
import re
import socket
import ssl
import struct
import tempfile
import threading

import grpc
import harness
import ports
import pytest
import stubs
from deadlines import HANG_S
from harness import peak_bytes, wait_until
from launchers import wait_log
from streams import Stream

MIB = 1 << 20
JOIN, REMOTE, AGREE = "/taskd.v1.JobLink/Join", "/taskd.v1.JobLink/Remote", "/taskd.v1.RouteAgreement/Agree"
SECRET = "the-secret-of-this-job"
# An escape sequence, a bell, C1, right-to-left override and isolates.
EVIL = "a\x1b[2J\x07\x9b31m\u202egnp\u2066x\u2069"
EVIL_BYTES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def secret_manager(stage):
    """With a secret of its own, so remote commands are allowed."""
    manager = stage.manager(environment=harness.clean_environment(TASKD_TOKEN=SECRET), wait=False)
    wait_until(lambda: manager.require_alive() and socket.socket().connect_ex(("127.0.0.1", manager.port)) == 0, "it listens")
    return manager


@pytest.fixture
def peer():
    """Streams that are closed with the test: peer.join(manager, index, nodes), peer.call(manager, host, command)."""
    made = Peers()
    yield made
    made.close()


class Peers:
    def __init__(self):
        self.messages = stubs.job_link()[0]
        self.routes = stubs.route_agreement()[0]
        self.open = contextlib.ExitStack()
        self.channels = {}

    def close(self):
        self.open.close()

    def channel(self, manager):
        if manager not in self.channels:
            # A window that does not grow: what nobody here reads stays with the manager.
            self.channels[manager] = manager.secure_channel(options=[("grpc.http2.bdp_probe", 0)])
            self.open.callback(self.channels[manager].close)
        return self.channels[manager]

    def stream(self, manager, method, answer, *messages):
        stream = Stream(self.channel(manager), method, messages, answer)
        self.open.callback(stream.close)
        return stream

    def report(self, index, nodes, name="node", run_id=None, plan="p", **more):
        return self.messages.NodeReport(join=self.messages.JoinJob(index=index, nodes=nodes, name=name, run_id=run_id or f"run-{index}",
                                                                   plan=plan, **more))

    def join(self, manager, *arguments, **more):
        return self.stream(manager, JOIN, self.messages.JobNotice, self.report(*arguments, **more))

    def call(self, manager, host, command="true"):
        start = self.messages.RemoteInput(start=self.messages.RemoteStart(host=host, command=command))
        return self.stream(manager, REMOTE, self.messages.RemoteOutput, start)

    def output(self, id, **output):
        return self.messages.NodeReport(remote=self.messages.RemoteReport(id=id, output=self.messages.RemoteOutput(**output)))

    def vote(self, manager, **proposal):
        vote = self.routes.RouteVote(proposal=self.routes.RouteProposal(**proposal))
        return self.stream(manager, AGREE, self.routes.RouteVerdict, vote)


def orders(stream, kind):
    """The next of that kind."""
    while True:
        notice = stream.next()
        if notice.WhichOneof("kind") == "remote" and notice.remote.WhichOneof("kind") == kind:
            return notice.remote


def require_job_works(peer, manager):
    """A job of two nodes from its beginning to its end, once what was before is over."""
    tries = []

    def joins():
        tries.append(None)
        nodes = [peer.join(manager, index, 2, run_id=f"honest-{index}-{len(tries)}", plan="honest") for index in (0, 1)]
        for node in nodes:
            notice = node.next()
            while notice.WhichOneof("kind") == "state" and not notice.state.all_joined:
                notice = node.next()
            if notice.WhichOneof("kind") != "state":
                for one in nodes:
                    one.close()
                return None
        return nodes
    nodes = wait_until(joins, "both nodes join", interval_s=0.5)
    for node in nodes:
        node.say(peer.messages.NodeReport(ended=peer.messages.NodeEnded(code=0)))
    for node in nodes:
        notice = node.next()
        while notice.WhichOneof("kind") != "end":
            notice = node.next()
        assert notice.end.code == 0
        node.close()
    assert manager.status()


# Job link and route agreement.

@pytest.mark.parametrize("speaks", ["plain", "another secret"])
def test_a_stranger_gets_nothing_from_the_links(secret_manager, peer, speaks):
    channel = grpc.insecure_channel(secret_manager.address) if speaks == "plain" else \
        harness.secure_channel(secret_manager.address, "of another job")
    start = peer.messages.RemoteInput(start=peer.messages.RemoteStart(host="a", command="true"))
    proposal = peer.routes.RouteVote(proposal=peer.routes.RouteProposal(nodes=1, table_digest="0" * 64))
    with channel:
        for method, message in ((JOIN, peer.report(0, 1, name="stranger")), (REMOTE, start), (AGREE, proposal)):
            stream = Stream(channel, method, [message], peer.messages.JobNotice)
            with pytest.raises(grpc.RpcError) as refused:
                stream.next()
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED,
                                            grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
            stream.close()
    assert "stranger" not in secret_manager.log()
    require_job_works(peer, secret_manager)


def test_a_node_that_says_it_is_another(secret_manager, peer):
    before = peak_bytes(secret_manager)
    honest = peer.join(secret_manager, 0, 2, name="honest", run_id="honest")
    assert honest.next().state.first_joined
    for _ in range(3):
        assert "is taken by node 0 (honest)" in peer.join(secret_manager, 0, 2, name="false").next().refused
    for index, nodes, name, why in ((1, 2**32 - 1, "n", "nodes: 4294967295 is not 1 to 65536"), (2**32 - 1, 2, "n", "index"),
                                    (67, 2, "n", "index: 67"), (1, 0, "n", "nodes: 0"), (1, 65536, "n", ""),
                                    (1, 2, "n" * 257, "257 bytes"), (1, 2, "n" * (4 * MIB - 1000), "are more than 256")):
        answer = peer.join(secret_manager, index, nodes, name=name).next()
        assert answer.WhichOneof("kind") == "refused" and why in answer.refused
    assert "plan" in peer.join(secret_manager, 1, 2, plan="p" * MIB).next().refused
    # A second join on the same stream is nothing.
    honest.say(peer.report(1, 2, name="second"))
    other = peer.join(secret_manager, 1, 2)
    assert other.next().state.all_joined
    # What is not of a node of the attempt changes nothing: mpirun calls of another than node 0, wrong codes and ids.
    other.say(peer.messages.NodeReport(mpirun=peer.messages.MpirunCall(number=1)))
    for id in (0, 1, 2**64 - 1):
        other.say(peer.output(id, ended=0))
        other.say(peer.output(id, out=b"x" * 65536))
    other.say(peer.messages.NodeReport(ended=peer.messages.NodeEnded(code=-2**31, reason="r" * MIB)))
    notice = honest.next()
    while notice.WhichOneof("kind") == "state":
        notice = honest.next()
    assert notice.WhichOneof("kind") == "end" and notice.end.code == 1 and len(notice.end.reason) <= 1024
    honest.close()
    other.close()
    assert peak_bytes(secret_manager) - before < 64 * MIB
    require_job_works(peer, secret_manager)


def test_what_a_name_holds_moves_no_terminal(stage, secret_manager, peer):
    node = peer.join(secret_manager, 0, 1, name=EVIL + "\n2026-01-01T00:00:00.000 error manager: false line", remote_start=False)
    assert node.next().state.all_joined
    vote = peer.vote(secret_manager, nodes=1, index=0, table_digest="0" * 64, reason=EVIL)
    assert not EVIL_BYTES.search(vote.next().identity)
    environment = {**harness.clean_environment(TASKD_TOKEN=SECRET, TASKD_MANAGER=secret_manager.address), "LC_ALL": "C.UTF-8"}
    for host in (EVIL, "gnp"):
        done = stage.run("rsh", host, "true", environment=environment)
        assert done.returncode == 255 and not EVIL_BYTES.search(done.stderr) and done.stderr.count("\n") == 1
    log = secret_manager.log()
    assert "joins: a" in log and not EVIL_BYTES.search(log)
    assert not re.search(r"^\S+ error manager: false line", log, re.M)


def test_calls_of_mpirun_are_bounded(secret_manager, peer):
    """8,192 that begin and end, of which each other node hears, whether it reads or not."""
    before = peak_bytes(secret_manager)
    first = peer.join(secret_manager, 0, 2)
    assert first.next().state.first_joined
    other = peer.join(secret_manager, 1, 2)
    assert other.next().state.all_joined
    for number in range(16_385):
        first.say(peer.messages.NodeReport(mpirun=peer.messages.MpirunCall(number=number)))
    for node in (first, other):
        notice = node.next()
        while notice.WhichOneof("kind") != "end":
            notice = node.next()
        assert "has called mpirun more than 8192 times" in notice.end.reason
        assert peak_bytes(secret_manager) - before < 64 * MIB
        node.close()
    require_job_works(peer, secret_manager)


def test_calls_of_mpirun_are_kept_once(secret_manager, peer):
    """And not for each node that does not read them."""
    nodes = 64
    first = peer.join(secret_manager, 0, nodes)
    others = [peer.join(secret_manager, index, nodes) for index in range(1, nodes)]
    for node in (first, *others):
        node.next()
    before = peak_bytes(secret_manager)
    for number in range(16_384):
        first.say(peer.messages.NodeReport(mpirun=peer.messages.MpirunCall(number=number)))
    last = others.pop()
    heard = []
    while len(heard) < 16_384:
        notice = last.next()
        if notice.WhichOneof("kind") == "mpirun":
            heard.append(notice.mpirun.number)
    assert heard == list(range(16_384))
    assert peak_bytes(secret_manager) - before < 24 * MIB


# Remote commands.

def test_commands_of_a_node_are_bounded(secret_manager, peer):
    """Thousands at a time would be as many processes of that node's user."""
    before = peak_bytes(secret_manager)
    node = peer.join(secret_manager, 0, 2, name="a", remote_start=True)
    other = peer.join(secret_manager, 1, 2, name="b", remote_start=False)
    node.next(), other.next()
    assert peer.call(secret_manager, "b").code() == grpc.StatusCode.PERMISSION_DENIED
    taken = [peer.call(secret_manager, "a", f"command {number}") for number in range(256)]
    started = [orders(node, "start") for _ in taken]
    refused = [peer.call(secret_manager, "a") for _ in range(1500)]
    for call in refused:
        assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused[0].call.details() == "node 0 (a) runs 256 commands of other nodes, and 256 at a time is the most"
    # Replies of another node, and of ids that are none.
    other.say(peer.output(started[0].id, ended=3))
    node.say(peer.output(2**64 - 1, ended=4))
    node.say(peer.output(started[0].id, ended=5))
    ended = [call for call in taken if started[0].start == "command " + str(taken.index(call))][0]
    assert ended.next().ended == 5 and ended.code() == grpc.StatusCode.OK
    again = peer.call(secret_manager, "a", "again")
    assert orders(node, "start").start == "again"
    again.close()
    assert orders(node, "cancel")
    assert peak_bytes(secret_manager) - before < 64 * MIB


def test_output_that_nobody_reads_is_bounded(secret_manager, peer):
    """Each command may leave 16 MiB unread, whether it has ended or not; all of them together 128."""
    before = peak_bytes(secret_manager)
    node = peer.join(secret_manager, 0, 1, name="a", remote_start=True)
    node.next()
    calls = [peer.call(secret_manager, "a", f"{number}") for number in range(40)]
    ids = [orders(node, "start").id for _ in calls]
    chunk = b"x" * 65536
    for id in ids:
        for _ in range(128):
            node.say(peer.output(id, out=chunk))
        node.say(peer.output(id, ended=0))
    last = peer.call(secret_manager, "a", "last")
    id = orders(node, "start").id
    node.say(peer.output(id, out=b"here"))
    node.say(peer.output(id, ended=7))
    assert last.next().out == b"here" and last.next().ended == 7
    assert peak_bytes(secret_manager) - before < (128 + 64) * MIB
    assert {call.code() for call in calls} == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all("more than 128 MiB" in call.call.details() for call in calls
               if call.call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED)


# The rendezvous.

class Launcher:
    """A node's side of the rendezvous. `secret` None: proves nothing."""

    def __init__(self, port, secret=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if secret:
            pem = harness.job_certificates(secret)
            with tempfile.NamedTemporaryFile() as file:
                file.write((pem["certificate"] + pem["key"]).encode())
                file.flush()
                context.load_cert_chain(file.name)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        self.socket.sendall(b"\0TKL1")
        self.buffer = b""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush()
                self.receive()
        self.flush()

    def exactly(self, count):
        got = b""
        while len(got) < count:
            part = self.socket.recv(count - len(got))
            if not part:
                raise EOFError
            got += part
        return got

    def receive(self):
        self.incoming.write(self.exactly(struct.unpack("<I", self.exactly(4))[0]))

    def flush(self):
        sealed = self.outgoing.read()
        for at in range(0, len(sealed), 60_000):
            part = sealed[at:at + 60_000]
            self.socket.sendall(struct.pack("<I", len(part)) + part)

    def raw(self, plain):
        self.tls.write(plain)
        self.flush()

    def send(self, message):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.raw(struct.pack("<I", len(body)) + body)

    def next(self):
        """The next message; EOFError: it was closed."""
        while True:
            if len(self.buffer) >= 4 and len(self.buffer) >= 4 + struct.unpack("<I", self.buffer[:4])[0]:
                size = struct.unpack("<I", self.buffer[:4])[0]
                body, self.buffer = self.buffer[4:4 + size], self.buffer[4 + size:]
                return json.loads(body)
            try:
                part = self.tls.read(65536)
                if not part:
                    raise EOFError
                self.buffer += part
            except ssl.SSLWantReadError:
                self.receive()

    def is_closed(self):
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError, ssl.SSLError):
            return True

    def close(self):
        self.socket.close()


@pytest.fixture
def root(jobs):
    """Node 0 of a job of two that has the secret: it waits for node 1."""
    port = ports.free_port()
    process = jobs.static(0, port, procs=1, environment={"TASKD_TOKEN": SECRET})
    process.port = port
    wait_until(lambda: process.require_alive() and socket.socket().connect_ex(("127.0.0.1", port)) == 0, "node 0 listens")
    return process


def join_message(version, node_rank=1, **changes):
    return {"type": "join", "run_id": "none", "version": version, "host": "evil", "pid": 1, "node_rank": node_rank,
            "local_world_size": 1, "role": "default", "min_nodes": 2, "max_nodes": 2, "max_restarts": 0,
            "tier_port": 0, **changes}


@contextlib.contextmanager
def launcher(root, secret=SECRET):
    made = Launcher(root.port, secret)
    try:
        yield made
    finally:
        made.close()


def learn(root):
    """The version and run id that a join needs, as the root's refusals say them."""
    with launcher(root) as one:
        one.send(join_message("v"))
        run_id = re.search(r"and '(.*)' at the launcher", one.next()["text"])
        run_id = run_id[1] if run_id else "none"
    with launcher(root) as one:
        one.send(join_message("v", run_id=run_id))
        return run_id, re.search(r"here and (\S+) at the launcher", one.next()["text"])[1]


def finish(jobs, root):
    other = jobs.static(1, root.port, procs=1, environment={"TASKD_TOKEN": SECRET})
    assert other.wait() == 0 and root.wait() == 0, root.log()


def test_a_launcher_without_the_secret_gets_nothing(jobs, root):
    for secret in (None, "of another job"):
        with contextlib.suppress(EOFError, ConnectionError, ssl.SSLError), launcher(root, secret) as stranger:
            stranger.send(join_message("v"))
            pytest.fail(f"a stranger was told {stranger.next()}")
    wait_log(root, "TASKD_TOKEN")
    finish(jobs, root)


def test_launchers_with_the_secret_that_lie(jobs, root):
    before = peak_bytes(root)
    run_id, version = learn(root)
    join = join_message(version, run_id=run_id)
    # Node rank 0 is there.
    for _ in range(3):
        with launcher(root) as again:
            again.send({**join, "node_rank": 0, "host": EVIL})
            answer = again.next()
            assert answer["type"] == "refused" and "--node-rank 0 is taken" in answer["text"]
            assert again.is_closed()
    # Counts that nobody has, other types, nothing at all.
    counts = [(name, value) for name in ("local_world_size", "node_rank", "min_nodes", "max_nodes", "pid", "tier_port")
              for value in (2**31 - 1, 2**31, -2**31, 2**63, 2**64, 1.5, "1", None)
              if not (name == "pid" and value == 2**31 - 1)]
    for name, value in counts:
        with launcher(root) as liar:
            liar.send({**join, name: value})
            assert liar.is_closed(), (name, value)
    for body in (b"", b"{}", b"[]", b"\xff" * 100, b'{"type":"join"', b'{"type":"pong","id":-1}', b'{"type":"start"}'):
        with launcher(root) as liar:
            liar.send(body)
            assert liar.is_closed(), body
    # What only a node that has joined may say is heard from nobody else.
    with launcher(root) as liar:
        for message in ({"type": "leave", "signal": 15}, {"type": "succeeded", "round": 0}, {"type": "stacks", "id": 1, "text": "x"}):
            liar.send(message)
        liar.send({**join, "version": "v"})
        assert liar.next()["type"] == "refused"
    assert peak_bytes(root) - before < 64 * MIB
    finish(jobs, root)


def test_frames_cut_anywhere(jobs, root):
    before = peak_bytes(root)
    run_id, version = learn(root)
    body = json.dumps(join_message(version, run_id=run_id, node_rank=0)).encode()
    whole = struct.pack("<I", len(body)) + body
    for cut in [*range(1, 8), len(whole) // 2, len(whole) - 1]:
        with launcher(root) as one:  # cut, and gone
            one.raw(whole[:cut])
        with launcher(root) as one:  # cut, and the rest
            one.raw(whole[:cut])
            one.raw(whole[cut:])
            assert "is taken" in one.next()["text"]
    for length in (2**31 - 1, 2**31, 2**32 - 1, 65 * 1024):
        with launcher(root) as one:
            one.raw(struct.pack("<I", length))
            assert one.is_closed()
        with launcher(root) as one:  # the frame outside of TLS
            one.socket.sendall(struct.pack("<I", length))
            assert one.is_closed()
    assert peak_bytes(root) - before < 64 * MIB
    finish(jobs, root)


def test_launchers_that_join_and_leave(jobs, root):
    before = peak_bytes(root)
    run_id, version = learn(root)
    threads = []

    def turn():
        for _ in range(5):
            with launcher(root) as one:
                one.send(join_message(version, run_id=run_id, node_rank=5))
                assert "--node-rank is 5" in one.next()["text"]
    for _ in range(4):
        threads.append(threading.Thread(target=turn))
        threads[-1].start()
    for thread in threads:
        thread.join()
    with contextlib.suppress(ConnectionError), launcher(root) as one:  # never reads what it is told
        for _ in range(2000):
            one.send(join_message(version, run_id="r" * 4000))
    assert peak_bytes(root) - before < 64 * MIB
    finish(jobs, root)


def test_a_node_that_joins_floods_and_goes(jobs, root):
    """With the secret it can fail the job, which says so; nothing of what it says is kept, or moves a terminal."""
    before = peak_bytes(root)
    run_id, version = learn(root)
    with launcher(root) as one:
        one.send(join_message(version, run_id=run_id, host=EVIL))
        while one.next()["type"] != "start":
            pass
        for number in range(40):
            one.send({"type": "stacks", "id": number, "text": "x" * MIB})
            one.send({"type": "succeeded", "round": 2**31 - 1})
            one.send({"type": "stopped", "round": 2**31 - 1})
            one.send({"type": "pong", "id": 2**63 - 1})
        one.send({"type": "event", "event": "ended", "round": 0, "rank": 1, "node": 1, "pid": 1,
                  "code": 1, "signal": 0, "reason": EVIL, "time_ns": 1})
        assert peak_bytes(root) - before < 64 * MIB
    assert root.wait() == 1
    assert "connection to its launcher is gone" in root.log()
    assert not EVIL_BYTES.search(root.log()), ascii(root.log())
    assert len(root.log()) < MIB


def test_nodes_that_never_read_or_come_and_go(secret_manager, peer):
    before = peak_bytes(secret_manager)
    for turn in range(500):
        stream = peer.join(secret_manager, turn % 2, 2, run_id=f"turn-{turn}", addresses=["a" * 256] * 64)
        if turn % 5 == 0:
            stream.next()
        stream.close()
        vote = peer.vote(secret_manager, nodes=65536 if turn % 2 else 2, index=turn % 2, table_digest="0" * 64, reason="r" * 10_000)
        if turn % 5 == 0:
            vote.next()
        vote.close()
    peer.join(secret_manager, 3, 4, run_id="silent")  # stays, and never reads
    assert peak_bytes(secret_manager) - before < 64 * MIB
    peer.close()
    require_job_works(Peers(), secret_manager)
