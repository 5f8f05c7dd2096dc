#!/usr/bin/python3
"""What `taskd route` is worth: a ring all-reduce over eight machines on four ToRs, in the order that it plans and in the given one.

    sudo tests/bench/route_fabric.py [--build build/release] [--rate 200mbit] [--mib 8] [--iterations 5] [--repeat 5] [--json FILE]

Real PyTorch processes (gloo), each in a network namespace; two machines a ToR, uplinks limited to --rate either way. The given order is the
worst: neighbours in the ring are never on one ToR ("interleaved"). "random" is the order that a scheduler that knows no topology gives, drawn
anew in each repetition from a fixed seed. All take turns, in the same processes, and who is first changes. Times are of the slowest rank.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ["TASKD_BUILD_DIR"] = os.path.abspath(options.build)
    import fabric
    import namespaces

    reason = namespaces.missing_privilege()
    if reason:
        sys.exit(f"route_fabric.py: {reason}")
    elements = options.mib * 1024 * 1024 // fabric.ELEMENT_BYTES
    flow = fabric.one_flow_bytes(elements, options.iterations)
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        planned, _ = fabric.plan(folder)
        rounds = []
        for repetition in range(options.repeat):
            shuffled = list(range(fabric.NODES))
            generator.shuffle(shuffled)
            turn = [("interleaved", fabric.INTERLEAVED), ("random", shuffled), ("planned", planned)]
            rounds += turn[repetition % 3:] + turn[:repetition % 3]
        seconds = {name: [] for name, _ in rounds}
        flows = {name: [] for name, _ in rounds}
        with namespaces.Rig(folder, fabric.names(), tors=fabric.NODE_TORS, rate=options.rate) as rig:
            job = fabric.Job(rig, [order for _, order in rounds], elements, options.iterations)
            for number, (name, _) in enumerate(rounds):
                sent, times = job.round()
                seconds[name].append(statistics.median(times))
                flows[name].append(max(direction for tor in sent for direction in tor) / flow)
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {len(rounds)} rounds", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)

    print(f"{fabric.NODES} nodes, {fabric.TORS} ToRs, uplinks of {options.rate}, all-reduce of {options.mib} MiB, "
          f"median of {options.iterations} in each of {options.repeat} repetitions")
    print(f"{'order':12} {'median s':>9} {'least s':>8} {'most s':>8} {'flows on the busiest uplink':>28} {'time / planned':>15}")
    result = {}
    base = statistics.median(seconds["planned"])
    for name in ("interleaved", "random", "planned"):
        times = seconds[name]
        result[name] = {"median_s": statistics.median(times), "least_s": min(times), "most_s": max(times),
                        "flows": statistics.median(flows[name]), "ratio": statistics.median(times) / base}
        print(f"{name:12} {statistics.median(times):9.3f} {min(times):8.3f} {max(times):8.3f} "
              f"{min(flows[name]):19.2f} to {max(flows[name]):.2f} {result[name]['ratio']:15.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
