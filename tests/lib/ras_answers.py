"""Answers of NCCL's RAS as `ncclras -f json` prints them, written here after its public description."""
import json

OPS = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"]


class RasJob:
    """`communicators`: {hash: members, as global ranks}. `counts`: {(hash, global rank): {operation: launched}}."""

    def __init__(self, ranks, communicators=None):
        self.ranks = ranks
        self.communicators = {"0x5111": list(range(ranks)), **(communicators or {})}
        self.counts = {(name, rank): {"AllReduce": 7, "AllGather": 3}
                       for name, members in self.communicators.items() for rank in members}
        self.missing = {}  # global rank -> its status
        self.errors = {}  # global rank -> asynchronous error

    def _process(self, rank):
        return {"host": f"10.0.0.{1 + rank // 8}", "pid": 4000 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8}

    def answer(self, time="2026-06-19 06:51:56"):
        communicators = []
        for name, members in self.communicators.items():
            ranks, missing = [], []
            for place, rank in enumerate(members):
                entry = {"rank": place, **self._process(rank)}
                if rank in self.missing:
                    missing.append({**entry, "status": self.missing[rank]})
                    continue
                status = {"init_state": 0, "async_error": self.errors.get(rank, 0), "finalize_called": False,
                          "destroy_flag": False, "abort_flag": False}
                counts = {op: self.counts[name, rank].get(op, 0) for op in OPS}
                ranks.append({**entry, "status": status, "collective_counts": counts})
            communicators.append({"hash": name, "secondary_hash": "0x2cd6:0xe685", "size": len(members),
                                  "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks,
                                  "missing_ranks": missing})
        return json.dumps({"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
                           "timestamp": time, "communicators_count": len(communicators),
                           "communicators": communicators,
                           "ras": {"collection_time_sec": 0.125, "timeouts_count": 0}}, indent=2) + "\n"
