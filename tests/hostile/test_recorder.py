"""Ranks, clients and bytes that mean harm or nonsense: they harm only themselves."""
import array
import contextlib
import fcntl
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile

import deadlines
import grpc
import harness
import pytest
import stubs
from harness import wait_until

HELLO_MAGIC = 0x4C484454
HELLO = struct.Struct("<IHHiiII40x")
REPLY = struct.Struct("<IHH56s")
ACCEPTED, REFUSED, TAKEN = range(3)
# How long a peer waits for an answer that need not come. An answer of a slow proxy is missed, and so is its check.
SILENCE_S = 0.2


def hello(rank, magic=HELLO_MAGIC, version=1, role=1, pid=0):
    return HELLO.pack(magic, version, role, rank, -1, pid or os.getpid(), 0)


def send(proxy, payload, descriptors=()):
    """A connection that sent these bytes and descriptors; the caller closes it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(deadlines.HANG_S)
    connection.connect(proxy.socket)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([payload], ancillary)
    return connection


def answer_of(connection):
    """The proxy's whole answer; b"": it has closed the connection without one."""
    try:
        return connection.recv(REPLY.size, socket.MSG_WAITALL)
    except ConnectionError:
        return b""


def memory_file(content, lock=True):
    descriptor = os.memfd_create("hostile", os.MFD_CLOEXEC)
    os.truncate(descriptor, len(content))
    os.pwrite(descriptor, content, 0)
    if lock:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.fixture
def good(stage, manager, recording, proxy):
    """A rank that must not notice anything."""
    rank = stage.rank(0, proxy, rate=1000)
    rank.wait_made(100)
    yield rank
    rank.wait_made(max(rank.made()) + 100)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0, proxy.log()[-2000:]
    report = proxy.check(keep_marks=True, communication_json=False)
    mine = [p for p in report.problems if f"{proxy.task_dir}/0/" in p]
    assert not mine, mine[:5]
    rank.verify(report)


@pytest.fixture
def segment(stage):
    """Bytes of a true segment with records, whose process is gone."""
    rank = stage.rank(7, os.path.join(stage.folder, "nobody.sock"), rate=0, count=2000, threads=2)
    rank.wait_finished(2000)
    [path] = rank.segments()
    with open(path, "rb") as file:
        content = bytearray(file.read())
    rank.kill()
    os.unlink(path)
    return content


@pytest.mark.parametrize("payload", [
    b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", hello(1)[:-1], hello(1, magic=1), hello(1, version=99), hello(1, role=77),
    hello(-5), hello(2**31 - 1), hello(1) * 100, bytes(range(256)) * 1000,
], ids=lambda p: f"{len(p)} bytes {p[:8].hex()}")
def test_broken_hellos(good, proxy, payload):
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SILENCE_S)
        connection.connect(proxy.socket)
        try:
            connection.sendall(payload)
            answer = connection.recv(4096)
        except OSError:
            pass
    assert answer == b"" or REPLY.unpack(answer)[2] == REFUSED, answer
    proxy.require_alive()


def test_hello_without_or_with_strange_descriptors(good, proxy, stage):
    unlinked = os.open(stage.folder, os.O_TMPFILE | os.O_RDWR)
    read_end, write_end = os.pipe()
    device = os.open("/dev/zero", os.O_RDWR)
    folder = os.open(stage.folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as own_socket:
        for descriptors in ([], [unlinked], [read_end], [write_end], [device], [folder], [own_socket.fileno()],
                            [device] * 20):
            with send(proxy, hello(1), descriptors) as connection:
                answer = answer_of(connection)
                assert answer == b"" or REPLY.unpack(answer)[2] == REFUSED, f"accepted {descriptors}"
            proxy.require_alive()
    for descriptor in (unlinked, read_end, write_end, device, folder):
        os.close(descriptor)


def test_many_connections_that_say_nothing(good, stage, manager, proxy):
    """A rank that comes after them is recorded as ever, and each of them is closed in the end."""
    with contextlib.ExitStack() as open_:
        idle = [open_.enter_context(send(proxy, b"")) for _ in range(300)]
        late = stage.rank(1, proxy, rate=500)
        manager.wait_attached([0, 1])
        late.wait_made(100)
        good.wait_made(max(good.made()) + 500)
        assert [answer_of(connection) for connection in idle] == [b""] * len(idle)
    wait_until(lambda: proxy.counts(1)["other"] >= 100, "the rank that came later is recorded")


def work_and_rest(pid):
    """Of each thread, by its id: clock ticks that it has used, and how often it has slept."""
    threads = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as file:
            slept = re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", file.read(), re.M)
        threads[thread] = (int(fields[11]) + int(fields[12]), int(slept[1]))
    return threads


@pytest.mark.skipif(harness.sanitized(), reason="a sanitizer needs descriptors to look at an object's type")
def test_without_descriptors_accepting_pauses(good, stage, manager, proxy):
    """No busy loop, one line in the log, ranks that wait are taken as soon as there are descriptors again."""
    limits = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{proxy.pid}/fd")) + 3, limits[1]))
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    try:
        for connection in waiting:
            connection.connect(proxy.socket)
        wait_until(lambda: "no connection can be accepted" in proxy.log(), "the proxy says it")
        before = work_and_rest(proxy.pid)
        good.wait_made(max(good.made()) + 2000)  # 2 s
        for thread, (ticks, slept) in work_and_rest(proxy.pid).items():
            ticks_before, slept_before = before.get(thread, (0, 0))
            assert ticks - ticks_before <= slept - slept_before + 5, "a busy loop: it works and does not sleep"
        late = stage.rank(1, proxy, rate=500)
        late.wait_made(100)
    finally:
        for connection in waiting:
            connection.close()
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, limits)
    manager.wait_attached([0, 1])
    made = max(late.made())
    wait_until(lambda: proxy.counts(1)["other"] >= made, "the rank that had to wait is recorded")


@pytest.mark.parametrize("depth", [17, 15_000])
def test_deep_arguments_of_a_call(stage, manager, depth):
    """Nothing that recurses ever sees them. Stacks of 1 MiB, as small images have them."""
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, limits[1]))
    try:
        proxy = stage.proxy(manager)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    messages, services = stubs.control()
    wait_until(lambda: manager.status()["nodes"] and manager.status()["nodes"][0]["connected"], "the proxy is connected")
    with manager.secure_channel() as channel:
        stub = services.ControlStub(channel)
        request = messages.CallAgentsRequest(args_json='{"a":' + "[" * depth + "]" * depth + "}")
        setattr(request, "operator", "KILL_WORKER")
        try:
            reply = stub.CallAgents(request, timeout=deadlines.HANG_S)
            assert reply.nodes and not reply.nodes[0].ok
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    proxy.require_alive()
    manager.require_alive()


def corrupt(content, seed):
    """A true segment with some of it replaced; each seed another way."""
    generator = random.Random(seed)
    broken = bytearray(content)
    kind = seed % 6
    if kind == 0:  # random bytes anywhere
        for _ in range(generator.choice([1, 10, 1000])):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
    elif kind == 1:  # the header: extreme numbers
        for _ in range(generator.randrange(1, 20)):
            offset = generator.randrange(0, 4096, 8)
            struct.pack_into("<Q", broken, offset, generator.choice([0, 1, 2**63, 2**64 - 1, generator.getrandbits(64)]))
    elif kind == 2:  # records
        begin = max(len(broken) // 16, 1 << 17)
        for _ in range(2000):
            broken[generator.randrange(begin, len(broken))] = generator.randrange(256)
    elif kind == 3:  # all random behind a sound first line
        broken[64:] = generator.randbytes(len(broken) - 64)
    elif kind == 4:  # all random
        broken[:] = generator.randbytes(len(broken))
    else:  # the tables of threads and domains, 64-bit words
        for _ in range(200):
            offset = generator.randrange(256, min(len(broken) - 8, 1 << 17), 8)
            struct.pack_into("<Q", broken, offset, generator.choice([0, 2**64 - 1, 2**32, generator.getrandbits(24)]))
    return bytes(broken)


def offer(proxy, content, rank, pid):
    """The status of the proxy's answer; None: it has closed the connection without one."""
    descriptor = memory_file(content)
    try:
        with send(proxy, hello(rank, pid=pid), [descriptor]) as connection:
            answer = answer_of(connection)
            return REPLY.unpack(answer)[2] if answer else None
    finally:
        os.close(descriptor)


def test_segments_with_random_bytes(good, proxy, segment):
    assert offer(proxy, bytes(segment), 50, 1) == ACCEPTED, "an honest copy is refused"
    for seed in range(90):
        offer(proxy, corrupt(segment, seed), 100 + seed, 1)
        assert proxy.alive(), f"seed {seed}: the proxy died: {proxy.log()[-2000:]}"
    good.wait_made(max(good.made()) + 1000)


def test_segments_of_a_wrong_size(good, manager, proxy, segment):
    """A file without room for the header is refused. A file that is cut within the rings is given up when they are read."""
    for size in (0, 1, 63, 64, 4095, 4096, 1 << 16):
        assert offer(proxy, bytes(segment[:size]), 60, 1) == REFUSED, size
        proxy.require_alive()
    assert list(manager.rank_status()) == [0]
    for rank, size in ((61, len(segment) // 2), (62, len(segment) - 1)):
        descriptor = memory_file(bytes(segment[:size]))
        with send(proxy, hello(rank), [descriptor]) as connection:
            assert REPLY.unpack(answer_of(connection))[2] == ACCEPTED
            wait_until(lambda: re.search(rf"rank {rank} \(pid \d+\) is not recorded any more: ring [01] lies at .* outside its segment",  # noqa: B023
                                         proxy.log()), f"rank {rank} is given up")
        os.close(descriptor)
        proxy.require_alive()


def disk_folder(stage):
    """One that is in no memory."""
    for folder in (stage.folder, os.path.dirname(os.path.abspath(__file__)), "/var/tmp"):
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
        if kind not in ("tmpfs", "ramfs") and os.access(folder, os.W_OK):
            return folder
    return pytest.skip("everything here is a tmpfs")


@pytest.mark.parametrize("unlinked", [False, True])
def test_a_segment_on_a_disk(good, proxy, stage, segment, unlinked):
    """Its pages come when a disk, a server or a FUSE process gives them; the reader of all ranks would wait for that."""
    with tempfile.NamedTemporaryFile(dir=disk_folder(stage), delete=False) as file:
        file.write(segment)
        file.flush()
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            if unlinked:
                os.unlink(file.name)
            with send(proxy, hello(7), [file.fileno()]) as connection:
                magic, version, status, message = REPLY.unpack(connection.recv(REPLY.size, socket.MSG_WAITALL))
        finally:
            if not unlinked:
                os.unlink(file.name)
    assert (magic, version, status) == (HELLO_MAGIC, 1, 1) and b"memory" in message
    wait_until(lambda: "no file in memory" in proxy.log(), "the proxy says so")


def test_segment_that_changes_while_it_is_read(good, proxy, segment):
    generator = random.Random(1)
    descriptor = memory_file(bytes(segment))
    with send(proxy, hello(70), [descriptor]) as connection:
        assert connection.recv(64)
        since = max(good.made())
        while max(good.made()) < since + 1500:
            offset = generator.randrange(len(segment) - 8)
            os.pwrite(descriptor, generator.randbytes(8), offset)
        proxy.require_alive()
    os.close(descriptor)


def test_segment_that_is_truncated_while_it_is_read(good, manager, proxy, segment):
    descriptor = memory_file(bytes(segment))
    with send(proxy, hello(71), [descriptor]) as connection:
        assert connection.recv(64)
        os.truncate(descriptor, 0)
        wait_until(lambda: not manager.rank_status().get(71, {}).get("attached", False), "the broken rank is dropped")
        good.wait_made(max(good.made()) + 500)
        proxy.require_alive()
    os.close(descriptor)


def test_a_rank_that_another_process_has_is_not_to_be_had(good, manager, proxy, segment):
    """Nor its ring, by the way of /dev/shm; once it ends, its number is free."""
    [path] = good.segments()
    own = memory_file(bytes(segment))
    ring = os.open(path, os.O_RDWR)
    for rank, descriptor in ((0, own), (50, ring)):
        with send(proxy, hello(rank, pid=good.pid), [descriptor]) as connection:
            magic, version, status, message = REPLY.unpack(connection.recv(REPLY.size, socket.MSG_WAITALL))
            assert (magic, version, status) == (HELLO_MAGIC, 1, 2) and b"that of process %d" % good.pid in message
            assert connection.recv(1) == b""
    wait_until(lambda: manager.rank_status()[0].get("reason") == f"process {os.getpid()} says that it is this rank, too, and is set aside",
               "the note is in the status")
    assert f"process {os.getpid()} says that it is rank 0, which is that of process {good.pid}" in proxy.log()
    assert manager.rank_status()[0]["pid"] == good.pid and list(manager.rank_status()) == [0]
    os.close(ring)
    os.close(own)


@pytest.mark.root("becomes another user")
def test_other_users_are_not_answered(good, proxy, stage):
    os.chmod(proxy.socket, 0o777)
    folder, name = os.path.split(proxy.socket)
    os.chmod(folder, os.stat(folder).st_mode | 0o011)  # it starts there: those above are closed by every pytest that begins
    script = ("import os,socket,sys\nos.setgid(65534)\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\n"
              f"s.settimeout({deadlines.HANG_S})\n"
              "s.connect(sys.argv[1])\n"
              "try:\n  s.sendall(bytes.fromhex(sys.argv[2]))\n  sys.exit(1 if s.recv(64) else 0)\n"
              "except (BrokenPipeError, ConnectionResetError):\n  sys.exit(0)\n")
    done = deadlines.run([harness.PYTHON, "-c", script, name, hello(1).hex()], check=False, cwd=folder,
                         capture_output=True, text=True)
    assert done.returncode == 0, f"answered another user; {done.stderr}"


def raw(manager, method, payload):
    with manager.secure_channel(options=[("grpc.max_send_message_length", -1)]) as channel:
        return channel.unary_unary(method)(payload, timeout=deadlines.HANG_S)


@pytest.mark.parametrize("method", ["/TrainingDataTrace/ModifyTrainingDataTraceSwitch",
                                    "/TrainingDataTrace/GetTrainingDataTraceSwitch",
                                    "/taskd.v1.Control/SetSwitch", "/taskd.v1.Control/GetStatus",
                                    "/taskd.v1.Control/CallAgents"])
def test_malformed_and_huge_messages(manager, method):
    before = manager.get()
    generator = random.Random(3)
    payloads = [b"", b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x7f", generator.randbytes(1000), b"\x0a\x02\xc3\x28",
                b"\x12\x00" * 1000, b"\x0b" * 10_000, b"\x0a\x80\x80\x80\x08" + b"x" * (5 << 20)]
    for payload in payloads:
        try:
            raw(manager, method, payload)
        except grpc.RpcError as error:
            if len(payload) > 4 << 20:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        manager.require_alive()
    assert manager.get() == before


def test_malformed_node_streams(stage, manager):
    """Streams that begin with anything but a sound hello end with an error and leave no node behind."""
    generator = random.Random(4)
    stubs.control()  # makes the import possible
    from taskd.v1 import node_pb2  # pylint: disable=import-outside-toplevel
    frames = [
        [], [b""], [generator.randbytes(100)], [node_pb2.NodeMessage(ranks=node_pb2.RankSet()).SerializeToString()],
        [node_pb2.NodeMessage(hello=node_pb2.NodeHello(node_rank=-1)).SerializeToString()],
        [node_pb2.NodeMessage(hello=node_pb2.NodeHello(node_rank=2**31 - 1, host="x" * 100_000)).SerializeToString()],
        [node_pb2.NodeMessage(agent_reply=node_pb2.AgentReply(id=5)).SerializeToString()],
    ]
    for frame in frames:
        with manager.secure_channel() as channel:
            call = channel.stream_stream("/taskd.v1.NodeLink/Connect")(iter(frame), timeout=deadlines.HANG_S)
            with pytest.raises(grpc.RpcError) as error:
                list(call)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, (frame, error.value)
        manager.require_alive()
    assert manager.status()["nodes"] == []
    proxy = stage.proxy(manager)
    stage.rank(0, proxy, pattern="training", rate=50)
    manager.wait_attached([0])
    manager.all_on()
    manager.wait_applied({"step": "on"}, [0], 1)


def test_not_grpc_at_all(manager, proxy):
    for port in (manager.port, proxy.port):
        for payload in (b"", b"\0" * 100, b"GET / HTTP/1.0\r\n\r\n", random.Random(5).randbytes(100_000),
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000):
            with socket.create_connection(("127.0.0.1", port), timeout=deadlines.HANG_S) as connection:
                try:
                    connection.sendall(payload)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
    manager.require_alive()
    proxy.require_alive()
    assert manager.get()[0] == 200


def test_stopped_rank_holds_nobody_up(stage, manager, proxy):
    good = stage.rank(0, proxy, rate=500)
    stopped = stage.rank(1, proxy, rate=500)
    manager.wait_attached([0, 1])
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        manager.all_on()
        manager.wait_applied({"step": "on"}, [0, 1], 1)  # shared memory needs no help of the rank
        good.wait_made(max(good.made()) + 100)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
