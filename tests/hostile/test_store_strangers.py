"""What somebody who reaches a store's port can make it hold that no limit of a single request bounds: answers that nobody reads, writes
that never ask, memory that costs more than its bytes on the wire, and connections that ask something each.
"""
import socket
import subprocess

import deadlines
import ports
import pytest
from harness import PYTHON, peak_bytes, resident_bytes, wait_until
from stores import StoreProcess
from tcpstore import StoreClosed, text, texts, u32, u64, VALIDATE_MAGIC

MIB = 1 << 20
VALIDATE = b"\0" + u32(VALIDATE_MAGIC)
LIMIT_MIB = 64
STRANGER = 2002
# Connections that ask once and stay, until stdin ends. "made" is printed once each was served or closed, or one got no answer.
FLOOD = """
import socket, sys
SILENCE_S = 2  # after it no answer is awaited any more; a slow store only makes the flood come sooner
port, count, request, answer = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), int(sys.argv[4])
held = []
for _ in range(count):
    held.append(socket.create_connection(("127.0.0.1", port)))
    held[-1].settimeout(SILENCE_S)
    try:
        held[-1].sendall(request)
        held[-1].recv(answer)
    except TimeoutError:
        answer = 0
    except OSError:
        pass
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def small(stage):
    process = StoreProcess(stage.folder, flags=("--memory-limit-mb", str(LIMIT_MIB), "--stats-s", "0.05"), name="small")
    stage.processes.append(process)
    return process


@pytest.fixture(params=["root", "tier"])
def place(stage, request, small):
    """A root that may take 64 MiB, or a tier below it that may, too."""
    if request.param == "root":
        return small
    process = StoreProcess(stage.folder, upstream=small.address, flags=("--memory-limit-mb", str(LIMIT_MIB), "--stats-s", "0.05"),
                           name="tier")
    stage.processes.append(process)
    return process


def resident_mib(process):
    return resident_bytes(process) / MIB


class Strangers:
    """Connections that send something and read nothing."""

    def __init__(self, process):
        self.port, self.connections = process.port, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.connections:
            connection.close()

    def send(self, data):
        connection = socket.socket()
        connection.settimeout(deadlines.HANG_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # or the kernel takes much of an answer
        connection.connect(("127.0.0.1", self.port))
        self.connections.append(connection)
        try:
            connection.sendall(data)
        except OSError:  # it was closed meanwhile
            pass


def test_answers_that_nobody_reads(place):
    """Sixty times a key of 9 MiB: 540 MiB of answers in a store that may have 64. Who asks for little is served all the time."""
    with place.client() as good, Strangers(place) as strangers:
        good.set("big", b"x" * (9 * MIB - 1))
        good.set("little", "value")
        assert good.get("little") == b"value"
        for _ in range(60):
            strangers.send(VALIDATE + b"\x03" + text("/big"))
            assert good.add("count", 1) > 0
            assert good.get("little") == b"value"
        assert peak_bytes(place) < 3 * LIMIT_MIB * MIB


def test_who_does_not_read_is_closed_where_others_wait(small):
    with small.client() as good, Strangers(small) as strangers:
        good.set("big", b"x" * (9 * MIB - 1))
        good.ping(1)
        for _ in range(3):
            strangers.send(VALIDATE + b"\x03" + text("/big"))
            good.ping(2)
        assert len(good.get("big")) == 9 * MIB - 1
    assert "has not read its answers" in small.log()


def test_long_lists_of_many_readers(small):
    """One big answer a round: who asks for little is not behind all of them."""
    with small.client() as good:
        names = [f"{n:06}" for n in range(120_000)]
        for at in range(0, len(names), 10_000):
            good.multi_set(names[at:at + 10_000], [b""] * 10_000)
        good.ping(1)
        with Strangers(small) as strangers:
            for _ in range(40):
                strangers.send(VALIDATE + b"\x11")
                good.ping(2)
            assert peak_bytes(small) < 3 * LIMIT_MIB * MIB
        assert len(good.list_keys()) == len(names)


def test_a_tier_forgets_the_writes_of_who_never_asks(stage):
    """Sixty bytes for each SET of a client that reads nothing were kept as long as the client."""
    root = StoreProcess(stage.folder, name="root")
    tier = StoreProcess(stage.folder, upstream=root.address, name="tier")
    stage.processes += [root, tier]
    with tier.client() as writer:
        writes = writer.bytes_of("SET", text("/key"), text("")) * 20_000

        # A portion is done before the next is sent: how much is under way at once is the machine's affair.
        def write(count):
            for _ in range(count // 20_000):
                seen = root.stats()["requests"]
                writer.send_bytes(writes)
                root.wait_stats(lambda stats, wanted=seen + 20_000: stats["requests"] >= wanted, "the root has them")
        write(100_000)
        before = resident_mib(tier)
        write(500_000)
        assert resident_mib(tier) - before < 12
        writer.ping(1)


# What costs far more than its bytes on the wire.

def queues(client):
    for at in range(0, 300_000, 1000):
        client.send_bytes(b"".join(client.bytes_of("QUEUE_PUSH", text(f"/q{n}"), text("")) for n in range(at, at + 1000)))
        client.ping(1)


def test_queues_of_one_element(small):
    with small.client() as writer, small.client() as good:
        with pytest.raises(StoreClosed):
            queues(writer)
        assert peak_bytes(small) < 2 * LIMIT_MIB * MIB
        for n in range(100):
            assert good.queue_pop(f"q{n}", block=False) == b""
        good.set("key", "value")
        assert good.get("key") == b"value"


@pytest.mark.longest_turn(250, "one request has about as many keys as it may")
def test_waits_for_short_keys(place):
    with place.client() as good, Strangers(place) as strangers:
        for number in range(20):
            strangers.send(VALIDATE + b"\x06" + texts([f"{number}-{n}" for n in range(100_000)]))
            good.ping(number)
        assert peak_bytes(place) < 3 * LIMIT_MIB * MIB
        good.set("key", "value")
        assert good.get("key") == b"value"


def test_half_a_request_of_empty_strings(small):
    with small.client() as good, Strangers(small) as strangers:
        for _ in range(40):
            strangers.send(VALIDATE + b"\x0b" + u64(120_000) + bytes(16 * 119_000))
            good.num_keys()
        assert peak_bytes(small) < 2 * LIMIT_MIB * MIB


def test_idle_connections_keep_no_buffer(small):
    with small.client() as good, Strangers(small) as strangers:
        before = resident_mib(small)
        for portion in range(1, 11):  # how much is under way at once is the machine's affair
            for _ in range(20):
                strangers.send(VALIDATE + b"\x01" + text("/same") + text(b"x" * 500_000))
                good.ping(1)
            small.wait_stats(lambda stats, done=40 * portion: stats["requests"] >= done, "all are executed")
        assert resident_mib(small) - before < 24


# Connections.

@pytest.fixture
def flood():
    """flood(port, count, request, answer): of another user."""
    children = []

    def start(port, count, request, answer):
        child = subprocess.Popen(["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", PYTHON, "-c", FLOOD,
                                  str(port), str(count), request.hex(), str(answer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True, cwd="/")
        children.append(child)
        assert child.stdout.readline() == "made\n"
    yield start
    for child in children:
        child.stdin.close()
        deadlines.wait_child(child)


@pytest.mark.root("another user")
def test_another_user_leaves_room_for_answers(place, flood):
    """However many readers he has, of which none reads."""
    with place.client() as good:
        good.set("big", b"x" * (9 * MIB - 1))
        good.ping(1)
        flood(place.port, 40, VALIDATE + b"\x03" + text("/big"), 0)
        for _ in range(3):
            assert len(good.get("big")) == 9 * MIB - 1
        assert good.add("count", 1) == 1
    assert "has not read its answers" not in place.log()
    assert peak_bytes(place) < 3 * LIMIT_MIB * MIB


PING = VALIDATE + b"\x0d" + u32(1)
BEGUN = {"ping": (PING, 4), "silent": (b"", 0), "as launchers": (b"\0TKL1", 0)}


@pytest.mark.root("another user")
@pytest.mark.parametrize("how", BEGUN)
def test_another_user_leaves_room_for_a_launcher(jobs, flood, how):
    """Far more connections than the store may have, each of which has asked something: nobody could join any more, ever."""
    port = ports.free_port()
    node = jobs.static(0, port, procs=1, prefix=("prlimit", "--nofile=300:300"))
    wait_until(lambda: node.require_alive() and socket.socket().connect_ex(("127.0.0.1", port)) == 0, "node 0 listens")
    flood(port, 600, *BEGUN[how])
    other = jobs.static(1, port, procs=1)
    assert other.wait(timeout_s=60) == 0 and node.wait(timeout_s=60) == 0
    assert f"user {STRANGER}" in node.log()


@pytest.mark.root("another user")
def test_own_connections_may_be_as_many_as_there_are_places(stage, flood):
    store = StoreProcess(stage.folder, prefix=("prlimit", "--nofile=300:300"))
    stage.processes.append(store)
    flood(store.port, 600, *BEGUN["ping"])
    mine = [store.client() for _ in range(80)]
    assert sorted(client.add("count", 1) for client in mine) == list(range(1, 81))
    for client in mine:
        client.close()
