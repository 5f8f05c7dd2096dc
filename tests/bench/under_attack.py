#!/usr/bin/python3
"""What honest work costs while a stranger attacks: under_attack.py [--connections N] [--rounds N] [--taskd PROGRAM]...

In turns without and with an attack, on this machine's CPUs, which the attacker shares: switches of a job of --ranks ranks (every rank has to
acknowledge), the manager's CPU at 1 step/s, mutual-TLS handshakes with the manager, ranks that join a store. The attacker is a process of
another user (root starts it; else of the same), comes from 127.0.0.2, has no secret and keeps --connections of them: some silent, some in the
middle of a handshake, some with half a request in plain text or with half a frame of the store's; one that is closed is opened again, up to
200 a second. The last column is attacked / not attacked, medians.

With --taskd once more an older program is measured beside, in the same turns; then there are also the ratios of each to the first. Joins are
measured with the store_join that lies in the program's build (../bench), and left out where there is none.
"""
import argparse
import contextlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import manager_scale  # noqa: E402
import store_join  # noqa: E402
from deadlines import HANG_S  # noqa: E402

RELEASE = os.path.join(manager_scale.ROOT, "build", "release")
STRANGER = 64199  # a user of no name
ATTACK = r"""
import selectors, socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
begun = [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", preface + b"\x00\x40\x00\x01\x00\x00\x00\x00\x01", b"\x01\xff\xff"]
open_, watched, opened = [], selectors.DefaultSelector(), 0
def one():
    global opened
    connection = socket.socket()
    connection.bind(("127.0.0.2", 0))
    connection.settimeout(5)
    try:
        connection.connect((host, port))
        connection.sendall(begun[opened % len(begun)])
        opened += 1
        connection.setblocking(False)
        watched.register(connection, selectors.EVENT_READ)
    except OSError:
        connection.close()
while len(watched.get_map()) < count and opened < 2 * count:
    one()
print("attacking", flush=True)
while True:
    for key, _ in watched.select(0.1):
        try:
            if key.fileobj.recv(65536):
                continue
        except BlockingIOError:
            continue
        except OSError:
            pass
        watched.unregister(key.fileobj)
        key.fileobj.close()
    for _ in range(min(20, count - len(watched.get_map()))):
        one()
    time.sleep(0.1)
"""


@contextlib.contextmanager
def attack(address, connections):
    host, port = address.rsplit(":", 1)
    as_stranger = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups"] if os.geteuid() == 0 else []
    attacker = subprocess.Popen(as_stranger + ["/usr/bin/python3", "-c", ATTACK, host, port, str(connections)], stdout=subprocess.PIPE)
    try:
        if not attacker.stdout.readline():
            raise RuntimeError(f"the attacker ended with {attacker.wait()}")
        yield
    finally:
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()


def handshakes_a_second(job, folder, count):
    """One after the other, each on a connection of its own, until the server's first byte of HTTP/2."""
    issued = json.loads(subprocess.run([os.path.join(RELEASE, "tests", "job_certificates")], input=job.environment["TASKD_TOKEN"],
                                       capture_output=True, text=True, check=True).stdout)
    files = {name: os.path.join(folder, name) for name in ("authority", "certificate", "key")}
    for name, path in files.items():
        with open(path, "w") as file:
            file.write(issued[name])
    context = ssl.create_default_context(cafile=files["authority"])
    context.load_cert_chain(files["certificate"], files["key"])
    context.set_alpn_protocols(["h2"])
    host, port = job.address.rsplit(":", 1)
    began = time.monotonic()
    for _ in range(count):
        with socket.create_connection((host, int(port)), HANG_S) as plain, context.wrap_socket(plain, server_hostname=issued["name"]) as connection:
            if not connection.recv(1):
                raise RuntimeError("a handshake was refused")
    return count / (time.monotonic() - began)


def measure_manager(program, arguments, folder, connections):
    found = {}
    job = manager_scale.Job(program, folder, arguments.ranks, 0.001)
    try:
        with attack(job.address, connections) if connections else contextlib.nullcontext():
            last, command = [], []
            for number in range(arguments.switches):
                applied, last_ms, wall_ms = job.switch(number % 2 == 1)
                if applied != arguments.ranks:
                    raise RuntimeError(f"switch {number}: only {applied} of {arguments.ranks} ranks applied it")
                last.append(last_ms)
                command.append(wall_ms)
            found["request to the last rank's acknowledgement, ms"] = statistics.median(last)
            found["the whole command `taskd switch --json`, ms"] = statistics.median(command)
            found["one handshake, ms"] = 1e3 / handshakes_a_second(job, folder, arguments.handshakes)
    finally:
        job.close()
    job = manager_scale.Job(program, folder, arguments.ranks, 1)
    try:
        with attack(job.address, connections) if connections else contextlib.nullcontext():
            time.sleep(2)  # the beginning: groups are sent once
            began, cpu = time.monotonic(), manager_scale.cpu_s(job.manager.pid)
            time.sleep(arguments.seconds)
            found["manager's CPU at 1 step/s, of a core"] = (manager_scale.cpu_s(job.manager.pid) - cpu) / (time.monotonic() - began)
            found["manager's memory at most, MiB"] = manager_scale.memory_mib(job.manager.pid, "VmHWM")
            with open(f"/proc/{job.manager.pid}/status") as status:
                found["manager's threads"] = int(next(line for line in status if line.startswith("Threads:")).split()[1])
    finally:
        job.close()
    return found


def measure_store(program, arguments, connections):
    build = os.path.dirname(os.path.dirname(program))
    if not os.path.exists(os.path.join(build, "bench", "store_join")):
        return {}
    bench = store_join.Bench(build, arguments.join)
    root, addresses = bench.serve(1)
    with attack(addresses[0], connections) if connections else contextlib.nullcontext():
        joined = bench.measure("taskd, flat", root, addresses, bench.ranks, [])
    return {f"{arguments.join} ranks join a store, s": joined["wall_s"], "CPU of the store for it, s": joined["root_cpu_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=16384, help="a multiple of 64; 8 on a node")
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--handshakes", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=15, help="of the run with 1 step/s")
    parser.add_argument("--join", type=int, default=4000)
    parser.add_argument("--taskd", action="append", help="bin/taskd of a build; again for one to be compared with the first")
    arguments = parser.parse_args()
    programs = [os.path.abspath(program) for program in arguments.taskd or [os.path.join(RELEASE, "bin", "taskd")]]
    runs = {(program, connections): {} for program in programs for connections in (0, arguments.connections)}
    for number in range(arguments.rounds):
        for program, connections in runs if number % 2 == 0 else reversed(runs):
            with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
                found = {**measure_manager(program, arguments, folder, connections), **measure_store(program, arguments, connections)}
            print(f"# round {number + 1}, {program}, {connections} hostile connections: {json.dumps(found)}", file=sys.stderr, flush=True)
            for what, value in found.items():
                runs[program, connections].setdefault(what, []).append(value)
    for program in programs:
        print(f"{program}:\n" if len(programs) > 1 else "", end="")
        print_ratios("alone", runs[program, 0], "attacked", runs[program, arguments.connections])
    for program in programs[1:]:
        for kind, connections in (("alone", 0), ("attacked", arguments.connections)):
            print(f"\n{program} and the first, {kind}:\n")
            print_ratios("the first", runs[programs[0], connections], "this", runs[program, connections])
    return 0


def print_ratios(first, its_runs, second, runs):
    print(f"| what | {first}, runs | {second}, runs | ratio |\n|---|---|---|---|")
    for what in [what for what in its_runs if what in runs]:
        one, other = its_runs[what], runs[what]
        ratio = f"{statistics.median(other) / statistics.median(one):.2f}" if statistics.median(one) else "-"  # less than a tick of CPU
        print(f"| {what} | {', '.join(f'{v:.3g}' for v in one)} | {', '.join(f'{v:.3g}' for v in other)} | {ratio} |")


if __name__ == "__main__":
    sys.exit(main())
