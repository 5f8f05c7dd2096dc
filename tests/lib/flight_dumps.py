"""Dumps of a flight recorder, written here after its public description: what each rank would have recorded of a program of
collectives and messages in which something went wrong."""
import json
import pickle

WORLD = "0"
START_NS = 1_767_225_600_000_000_000  # 2026-01-01
VERSIONS = ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10"]
MESSAGES = ("send", "recv", "batch")


class HungJob:
    """`groups`: {name: (description, members)}. `programs`: what each rank calls, in order: (group, operation, sizes), or
    (group, "send" or "recv", sizes, global rank of the other end), or (group, "batch", sizes, (("send", rank), ...)). A
    rank goes on while all members do the same."""

    def __init__(self, ranks, groups=None):
        self.ranks = ranks
        self.groups = {WORLD: ("default_pg", list(range(ranks))), **(groups or {})}
        self.programs = {rank: [] for rank in range(ranks)}
        self.ahead = 0  # further calls that a rank that waits has made already
        self.dtype = {}  # (rank, index in its program) -> type
        self.buffer = 2000  # entries that a recorder holds
        self.timed = True  # else nothing is ever "started"
        self.frames = True
        self.only_active = False
        self.dead = {}  # rank -> the call from which on its device does nothing
        self.unseen = {}  # rank -> the call from which on it does not see that one is over
        self.made = {}  # rank -> how many calls its process has made
        self.gloo = False  # as gloo's recorder does it: it follows no states, and knows neither groups nor messages
        self.start_ns = START_NS

    def all_do(self, *calls):
        for rank in range(self.ranks):
            self.programs[rank] += [call for call in calls if rank in self.groups[call[0]][1]]

    def _run(self):
        """{rank: how many of its calls are over}"""
        at = {rank: 0 for rank in self.programs}

        def call(rank):
            return self.programs[rank][at[rank]] if at[rank] < len(self.programs[rank]) else None

        def parts(rank):
            mine = call(rank)
            if mine is None or mine[1] not in MESSAGES:
                return ()
            return mine[3] if mine[1] == "batch" else ((mine[1], mine[3]),)

        def exchange(rank):
            """All whose messages are for each other, or nobody."""
            together, open_ranks = {rank}, [rank]
            while open_ranks:
                one = open_ranks.pop()
                for kind, other in parts(one):
                    if (("recv" if kind == "send" else "send"), one) not in parts(other):
                        return []
                    if other not in together:
                        together.add(other)
                        open_ranks.append(other)
            return together

        def lives(rank):
            return at[rank] < self.dead.get(rank, len(self.programs[rank]))

        def comes_through(rank):
            mine = call(rank)
            if mine is None:
                return []
            if mine[1] in MESSAGES:
                together = exchange(rank)
                return together if all(lives(one) for one in together) else []
            members = self.groups[mine[0]][1]
            same = all(lives(member) and call(member) == mine and self._number(member, at[member]) == self._number(rank, at[rank])
                       and self._type(member, at[member]) == self._type(rank, at[rank]) for member in members)
            return members if same else []
        moved = True
        while moved:
            moved = False
            for rank in self.programs:
                together = comes_through(rank)
                for member in together:
                    at[member] += 1
                moved |= bool(together)
        return at

    def _type(self, rank, index):
        return self.dtype.get((rank, index), "Float")

    def _number(self, rank, index):
        return sum(call[0] == self.programs[rank][index][0] and call[1] not in MESSAGES
                   for call in self.programs[rank][:index + 1])

    def dumps(self, version="2.4"):
        over = self._run()
        return {rank: self._dump(rank, over[rank], version) for rank in self.programs}

    def _entries(self, rank, over):
        made = self.programs[rank][:self.made.get(rank, over + 1 + self.ahead)]
        for index, (group, operation, sizes, *other) in enumerate(made):
            description, members = self.groups[group]
            runs = self.timed and rank not in self.dead
            seen = min(over, self.unseen.get(rank, over))
            state = "completed" if index < seen else "started" if index == over and runs else "scheduled"
            names = [operation]
            if operation in MESSAGES:
                parts = other[0] if operation == "batch" else [(operation, other[0])]
                names = [f"{kind} {members.index(rank)}{'->' if kind == 'send' else '<-'}{members.index(peer)}"
                         for kind, peer in parts]
            common = {
                "pg_id": self._groups_of(rank).index(group), "process_group": (group, description),
                "collective_seq_id": self._number(rank, index), "p2p_seq_id": index + 1 if operation in MESSAGES else 0,
                "time_created_ns": self.start_ns + index * 1_000_000_000, "timeout_ms": 600000,
                "is_p2p": operation in MESSAGES, "retired": state == "completed",
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
                "frames": [{"name": "train_step", "filename": "/job/train.py", "line": 40 + index},
                           {"name": "<module>", "filename": "/job/train.py", "line": 9}]}
            tensors = {"input_sizes": [list(sizes)], "input_dtypes": [self._type(rank, index)],
                       "output_sizes": [list(sizes)], "output_dtypes": [self._type(rank, index)]}
            for name in names:
                # Nobody follows the state of what is issued as one; an entry behind it has it.
                one = state if operation != "batch" else "scheduled"
                yield {**common, **tensors, "profiling_name": f"nccl:{name}", "state": one}
            if operation == "batch":
                yield {**common, "profiling_name": "nccl:coalesced", "state": state, "input_sizes": [],
                       "input_dtypes": [], "output_sizes": [], "output_dtypes": []}

    def _dump(self, rank, over, version):
        minor = int(version.split(".")[1])
        entries = []
        for record, entry in enumerate(self._entries(rank, over)):
            if minor < 2:
                del entry["timeout_ms"], entry["is_p2p"]
            if minor >= 9:
                entry["thread_id"], entry["thread_name"] = "139912345", "pt_main_thread"
            if not self.frames:
                del entry["frames"]
            entries.append({"record_id": record, "op_id": record + 1, **entry})
        entries = entries[-self.buffer:]
        if self.gloo:
            entries = [{**entry, "profiling_name": entry["profiling_name"].replace("nccl:", "gloo:"), "state": "scheduled"}
                       for entry in entries if not entry["is_p2p"]]
        if self.only_active:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        config = {name: {"name": name, "desc": description, "ranks": "[" + ", ".join(map(str, members)) + "]"}
                  for name, (description, members) in self.groups.items() if rank in members}
        if self.gloo:
            config = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
        dump = {"version": version, "pg_config": config, "entries": entries}
        if minor >= 3:
            dump["pg_status"] = self._status(rank, over)
        if minor >= 4:
            dump["nccl_comm_state"] = {"0x7f00": {"initState": "2", "commHash": "0x1a"}}
        if minor >= 8:
            dump["comm_lib_version"] = "2.27.5"
        return dump

    def _groups_of(self, rank):
        """Processes number the groups that they are in."""
        return [name for name, (_, members) in self.groups.items() if rank in members]

    def _status(self, rank, over):
        made = self.programs[rank][:self.made.get(rank, over + 1 + self.ahead)]
        status = {}
        for number, group in enumerate(self._groups_of(rank)):
            last = [sum(call[0] == group and call[1] not in MESSAGES for call in calls) for calls in (made, made[:over + 1], made[:over])]
            if any(call[0] == group for call in made):
                status[str(number)] = dict(zip(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), last))
        return status

    def write(self, folder, version="2.4", form="pickle", name="nccl_trace_rank_{rank}", leave_out=()):
        folder.mkdir(exist_ok=True)
        for rank, dump in self.dumps(version).items():
            if rank in leave_out:
                continue
            path = folder / name.format(rank=rank)
            if form == "json":
                path.write_text(json.dumps(as_json(dump), sort_keys=True))
            else:
                path.write_bytes(pickle.dumps(dump, protocol=int(form[-1]) if form[-1].isdigit() else 2))


def as_json(dump):
    """As the recorder writes the same: without frames, unknown times as 0, status as texts, no list of no entries."""
    dump = json.loads(json.dumps(dump))
    for entry in dump["entries"]:
        entry.pop("frames", None)
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
    for status in dump.get("pg_status", {}).values():
        status.update({key: str(value) for key, value in status.items()})
    if not dump["entries"]:
        del dump["entries"]
    return dump


def parallel_job(tensor, data, stages, steps, batched):
    """Tensor, data and pipeline parallel: messages between the stages, collectives in the groups, one of all at the end of a
    step."""
    def rank_of(stage, replica, shard):
        return (stage * data + replica) * tensor + shard
    groups, tensor_group, data_group = {}, {}, {}

    def add_group(description, members):
        name = str(1 + len(groups))
        groups[name] = (description, members)
        return name
    for stage in range(stages):
        for replica in range(data):
            tensor_group[stage, replica] = add_group("TP", [rank_of(stage, replica, shard) for shard in range(tensor)])
        for shard in range(tensor):
            data_group[stage, shard] = add_group("DP", [rank_of(stage, replica, shard) for replica in range(data)])
    job = HungJob(tensor * data * stages, groups)

    def message(kind, other):
        return (WORLD, "batch", (8,), ((kind, other),)) if batched else (WORLD, kind, (8,), other)
    for _ in range(steps):
        for stage in range(stages):
            for replica in range(data):
                for shard in range(tensor):
                    before, behind = rank_of(stage - 1, replica, shard), rank_of(stage + 1, replica, shard)
                    reduce = (tensor_group[stage, replica], "all_reduce", (64,))
                    job.programs[rank_of(stage, replica, shard)] += [
                        *([message("recv", before)] if stage > 0 else []), reduce, reduce,
                        *([message("send", behind), message("recv", behind)] if stage < stages - 1 else []), reduce,
                        *([message("send", before)] if stage > 0 else []),
                        (data_group[stage, shard], "reduce_scatter", (16,))]
        job.all_do((WORLD, "all_reduce", (1,)))
    return job
