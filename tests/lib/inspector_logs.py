"""Files as NCCL's Inspector plugin writes them, a process each, written here after its README (plugins/profiler/inspector in NVIDIA/nccl:
records with their own header up to format v4.2, one header a dump from v4.3 on)."""
import json
import random

START_US = 1_767_225_600_000_000  # 2026-01-01
MIB = 1 << 20


class InspectedJob:
    """Two ranks a host. Every operation is 10 ms after the one before; a rank that comes early waits in it."""

    def __init__(self, ranks=8, operations=200, seed=1, version="v4.0"):
        self.ranks, self.operations, self.version = ranks, operations, version
        self.groups = []  # (id, ranks, slow from which operation, times as long)
        self.pairs = []   # (sender, receiver, slow from, times as long), in the first group
        self.random = random.Random(seed)
        self.collectives = True
        self.dumps = 20   # operations between two

    def add_groups(self, groups, slow=None, since=100, factor=2.0):
        for number, ranks in enumerate(groups):
            self.groups.append((f"0x{len(self.groups) + 0x7f8c49:x}", ranks, since, factor if number == slow else 1.0))

    def write(self, folder):
        """Returns the paths, by rank."""
        folder.mkdir(exist_ok=True)
        lines = {rank: [] for rank in range(self.ranks)}
        for number in range(self.operations):
            for comm, ranks, since, factor in self.groups if self.collectives else []:
                # The last one only transfers.
                transfer = 2000 * self.random.lognormvariate(0, .02) * (factor if number >= since else 1)
                last = self.random.choice(ranks)
                for index, rank in enumerate(ranks):
                    wait = 0 if rank == last else self.random.uniform(0, 3000)
                    lines[rank].append((number, comm, index, ranks, {"coll": "AllReduce", "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": number,
                                        "coll_msg_size_bytes": 64 * MIB, "coll_exec_time_us": int(transfer + wait),
                                        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 30.0, "coll_busbw_gbs": 50.0}))
            for sender, receiver, since, factor in self.pairs:
                comm, ranks = self.groups[0][:2]
                transfer = 500 * self.random.lognormvariate(0, .02) * (factor if number >= since else 1)
                for rank, kind, peer in ((sender, "Send", receiver), (receiver, "Recv", sender)):
                    lines[rank].append((number, comm, ranks.index(rank), ranks, {"p2p": kind, "p2p_sn": number, "p2p_peer": ranks.index(peer),
                                        "p2p_msg_size_bytes": 16 * MIB, "p2p_exec_time_us": int(transfer), "p2p_timing_source": "kernel_gpu",
                                        "p2p_algobw_gbs": 30.0, "p2p_busbw_gbs": 30.0}))
        return [self.write_rank(folder, rank, lines[rank]) for rank in range(self.ranks)]

    def write_rank(self, folder, rank, lines):
        host, pid = f"host-{rank // 2}", 5000 + rank
        path = folder / f"{host}-pid{pid}.log"
        with open(path, "w") as file:
            dumped = None
            for number, comm, index, ranks, operation in lines:
                kind = "coll_perf" if "coll" in operation else "p2p_perf"
                context = {"header": {"id": comm, "rank": index, "n_ranks": len(ranks), "nnodes": 4},
                           "metadata": {"inspector_output_format_version": self.version, "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                                        "dump_timestamp_us": START_US + (number // self.dumps + 1) * self.dumps * 10_000, "hostname": host,
                                        "pid": pid}}
                record = {kind: operation}
                if self.version < "v4.3":
                    record = {**context, **record}
                elif dumped != (number, comm):
                    dumped = (number, comm)
                    file.write(json.dumps({**context, "dump_stats": {"coll_records": 1, "p2p_records": 0}}) + "\n")
                file.write(json.dumps(record) + "\n")
        return path
