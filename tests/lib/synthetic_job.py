"""Mark files of small training jobs, replayed from what waits for what: ranks that compute, and operations that end together.

    job = Job(ranks=4, steps=60)
    job.compute[2] = lambda step: 1.5 if step >= 30 else 1    # rank 2 becomes slow
    job.data_parallel()
    job.write(folder)
"""
import json
import os
import random

MS = 1_000_000
START_NS = 1_767_225_600_000_000_000
ALL_REDUCE, SEND, RECV, BATCH = "HcclAllreduce", "HcclSend", "HcclRecv", "HcclBatchSendRecv"


def compact(mark):
    """A line as TaskD and the original write it; the name of a communication stands as escaped JSON."""
    return json.dumps(mark, separators=(",", ":"), ensure_ascii=False)


class Job:
    def __init__(self, ranks, steps, seed=1, ranks_per_node=4, communication=True, first_step=0, start_ns=START_NS,
                 pid=1000):
        self.ranks, self.steps, self.first_step, self.pid = ranks, steps, first_step, pid
        self.ranks_per_node = ranks_per_node
        self.communication = communication
        self.random = random.Random(seed)
        self.start_ns = start_ns
        self.now = [0.0] * ranks  # of each rank's computation, ns since then
        self.compute = {}     # rank -> function of the step: factor of its computation
        self.dataloader = {}  # the same of its data loading
        self.clock_ns = {}    # node -> how far its clock is ahead
        self.groups = {rank: {} for rank in range(ranks)}  # parallel_group.json
        self.marks = {rank: [] for rank in range(ranks)}
        self.next_id = 0

    def node(self, rank):
        return rank // self.ranks_per_node

    def group(self, name, label, members):
        for index, rank in enumerate(members):
            self.groups[rank][name] = {"group_name": label, "group_rank": index, "global_ranks": members}
        return name, members

    def factor(self, faults, rank, step):
        noise = self.random.lognormvariate(0, 0.02)
        return noise * (faults[rank](step) if rank in faults else 1)

    def run(self, rank, step, ms):
        """The rank computes."""
        self.now[rank] += ms * MS * self.factor(self.compute, rank, step)

    def add(self, rank, time, flag, device, mark_id, name="", domain=""):
        a, b = (rank % self.ranks_per_node, 7) if device else (self.pid + rank, self.pid + rank + 1)
        stamp = self.start_ns + int(time) + self.clock_ns.get(self.node(rank), 0)
        self.marks[rank].append((time, len(self.marks[rank]), {
            "Kind": 1, "Flag": flag, "SourceKind": int(device), "Timestamp": stamp, "Id": mark_id,
            "MsptiObjectId": {"Pt": {"ProcessId": a, "ThreadId": b}, "Ds": {"DeviceId": a, "StreamId": b}},
            "Name": name, "Domain": domain}))

    def range(self, rank, name, start, end, domain="default", device=True):
        """On the host alone, or issued by the host 2 ms before the device gets there."""
        self.next_id += 1
        begin, finish = (16, 32) if device else (2, 4)
        lead = 2 * MS if device else 0
        issued = start + MS / 10 if domain == "communication" else end
        self.add(rank, start - lead, begin, False, self.next_id, name, domain)
        self.add(rank, issued - lead, finish, False, self.next_id)
        if device:
            self.add(rank, start, begin, True, self.next_id)
            self.add(rank, end, finish, True, self.next_id)

    def communicate(self, kind, group, starts, ms, peers=None):
        """One operation of `starts`' ranks (rank -> when it gets to it); returns when it ends."""
        name, members = group
        transfer = ms * MS * self.random.lognormvariate(0, 0.03)
        end = max(starts.values()) + transfer
        if self.communication:
            for rank, start in starts.items():
                text = {"count": "1048576", "streamId": "7", "dataType": "bfp16", "groupName": name,
                        "opName": kind[rank] if isinstance(kind, dict) else kind}
                if peers:
                    text["destRank"] = text["srcRank"] = str(members.index(peers[rank]))
                    if text["opName"] == SEND:
                        del text["srcRank"]
                    elif text["opName"] == RECV:
                        del text["destRank"]
                self.range(rank, json.dumps(text), start, end + abs(self.random.gauss(0, 0.02)) * MS, "communication")
        return end

    def load(self, rank, step):
        start = self.now[rank]
        self.now[rank] += 5 * MS * self.factor(self.dataloader, rank, step)
        self.range(rank, "dataloader", start, self.now[rank], device=False)

    def end_step(self, step, starts):
        for rank, start in enumerate(starts):
            self.run(rank, step, 5)  # optimizer
            self.range(rank, f"step {step}", start, self.now[rank])

    def data_parallel(self, group_name="dp-group"):
        group = self.group(group_name, "dp", list(range(self.ranks)))
        for step in range(self.first_step, self.first_step + self.steps):
            starts = list(self.now)
            ready = {}
            for rank in range(self.ranks):
                self.load(rank, step)
                begin = self.now[rank]
                self.run(rank, step, 20)
                self.range(rank, "forward", begin, self.now[rank])
            stream = 0
            for _ in range(4):  # gradient buckets, reduced beside the computation of the next
                for rank in range(self.ranks):
                    self.run(rank, step, 10)
                    ready[rank] = max(self.now[rank], stream)
                stream = self.communicate(ALL_REDUCE, group, dict(ready), 4)
            for rank in range(self.ranks):
                self.now[rank] = max(self.now[rank], stream)
            self.end_step(step, starts)

    def pipeline(self, replicas, microbatches=6, last_stage=1.0):
        """Two stages, 1F1B: ranks 0..replicas-1 are the first stage, the others the last."""
        reduce = [self.group(f"dp-{s}", "dp", [s * replicas + d for d in range(replicas)]) for s in range(2)]
        pairs = [self.group(f"pp-{d}", "pp", [d, replicas + d]) for d in range(replicas)]
        for step in range(self.first_step, self.first_step + self.steps):
            starts = list(self.now)
            for d in range(replicas):
                first, last = d, replicas + d
                peers = {first: last, last: first}
                exchange = lambda kind: self.meet(kind, pairs[d], peers)  # noqa: B023, E731
                self.load(first, step)
                begin = self.now[first]
                self.run(first, step, 10)
                self.range(first, "forward", begin, self.now[first])
                exchange({first: SEND, last: RECV})
                for m in range(microbatches):
                    if m + 1 < microbatches:
                        self.run(first, step, 10)
                    self.run(last, step, 30 * last_stage)
                    if m + 1 < microbatches:
                        exchange(BATCH)
                    else:
                        exchange({first: RECV, last: SEND})
                    self.run(first, step, 20)
            for s in range(2):
                members = reduce[s][1]
                end = self.communicate(ALL_REDUCE, reduce[s], {rank: self.now[rank] for rank in members}, 5)
                for rank in members:
                    self.now[rank] = end
            self.end_step(step, starts)

    def meet(self, kind, group, peers):
        end = self.communicate(kind, group, {rank: self.now[rank] for rank in peers}, 1, peers)
        for rank in peers:
            self.now[rank] = end

    def lines(self, rank, line=compact):
        return [line(mark) for _, _, mark in sorted(self.marks[rank], key=lambda mark: mark[:2])]

    def write(self, folder, line=compact, places=True, files=2, ranks=None):
        """One folder a rank, its lines in `files` files of about the same size."""
        for rank in range(self.ranks) if ranks is None else ranks:
            home = os.path.join(folder, str(rank))
            os.makedirs(home, exist_ok=True)
            lines = self.lines(rank, line)
            for i in range(files):
                part = lines[len(lines) * i // files:len(lines) * (i + 1) // files]
                name = START_NS // 10**9 + self.first_step + i
                with open(os.path.join(home, str(name)), "a", encoding="utf-8") as file:
                    file.write("".join(text + "\n" for text in part))
            with open(os.path.join(home, "parallel_group.json"), "w", encoding="utf-8") as file:
                json.dump(self.groups[rank], file, indent=4)
            if places:
                with open(os.path.join(home, ".rank.json"), "w", encoding="utf-8") as file:
                    json.dump({"node": self.node(rank), "host": f"worker-{self.node(rank)}",
                               "local_rank": rank % self.ranks_per_node}, file)
