#!/usr/bin/python3
"""Requests per second that one store answers: store_throughput.py [--clients 8,64,1000] [--seconds 3] [--build build/release]

Every client asks again as soon as it is answered: SET (64 bytes, no reply) and ADD in one write, GET, GET, each on keys of its own.
PyTorch's server and ours in turns, three times; the best of each counts. The clients are one thread and take a CPU of their own.
"""
import argparse
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import store_join  # noqa: E402


def measure(bench, root, address, clients, seconds):
    with tempfile.NamedTemporaryFile("w", suffix=".servers") as file:
        file.write(address + "\n")
        file.flush()
        load = store_join.Piece([bench.program, "ranks", "--servers", file.name, "--first", "0", "--count", str(clients), "--world",
                                 str(clients), "--per-server", str(clients), "--second", "0", "--connecting", "1000"])
        assert load.line() == "ready"
    load.ask("connect")
    cpu_s = root.cpu_s()
    done = load.ask(f"load {seconds}")
    found = {"per_s": done["requests"] / (done["end_ns"] - done["begin_ns"]) * 1e9,
             "cpu_us": (root.cpu_s() - cpu_s) / done["requests"] * 1e6}
    load.close()
    root.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="8,64,1000")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--build", default=os.path.join(store_join.ROOT, "build", "release"))
    parser.add_argument("--json", help="also write all numbers here")
    arguments = parser.parse_args()
    everything = []
    print("| clients | PyTorch, requests/s | taskd, requests/s | ratio | CPU of PyTorch's server, us a request | of taskd's |\n"
          "|---|---|---|---|---|---|")
    for clients in (int(count) for count in arguments.clients.split(",")):
        bench = store_join.Bench(arguments.build, clients)
        best = {}
        for _ in range(3):
            root, port = bench.pytorch_server()
            runs = {"pytorch": measure(bench, root, f"127.0.0.1:{port}", clients, arguments.seconds)}
            root, addresses = bench.serve(1)
            runs["taskd"] = measure(bench, root, addresses[0], clients, arguments.seconds)
            for who, run in runs.items():
                if who not in best or run["per_s"] > best[who]["per_s"]:
                    best[who] = run
        theirs, ours = best["pytorch"], best["taskd"]
        everything.append({"clients": clients, **best})
        print(f"| {clients:,} | {theirs['per_s']:,.0f} | {ours['per_s']:,.0f} | {ours['per_s'] / theirs['per_s']:.2f} | "
              f"{theirs['cpu_us']:.1f} | {ours['cpu_us']:.1f} |", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(everything, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
