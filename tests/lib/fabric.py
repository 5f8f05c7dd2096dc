"""Eight machines on four ToRs, and a real ring all-reduce in a rank order of the caller's choice: what a route plan is worth.

Bytes on the uplinks are the proof (they do not vary); times are for people.
"""
import json
import os

import deadlines
import harness

NODES = 8
TORS = 4
NODE_TORS = [node // 2 for node in range(NODES)]
# Rank of each node before: neighbours in the ring are never on one ToR, so that every step crosses the spine.
INTERLEAVED = [0, 4, 1, 5, 2, 6, 3, 7]
ELEMENT_BYTES = 4


def names():
    return [f"job-worker-{node}" for node in range(NODES)]


def write_inputs(folder, ranks=INTERLEAVED):
    """rank_table.json and topology.csv of the rig, with `ranks` as the given order; returns both paths."""
    nodes = sorted(range(NODES), key=lambda node: ranks[node])
    table = {"version": "1.0", "status": "completed", "server_count": str(NODES), "server_list": [
        {"server_id": f"10.77.0.{node + 1}", "pod_name": f"job-worker-{node}",
         "device": [{"device_id": "0", "device_ip": f"192.168.0.{node + 1}", "rank_id": str(ranks[node])}]} for node in nodes]}
    paths = [os.path.join(folder, name) for name in ("rank_table.json", "topology.csv")]
    with open(paths[0], "w", encoding="utf-8") as file:
        json.dump(table, file)
    with open(paths[1], "w", encoding="utf-8") as file:
        file.write("node,level1,level2\n")
        file.writelines(f"job-worker-{node},tor{tor},spine\n" for node, tor in enumerate(NODE_TORS))
    return paths


def plan(folder):
    """(rank of each node as `taskd route` plans it, its report)."""
    rank_table, topology = write_inputs(folder)
    done = deadlines.run([harness.TASKD, "route", "--rank-table", rank_table, "--topology", topology, "--format", "csv",
                          "--out", folder, "--json"],
                         env=harness.clean_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"taskd route: code {done.returncode}: {done.stderr}")
    report = json.loads(done.stdout)
    ranks = {entry["pod_index"]: entry["new_rank"] for entry in report["mapping"]}
    return [ranks[node] for node in range(NODES)], report


def one_flow_bytes(elements, iterations):
    """What one ring step between two machines carries in all, without headers."""
    return 2 * (NODES - 1) / NODES * elements * ELEMENT_BYTES * iterations


class Job:
    """The eight processes; each `round` is one rank order of `orders`, in turn."""

    def __init__(self, rig, orders, elements, iterations):
        self.rig = rig
        self.orders = orders
        self.iterations = iterations
        self.number = 0
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ring_all_reduce.py")
        self.processes = [
            rig.run(node, [harness.PYTHON, "-B", script, rig.folder, elements, iterations, *(order[i] for order in orders)],
                    {"GLOO_SOCKET_IFNAME": "eth0", "NODE": i, "NODES": NODES, "OMP_NUM_THREADS": 1}, name="all-reduce")
            for i, node in enumerate(rig.nodes)]
        self._wait([f"ready.{i}" for i in range(NODES)], "PyTorch is imported on every node")

    def _wait(self, files, what):
        def there():
            for process in self.processes:
                if not process.alive() and process.child.returncode != 0:
                    process.require_alive()
            return all(os.path.exists(os.path.join(self.rig.folder, file)) for file in files)
        harness.wait_until(there, what, timeout_s=90)

    def round(self):
        """([(bytes up, bytes down) of each ToR], [seconds of each all-reduce, of the slowest rank]) of the next order."""
        order = self.orders[self.number]
        before = self.rig.uplink_bytes()
        first = self.rig.nodes[order.index(0)]
        # A namespace's ports are all free: nothing else runs there.
        part = os.path.join(self.rig.folder, "go.part")
        with open(part, "w", encoding="utf-8") as file:
            file.write(f"{first.address}:{20000 + self.number}")
        os.rename(part, os.path.join(self.rig.folder, f"go.{self.number}"))
        files = [f"done.{self.number}.{rank}" for rank in range(NODES)]
        self._wait(files, f"round {self.number} ended on every node")
        self.number += 1
        after = self.rig.uplink_bytes()
        seconds = []
        for file in files:
            with open(os.path.join(self.rig.folder, file), encoding="utf-8") as content:
                seconds.append(json.load(content)["seconds"])
        sent = [(up - up0, down - down0) for (up, down), (up0, down0) in zip(after, before)]
        return sent, [max(rank[i] for rank in seconds) for i in range(self.iterations)]
