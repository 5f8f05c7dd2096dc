"""What one peer of a store, or many, can make it keep, do or believe: tiers that break their protocol, requests whose replies are big,
values that grow, frames that are small and cost much, and connections that say nothing.
"""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct

import ports
import pytest
from deadlines import HANG_S
from harness import peak_bytes, wait_until
from stores import StoreProcess
from tcpstore import StoreClosed, text, texts, u32, u64, VALIDATE_MAGIC

MIB = 1 << 20
MAX_KEYS = 128 * 1024  # of one request
TIER_PROTOCOL = 2
# Such a request alone takes up to 76 ms on a busy machine: docs/security-model.md, "Loops over what a peer chose".
KEY_LIMIT = pytest.mark.longest_turn(250, "one request has about as many keys as it may")
HELLO, REQUEST, CANCEL, FORGET, ACKNOWLEDGE, WAKE_BACK, REPLY = range(1, 8)
OPS = {name: number for number, name in enumerate(
    ["SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "CANCEL_WAIT", "NUM_KEYS", "DELETE", "APPEND", "MULTI_GET", "MULTI_SET",
     "QUEUE_PUSH", "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS", "BARRIER", "PING"], 1)}


@pytest.fixture
def store(stage):
    process = StoreProcess(stage.folder)
    stage.processes.append(process)
    return process


@pytest.fixture(params=["root", "tier"])
def place(stage, request, store):
    """A root, or a tier below one."""
    if request.param == "root":
        return store
    process = StoreProcess(stage.folder, upstream=store.address, name="tier")
    stage.processes.append(process)
    return process


def connect(port, source="127.0.0.1"):
    connection = socket.socket()
    connection.settimeout(HANG_S)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


def is_closed(connection):
    """The server has ended it; what it sent before that is read."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def strings(values):
    return u32(len(values)) + b"".join(u32(len(v)) + v for v in (v.encode() if isinstance(v, str) else v for v in values))


def frame(kind, op="PING", number=0, keys=(), values=(), request=0):
    body = struct.pack("=BBBQQq", kind, OPS[op], 0, request, 0, number) + strings(keys) + strings(values) + u32(0)
    return u32(len(body)) + body


class Tier:
    """A peer that speaks as a tier."""

    def __init__(self, store):
        self.socket = connect(store.port)
        self.socket.sendall(b"\0TKS1" + frame(HELLO, number=TIER_PROTOCOL))
        self.answer()

    def ask(self, op, number=0, keys=(), values=(), request=0):
        self.socket.sendall(frame(REQUEST, op, number, keys, values, request))

    def answer(self):
        """(kind, request) of the next frame."""
        body = self.read(struct.unpack("=I", self.read(4))[0])
        return body[0], struct.unpack_from("=Q", body, 3)[0]

    def read(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise StoreClosed("closed")
            data += piece
        return data


# Ids that come again.

CALLS = {"wait": ("WAIT", 0, ["/key"]), "wait for two": ("WAIT", 0, ["/key", "/other"]), "barrier": ("BARRIER", 8, ["/count"])}


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
def test_an_id_that_is_under_way_ends_its_tier(place, first, second):
    with place.client() as good:
        tier = Tier(place)
        for op, number, keys in (CALLS[first], CALLS[second]):
            tier.ask(op, number, keys, request=5)
        assert is_closed(tier.socket)
        good.set("key", "")
        good.set("other", "")
        for _ in range(10):
            assert good.add("count", 1) > 0
        other = Tier(place)
        other.ask("WAIT", keys=["/key"], request=5)
        assert other.answer() == (REPLY, 5)
        other.ask("WAIT", keys=["/key"], request=5)  # it is over, so it may come again
        assert other.answer() == (REPLY, 5)
    assert place.alive()


def test_ids_of_what_is_cancelled_or_answered_may_come_again(place):
    with place.client() as good:
        tier = Tier(place)
        for _ in range(3):
            tier.ask("WAIT", keys=["/key"], request=7)
            tier.socket.sendall(frame(CANCEL, request=7))
        tier.ask("WAIT", keys=["/key"], request=7)
        good.set("key", "")
        assert tier.answer() == (REPLY, 7)


# Replies.

def test_one_small_request_for_a_big_reply(place):
    """4,096 times a key of 1 MiB: a reply of 4 GiB, of which the store holds little, and others are served meanwhile."""
    with place.client() as good, place.client() as greedy:
        greedy.set("big", b"x" * MIB)
        assert len(greedy.get("big")) == MIB
        before = peak_bytes(place)
        greedy.send("MULTI_GET", texts(["/big"] * 4096))
        for _ in range(50):
            assert good.add("good", 1) > 0
        for _ in range(300):
            assert greedy.read_text() == b"x" * MIB
            good.ping(1)
        assert peak_bytes(place) - before < 64 * MIB


def test_reply_in_parts_is_whole_and_in_order(place):
    with place.client() as one, place.client("2.1") as other:
        keys = [f"k{n}" for n in range(400)]
        values = [bytes([n % 256]) * (n * 200) for n in range(400)]
        one.multi_set(keys, values)
        assert other.multi_get(keys) == values
        assert one.multi_get(keys[::-1]) == values[::-1]
        # Requests that are there already are served after it.
        one.send_bytes(one.bytes_of("MULTI_GET", texts(["/" + key for key in keys])) + one.bytes_of("ADD", text("/n"), struct.pack("=q", 3)))
        assert [one.read_text() for _ in keys] == values
        assert one.read_i64() == 3


def test_a_key_that_goes_while_a_reply_is_read(place):
    """Of a reply in parts each value is the current one of its part; a client of 2.2 gets nothing else for a key that is gone."""
    with place.client() as one, place.client() as other:
        one.set("big", b"x" * MIB)
        one.get("big")
        one.send("MULTI_GET", texts(["/big"] * 400))
        assert one.read_text() == b"x" * MIB
        other.delete_key("big")
        rest = [one.read_text() for _ in range(399)]
        assert rest[-1] == b""
        assert set(rest) == {b"x" * MIB, b""}
        one.ping(7)


@KEY_LIMIT
@pytest.mark.parametrize("op", ["WAIT", "CHECK"])
def test_values_that_come_unasked_are_bounded(store, op):
    """A tier gets small values with the notice that their keys exist: 128 Ki times one of 4 KiB were half a GiB."""
    with store.client() as good:
        good.set("small", b"x" * 4096)
        good.get("small")
        before = peak_bytes(store)
        tier = Tier(store)
        tier.ask(op, keys=["/small"] * (128 * 1024), request=1)
        assert tier.answer() == (REPLY, 1)
        assert peak_bytes(store) - before < 64 * MIB


@pytest.mark.longest_turn(400, "a list of all keys is one answer, of 64 MiB at most")
def test_list_of_all_keys(place):
    with place.client() as good, place.client() as lister:
        names = [f"{n:05}" + "k" * 8000 for n in range(9000)]
        for at in range(0, 6000, 500):
            good.multi_set(names[at:at + 500], [b""] * 500)
        good.ping(1)
        assert len(lister.list_keys()) == 6000
        for at in range(6000, 9000, 500):
            good.multi_set(names[at:at + 500], [b""] * 500)
        assert good.num_keys() == 9000
        with pytest.raises(StoreClosed):  # 72 MB: more than one reader may have
            lister.list_keys()
        good.ping(2)


# What grows.

def test_append_does_not_go_beyond_the_limit_of_a_set(place):
    with place.client() as good, place.client() as growing:
        for _ in range(9):
            growing.append("log", b"x" * MIB)
        assert growing.num_keys() == 1
        growing.append("log", b"x")
        with pytest.raises(StoreClosed):
            growing.num_keys()
        assert len(good.get("log")) == 9 * MIB
        good.append("log2", b"x")
        assert good.get("log2") == b"x"


@pytest.fixture
def small(stage):
    """A store that may take 64 MiB."""
    process = StoreProcess(stage.folder, flags=("--memory-limit-mb", "64", "--stats-s", "0.05"), name="small")
    stage.processes.append(process)
    return process


@pytest.mark.parametrize("below", [False, True], ids=["root", "tier"])
@pytest.mark.parametrize("how", ["set", "append", "multi_set", "queue_push", "add", "compare_set"])
def test_total(stage, small, how, below):
    """Beyond the total who writes is closed, through a tier, too; others read, delete and write again."""
    place = small
    if below:
        place = StoreProcess(stage.folder, upstream=small.address, name="tier")
        stage.processes.append(place)
    value = b"x" * MIB
    with place.client() as good:
        good.set("kept", "value")
        good.ping(1)
        key = "k" * 7000
        with place.client() as writer:
            def write(n):
                if how == "set":
                    writer.set(f"k{n}", value)
                elif how == "append":
                    writer.append(f"k{n // 4}", value)
                elif how == "multi_set":
                    writer.multi_set([f"k{n}", f"l{n}"], [value, value])
                elif how == "queue_push":
                    writer.queue_push("q", value)
                elif how == "compare_set":
                    writer.compare_set(f"k{n}", "", value)
                else:
                    writer.send_bytes(b"".join(writer.bytes_of("ADD", text(f"/{n}-{i}-{key}"), struct.pack("=q", 1))
                                               for i in range(150)))
                    for _ in range(150):
                        writer.read_i64()
            with pytest.raises(StoreClosed):
                for n in range(200):
                    write(n)
                    writer.num_keys()
        assert good.get("kept") == b"value"
        small.wait_stats(lambda stats: 56 * MIB < stats["bytes"] < 80 * MIB, "it is full")
        assert "--memory-limit-mb" in small.log()
        if how == "queue_push":
            for _ in range(8):
                good.queue_pop("q", block=False)
        else:
            # A list of long keys needs memory, too; these are enough to delete.
            names = [f"{n}-{i}-{key}" for n in range(20) for i in range(150)] if how == "add" else good.list_keys()
            for name in names:
                if name != "kept":
                    good.delete_key(name)
        good.set("after", "it")
        assert good.get("after") == b"it"
    assert peak_bytes(small) < 200 * MIB


def test_requests_that_are_not_sent_to_their_end(small):
    """Each is allowed by itself."""
    with small.client() as good:
        half = b"\0" + u32(VALIDATE_MAGIC) + b"\x01" + text("/k") + u64(9 * MIB) + b"x" * (8 * MIB)
        connections = []
        try:
            for _ in range(40):
                connections.append(connect(small.port))
                try:
                    connections[-1].sendall(half)
                except OSError:
                    pass
                assert good.num_keys() == 0
            assert peak_bytes(small) < 200 * MIB
        finally:
            for connection in connections:
                connection.close()
        small.wait_stats(lambda stats: stats["bytes"] < 8 * MIB, "what they sent is forgotten")
        good.set("k", "v")
        assert good.get("k") == b"v"


@KEY_LIMIT
def test_waits_for_many_keys(small):
    with small.client() as good:
        connections = []
        try:
            for number in range(20):
                connections.append(connect(small.port))
                keys = [f"/{number}-{i}-" + "k" * 100 for i in range(60_000)]
                try:
                    connections[-1].sendall(b"\0" + u32(VALIDATE_MAGIC) + b"\x06" + texts(keys))
                except OSError:  # the memory is used up
                    pass
                good.ping(number)
            assert peak_bytes(small) < 300 * MIB
        finally:
            for connection in connections:
                connection.close()
        small.wait_stats(lambda stats: stats["bytes"] < 8 * MIB, "what they waited for is forgotten")


def cpu_s(process):
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@KEY_LIMIT
def test_many_wait_for_one_key_many_times(store):
    """Work that grows with the square of what was sent held up all clients for half a minute of the store's CPU time."""
    waiting = [store.client() for _ in range(4)]
    before = cpu_s(store)
    for client in waiting:
        client.send("WAIT", texts(["/same"] * (100 * 1024)))
    store.wait_stats(lambda stats: stats["waiting"] == 4, "all wait")
    waiting[0].close()
    with store.client() as good:
        good.set("same", "")
        good.ping(1)
    assert cpu_s(store) - before < 5
    for client in waiting[1:]:
        assert client.read_u8() == 0
        client.close()


BIG_WAIT = texts([f"/{i}" for i in range(MAX_KEYS)])  # as many keys as one request may have


@contextlib.contextmanager
def stopped(store):
    """What happens meanwhile comes to the store in one round of its loop."""
    os.kill(store.pid, signal.SIGSTOP)
    yield
    os.kill(store.pid, signal.SIGCONT)


def big_waits(store, number):
    clients = [store.client() for _ in range(number)]
    for client in clients:
        client.send("WAIT", BIG_WAIT)
    store.wait_stats(lambda stats: stats["waiting"] == number, "all wait")
    return clients


def close(clients):
    for client in clients:
        client.close()


@KEY_LIMIT
@pytest.mark.parametrize("number", [1, 3])
def test_ends_of_big_waits_need_no_other_traffic(store, number):
    """Nothing but the closed connections themselves makes the store forget their waits, and a later WAIT is answered."""
    with store.client() as good:
        good.set("there", "")
        good.ping(1)
        waiting = big_waits(store, number)
        with stopped(store):
            close(waiting)
        store.wait_stats(lambda stats: stats["connections"] == 1, "they are closed")
        store.wait_stats(lambda stats: stats["waiting"] == 0, "their waits are forgotten")
        good.wait(["there"])


@KEY_LIMIT
def test_waits_that_were_held_back_begin_one_after_the_other(store):
    """The store held the second waits back until it had forgotten the first ones, and then began all of them in one turn."""
    first, second = big_waits(store, 8), [store.client() for _ in range(8)]
    request = second[0].bytes_of("WAIT", BIG_WAIT)
    for client in second:
        client.send_bytes(request[:-1])
    with stopped(store):
        close(first)
        for client in second:
            client.send_bytes(request[-1:])
    # Each client has asked for a PING, too.
    store.wait_stats(lambda stats: stats["requests"] == 32 and stats["waiting"] == 8, "the second ones wait")
    close(second)


def test_frame_of_many_empty_keys(store):
    with store.client() as good:
        before = peak_bytes(store)
        tier = Tier(store)
        count = 15_000_000
        body = struct.pack("=BBBQQq", FORGET, OPS["PING"], 0, 0, 0, 0) + u32(count)
        try:
            tier.socket.sendall(u32(len(body) + 4 * count + 8) + body + bytes(4 * count) + bytes(8))
        except OSError:
            pass
        assert is_closed(tier.socket)
        assert peak_bytes(store) - before < 256 * MIB
        good.ping(1)


def test_frame_before_the_hello_is_small(store):
    with store.client() as good:
        good.ping(1)  # its start is over, and what that takes
    before = peak_bytes(store)
    with connect(store.port) as connection:
        connection.sendall(b"\0TKS1" + u32(MIB))
        assert is_closed(connection)
    assert peak_bytes(store) - before < 8 * MIB


# Launchers.

def launcher_frame(body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"\0TKL1" + u32(len(body)) + body


def test_frames_of_a_launcher_that_has_not_joined(jobs):
    port = ports.free_port()
    node = jobs.static(0, port)  # waits for node 1
    wait_until(lambda: node.require_alive() and socket.socket().connect_ex(("127.0.0.1", port)) == 0, "node 0 listens")
    with connect(port) as connection:  # its start is over, and what that takes
        connection.sendall(launcher_frame(b"["))
        assert is_closed(connection)
    before = peak_bytes(node)
    for body in (b"[" * 16 * MIB, b'{"a":' * (3 * MIB), b"[" + b"1," * (8 * MIB - 1) + b"1]", b"[" * 60_000,
                 b'{"type":"event","reason":"' + b"[" * 60_000 + b'"}'):
        with connect(port) as connection:
            try:
                connection.sendall(launcher_frame(body))
            except OSError:
                pass
            assert is_closed(connection), body[:40]
    assert peak_bytes(node) - before < 16 * MIB
    other = jobs.static(1, port)
    assert node.wait() == 0 and other.wait() == 0


@pytest.mark.parametrize("tokens", [("3f9c2d", "77ab10"), ("3f9c2d", ""), ("", "3f9c2d")], ids=str)
def test_launchers_prove_the_token_to_each_other(jobs, tokens):
    port = ports.free_port()
    root, stranger = (jobs.static(node, port, procs=1, environment={"TASKD_TOKEN": token or None})
                      for node, token in enumerate(tokens))
    assert stranger.wait() == 1
    assert "TASKD_TOKEN" in stranger.log()
    wait_until(lambda: root.require_alive() and "closed" in root.log(), "the root logs it")
    assert "TASKD_TOKEN" in root.log()
    assert not [e for e in jobs.started()]
    other = jobs.static(1, port, procs=1, environment={"TASKD_TOKEN": tokens[0] or None})
    assert other.wait() == 0 and root.wait() == 0
    for process in (root, stranger, other):
        for token in filter(None, tokens):
            assert token not in process.log()


# Connections.

def limited(stage, soft, hard, **arguments):
    process = StoreProcess(stage.folder, prefix=("prlimit", f"--nofile={soft}:{hard}"), name="limited", **arguments)
    stage.processes.append(process)
    return process


def limits(pid):
    with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
        return re.search(r"^Max open files\s+(\d+)\s+(\d+)", file.read(), re.M).groups()


def test_the_limit_of_descriptors_is_raised_but_not_for_ranks(stage, jobs):
    assert limits(limited(stage, 100, 5000).pid) == ("5000", "5000")
    script = os.path.join(stage.folder, "limit.py")
    found = os.path.join(stage.folder, "limit")
    with open(script, "w", encoding="utf-8") as file:
        file.write("import os, resource, sys\n"
                   "with open(sys.argv[1] + '~', 'w') as file:\n"
                   "    print(resource.getrlimit(resource.RLIMIT_NOFILE), open(f'/proc/{os.getppid()}/limits').read(), file=file)\n"
                   "os.rename(sys.argv[1] + '~', sys.argv[1])\n")
    run = jobs.launch("run", "--standalone", script=script, script_arguments=[found], prefix=("prlimit", "--nofile=300:5000"))
    assert run.wait() == 0
    with open(found, encoding="utf-8") as file:
        seen = file.read()
    assert seen.startswith("(300, 5000)")
    assert re.search(r"Max open files\s+5000\s+5000", seen)


def test_daemons_raise_their_limit(stage):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(1024, hard // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        manager = stage.manager()
        proxy = stage.proxy(manager)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits(manager.pid) == limits(proxy.pid) == (str(hard), str(hard))


def pairs(store, count, source="127.0.0.1"):
    """Clients as PyTorch's of 1.9 to 2.0: one connection that speaks and one that never does."""
    found = []
    for _ in range(count):
        speaking, silent = connect(store.port, source), connect(store.port, source)
        speaking.sendall(b"\x03" + text("init/") + struct.pack("=q", 1))
        assert len(speaking.recv(8)) == 8
        found.append((speaking, silent))
    return found


def assert_open(connection):
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        connection.recv(1)
    connection.settimeout(HANG_S)


@pytest.mark.parametrize("source", ["127.0.0.9", "127.0.0.1"], ids=["from elsewhere", "from the same address"])
@pytest.mark.parametrize("begun", [b"", b"\x02" + u64(5)], ids=["silent", "begun"])
def test_a_flood_of_silence_leaves_room_for_clients(stage, source, begun):
    """More connections than the store has descriptors for say nothing. Those that ask are served, pairs that were there stay."""
    store = limited(stage, 300, 300, flags=())
    old = pairs(store, 60)
    flood = []
    for _ in range(600):
        flood.append(connect(store.port, source))
        if begun:
            flood[-1].sendall(begun)
    new = pairs(store, 5)  # waits until there is room
    for speaking, silent in old + new:
        assert_open(silent)
        speaking.sendall(b"\x03" + text("init/") + struct.pack("=q", 1))
        assert len(speaking.recv(8)) == 8
    assert "connections for now" in store.log()
    for connection in [*flood, *(one for pair in old + new for one in pair)]:
        connection.close()
    with store.client() as client:
        client.ping(1)


def test_pairs_of_many_ranks_stay_at_the_limit(stage):
    """As many as there is room for, all from one address; then one more is let in as soon as one has gone."""
    store = limited(stage, 300, 300)
    full = pairs(store, 130)
    more = [connect(store.port) for _ in range(60)]
    seen = len(store.stats_lines())
    wait_until(lambda: len(store.stats_lines()) > seen + 60, "some seconds of the store's time")  # 0.05 s each
    for _, silent in full:
        assert_open(silent)
    for connection in [*more, *full[0], *full[1]]:
        connection.close()
    full[:2] = pairs(store, 1)
    for pair in full:
        for connection in pair:
            connection.close()


def test_silence_is_no_reason_below_the_limit(store):
    silent = [connect(store.port) for _ in range(300)]
    seen = len(store.stats_lines())
    wait_until(lambda: len(store.stats_lines()) > seen + 60, "some seconds of the store's time")
    for connection in silent:
        assert_open(connection)
        connection.close()


def test_a_launcher_joins_in_spite_of_a_flood(jobs):
    """1,010 silent connections to the master port kept node 1 out for good."""
    port = ports.free_port()
    node = jobs.static(0, port, procs=1, prefix=("prlimit", "--nofile=1024:1024"))
    wait_until(lambda: node.require_alive() and socket.socket().connect_ex(("127.0.0.1", port)) == 0, "node 0 listens")
    flood = [connect(port, "127.0.0.9") for _ in range(1010)]
    other = jobs.static(1, port, procs=1)
    assert other.wait(timeout_s=60) == 0 and node.wait(timeout_s=60) == 0
    for connection in flood:
        connection.close()
