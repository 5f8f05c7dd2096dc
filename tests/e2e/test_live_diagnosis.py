"""The diagnosis in the manager: folds in, verdicts out, kept over restarts, reported to ClusterD."""
import concurrent.futures
import json
import os
import re
import socketserver
import threading
import urllib.request

import grpc

import harness
import stubs
from deadlines import HANG_S
from folded_job import MS, FoldedJob, names, open_verdicts, report_of


class FakeClusterd:
    """ClusterD's PubFault, with its rules (TaskD contract 1.4). Keeps what it took and what it refused, over restarts."""

    def __init__(self):
        self.port = harness.free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.taken, self.refused = [], []
        self.server = None

    def start(self):
        messages, services = stubs.pubfault()
        outer = self

        class Service(services.PubFaultServicer):
            def SendPublicFault(self, request, context):
                broken = outer.broken_rule(request)
                (outer.refused if broken else outer.taken).append((broken, request))
                return messages.RespStatus(code=409 if broken else 0, info=broken)

        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        services.add_PubFaultServicer_to_server(Service(), self.server)
        harness.wait_until(lambda: self.server.add_insecure_port(self.address), f"ClusterD listens on {self.address}")
        self.server.start()

    def stop(self):
        if self.server:
            self.server.stop(0).wait()
        self.server = None

    def codes(self):
        return [request.faults[0].faultCode for _, request in self.taken]

    @staticmethod
    def broken_rule(request):
        identifier = re.compile(r"[a-zA-Z0-9\-_.]{8,128}")
        node_name = re.compile(r"[a-z0-9]([a-z0-9\-.]{0,251}[a-z0-9])?")

        def time_is_right(ms):
            return 1_735_689_600_000 <= ms <= 9_999_999_999_999

        rules = {
            "id": identifier.fullmatch(request.id), "timestamp": time_is_right(request.timestamp),
            "version": request.version == "1.0", "faults": 1 <= len(request.faults) <= 100,
            "resource": request.resource in ("CCAE", "fd-online", "pingmesh", "Netmind", "dpcStorage", "dtfsStorage"),
        }
        for fault in request.faults:
            rules |= {
                "faultId": identifier.fullmatch(fault.faultId),
                "faultType": fault.faultType in ("NPU", "Node", "Network", "Storage"),
                "faultCode": fault.faultCode in ("110001010", "100001011"),
                "faultTime": time_is_right(fault.faultTime) and fault.faultTime <= request.timestamp,
                "assertion": fault.assertion in ("occur", "recover", "once"),
                "faultLocation": len(fault.faultLocation) <= 10
                and all(len(k) <= 16 and len(v) <= 128 for k, v in fault.faultLocation.items()),
                "influence": 1 <= len(fault.influence) <= 1000,
                "description": re.fullmatch(r"[\S ]{0,512}", fault.description, re.ASCII),
            }
            for info in fault.influence:
                rules |= {"nodeName": node_name.fullmatch(info.nodeName),
                          "deviceIds": 1 <= len(info.deviceIds) <= 32 and len(set(info.deviceIds)) == len(info.deviceIds)
                          and all(0 <= device < 32 for device in info.deviceIds)}
        return next((name for name, kept in rules.items() if not kept), "")


def is_kept(manager):
    """Whether a verdict is in the state file: it is published before. An empty journal shows that it was committed."""
    path = os.path.join(manager.state_dir, "manager.db")
    with open(path, "rb") as file:
        written = b"own_time" in file.read()
    return written and os.path.getsize(path + "-journal") == 0


def verdicts_told(manager):
    with urllib.request.urlopen(f"http://{manager.http}/api/v1/live", timeout=HANG_S) as answer:
        return [event["kind"] for event in json.load(answer)["events"] if event["kind"].startswith("verdict_")]


def test_verdict_survives_kill(stage):
    manager = stage.manager()
    job = FoldedJob()
    job.connect(manager)
    assert report_of(manager).state == stubs.diagnosis()[0].DiagnosisReport.UNKNOWN
    job.run(80)
    job.slow = {6: 1.5}
    job.run(80)
    harness.wait_until(lambda: names(manager, 6), "rank 6 is named")
    harness.wait_until(lambda: is_kept(manager), "the verdict is kept")
    manager.kill()
    job.close()

    manager = stage.manager(port=manager.port, state_dir=manager.state_dir)
    assert names(manager, 6), "known before any proxy has come back"
    assert verdicts_told(manager) == [], "nothing has happened to this manager's job yet"
    before = report_of(manager)
    assert before.job == manager.job
    job.connect(manager)
    job.slow = {}
    job.run(200)
    harness.wait_until(lambda: not open_verdicts(manager), "the rank is healthy again and cleared")
    cleared = [v for v in report_of(manager).verdicts if not v.open and list(v.ids) == [6]]
    assert cleared and cleared[0].id == before.verdicts[0].id, "the same verdict, cleared, not another one"
    harness.wait_until(lambda: verdicts_told(manager) == ["verdict_cleared"], "that it is cleared has happened now")
    job.close()


def test_says_that_a_rank_waits_for_a_cpu(stage):
    manager = stage.manager()
    job = FoldedJob()
    job.connect(manager)
    job.cpu_waits = {}
    job.run(80)
    job.slow = {6: 1.5}
    job.cpu_waits = {6: 36 * MS}  # of 40 that it takes longer
    job.run(80)
    harness.wait_until(lambda: names(manager, 6), "rank 6 is named")
    done = stage.run("diagnose", "--manager", manager.address, "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)["verdicts"][0]
    job.close()
    assert (verdict["scope"], verdict["ids"], verdict["cause"]) == ("rank", [6], "host"), verdict
    assert [e["feature"] for e in verdict["evidence"]] == ["own_time", "cpu_wait"]
    wait = verdict["evidence"][1]
    assert (wait["reference"], wait["peers"]) == (1, 7) and 30 < wait["value"] < 36.01, wait
    assert "rank 6 (node 1) waits 3" in verdict["text"] and " ms a step for a CPU (its peers 1.0 ms), because of other work or a limit" in verdict["text"]


def test_contract_public_fault(stage):
    """contract: each state of a fault reaches ClusterD once, legal by its rules, whoever was away or killed."""
    clusterd = FakeClusterd()  # not there yet
    flags = ("--clusterd", clusterd.address, "--report-fault")
    manager = stage.manager(flags=flags)
    job = FoldedJob()
    try:
        job.connect(manager)
        job.run(80)
        job.slow = {6: 1.5}
        job.run(80)
        harness.wait_until(lambda: "takes no faults" in manager.log(), "the manager has tried")
        clusterd.start()
        harness.wait_until(lambda: clusterd.taken, "the fault arrives once ClusterD is there", 90)
        _, request = clusterd.taken[0]
        fault = request.faults[0]
        assert (request.resource, fault.faultCode, fault.faultType, fault.assertion) == (
            "fd-online", "110001010", "Node", "once")
        assert [(info.nodeName, list(info.deviceIds)) for info in fault.influence] == [("worker-1", [2])]
        assert "6" in fault.description
        harness.wait_until(lambda: "reported to ClusterD" in manager.log(), "the manager knows that it was taken")
        manager.kill()
        job.close()
        clusterd.stop()

        clusterd.start()
        manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=flags)
        job.connect(manager)
        job.run(40)
        harness.wait_until(lambda: names(manager, 6) and report_of(manager).last_step >= 190, "the verdict holds on")
        clusterd.stop()
        job.slow = {}
        job.run(200)
        harness.wait_until(lambda: not open_verdicts(manager), "the rank is healthy again")
        harness.wait_until(lambda: "takes no faults" in manager.log(), "the manager has tried")
        clusterd.start()
        harness.wait_until(lambda: "100001011" in clusterd.codes(), "the recovery arrives", 90)
        assert clusterd.codes() == ["110001010", "100001011"], "neither twice"
        assert clusterd.taken[1][1].faults[0].faultTime == fault.faultTime
        assert clusterd.refused == []
    finally:
        job.close()
        clusterd.stop()


def test_nothing_is_reported_unasked(stage):
    clusterd = FakeClusterd()
    clusterd.start()
    manager = stage.manager(flags=("--clusterd", clusterd.address))
    job = FoldedJob()
    job.connect(manager)
    job.slow = {6: 1.5}
    job.run(160)
    harness.wait_until(lambda: names(manager, 6), "rank 6 is named")
    manager.terminate()
    job.close()
    clusterd.stop()
    assert clusterd.taken == [] and clusterd.refused == []


def test_no_fault_for_a_name_of_two_hosts(stage):
    """A node that gives another node's name has nobody reported: neither that node, nor itself."""
    clusterd = FakeClusterd()
    clusterd.start()
    manager = stage.manager(flags=("--clusterd", clusterd.address, "--report-fault"))
    job = FoldedJob(node_names=("worker-0", "worker-0"))
    try:
        job.connect(manager)
        job.run(80)
        job.slow = {6: 1.5}
        job.run(80)
        harness.wait_until(lambda: "is not reported to ClusterD" in manager.log(), "the manager has looked for the name")
        assert "two hosts have the node name 'worker-0'" in manager.log()
        verdict = next(verdict for verdict in report_of(manager).verdicts if verdict.open)
        assert [(node.rank, node.host, node.pod, node.node_name) for node in verdict.nodes] == [(1, "pod-1", "pod-1", "")]
        assert clusterd.taken == [] and clusterd.refused == []
    finally:
        job.close()
        clusterd.stop()


def test_report_needs_clusterd(stage):
    done = stage.run("manager", "--listen", "127.0.0.1:0", "--report-fault")
    assert done.returncode == 2
    assert "--report-fault" in done.stderr and "--clusterd" in done.stderr


class Barrier:
    """The collective of the ranks below: everybody leaves when the last one has come."""

    def __init__(self, ranks):
        barrier = threading.Barrier(ranks)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    while self.request.recv(1):
                        barrier.wait()
                        self.request.sendall(b"!")
                except (OSError, threading.BrokenBarrierError):
                    pass

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


TRAINING = r"""
import os, signal, socket, sys, time
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
from taskd import mstx
rank, port, slow_from = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
assert init_taskd_worker(rank, 5000) and start_taskd_worker()
peers = socket.create_connection(("127.0.0.1", port))
name = '{"count": "4096","streamId": "1","dataType": "bfp16","groupName": "world","opName": "HcclAllreduce"}'
step = 0
while True:
    step_range = mstx.range_start(f"step {step}")
    forward = mstx.range_start("forward")
    time.sleep(0.06 if 0 <= slow_from <= step else 0.02)
    mstx.range_end(forward)
    reduce = mstx.range_start(name, domain="communication")
    peers.sendall(b"?")
    if not peers.recv(1):
        break
    mstx.range_end(reduce)
    mstx.range_end(step_range)
    step += 1
"""


def test_marks_become_a_verdict(stage):
    """Real ranks mark, real proxies fold; one rank computes three times as long from its 60th step on."""
    manager = stage.manager()
    manager.all_on()
    proxies = [stage.proxy(manager, node=node) for node in range(2)]
    barrier = Barrier(4)
    try:
        for rank in range(4):
            stage.python(f"rank{rank}", TRAINING, {"TASKD_SOCKET": proxies[rank // 2].socket, "RANK": rank}, str(rank),
                         str(barrier.port), "60" if rank == 2 else "-1")
        # On a busy machine another one may be slow, too, for a while.
        harness.wait_until(lambda: [ids for scope, ids, _ in open_verdicts(manager) if scope == "rank"] == [[2]],
                           "rank 2 is named, and nobody else", 120, 0.2)
        assert report_of(manager).ranks == 4
    finally:
        barrier.close()
