#!/usr/bin/env python3
"""Start-up time and memory of two builds of `taskd`: tests/bench/program_start.py [--runs N] PEER PROGRAM

Time: `--version`, the fastest of 15 a run, both in turn. Memory: a manager that nobody has called, after two seconds;
all that is resident, and of that what is no file, in KiB.
"""
import argparse
import os
import subprocess
import time


def start_ms(program):
    fastest = float("inf")
    for _ in range(15):
        begin = time.perf_counter()
        subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, check=True)
        fastest = min(fastest, (time.perf_counter() - begin) * 1e3)
    return fastest


def memory_kib(program):
    manager = subprocess.Popen([program, "manager", "--job", "bench/start", "--listen", "127.0.0.1:0", "--http", ""],
                               stderr=subprocess.DEVNULL, env={**os.environ, "TASKD_TOKEN": "bench"})
    time.sleep(2)
    with open(f"/proc/{manager.pid}/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    manager.terminate()
    manager.wait()
    return tuple(int(lines[name].split()[0]) for name in ("VmRSS", "RssAnon"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("peer")
    parser.add_argument("program")
    arguments = parser.parse_args()
    for _ in range(arguments.runs):
        peer, own = start_ms(arguments.peer), start_ms(arguments.program)
        print(f"start: peer {peer:.1f} ms, program {own:.1f} ms, ratio {own / peer:.2f}")
    for _ in range(arguments.runs):
        peer, own = memory_kib(arguments.peer), memory_kib(arguments.program)
        print(f"resident/anonymous: peer {peer[0]}/{peer[1]} KiB, program {own[0]}/{own[1]} KiB, "
              f"ratio {own[0] / peer[0]:.2f}/{own[1] / peer[1]:.2f}")


if __name__ == "__main__":
    main()
