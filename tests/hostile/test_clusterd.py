"""Whoever answers at ClusterD's address may switch this job's marks, and nothing else: no memory, no log without end, no terminal."""
import concurrent.futures
import re
import socket
import struct
import threading

import grpc
import pytest
import stubs
from deadlines import HANG_S
from harness import peak_bytes, wait_until

MIB = 1 << 20
EVIL = "e\n2026-01-01T00:00:00.000 error manager: forged\x1b[2J\u009b\u202e"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
STATUS_200 = b"\x88"  # the static table's ":status: 200"
GRPC = b"\x5f\x10" + b"application/grpc"  # content-type


def frame(kind, flags, stream, body=b""):
    return struct.pack("!I", len(body))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + body


def endless_pings():
    while True:
        yield frame(PING, 0, 0, bytes(8)) * 1000


def endless_settings():
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 65535)) * 1000


def endless_headers():
    """The header block of the answer goes on for ever."""
    field = b"\x00\x01x\x7f\x81\x07" + b"v" * 262  # a literal of 262 bytes, never indexed
    yield frame(HEADERS, 0, 1, STATUS_200)
    while True:
        yield frame(CONTINUATION, 0, 1, field * 60)


def endless_long_fields():
    """The same of fields of 200 KB, which are kept whole."""
    field = b"\x00\x01x\x7f\xc1\x99\x0c" + b"v" * 200_000
    yield frame(HEADERS, 0, 1, STATUS_200)
    while True:
        for at in range(0, len(field), 16384):
            yield frame(CONTINUATION, 0, 1, field[at:at + 16384])


def endless_message():
    """A message of 4 MiB less a byte, and the next, and the next; of the last byte of each, none."""
    yield frame(HEADERS, 4, 1, STATUS_200 + GRPC)
    message = b"\x12" + b"\xf5\xff\xff\x01" + b"m" * (4 * MIB - 11)
    while True:
        body = b"\0" + struct.pack("!I", len(message)) + message
        for at in range(0, len(body), 16384):
            yield frame(DATA, 0, 1, body[at:at + 16384])


class RawServer:
    """Speaks HTTP/2 as far as it must, then sends what `flood` yields as fast as it is taken, on each connection."""

    def __init__(self, flood):
        self.flood, self.sent = flood, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                connection.settimeout(HANG_S)
                connection.sendall(frame(SETTINGS, 0, 0))  # and the client's are never acknowledged
                connection.recv(1 << 16)
                threading.Thread(target=self.swallow, args=(connection,), daemon=True).start()
                for piece in self.flood():
                    connection.sendall(piece)
                    self.sent += len(piece)
            except OSError:
                pass

    @staticmethod
    def swallow(connection):
        try:
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass

    def close(self):
        self.listener.close()


class Grpc(stubs.profiling()[1].TrainingDataTraceServicer):
    """A gRPC server that answers a subscription with what `answer` yields; an exception's text becomes its status."""

    def __init__(self, answer):
        self.answer, self.subscriptions, self.sent = answer, 0, 0
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        stubs.profiling()[1].add_TrainingDataTraceServicer_to_server(self, self.server)
        self.address = "127.0.0.1:%d" % self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def SubscribeDataTraceSwitch(self, request, context):
        self.subscriptions += 1
        for message in self.answer():
            if isinstance(message, str):
                context.abort(grpc.StatusCode.UNKNOWN, message)
            if not context.is_active():
                return
            self.sent += 1
            yield message

    def close(self):
        self.server.stop(0)


def message(step="on", code=200, text=""):
    messages = stubs.profiling()[0]
    return messages.DataStatusRes(code=code, message=text, profilingSwitch=messages.ProfilingSwitch(Step=step))


def flapping():
    while True:
        yield message("on")
        yield message("off")


def broken():
    while True:
        yield message("on", code=500, text=EVIL * 1000)
        yield message(EVIL * 1000)


def refusing():
    yield EVIL * 50


def kind_of(line):
    """The message of a log line, without its time and its numbers."""
    return re.sub(r"\d+", "N", line.partition(" ")[2])


def raw_log(process):
    with open(process.log_path, "rb") as log:
        return log.read().decode()


@pytest.mark.parametrize("flood", [endless_pings, endless_settings, endless_headers, endless_long_fields, endless_message])
def test_a_server_that_sends_without_end(stage, flood):
    server = RawServer(flood)
    manager = stage.manager(flags=("--clusterd", server.address))
    before = peak_bytes(manager)
    wait_until(lambda: manager.require_alive() and (server.sent > 512 * MIB or "ClusterD at" in manager.log()),
               "it has sent much, or the manager has left it")
    assert manager.modify(step="on") == 200 and manager.get()[1]["step"] == "on"
    assert peak_bytes(manager) - before < 64 * MIB
    server.close()


@pytest.mark.parametrize("answer", [flapping, broken])
def test_messages_without_end(stage, answer):
    """Few of them become revisions, fewer become lines, none of them reaches a terminal."""
    server = Grpc(answer)
    manager = stage.manager(flags=("--clusterd", server.address))
    before = peak_bytes(manager)
    wait_until(lambda: server.subscriptions >= 3, "the manager has left it, twice")
    log = raw_log(manager)
    assert "messages a second" in log
    assert not OBEYED.search(log)
    assert 10 * len(log.splitlines()) < server.sent and max(map(len, log.splitlines())) < 5000
    assert peak_bytes(manager) - before < 64 * MIB
    server.close()


def test_a_status_of_control_characters(stage):
    server = Grpc(refusing)
    manager = stage.manager(flags=("--clusterd", server.address))
    wait_until(lambda: server.subscriptions >= 2, "the manager has tried again")
    wait_until(lambda: "ClusterD at" in manager.log(), "the manager says so")
    log = raw_log(manager)
    assert not OBEYED.search(log) and "\n2026-01-01" not in log
    assert len({kind_of(line) for line in log.splitlines() if "ClusterD at" in line}) == 1, log
    server.close()


def test_a_server_that_hangs_up_at_once(stage):
    """The pause between two tries grows, and each failure is the same news."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(1)
            connection.close()
    manager = stage.manager(flags=("--clusterd", "127.0.0.1:%d" % listener.getsockname()[1]))
    threading.Thread(target=accept, daemon=True).start()
    wait_until(lambda: len(connections) >= 3, "it has tried again")
    assert len({kind_of(line) for line in manager.log().splitlines() if "ClusterD at" in line}) == 1, manager.log()
    listener.close()
