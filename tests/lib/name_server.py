"""Runs a command in a network of its own, with a hosts file, a resolv.conf and a DNS server of its own (needs root).

    name_server.py '{"hosts": "127.0.0.1 a\\n", "resolv": "nameserver 127.0.0.53\\n", "zone": {"a.b": "127.0.0.1"}, "after_s": 0}' COMMAND...

`resolv` null: there is no resolv.conf. The server knows the names of `zone` only `after_s` seconds after its start; a name
has A records or AAAA records, after its address. With `hostile`, one of HOSTILE, it answers every query like that. The last
line on stderr is then "peak KiB: N": the most memory that a process of the command had.
"""
import contextlib
import ipaddress
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time


def answer(query, zone):
    """The reply to one DNS query."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12:at + 5]
    kind, = struct.unpack_from("!H", query, at + 1)
    known = zone.get(".".join(labels).lower())
    address = ipaddress.ip_address(known).packed if known else b""
    record = b""
    if known and kind == (1 if len(address) == 4 else 28):
        record = struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(address)) + address
    flags = 0x8180 | (0 if known else 3)  # a reply, no such name
    return query[:2] + struct.pack("!HHHHH", flags, 1, 1 if record else 0, 0, 0) + question + record


def parts(query):
    """The question of a DNS query, and its kind."""
    at = 12
    while query[at]:
        at += 1 + query[at]
    return query[12:at + 5], struct.unpack_from("!H", query, at + 1)[0]


def reply(query, answers, count=1, flags=0x8180, number=None, question=None):
    """With `answers`, of which the header says that they are `count`."""
    return (number or query[:2]) + struct.pack("!HHHHH", flags, 1, count, 0, 0) + (question or parts(query)[0]) + answers


def record(query, data, name=b"\xc0\x0c", kind=None, length=None):
    return name + struct.pack("!HHIH", kind or parts(query)[1], 1, 300, len(data) if length is None else length) + data


def address_of(query, number=1):
    """127.x.y.z where nobody listens, or ::ffff:127.x.y.z."""
    four = struct.pack("!I", 0x7F100000 + number)
    return four if parts(query)[1] == 1 else b"\0" * 10 + b"\xff\xff" + four


def many(query):
    """As many records as 64 KiB take."""
    each = len(record(query, address_of(query)))
    count = (65535 - len(reply(query, b""))) // each
    return reply(query, b"".join(record(query, address_of(query, n)) for n in range(1, count + 1)), count)


SHORT = 0x8380  # "too long for UDP": to be asked again over TCP
# What the server sends to a query: datagrams, and to the one that follows over TCP the bytes of its stream, piece by piece.
HOSTILE = {
    "silence": lambda query: [],
    "empty": lambda query: [b""],
    "garbage": lambda query: [query[:2] + os.urandom(400)],
    "cut": lambda query: [reply(query, record(query, address_of(query)))[:-3], query[:2], query[:11]],
    "length": lambda query: [reply(query, record(query, address_of(query), length=65535))],
    "count": lambda query: [reply(query, record(query, address_of(query)), count=65535)],
    "loop": lambda query: [reply(query, record(query, address_of(query), name=b"\xc0" + bytes([len(reply(query, b""))])))],
    "forward": lambda query: [reply(query, record(query, address_of(query), name=b"\xff\xff"))],
    "other-id": lambda query: [reply(query, record(query, address_of(query)), number=bytes([query[0] ^ 255, query[1]]))],
    "other-question": lambda query: [reply(query, record(query, address_of(query)),
                                           question=b"\x05other\x04test\0" + parts(query)[0][-4:])],
    "alias-of-itself": lambda query: [reply(query, record(query, b"\xc0\x0c", kind=5) * 100, count=100)],
    "query": lambda query: [query],
    "failure": lambda query: [reply(query, b"", count=0, flags=0x8182)],
    "flood": lambda query: [reply(query, record(query, address_of(query)), number=bytes([query[0] ^ 255, query[1]]))] * 5000,
    "many": lambda query: [reply(query, b"", 0, SHORT)],
    "tcp-garbage": lambda query: [reply(query, b"", 0, SHORT)],
    "tcp-silence": lambda query: [reply(query, b"", 0, SHORT)],
    "tcp-closed": lambda query: [reply(query, b"", 0, SHORT)],
    "tcp-slow": lambda query: [reply(query, b"", 0, SHORT)],
}
STREAMS = {
    "many": lambda query: [struct.pack("!H", len(many(query))) + many(query)],
    "tcp-garbage": lambda query: [b"\xff\xff" + query[:2] + os.urandom(65533)],
    "tcp-silence": lambda query: [None],
    "tcp-closed": lambda query: [b"\xff\xff"],
    "tcp-slow": lambda query: [struct.pack("!H", len(many(query)))] + [bytes([one]) for one in many(query)],
}


def serve_hostile(address, way):
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))

    def datagrams():
        while True:
            query, client = listener.recvfrom(4096)
            with contextlib.suppress(OSError):  # it has closed its socket
                for one in HOSTILE[way](query):
                    listener.sendto(one, client)
    threading.Thread(target=datagrams, daemon=True).start()
    if way not in STREAMS:
        return
    streams = socket.create_server((address, 53), backlog=64)

    def stream(client):
        with client, contextlib.suppress(OSError):
            while len(head := client.recv(2, socket.MSG_WAITALL)) == 2:
                query = client.recv(struct.unpack("!H", head)[0], socket.MSG_WAITALL)
                for piece in STREAMS[way](query):
                    if piece is None:
                        client.recv(1)  # until the other side gives up
                        return
                    client.sendall(piece)
                    if way == "tcp-slow":
                        time.sleep(0.1)
                if way == "tcp-closed":
                    return

    def accept():
        while True:
            threading.Thread(target=stream, args=(streams.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()


def serve(address, zone, after_s):
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))
    begin = time.monotonic()

    def run():
        while True:
            query, client = listener.recvfrom(4096)
            listener.sendto(answer(query, zone if time.monotonic() - begin >= after_s else {}), client)
    threading.Thread(target=run, daemon=True).start()


def main():
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    if os.environ.get("TASKD_NAME_SERVER") != "inside":
        os.environ["TASKD_NAME_SERVER"] = "inside"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    del os.environ["TASKD_NAME_SERVER"]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/etc"], check=True)  # in this mount namespace alone
    for path, text in (("/etc/hosts", given["hosts"]), ("/etc/resolv.conf", given["resolv"])):
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if "hostile" not in given:
        serve(given["server"], given["zone"], given["after_s"])
        sys.exit(subprocess.run(command, check=False).returncode)
    serve_hostile(given["server"], given["hostile"])
    code = subprocess.run(command, check=False).returncode
    print("peak KiB:", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
