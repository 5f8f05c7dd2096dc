"""Folders as the profilers of torch_npu and MindSpore leave them, a rank each, written here after their public description
(hiascend.com, "Ascend PyTorch Profiler": names of files, columns and keys; what nobody here can record)."""
import csv
import json
import random

START_US = 1_767_225_600_000_000.0  # 2026-01-01
COLUMNS = ["Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble",
           "Communication(Not Overlapped and Exclude Receive)", "Preparing"]


def group_hash(name):
    """The number that operations call a process group by."""
    high = low = 0
    for char in name:
        high = (high * 29 + ord(char)) & 0xffffffff
        low = (low * 131 + ord(char)) & 0xffffffff
    return str(high << 32 | low)


class AscendJob:
    """Each step a rank computes, reduces half of its gradients while it computes on, then the rest. Times in ms."""

    def __init__(self, ranks=4, steps=60, seed=1):
        self.ranks, self.steps = ranks, steps
        self.computing = {}  # rank -> (from step, ms)
        self.waiting = {}    # rank -> (from step, ms): the device waits for its host
        self.clock_ms = {}   # rank -> how far its clock is ahead
        self.first_step = 10
        self.start_ms = 0
        self.groups = []  # (label, ranks)
        self.group = "10.0.0.1%eth0_60000_0_1767225600000000"
        self.step_numbers = True
        self.bubble_ms = 0.0
        self.random = random.Random(seed)

    def more(self, what, rank, step):
        since, ms = what.get(rank, (0, 0))
        return ms if step >= since else 0

    def run(self):
        """{rank: [(step, computing, first all-reduce, second all-reduce, free)]}, an all-reduce as (start, end)"""
        profile = {rank: [] for rank in range(self.ranks)}
        now = self.start_ms + 5.0
        for step in range(self.steps):
            compute = {rank: 50 + self.random.gauss(0, .3) + self.more(self.computing, rank, step) for rank in profile}
            free = {rank: 5 + self.random.gauss(0, .1) + self.more(self.waiting, rank, step) for rank in profile}
            # The last ten milliseconds of computation hide the first operation.
            first = {rank: now + free[rank] + compute[rank] - 10 for rank in profile}
            first_end = max(first.values()) + 4
            second = {rank: max(first_end, now + free[rank] + compute[rank]) for rank in profile}
            end = max(second.values()) + 6
            for rank, steps in profile.items():
                steps.append((step, compute[rank], (first[rank], first_end), (second[rank], end), free[rank]))
            now = end
        return profile

    def write(self, folder, name="node-{node}_{pid}_{time}_ascend_{framework}", framework="pt", csv_file=True,
              communication=True, trace=False, metadata=True, rank_file=True):
        """`name` may use rank, node (of two ranks), pid and time. Returns the output folders."""
        outputs = []
        for rank, steps in self.run().items():
            above = folder / name.format(rank=rank, node=rank // 2, pid=4000 + rank, time=20260101000000 + rank, framework=framework)
            output = above / "ASCEND_PROFILER_OUTPUT"
            output.mkdir(parents=True)
            (above / (f"profiler_info_{rank}.json" if rank_file else "profiler_info.json")).write_text(json.dumps(
                {"config": {"common_config": {}}, "rank_id": rank}))
            (output / "communication_matrix.json").write_text("{}")
            (output / "kernel_details.csv").write_text("Step Id,Device_id,Name\n")
            (above / "PROF_000001").mkdir()
            (above / "PROF_000001" / "msprof_1.json").write_text('[{"name": "a", "ph": "X", "ts": "1", "dur": 1}]')
            if metadata:
                groups = [(self.group, "default_group", list(range(self.ranks)))]
                groups += [(f"{label}-{ranks[0]}", label, ranks) for label, ranks in self.groups if rank in ranks]
                (above / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": {
                    name: {"group_name": label, "group_rank": ranks.index(rank), "global_ranks": ranks} for name, label, ranks in groups}}))
            if csv_file:
                self.write_sums(output / "step_trace_time.csv", rank, steps, framework)
            if communication:
                (output / "communication.json").write_text(json.dumps(self.operations(rank, steps)))
            if trace:
                (output / "trace_view.json").write_text(json.dumps(self.trace(rank, steps)))
            outputs.append(output)
        return outputs

    def number(self, step):
        return str(self.first_step + step) if self.step_numbers else ""

    def stamp(self, rank, ms):
        return START_US + (ms + self.clock_ms.get(rank, 0)) * 1000

    def write_sums(self, path, rank, steps, framework):
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            columns = COLUMNS if framework == "pt" else COLUMNS[1:]  # MindSpore's has no devices
            writer.writerow(columns)
            for step, compute, first, second, free in steps:
                communication = first[1] - first[0] + second[1] - second[0]
                hidden = min(10, first[1] - first[0])
                row = {"Device_id": rank % 2, "Step": self.number(step), "Computing": compute,
                       "Communication(Not Overlapped)": communication - hidden, "Overlapped": hidden, "Communication": communication,
                       "Free": free, "Stage": compute + communication - hidden + free, "Bubble": self.bubble_ms,
                       "Communication(Not Overlapped and Exclude Receive)": communication - hidden, "Preparing": free}
                writer.writerow([round(row[c] * 1000, 3) if isinstance(row[c], float) else row[c] for c in columns])

    def operations(self, rank, steps):
        result = {}
        for step, _, first, second, _ in steps:
            ops = {}
            for number, (start, end) in enumerate((first, second)):
                elapse = end - start
                size = {"Transit Size(MB)": 64.0, "Transit Time(ms)": 4.0, "Bandwidth(GB/s)": 16.0, "Large Packet Ratio": 1.0,
                        "Size Distribution": {"4.0": [16, 4.0]}}
                nothing = {**size, "Transit Size(MB)": 0, "Size Distribution": {}}
                ops[f"hcom_allReduce__{group_hash(self.group)[-3:]}_{2 * step + number}_1@{group_hash(self.group)}"] = {
                    "Communication Time Info": {
                        "Start Timestamp(us)": self.stamp(rank, start), "Elapse Time(ms)": elapse, "Transit Time(ms)": 4.0,
                        "Wait Time(ms)": elapse - 4, "Synchronization Time(ms)": elapse - 4, "Idle Time(ms)": 0.0,
                        "Wait Time Ratio": 0.5, "Synchronization Time Ratio": 0.5},
                    "Communication Bandwidth Info": {"RDMA": size, "HCCS": nothing, "PCIE": nothing, "SDMA": nothing, "SIO": nothing}}
            ops["Total Op Info"] = {"Communication Time Info": {"Elapse Time(ms)": 1.0}, "Communication Bandwidth Info": {}}
            result["step" + self.number(step)] = {"p2p": {}, "collective": ops}
        return result

    def trace(self, rank, steps):
        """trace_view.json: stamps are texts, and events of the device have no category."""
        events = [{"name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}, "ph": "M"}]

        def event(name, start, end, **more):
            events.append({"name": name, "pid": 7, "tid": 2, "ts": f"{self.stamp(rank, start):.3f}", "dur": (end - start) * 1000,
                           "args": {}, "ph": "X", **more})
        for step, compute, first, second, free in steps:
            begin = first[0] - (compute - 10) - free
            event(f"ProfilerStep#{self.number(step)}", begin, second[1], cat="cpu_op")
            event("aclnnMatmul_MatMulV2_MatMulV2", begin + free, begin + free + compute)
            event("Computing", begin + free, begin + free + compute)
            for number, (start, end) in enumerate((first, second)):
                event(f"hcom_allReduce__{group_hash(self.group)[-3:]}_{2 * step + number}_1", start, end)
                event("Communication", start, end)
                event("Notify_Wait", start, end - 4)
        return events
