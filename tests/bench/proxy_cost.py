#!/usr/bin/python3
"""CPU and memory of the proxy, idle and under load: proxy_cost.py [--seconds S] [--ranks R] [--rate MARKS_PER_S]

Idle: R ranks attached, marks off. Load: R ranks, each with RATE marks a second (a range is two marks), names of 30 bytes.
CPU is utime + stime from /proc/PID/stat over S seconds; memory is VmHWM and RssAnon (shared memory of the ranks is theirs).
"""
import argparse
import os
import re
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import harness  # noqa: E402


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = file.read()
    return {key: int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) / 1024 for key in ("VmRSS", "RssAnon", "RssFile", "RssShmem")}


def measure(what, proxy, seconds):
    before, began = cpu_s(proxy.pid), time.monotonic()
    time.sleep(seconds)
    used, elapsed = cpu_s(proxy.pid) - before, time.monotonic() - began
    memory = memory_mib(proxy.pid)
    print(f"{what}: {100 * used / elapsed:.2f} % of a core; " + ", ".join(f"{k} {v:.1f} MiB" for k, v in memory.items()),
          flush=True)
    return used, elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        stage = harness.Stage(folder)
        try:
            manager = stage.manager()
            proxy = stage.proxy(manager)
            measure("idle, no ranks", proxy, arguments.seconds)
            idle = [stage.rank(r, proxy, pattern="training", rate=10) for r in range(arguments.ranks)]
            manager.wait_attached(range(arguments.ranks))
            measure(f"idle, {arguments.ranks} ranks, marks off", proxy, arguments.seconds)
            for rank in idle:
                rank.terminate()
            ranks = [stage.rank(r, proxy, rate=arguments.rate // 2, name_bytes=30, name=f"busy{r}")
                     for r in range(arguments.ranks)]
            manager.wait_attached(range(arguments.ranks))
            manager.all_on()
            lines = sum(2 * sum(r.made()) for r in ranks)
            used, elapsed = measure(f"{arguments.ranks} ranks x {arguments.rate} marks/s", proxy, arguments.seconds)
            lines = sum(2 * sum(r.made()) for r in ranks) - lines
            lost = sum(s["lost"] for s in manager.rank_status().values())
            print(f"  {lines / elapsed:,.0f} marks/s made, {lines / max(used, 0.01):,.0f} lines per second of CPU, {lost} lost")
            for rank in ranks:
                rank.kill()
            proxy.terminate()
        finally:
            stage.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
