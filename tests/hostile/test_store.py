"""`taskd store` against what no client should send, floods, and wrong command lines."""
import errno
import os
import random
import resource
import signal
import socket
import struct
import subprocess

import deadlines
import harness
import psutil
import pytest
from deadlines import HANG_S
from harness import wait_until
from stores import StoreProcess
from tcpstore import StoreClosed, i64, text, texts, u32, u64, VALIDATE_MAGIC

VALIDATE = b"\0" + u32(VALIDATE_MAGIC)
MIB = 1 << 20
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h


@pytest.fixture(params=["root", "tier"])
def store(stage, request):
    """A root, or a tier below one."""
    process = StoreProcess(stage.folder)
    stage.processes.append(process)
    if request.param == "tier":
        process = StoreProcess(stage.folder, upstream=process.address, name="tier")
        stage.processes.append(process)
    return process


@pytest.fixture
def good(store):
    """Clients that must not notice anything: one that asks, and one that waits all the time."""
    asking, waiting = store.client(), store.client("1.x")
    assert asking.add("good", 1) == 1
    waiting.send("WAIT", texts(["/end"]))
    store.wait_stats(lambda stats: stats["waiting"] == 1, "one waits")
    yield asking
    assert asking.add("good", 1) >= 2
    asking.set("end", "")
    assert waiting.read_u8() == 0
    assert waiting.get("good") == asking.get("good")
    asking.close()
    waiting.close()
    assert store.terminate() == 0


def connect(store, source="127.0.0.1"):
    connection = socket.socket()
    connection.settimeout(HANG_S)
    # The port is chosen by connect(), which may use those that others use towards other stores; bind() is slow when many are taken.
    connection.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", store.port))
    return connection


def is_closed(connection):
    """The server has ended it; nothing came before that."""
    connection.settimeout(HANG_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def resident(store):
    return psutil.Process(store.pid).memory_info().rss


# What is refused.

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "type 13": b"\x0d" + bytes(20),
    "type 255": b"\xff" * 20,
    "another magic": b"\0\xde\xad\xbe\xef" + bytes(20),
    "magic of another byte order": b"\0\x3c\x85\xf7\xce" + bytes(20),
    "validate twice": VALIDATE + VALIDATE,
    "type 19 after validate": VALIDATE + b"\x13",
    "http after validate": VALIDATE + b"GET / HTTP/1.1\r\n\r\n",
    "key of 2^64-1": b"\x02" + b"\xff" * 8,
    "key of 1 MiB": b"\0" + u64(MIB),
    "key of 2^62 after validate": VALIDATE + b"\x03" + u64(1 << 62),
    "value of 2^63": b"\0" + text("/k") + u64(1 << 63),
    "value of 1 GiB": VALIDATE + b"\x01" + text("/k") + u64(1 << 30),
    "2^64-1 keys": b"\x05" + b"\xff" * 8,
    "a million keys": VALIDATE + b"\x06" + u64(1_000_000),
    "negative multi_set": VALIDATE + b"\x0b" + i64(-1),
    "second key too long": b"\x04" + u64(2) + text("/a") + u64(1 << 40),
    "add to no number": VALIDATE + b"\x01" + text("/word") + text("seven") + b"\x04" + text("/word") + i64(1),
    "add to no number, 1.x": b"\0" + text("/word") + text("seven") + b"\x03" + text("/word") + i64(1),
    "add beyond all numbers": VALIDATE + b"\x01" + text("/word") + text("9" * 40) + b"\x04" + text("/word") + i64(1),
}


def test_garbage_closes_only_its_connection(store, good):
    for name, data in GARBAGE.items():
        with connect(store) as connection:
            connection.sendall(data)
            assert is_closed(connection), name
            assert good.add("good", 1) > 1, name
    assert store.stats()["refused"] >= len(GARBAGE) - 3  # adds count as that or not


def test_what_is_too_long_is_said(store, good):
    """The client only sees that its connection is lost."""
    with connect(store) as connection:
        connection.sendall(VALIDATE + b"\x01" + text("/k") + u64(15 * MIB))
        assert is_closed(connection)
    said = f"is closed: SET: a value of {15 * MIB} bytes is longer than the limit of {9 * MIB}"
    wait_until(lambda: said in store.log(), "the store says so")
    assert "warning" in next(line for line in store.log().splitlines() if said in line)
    assert good.add("good", 1) > 0


def test_random_bytes(store, good):
    seed = int(os.environ.get("STORE_SEED", "1"))
    dice = random.Random(seed)
    for _ in range(300):
        with connect(store) as connection:
            start = dice.choice([b"", VALIDATE, bytes([dice.randrange(19)]), VALIDATE + bytes([dice.randrange(19)]) + u64(2)])
            try:
                connection.sendall(start + dice.randbytes(dice.randrange(200)))
            except OSError:  # it was quick
                pass
        good.add("good", 1)
    assert store.alive()


def test_frames_of_nobody(store, good):
    """The magics of tiers and launchers open these to frames: what comes then must be one."""
    for magic in (b"TKS1", b"TKL1"):
        for data in (b"", b"\xff" * 100, b"\0" * 100, u32(1) + b"\xff", u32(1 << 31), dict(GARBAGE)["http"]):
            with connect(store) as connection:
                connection.sendall(b"\0" + magic + data)
                good.add("good", 1)
    assert store.alive()


# What costs.

def test_lengths_cost_nothing(store, good):
    before = resident(store)
    promises = [VALIDATE + b"\x01" + text("/k") + u64(8 * MIB) + b"x", VALIDATE + b"\x06" + u64(128 * 1024) + text("/k"),
                b"\0" + text("/k") + u64(8 * MIB) + b"x", b"\x02" + u64(8 * 1024) + b"x"]
    connections = []
    try:
        for number in range(1000):
            connections.append(connect(store))
            connections[-1].sendall(promises[number % len(promises)])
        wait_until(lambda: store.stats()["connections"] >= 1000, "all are open")
        assert good.add("good", 1) > 1
        assert resident(store) - before < 64 * MIB
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: store.stats()["connections"] < 10, "all are gone")


def test_who_reads_late_costs_a_bounded_amount(store, good):
    late = store.client()
    late.set("big", b"x" * MIB)
    assert len(late.get("big")) == MIB
    before = resident(store)
    late.send_bytes(late.bytes_of("GET", text("/big")) * 300)
    for _ in range(100):
        good.add("good", 1)
        assert resident(store) - before < 64 * MIB
    for _ in range(300):
        assert len(late.read_text()) == MIB
    late.close()


def test_who_never_reads_costs_a_bounded_amount(store, good):
    greedy = store.client()
    greedy.set("big", b"x" * MIB)
    assert len(greedy.get("big")) == MIB
    before = resident(store)
    greedy.socket.setblocking(False)
    requests = greedy.bytes_of("GET", text("/big")) * 100_000
    sent = 0
    for _ in range(200):
        try:
            sent += greedy.socket.send(requests[sent % len(requests):])
        except BlockingIOError:  # the peer has stopped reading
            pass
        good.add("good", 1)
        assert resident(store) - before < 64 * MIB
    greedy.close()


def raise_open_file_limit(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_half_open_connections(store, good, count):
    """Silent ones, ones that stop in a request, and clients that wait: all stay, and others are served.

    As many as the limit of open files lets this process have.
    """
    count = min(count, raise_open_file_limit(count + 1000) - 500)
    begun = [b"", b"\0", b"\0\xce\xf7", VALIDATE, VALIDATE + b"\x01", b"\x02" + u64(5) + b"/k",
             VALIDATE + b"\x06" + texts(["/never"])]
    before = resident(store)
    connections = []
    try:
        for number in range(count):
            # A source address has some 28,000 ports.
            connections.append(connect(store, f"127.0.1.{1 + number // 20_000}"))
            connections[-1].sendall(begun[number % len(begun)])
        wait_until(lambda: store.stats()["connections"] >= count, "all are open", timeout_s=60)
        assert good.add("good", 1) > 1
        assert resident(store) - before < count * 16 * 1024 + 16 * MIB
        for connection in connections[::97]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is open, and nothing came
                connection.recv(1)
        # Those that began a SET or a GET can end it.
        connections[4].setblocking(True)
        connections[4].sendall(text("/late") + text("value"))
        wait_until(lambda: good.check(["late"]), "the request that was completed is served")
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: store.stats()["connections"] < 10, "all are gone", timeout_s=60)


def test_connections_that_end_in_a_request(store, good):
    request = VALIDATE + b"\x01" + text("/partial") + text("value")
    for size in range(len(request)):
        with connect(store) as connection:
            connection.sendall(request[:size])
            if size % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: store.stats()["connections"] < 10, "all are gone")
    assert good.check(["partial"]) is False


@pytest.mark.parametrize("part,limit", [("key", 8 * 1024), ("value", 8 * MIB)])
def test_far_beyond_a_limit(store, good, part, limit):
    client = store.client()
    key, value = ("k" * (4 * limit), "v") if part == "key" else ("k", b"v" * (4 * limit))
    with pytest.raises(StoreClosed):
        client.set(key, value)
        client.num_keys()
    client.close()
    assert good.check([key[:100]]) is False


# The command.

def test_ready_line_and_end(stage, store):
    assert store.log().splitlines()[0] == f"listening 127.0.0.1:{store.port}"
    clients = [store.client(), store.client("1.x")]
    clients[1].send("WAIT", texts(["/never"]))
    assert store.terminate() == 0
    for client in clients:
        with pytest.raises(StoreClosed):
            client.read(1)
        client.close()


def test_ready_line_is_on_stdout(stage):
    with subprocess.Popen([harness.TASKD, "store", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=harness.clean_environment()) as child:
        assert child.stdout.readline().startswith(b"listening 127.0.0.1:")
        child.send_signal(signal.SIGINT)
        assert deadlines.wait_child(child) == 0
        assert child.stdout.read() == b""


def test_address_in_use(stage, store, good):
    done = stage.run("store", "--listen", store.address)
    assert done.returncode == 1
    assert "address in use" in done.stderr and str(store.port) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_starts_again_at_once_on_its_port(stage):
    address = "127.0.0.1:0"
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        store = StoreProcess(stage.folder, listen=address)
        stage.processes.append(store)
        address = store.address
        client, waiting = store.client(), store.client("1.x")
        waiting.send("WAIT", texts(["/never"]))
        assert client.check(["key"]) is False
        client.set("key", "value")
        assert client.get("key") == b"value"
        store.child.send_signal(how)
        store.wait()
        client.close()
        waiting.close()


def test_ipv6(stage):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        assert error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        pytest.skip("no IPv6 here")
    root = StoreProcess(stage.folder, listen="[::1]:0")
    stage.processes.append(root)
    assert root.host == "[::1]"
    tier = StoreProcess(stage.folder, upstream=root.address, name="tier")
    stage.processes.append(tier)
    with root.client() as one, tier.client() as other:
        one.set("key", "value")
        assert other.get("key") == b"value"


@pytest.mark.parametrize("arguments,words", [
    ([], ["--listen"]),
    (["--listen", "nonsense"], ["nonsense"]),
    (["--listen", "127.0.0.1:99999"], ["99999"]),
    (["--listen", "::1:9601"], ["::1:9601"]),
    (["--listen", "127.0.0.1:0", "--upstream", "nowhere"], ["nowhere"]),
    (["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:0"], ["127.0.0.1:0"]),
    (["--listen", "127.0.0.1:0", "--dialect", "3.x"], ["--dialect", "3.x"]),
    (["--listen", "127.0.0.1:0", "--stats-s", "-1"], ["-1"]),
    (["--listen", "127.0.0.1:0", "--stats-s", "often"], ["often"]),
    (["--listen", "127.0.0.1:0", "--frobnicate"], ["--frobnicate"]),
], ids=" ".join)
def test_wrong_usage(stage, arguments, words):
    done = stage.run("store", *arguments)
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_help(stage):
    done = stage.run("store", "--help")
    assert done.returncode == 0
    for flag in ("--listen", "--upstream", "--dialect", "--stats-s"):
        assert flag in done.stdout


def test_an_address_that_is_not_ours(stage):
    done = stage.run("store", "--listen", "192.0.2.1:0")
    assert done.returncode == 1
    assert "192.0.2.1" in done.stderr


def test_statistics_line(stage):
    store = StoreProcess(stage.folder)
    stage.processes.append(store)
    assert set(store.stats()) >= {"connections", "bytes", "requests", "upstream_requests", "upstream_bytes", "keys", "waiting"}
    with store.client(world_size=1) as client:
        client.set("a", "1")
        client.get("a")
        stats = store.wait_stats(lambda stats: stats["connections"] == 1, "one is there")
        assert stats["keys"] == 2 and stats["requests"] >= 4 and stats["waiting"] == 0
    store.wait_stats(lambda stats: stats["connections"] == 0, "it is gone")
    quiet = StoreProcess(stage.folder, flags=(), name="quiet")
    stage.processes.append(quiet)
    with quiet.client() as client:
        client.set("a", "1")
        assert client.get("a") == b"1"
    assert quiet.terminate() == 0
    assert quiet.stats_lines() == []
