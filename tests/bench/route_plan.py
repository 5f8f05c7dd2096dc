#!/usr/bin/python3
"""Time and peak memory of `taskd route` for large jobs: rank table 1.0, csv topology with four levels, shuffled nodes.

    tests/bench/route_plan.py [--build build/release] [--devices 1] [--repeat 3] [NODES ...]

"start" is the same program with a job of three nodes. CPU time tells more than time on a machine that does other work.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time


def write_inputs(folder, nodes, devices):
    def address(first, number):
        return f"{first}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    with open(os.path.join(folder, "hccl.json"), "w", encoding="utf-8") as table:
        table.write(f'{{"version":"1.0","status":"completed","server_count":"{nodes}","server_list":[')
        for node in range(nodes):
            listed = ",".join(f'{{"device_id":"{d}","device_ip":"{address(11 + d, node)}","rank_id":"{node * devices + d}"}}'
                              for d in range(devices))
            table.write(("," if node else "") + f'\n{{"server_id":"{address(10, node)}","pod_name":"job-worker-{node}",'
                        f'"device":[{listed}]}}')
        table.write("]}\n")
    places = list(range(nodes))
    random.Random(1).shuffle(places)
    with open(os.path.join(folder, "topology.csv"), "w", encoding="utf-8") as topology:
        topology.write("node,level1,level2,level3,level4\n")
        for place, node in enumerate(places):
            tor = place // 16
            topology.write(f"{address(10, node)},tor{tor},pod{tor // 16},core{tor // 256},hall{tor // 1024}\n")


# Nodes of one device for which the default of --max-input-mb suffices.
WITHOUT_A_FLAG = 100_000


def run(taskd, folder, nodes):
    """Seconds, seconds of CPU, MiB at most, and the report."""
    report_path = os.path.join(folder, "report.json")
    command = [taskd, "route", "--rank-table", os.path.join(folder, "hccl.json"), "--topology",
               os.path.join(folder, "topology.csv"), "--out", folder, "--self", "10.0.0.1", "--wait-s", "0", "--json"]
    with open(report_path, "wb") as report:
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=report, env={**os.environ, **({} if nodes <= WITHOUT_A_FLAG else {"TASKD_MAX_INPUT_MB": "2048"})})
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {child.returncode}")
    with open(report_path, encoding="utf-8") as report:
        result = json.load(report)
    if result["cost"]["after"] != result["cost"]["bound"]:
        sys.exit("the plan does not meet the bound")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--devices", type=int, default=1, help="of a node")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("nodes", nargs="*", type=int, default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    taskd = os.path.join(arguments.build, "bin", "taskd")
    print(f"{'':>12} {'fastest s':>10} {'CPU s':>8} {'peak MiB':>9}")
    for nodes in [3, *arguments.nodes]:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(folder, nodes, arguments.devices)
            runs = [run(taskd, folder, nodes) for _ in range(arguments.repeat)]
        best = [min(values) for values in zip(*runs)]
        print(f"{'start' if nodes == 3 else nodes:>12} {best[0]:10.3f} {best[1]:8.3f} {best[2]:9.0f}", flush=True)


if __name__ == "__main__":
    main()
