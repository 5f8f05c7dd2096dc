"""A client of TCPStore that sends what PyTorch's client sends, byte for byte.

Dialects: "1.x" (1.9 to 2.0; a second connection that never sends a byte, and no way to end a wait), "2.1" (one connection, CANCEL_WAIT) and
"2.x" (2.2 and later: VALIDATE and PING first; queues, LIST_KEYS, BARRIER). Everything in this machine's byte order.
"""
import os
import select
import socket
import struct
import time

from deadlines import HANG_S

VALIDATE_MAGIC = 0x3C85F7CE
READY, NOT_READY = 0, 1
STOP_WAITING, WAIT_CANCELED = 0, 1

_OLD = ["SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "GETNUMKEYS"]
TYPES = {
    "1.x": {name: number for number, name in enumerate([*_OLD, "WATCH_KEY", "DELETE_KEY"])},
    "2.1": {name: number for number, name in
            enumerate([*_OLD, "DELETE_KEY", "APPEND", "MULTI_GET", "MULTI_SET", "CANCEL_WAIT"])},
    "2.x": {name: number for number, name in
            enumerate(["VALIDATE", *_OLD, "DELETE_KEY", "APPEND", "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
                       "QUEUE_PUSH", "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS", "BARRIER"])},
}


class StoreError(Exception):
    """The client cannot do that, or the server answered what it must not."""


class StoreTimeout(StoreError):
    """The keys did not come in time; the connection can still be used."""


class StoreClosed(StoreError):
    """The server has closed the connection."""


class QueueEmpty(StoreError):
    pass


def u32(number):
    return struct.pack("=I", number)


def u64(number):
    return struct.pack("=Q", number)


def i64(number):
    return struct.pack("=q", number)


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return u64(len(value)) + value


def texts(values):
    return u64(len(values)) + b"".join(map(text, values))


class TCPStore:
    """One client. `world_size` given: it reports itself as one of so many workers, as PyTorch does by default.

    `timeout_s` is how long get(), wait() and the like wait for keys; 1.x waits as long for every reply. Others wait `reply_timeout_s` for
    what the server owes at once, where PyTorch would wait for ever.
    """

    def __init__(self, host, port, dialect="2.x", timeout_s=HANG_S, world_size=None, reply_timeout_s=HANG_S):
        self.host, self.port, self.dialect, self.timeout_s = host, port, dialect, timeout_s
        self.reply_timeout_s = timeout_s if dialect == "1.x" else reply_timeout_s
        self.sockets = [self._connect()]
        if dialect == "2.x":
            self.send("VALIDATE", u32(VALIDATE_MAGIC))
            self.ping(os.getpid())
        if world_size is not None:
            self._add("init/", 1)
        if dialect == "1.x":
            self.sockets.append(self._connect())

    def _connect(self):
        connection = socket.create_connection((self.host, self.port), timeout=self.reply_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    @property
    def socket(self):
        return self.sockets[0]

    def close(self):
        for connection in self.sockets:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def clone(self):
        return TCPStore(self.host, self.port, self.dialect, self.timeout_s, reply_timeout_s=self.reply_timeout_s)

    # The wire.

    def bytes_of(self, operation, *parts):
        number = TYPES[self.dialect].get(operation)
        if number is None:
            raise StoreError(f"{operation} is no operation of {self.dialect}")
        return bytes([number]) + b"".join(parts)

    def send(self, operation, *parts):
        self.send_bytes(self.bytes_of(operation, *parts))

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise StoreClosed(str(error)) from error

    def read(self, size, timeout_s=None):
        """`size` bytes. StoreTimeout: they were not there in time; none of them is lost if none was there."""
        timeout_s = self.reply_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        data = bytearray()
        while len(data) < size:
            if not self._readable(deadline - time.monotonic()):
                raise StoreTimeout(f"Socket Timeout: {len(data)} of {size} bytes of a reply within {timeout_s:g} s")
            try:
                piece = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise StoreClosed(str(error)) from error
            if not piece:
                raise StoreClosed("Connection was closed by the server")
            data += piece
        return bytes(data)

    def _readable(self, timeout_s):
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def read_u8(self, timeout_s=None):
        return self.read(1, timeout_s)[0]

    def read_i64(self):
        return struct.unpack("=q", self.read(8))[0]

    def read_text(self):
        return self.read(struct.unpack("=Q", self.read(8))[0])

    def nothing_to_read(self):
        """True if the server has sent nothing more; to be asked after a reply to a later request."""
        return not self._readable(0)

    # PyTorch's operations.

    def ping(self, nonce):
        self.send("PING", u32(nonce))
        answer = struct.unpack("=I", self.read(4))[0]
        if answer != nonce:
            raise StoreError(f"PING {nonce} was answered with {answer}")

    def set(self, key, value):
        self.send("SET", text("/" + key), text(value))

    def get(self, key):
        self.wait([key])
        return self.get_now(key)

    def get_now(self, key):
        """GET without the WAIT before it, which PyTorch's client never sends so."""
        self.send("GET", text("/" + key))
        return self.read_text()

    def compare_set(self, key, expected, desired):
        self.send("COMPARE_SET", text("/" + key), text(expected), text(desired))
        return self.read_text()

    def add(self, key, amount):
        return self._add("/" + key, amount)

    def _add(self, wire_key, amount):
        self.send("ADD", text(wire_key), i64(amount))
        return self.read_i64()

    def check(self, keys):
        self.send("CHECK", texts(["/" + key for key in keys]))
        answer = self.read_u8()
        if answer not in (READY, NOT_READY):
            raise StoreError(f"CHECK was answered with {answer}")
        return answer == READY

    def wait(self, keys, timeout_s=None):
        self._wait(["/" + key for key in keys], timeout_s)

    def _wait(self, wire_keys, timeout_s=None):
        self.send("WAIT", texts(wire_keys))
        self._finish_wait(wire_keys, self.timeout_s if timeout_s is None else timeout_s)

    def _finish_wait(self, wire_keys, timeout_s):
        try:
            self._expect(STOP_WAITING, timeout_s)
            return
        except StoreTimeout:
            if self.dialect == "1.x":  # the server gets no notice
                raise
        self.cancel_wait()
        raise StoreTimeout(f"wait timeout after {timeout_s * 1000:g}ms, keys: {', '.join(wire_keys)}")

    def cancel_wait(self):
        self.send("CANCEL_WAIT")
        answer = self.read_u8()
        if answer == STOP_WAITING:  # it was on its way already
            answer = self.read_u8()
        if answer != WAIT_CANCELED:
            raise StoreError(f"CANCEL_WAIT was answered with {answer}")

    def _expect(self, wanted, timeout_s):
        answer = self.read_u8(timeout_s)
        if answer != wanted:
            raise StoreError(f"{wanted} was to come, and {answer} came")

    def num_keys(self):
        self.send("GETNUMKEYS")
        return self.read_i64()

    def delete_key(self, key):
        self.send("DELETE_KEY", text("/" + key))
        return self.read_i64() == 1

    def append(self, key, value):
        self.send("APPEND", text("/" + key), text(value))

    def multi_get(self, keys):
        self.wait(keys)
        self.send("MULTI_GET", texts(["/" + key for key in keys]))
        return [self.read_text() for _ in keys]

    def multi_set(self, keys, values):
        self.send("MULTI_SET", u64(len(keys)),
                  *(text("/" + key) + text(value) for key, value in zip(keys, values, strict=True)))

    def queue_push(self, key, value):
        self.send("QUEUE_PUSH", text("/" + key), text(value))

    def queue_pop(self, key, block=True):
        if block:
            self.wait([key])
        self.send("QUEUE_POP", text("/" + key))
        if self.read_i64() <= 0:
            raise QueueEmpty(key)
        return self.read_text()

    def queue_len(self, key):
        self.send("QUEUE_LEN", text("/" + key))
        return self.read_i64()

    def list_keys(self):
        self.send("LIST_KEYS")
        keys = [self.read_text().decode() for _ in range(self.read_i64())]
        return [key[1:] for key in keys if key.startswith("/")]

    def barrier(self, key, world_size, timeout_s=None):
        self.send("BARRIER", text("/" + key), i64(world_size))
        self._finish_wait(["/" + key], self.timeout_s if timeout_s is None else timeout_s)

    def wait_for_workers(self, world_size, timeout_s):
        """What the process that hosts the store does in PyTorch before its constructor returns."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._wait(["init/"])
            self.send("GET", text("init/"))
            joined = int(self.read_text())
            if joined >= world_size:
                return
            if time.monotonic() > deadline:
                raise StoreTimeout(f"Timed out after {timeout_s:g} seconds waiting for clients. "
                                   f"{joined}/{world_size} clients joined.")
            time.sleep(0.01)


class PrefixStore:
    """PyTorch's PrefixStore: `prefix/` before every key. Nests."""

    def __init__(self, prefix, store):
        self._prefix, self._store = prefix, store

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name in ("num_keys", "list_keys", "ping", "close", "cancel_wait", "timeout_s", "dialect"):
            return method

        def with_prefix(key, *arguments, **named):
            keys = [f"{self._prefix}/{k}" for k in key] if isinstance(key, (list, tuple)) else f"{self._prefix}/{key}"
            return method(keys, *arguments, **named)
        return with_prefix
