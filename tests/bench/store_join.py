#!/usr/bin/python3
"""How long N ranks take to join a store: PyTorch's own, ours, and ours with tiers, one after the other on this machine.

    tests/bench/store_join.py [--ranks 10000] [--per-tier 1,8,64,512] [--poll-s 5] [--skewed] [--build build/release] [--json FILE]

Ranks are simulated by store_join (see there what each does): all of them in few processes, each with its own real TCP connections.
The barrier is polled every 10 ms. Without --skewed nobody enters it before all are connected, which is the kindest that can happen to a
server; with it ranks poll while others still connect, as real ones do. PyTorch's server is a python3 with torch.distributed.TCPStore. All of it shares the CPUs: with tiers on nodes of their own, only the
root's part would be left here, so its CPU time is reported too. After the join every rank asks CHECK(exception_dump) once a second,
as PyTorch's NCCL process groups do; what reaches the root of that is the last column.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
from ports import free_port  # noqa: E402

TORCH_SERVER = """
import datetime, sys, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", int(sys.argv[1]), int(sys.argv[2]), True, datetime.timedelta(seconds=3600),
                                   wait_for_workers=False)
print("ready", torch.__version__, flush=True)
sys.stdin.read()
"""
SPARE_DESCRIPTORS = 100


class Piece:
    """A process that obeys lines on its stdin and answers with lines."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[:2]} ended with {self.process.wait()}")
        return line.strip()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line):
        self.say(line)
        return json.loads(self.line())

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Bench:
    def __init__(self, build, ranks, poll_s=0, skewed=False):
        self.program = os.path.join(build, "bench", "store_join")
        self.ranks = ranks
        self.poll_s = poll_s
        self.skewed = skewed
        self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limit, self.limit))
        # A server has both connections of every rank; as many second ones as fit.
        self.second = max(0, min(self.ranks, self.limit - SPARE_DESCRIPTORS - self.ranks))
        if self.ranks > self.limit - SPARE_DESCRIPTORS:
            print(f"store_join.py: --ranks {self.ranks}: a process may have {self.limit} descriptors here", file=sys.stderr)
            sys.exit(2)

    def serve(self, count, host="127.0.0.1", upstream=None):
        piece = Piece([self.program, "serve", "--count", str(count), "--host", host] + (["--upstream", upstream] if upstream else []))
        return piece, [piece.line() for _ in range(count)]

    def pytorch_server(self):
        port = free_port()
        root = Piece(["/usr/bin/python3", "-c", TORCH_SERVER, str(port), str(self.ranks)])
        self.version = root.line().split()[1]
        return root, port

    def pytorch(self):
        root, port = self.pytorch_server()
        return self.measure("PyTorch " + self.version, root, [f"127.0.0.1:{port}"], self.ranks, [])

    def flat(self):
        root, addresses = self.serve(1)
        return self.measure("taskd, flat", root, addresses, self.ranks, [])

    def tiers(self, per_tier):
        root, addresses = self.serve(1)
        left = -(-self.ranks // per_tier)
        # Each tier: its listener, its uplink, two connections a rank.
        per_process = max(1, (self.limit - SPARE_DESCRIPTORS) // (2 + 2 * per_tier))
        pieces, servers = [], []
        while left > 0:
            piece, more = self.serve(min(left, per_process), f"127.0.2.{len(pieces) + 1}", addresses[0])
            pieces.append(piece)
            servers += more
            left -= len(more)
        return self.measure(f"taskd, {per_tier} rank{'s' if per_tier > 1 else ''} a tier", root, servers, per_tier, pieces)

    def measure(self, what, root, servers, per_server, tiers):
        ours = not what.startswith("PyTorch")
        loads = []
        with tempfile.NamedTemporaryFile("w", suffix=".servers") as file:
            file.write("".join(server + "\n" for server in servers))
            file.flush()
            each = (self.limit - SPARE_DESCRIPTORS) // 2
            for first in range(0, self.ranks, each):
                loads.append(Piece([
                    self.program, "ranks", "--servers", file.name, "--first", str(first),
                    "--count", str(min(each, self.ranks - first)), "--world", str(self.ranks), "--per-server", str(per_server),
                    "--second", str(self.second), "--connecting", str(1000 // -(-self.ranks // each))]))
            for load in loads:
                assert load.line() == "ready"
        cpu_s = root.cpu_s()
        joins, wall_s = [], 0
        for phase in ["join"] if self.skewed else ["connect", "enter"]:
            for load in loads:
                load.say(phase)
            done = [json.loads(load.line()) for load in loads]
            wall_s += (max(load["end_ns"] for load in done) - min(load["begin_ns"] for load in done)) / 1e9
            joins += done
        found = {
            "what": what, "ranks": self.ranks, "tiers": len(servers) if tiers else 0,
            "wall_s": wall_s,
            "root_cpu_s": root.cpu_s() - cpu_s,
            "client_requests": sum(join["requests"] for join in joins),
        }
        if ours:
            stats = root.ask("stats")
            found["root_requests"], found["root_connections"] = stats["requests"], stats["connections"]
        else:
            found["root_requests"], found["root_connections"] = found["client_requests"], root.descriptors()
        if self.poll_s > 0:
            # In the first second tiers learn that the key is missing.
            for seconds in 1, self.poll_s:
                before = root.ask("stats")["requests"] if ours else 0
                for load in loads:
                    load.say(f"poll {seconds}")
                asked = sum(json.loads(load.line())["requests"] for load in loads)
                reached = root.ask("stats")["requests"] - before if ours else asked
                found.setdefault("first_poll_root", reached)
            found["poll_asked"], found["poll_root"] = asked, reached
        for piece in loads + tiers + [root]:
            piece.close()
        return found


def show(found, pytorch):
    ratio = f"{found['wall_s'] / pytorch['wall_s']:.3f}" if pytorch else "-"
    nodes = found["tiers"] or 1
    polls = f"{found['poll_root']} of {found['poll_asked']}" if "poll_asked" in found else "-"
    print(f"| {found['what']} | {found['wall_s']:.2f} | {ratio} | {found['root_cpu_s']:.2f} | {found['client_requests']:,} | "
          f"{found['root_requests']:,} | {found['root_requests'] / nodes:,.1f} | {found['root_connections']:,} | {polls} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=10000)
    parser.add_argument("--per-tier", default="1,8,64,512", help="ranks a tier, several with commas; empty: no tiers")
    parser.add_argument("--poll-s", type=int, default=5, help="seconds of polling after the join; 0: none")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--no-pytorch", action="store_true")
    parser.add_argument("--skewed", action="store_true", help="ranks poll the barrier while others still connect")
    parser.add_argument("--json", help="also write all numbers here")
    arguments = parser.parse_args()
    bench = Bench(arguments.build, arguments.ranks, arguments.poll_s, arguments.skewed)
    print(f"{bench.ranks} ranks, {bench.second} of them with a second, silent connection; at most {bench.limit} descriptors a process\n")
    print("| store | join, s | against PyTorch | CPU of the root, s | requests of ranks | at the root | a node | connections at the root "
          "| CHECKs of ranks that reach the root |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    everything = []
    pytorch = None
    if not arguments.no_pytorch:
        pytorch = bench.pytorch()
        everything.append(pytorch)
        show(pytorch, pytorch)
    for found in [bench.flat] + [lambda per=int(per): bench.tiers(per) for per in arguments.per_tier.split(",") if per]:
        everything.append(found())
        show(everything[-1], pytorch)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(everything, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
