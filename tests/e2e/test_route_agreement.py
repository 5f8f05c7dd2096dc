"""`taskd route --agree`: all nodes of a job adopt one plan, or none does, whichever process is killed when."""
import json
import os
import random
import signal
import socket
import subprocess
import time

import deadlines
import harness
import pytest
from harness import clean_environment, wait_until

NODES = 4
GIVEN = [f"10.0.0.{i}" for i in range(NODES)]
PLANNED = [GIVEN[0], GIVEN[2], GIVEN[1], GIVEN[3]]  # node i is below ToR i % 2


def rank_table(**change):
    return {"version": "1.0", "status": "completed", "server_count": str(NODES), "server_list": [
        {"server_id": server, "device": [{"device_id": "0", "device_ip": f"192.168.0.{i}", "rank_id": str(i)}]}
        for i, server in enumerate(GIVEN)], **change}


class Node:
    """One `taskd route --agree`, with an output folder of its own."""

    def __init__(self, job, index):
        self.job, self.index = job, index
        self.folder = os.path.join(job.folder, f"node{index}")
        os.makedirs(self.folder, exist_ok=True)
        self.table = os.path.join(self.folder, "table.json")
        self.topology = os.path.join(self.folder, "topology.csv")
        self.out = os.path.join(self.folder, "out")
        self.child = None
        self.write_table(rank_table())
        self.write_topology([f"tor{i % 2}" for i in range(NODES)])

    def write_table(self, table):
        with open(self.table, "w", encoding="utf-8") as file:
            json.dump(table, file)

    def write_topology(self, tors):
        with open(self.topology, "w", encoding="utf-8") as file:
            file.write("node,level1\n" + "".join(f"{server},{tor}\n" for server, tor in zip(GIVEN, tors)))

    def start(self, timeout_s=30, index=None, token=None, manager=None):
        os.makedirs(self.out, exist_ok=True)
        self.child = subprocess.Popen(
            [harness.TASKD, "route", "--rank-table", self.table, "--topology", self.topology, "--out", self.out,
             "--self", GIVEN[self.index], "--wait-s", "0.2", "--json", "--agree", "--manager", manager or self.job.address,
             "--nodes", str(NODES), "--index", str(self.index if index is None else index),
             "--agree-timeout", str(timeout_s)],
            env=clean_environment(TASKD_TOKEN=token), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.job.children.append(self.child)
        return self

    def kill(self):
        self.child.kill()

    def end(self, timeout_s=90):
        """Its exit code. Then `report` is its JSON, None if it printed nothing."""
        stdout, self.stderr = deadlines.communicate(self.child, timeout_s=timeout_s)
        self.report = json.loads(stdout) if stdout else None
        return self.child.returncode

    def wrote(self):
        """"plan", "identity" or None: what its files say."""
        try:
            with open(os.path.join(self.out, "jobstart_routeplan.json"), encoding="utf-8") as file:
                order = [server["server_id"] for server in json.load(file)["server_list"]]
        except FileNotFoundError:
            return None
        assert order in (GIVEN, PLANNED), order
        return "identity" if order == GIVEN else "plan"

    def require(self, status, *words):
        code = self.end()
        if status == "failed":
            assert code == 1 and self.wrote() is None, (code, self.wrote(), self.report, self.stderr)
            assert len(self.stderr.splitlines()) == 1 and all(word in self.stderr for word in words), self.stderr
        else:
            assert code == 0 and self.report["status"] == status, (code, self.report, self.stderr)
            assert self.wrote() == ("plan" if status == "planned" else "identity")
            assert all(word in self.report["reason"] for word in words), self.report["reason"]


class Job:
    def __init__(self, folder, address):
        self.folder, self.address, self.children = folder, address, []
        self.nodes = [Node(self, index) for index in range(NODES)]

    def start(self, *indices, **arguments):
        for index in indices or range(NODES):
            self.nodes[index].start(**arguments)

    def require(self, status, *words, but=()):
        for node in self.nodes:
            if node.index not in but:
                node.require(status, *words)

    def remove_files(self):
        for node in self.nodes:
            for name in os.listdir(node.out) if os.path.isdir(node.out) else ():
                os.unlink(os.path.join(node.out, name))

    def require_no_mixture(self, what=""):
        """What the nodes wrote, without those that wrote nothing."""
        found = {node.index: node.wrote() for node in self.nodes}
        assert len(set(found.values()) - {None}) <= 1, f"{what}: {found}"
        return next((wrote for wrote in found.values() if wrote), None)

    def close(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.communicate()


@pytest.fixture
def job(tmp_path, manager):
    job = Job(str(tmp_path), manager.address)
    yield job
    job.close()


def test_all_adopt_one_plan_time_after_time(job):
    for _ in range(3):
        job.start()
        job.require("planned")
        digests = {node.report["digest"] for node in job.nodes}
        assert len(digests) == 1
        new_ranks = [open(os.path.join(node.out, "RANK_AFTER_ACC")).read().strip() for node in job.nodes]
        assert new_ranks == ["0", "2", "1", "3"]


def test_a_node_without_topology(job):
    os.unlink(job.nodes[2].topology)
    job.start()
    job.require("skipped", "node 2", "topology.csv")
    job.nodes[2].write_topology([f"tor{i % 2}" for i in range(NODES)])
    job.start()
    job.require("planned")


def test_a_node_with_another_topology(job):
    job.nodes[1].write_topology(["tor0", "tor1", "tor1", "tor0"])
    job.start()
    job.require("skipped", "node 1", "planned something else")


def test_rank_tables_that_differ(job):
    job.nodes[3].write_table(rank_table(server_count=str(NODES), note="another"))
    job.start()
    job.require("failed", "rank tables", "node 0", "node 3")


def test_a_missing_node_is_named(job):
    job.start(0, 1, 3, timeout_s=6)
    job.require("skipped", "node 2", but=(2,))
    job.start()
    job.require("planned")


def test_an_index_twice(job, tmp_path):
    twin = Node(Job(str(tmp_path / "twin"), job.address), 1)
    both = [job.nodes[1].start(), twin.start()]
    try:
        wait_until(lambda: any(node.child.poll() is not None for node in both), "one of the two is refused")
        refused, taken = sorted(both, key=lambda node: node.child.poll() is None)
        refused.require("failed", "index 1")
        job.start(0, 2, 3)
        job.require("planned", but=(1,))
        taken.require("planned")
    finally:
        twin.job.close()


def connections(pid):
    """Sockets of a process: a node that has none has not reached the manager."""
    try:
        return [fd for fd in os.listdir(f"/proc/{pid}/fd") if "socket:" in os.readlink(f"/proc/{pid}/fd/{fd}")]
    except FileNotFoundError:
        return []


def test_no_manager(tmp_path):
    job = Job(str(tmp_path), f"127.0.0.1:{harness.free_port()}")
    try:
        job.start(timeout_s=1)
        job.require("skipped", job.address)
    finally:
        job.close()


def test_the_manager_dies_before_all_have_come(job, manager):
    job.start(0, 1, 2, timeout_s=12)
    wait_until(lambda: all(connections(node.child.pid) for node in job.nodes[:3]), "three nodes wait")
    manager.kill()
    job.start(3, timeout_s=12)
    job.require("skipped", job.address)


def test_an_ipv6_manager(stage, tmp_path):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    port = harness.free_port()
    stage._add(harness.Process("manager6", [harness.TASKD, "manager", "--job", harness.JOB, "--listen", f"[::1]:{port}",
                                            "--http", f"127.0.0.1:{harness.free_port()}",
                                            "--state-dir", str(tmp_path / "state")], clean_environment(), str(tmp_path)))
    job = Job(str(tmp_path), f"[::1]:{port}")
    try:
        job.start()  # before the manager listens, perhaps
        job.require("planned")
    finally:
        job.close()


def test_the_jobs_token(stage, tmp_path):
    manager = stage.manager(environment=clean_environment(TASKD_TOKEN="secret"), wait=False)
    job = Job(str(tmp_path), manager.address)
    try:
        job.start(token="secret")
        job.require("planned")
        job.remove_files()
        job.start(0, token="wrong")
        job.start(1, token="secret ")
        job.nodes[0].require("failed", "TASKD_TOKEN")
        job.nodes[1].require("failed", "TASKD_TOKEN")
    finally:
        job.close()


def test_a_stopped_node_holds_nobody_up_for_ever(job):
    job.start(1, 2, 3)
    wait_until(lambda: all(connections(node.child.pid) for node in job.nodes[1:]), "three nodes wait")
    job.nodes[1].child.send_signal(signal.SIGSTOP)
    job.start(0)
    job.require("skipped", "node 1", but=(1,))
    job.nodes[1].child.send_signal(signal.SIGCONT)
    job.nodes[1].require("skipped")


# Runs end within this time when nothing is wrong: where to look for the moment that breaks something.
def typical_s(job):
    began = time.monotonic()
    job.start()
    job.require("planned")
    return time.monotonic() - began


@pytest.mark.timeout(1400)
@pytest.mark.parametrize("turns", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(job, turns):
    random.seed(1)
    typical = typical_s(job)
    seen = {"plan": 0, "identity": 0, "came back": 0}
    for turn in range(turns):
        job.remove_files()
        job.start(timeout_s=5)
        victims = random.sample(job.nodes, random.choice((1, 1, 1, 2)))
        for victim in victims:
            time.sleep(random.uniform(0, typical / len(victims)))
            victim.kill()
        for node in job.nodes:
            node.end()
        wrote = job.require_no_mixture(f"turn {turn}, killed {[v.index for v in victims]}")
        if wrote:
            seen[wrote] += 1
        # One that was killed before it had written comes back alone, and the others have what they have.
        if wrote == "plan" and random.random() < 0.5:
            for victim in victims:
                if victim.wrote() is None:
                    victim.start().require("planned")
                    seen["came back"] += 1
            assert job.require_no_mixture(f"turn {turn}, came back") == "plan"
    print(seen)
    assert turns < 30 or (seen["plan"] and seen["identity"]), seen
    job.start()
    job.require("planned")


@pytest.mark.timeout(300)
def test_the_manager_is_killed_at_random_moments(stage, tmp_path):
    random.seed(2)
    manager = stage.manager()
    job = Job(str(tmp_path), manager.address)
    try:
        typical = typical_s(job)
        for turn in range(10):
            job.remove_files()
            job.start(timeout_s=2)
            time.sleep(random.uniform(0, typical))
            manager.kill()
            if turn % 2:
                manager = stage.manager(name=f"manager{turn}", port=manager.port)
            for node in job.nodes:
                assert node.end() in (0, 1)
            job.require_no_mixture(f"turn {turn}")
            if not turn % 2:
                manager = stage.manager(name=f"manager{turn}", port=manager.port)
    finally:
        job.close()
