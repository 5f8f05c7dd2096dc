#!/usr/bin/python3
"""What one connection can do to the other clients of a store: store_floods.py [--waits 650000] [--runs 3] [--build build/release]

One connection that speaks as a tier begins many waits for one key. Then another client sets the key, and the connection reads all its
answers; or the connection goes; or its waits are barriers that open together. Meanwhile a client pings as fast as it is answered. Printed:
the longest of its pings, the most CPU time of a turn of the store's event loop, and how long it all took. With --clients N, N connections
each wait for the same 131,072 keys instead, and go.
"""
import argparse
import os
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import store_join  # noqa: E402
from tcpstore import TCPStore, texts  # noqa: E402

TIER_MAGIC, HELLO, REQUEST = 0x31534B54, 1, 2
SET, WAIT, BARRIER = 1, 6, 17
PROTOCOL = 2
MAX_KEYS = 128 * 1024


def frame(kind, op=WAIT, number=0, call=0, keys=()):
    body = struct.pack("<BBBQQq", kind, op, 0, call, 0, number) + struct.pack("<I", len(keys))
    body += b"".join(struct.pack("<I", len(key)) + key for key in keys) + struct.pack("<II", 0, 0)
    return struct.pack("<I", len(body)) + body


class Tier:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(b"\0" + struct.pack("<I", TIER_MAGIC) + frame(HELLO, op=SET, number=PROTOCOL))
        self.read_frames(1)

    def read_frames(self, count):
        got, kept = 0, b""
        while got < count:
            data = self.socket.recv(1 << 20)
            if not data:
                raise RuntimeError("the store has closed the connection")
            kept += data
            at = 0
            while len(kept) - at >= 4:
                size, = struct.unpack_from("<I", kept, at)
                if len(kept) - at - 4 < size:
                    break
                at += 4 + size
                got += 1
            kept = kept[at:]

    def wait(self, count, op, number):
        one = frame(REQUEST, op=op, number=number, keys=(b"/k",))
        for first in range(0, count, 10_000):
            self.socket.sendall(b"".join(one[:7] + struct.pack("<Q", call + 1) + one[15:]
                                         for call in range(first, min(count, first + 10_000))))


class Pinger:
    """A client that is asked for its longest ping."""

    def __init__(self, port):
        self.client, self.longest_s, self.ends = TCPStore("127.0.0.1", port), 0.0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends:
            began = time.monotonic()
            self.client.add("ping", 1)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            time.sleep(0.001)

    def end(self):
        self.ends = True
        self.thread.join()


class Store:
    def __init__(self, build, folder):
        self.turn_log = os.path.join(folder, "turns")
        os.environ.update(LD_PRELOAD=os.path.join(build, "tests", "turn_watch.so"), TASKD_TURN_LOG=self.turn_log)
        self.piece, addresses = store_join.Bench(build, 1).serve(1)
        for name in ("LD_PRELOAD", "TASKD_TURN_LOG"):
            del os.environ[name]
        self.port = int(addresses[0].rpartition(":")[2])

    def wait_stats(self, condition):
        while not condition(self.piece.ask("stats")):
            time.sleep(0.02)

    def longest_turn_ms(self):
        with open(self.turn_log, encoding="ascii") as file:
            return max(map(float, file))


def flood(store, what, arguments):
    if what == "clients":
        keys = [f"k{i}" for i in range(MAX_KEYS)]
        clients = [TCPStore("127.0.0.1", store.port) for _ in range(arguments.clients)]
        for client in clients:
            client.send("WAIT", texts(keys))
        store.wait_stats(lambda stats: stats["waiting"] == len(clients))
        for client in clients:
            client.close()
    else:
        tier = Tier(store.port)
        opens = what == "barriers"
        tier.wait(arguments.waits, BARRIER if opens else WAIT, arguments.waits)
        if not opens:
            store.wait_stats(lambda stats: stats["waiting"] == arguments.waits)
        if what == "released":
            TCPStore("127.0.0.1", store.port).set("k", "v")
        if what != "gone":
            tier.read_frames(arguments.waits)
        tier.socket.close()
    store.wait_stats(lambda stats: stats["waiting"] == 0 and stats["connections"] <= 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=int, default=650_000)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--build", default=os.path.join(store_join.ROOT, "build", "release"))
    arguments = parser.parse_args()
    print("| what | longest ping, ms | longest turn, ms of CPU | all of it, s |\n|---|---|---|---|", flush=True)
    for what in ["clients"] if arguments.clients else ["released", "gone", "barriers"]:
        for _ in range(arguments.runs):
            with tempfile.TemporaryDirectory() as folder:
                store = Store(os.path.abspath(arguments.build), folder)
                pinger = Pinger(store.port)
                began = time.monotonic()
                try:
                    flood(store, what, arguments)
                    took_s = time.monotonic() - began
                finally:
                    pinger.end()
                    store.piece.close()
                print(f"| {what} | {1000 * pinger.longest_s:.0f} | {store.longest_turn_ms():.1f} | {took_s:.1f} |", flush=True)


if __name__ == "__main__":
    main()
