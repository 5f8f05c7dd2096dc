"""What lies between a proxy and its manager when their connection breaks: written, and read by nobody."""
import re
import select
import socket
import struct
import threading
import urllib.request

import harness
from deadlines import HANG_S
from harness import clean_environment, wait_until

TOKEN = "t" * 32
STEPS = 400
RATE = 40
LOOK_S = 0.005  # how often the line looks whether it is to break


class FaultyLine:
    """Passes on what comes to `address`, and what comes back. It can swallow the one, and reset everything."""

    def __init__(self, port):
        self.port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.swallows = False
        self.swallowed = 0
        self.resets = self.ends = False
        self.ways = {}  # socket: (the other end, whether it is a client)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def close_all(self):
        for end in list(self.ways):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self.ways.clear()

    def run(self):
        while not self.ends:
            if self.resets:
                self.close_all()
                self.swallows = self.resets = False
            for ready in select.select([self.listener, *self.ways], [], [], LOOK_S)[0]:
                if ready is self.listener:
                    client = self.listener.accept()[0]
                    try:
                        server = socket.create_connection(("127.0.0.1", self.port))
                    except ConnectionRefusedError:  # nobody listens yet
                        client.close()
                        continue
                    self.ways.update({client: (server, True), server: (client, False)})
                elif ready in self.ways:
                    self.pass_on(ready, *self.ways[ready])
        self.close_all()
        self.listener.close()

    def pass_on(self, sender, receiver, is_client):
        try:
            content = sender.recv(65536)
            if content and is_client and self.swallows:
                self.swallowed += len(content)
                return
            if content:
                return receiver.sendall(content)
        except OSError:
            pass
        for end in (sender, receiver):
            del self.ways[end]
            end.close()

    def break_off(self, wanted_bytes):
        """Everything that the clients send is lost, for so long, and then every connection."""
        before = self.swallowed
        self.swallows = True
        wait_until(lambda: self.swallowed >= before + wanted_bytes, "enough is lost")
        self.resets = True
        wait_until(lambda: not self.resets, "connections are reset")

    def end(self):
        self.ends = True
        self.thread.join()


def counters(manager):
    with urllib.request.urlopen(f"http://{manager.http}/metrics", timeout=HANG_S) as answer:
        text = answer.read().decode()
    found = {}
    for name, value in re.findall(r"^(taskd_folds_\w+)(?:\{[^}]*\})? (\S+)$", text, re.M):
        found[name] = found.get(name, 0) + int(float(value))
    return found


def test_no_fold_is_missing_and_none_counts_twice(stage):
    environment = clean_environment(TASKD_TOKEN=TOKEN, MINDX_TASK_ID=harness.TASK)
    manager = stage.manager(environment=environment, wait=False, flags=["--allow-plaintext"])
    line = FaultyLine(manager.port)
    try:
        proxy = stage.proxy(line.address, environment=environment)
        wait_until(lambda: "connected to manager" in proxy.log(), "the proxy is connected")
        assert manager.switch("all=on")[0] == 0
        rank = stage.rank(0, proxy, pattern="training", rate=RATE, count=STEPS)
        rank.wait_made(STEPS // 10)
        for _ in range(4):
            line.break_off(2000)
            made = min(rank.made())
            rank.wait_made(min(made + STEPS // 10, STEPS))
        rank.wait_made(STEPS)

        def arrived():
            count = counters(manager)
            return count["taskd_folds_received_total"] - count["taskd_folds_again_total"] >= STEPS and count
        count = wait_until(arrived, "all steps have arrived")
        assert count["taskd_folds_received_total"] - count["taskd_folds_again_total"] == STEPS
        assert count["taskd_folds_dropped_total"] == 0 and count["taskd_folds_unsent"] == 0
        assert line.swallowed >= 8000
    finally:
        line.end()
