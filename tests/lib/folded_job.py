"""A job whose proxies are this process: folds as they would send them, without marks."""
import queue
import threading
import time

import grpc

import harness
import stubs
from deadlines import HANG_S

MS = 1_000_000
RANKS, RANKS_PER_NODE = 8, 4
ALL_REDUCE = 1  # OpFold's kind


class NodeStream:
    """A proxy of our own: one stream that carries folds."""

    def __init__(self, manager, node, ranks, node_name=""):
        self.messages = stubs.node()[0]
        self.folds = __import__("taskd.v1.fold_pb2", fromlist=["fold_pb2"])
        self.outgoing = queue.Queue()
        self.channel = manager.secure_channel()
        hello = self.messages.NodeHello(node_rank=node, host=f"pod-{node}", pod=f"pod-{node}", node_name=node_name, identity=f"test-{node}")
        self.outgoing.put(self.messages.NodeMessage(hello=hello))
        statuses = [self.messages.RankStatus(rank=rank, pid=1000 + rank, attached=True, step=-1) for rank in ranks]
        self.outgoing.put(self.messages.NodeMessage(ranks=self.messages.RankSet(ranks=statuses)))
        self.sent_bytes = 0  # of groups and steps
        self.answers = stubs.node()[1].NodeLinkStub(self.channel).Connect(iter(self.outgoing.get, None))
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self):
        try:
            for _ in self.answers:
                pass
        except grpc.RpcError:
            pass

    def group(self, name, *runs, label="dp"):
        return self.folds.Group(name=name, label=label, runs=[number for run in runs for number in run])

    def send(self, steps=(), groups=()):
        """`groups`: rank -> its groups."""
        message = self.folds.FoldSet(groups=[self.folds.RankGroups(rank=rank, groups=of_rank)
                                             for rank, of_rank in dict(groups).items()], steps=steps)
        self.sent_bytes += message.ByteSize()
        self.outgoing.put(self.messages.NodeMessage(folds=message))

    def close(self):
        self.outgoing.put(None)
        self.answers.cancel()
        self.channel.close()


class FoldedJob:
    """Eight ranks on two nodes, one all-reduce a step: what their proxies would send. `slow`: rank -> factor;
    `cpu_waits`: all are known to have waited for a CPU: rank -> ns a step, else 1 ms."""

    def __init__(self, node_names=("worker-0", "worker-1")):
        self.node_names = node_names
        self.step = 0
        self.end_ns = time.time_ns()
        self.slow = {}
        self.cpu_waits = None
        self.manager = None
        self.nodes = []

    def connect(self, manager):
        self.manager = manager
        self.nodes = []
        for node in range(RANKS // RANKS_PER_NODE):
            ranks = range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)
            self.nodes.append(NodeStream(manager, node, ranks, self.node_names[node]))
            self.nodes[-1].send(groups={rank: [self.nodes[-1].group("world", (0, 1, RANKS))] for rank in ranks})

    def close(self):
        for node in self.nodes:
            node.close()

    def run(self, steps, without=()):
        for _ in range(steps):
            # Up to 1 % that no two ranks or steps share.
            own = [int(80 * MS * self.slow.get(rank, 1)) + (self.step * 7919 + rank * 104729) % 800_000
                   for rank in range(RANKS)]
            period = max(own) + 20 * MS
            self.end_ns += period
            for number, node in enumerate(self.nodes):
                node.send([self._fold(node, rank, own[rank], period)
                           for rank in range(number * RANKS_PER_NODE, (number + 1) * RANKS_PER_NODE) if rank not in without])
            self.step += 1
            if self.step % 16 == 0:  # Ranks wait for each other: no node gets far ahead of what the others have sent.
                harness.wait_until(lambda: report_of(self.manager).last_step >= self.step - 32, "the manager keeps up")

    def _fold(self, node, rank, own, period):
        covered = period - own
        cpu_wait = 0 if self.cpu_waits is None else self.cpu_waits.get(rank, MS)
        return node.folds.RankStep(
            rank=rank, step=self.step, process_id=1000 + rank, end_ns=self.end_ns, length_ns=period,
            period_ns=period if self.step else 0, covered_ns=covered, head_ns=own, host_only=True,
            cpu_wait_ns=cpu_wait,
            ops=[0, ALL_REDUCE, -1, 27, 1, 1 << 27, covered, covered, covered, 0, 0, 0, 0, 0, 0],
            samples=[0, ALL_REDUCE, 0, covered, 0])


def report_of(manager, job=""):
    messages, services = stubs.diagnosis()
    with manager.secure_channel() as channel:
        return services.DiagnosisStub(channel).GetReport(messages.GetReportRequest(job=job), timeout=HANG_S)


def open_verdicts(manager):
    return [(v.scope, list(v.ids), v.cause) for v in report_of(manager).verdicts if v.open]


def names(manager, rank):
    return any(scope == "rank" and ids == [rank] for scope, ids, _ in open_verdicts(manager))
