"""Traces as PyTorch's profiler writes them: of real training on gloo, and of the form that releases from 2.2 on have for
GPUs, written here after its public description (names and places of keys; what nobody here can record)."""
import gzip
import json
import os
import random
import subprocess
import sys
import textwrap

import deadlines
import ports

BASE_NS = 1_767_225_600_000_000_000  # 2026-01-01
MS = 1000.0  # microseconds

TRAINING = textwrap.dedent('''
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    out, steps, slow_rank, slow_from, work_ms, more_ms, how = sys.argv[1:8]
    steps, slow_rank, slow_from = int(steps), int(slow_rank), int(slow_from)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=.01)

    class Data(torch.utils.data.Dataset):
        step = 0
        def __len__(self):
            return 1 << 20
        def __getitem__(self, index):
            if how == "loader" and rank == slow_rank and Data.step >= slow_from:
                time.sleep(float(more_ms) / 1000)
            return torch.ones(64)

    def finish(profiler):  # the last step's operations are over; gloo's threads may wait for ranks that are gone
        profiler.export_chrome_trace(f"{out}/rank{rank}.pt.trace.json")
        os._exit(0)

    batches = iter(torch.utils.data.DataLoader(Data(), batch_size=1))
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=steps),
                 on_trace_ready=finish) as profiler:
        for step in range(steps + 2):
            Data.step = step
            loss = model(next(batches)).sum()
            time.sleep(float(work_ms) / 1000)
            if how == "sleep" and rank == slow_rank and step >= slow_from:
                time.sleep(float(more_ms) / 1000)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
''')


def record(folder, ranks=3, steps=60, slow_rank=-1, slow_from=20, work_ms=30, more_ms=60, how="sleep"):
    """Trains with PyTorch's own profiler on; `folder` gets a trace a rank."""
    script = folder.parent / "profiled_training.py"
    script.write_text(TRAINING)
    folder.mkdir(exist_ok=True)
    port = ports.free_port()
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        env.pop("LD_PRELOAD", None)
        processes.append(subprocess.Popen(
            [sys.executable, str(script), str(folder), *map(str, (steps, slow_rank, slow_from, work_ms, more_ms, how))],
            env=env, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = deadlines.communicate(process, timeout_s=120)
        assert process.returncode == 0, errors[-2000:]


class GpuJob:
    """A data-parallel job on GPUs: each step computes, then all reduce. Times in ms."""

    def __init__(self, ranks=4, steps=60, seed=1):
        self.ranks, self.steps = ranks, steps
        self.extra = {}        # rank -> (from step, ms)
        self.idle = {}         # rank -> (from step, ms): the device waits for launches
        self.clock_ms = {}     # rank -> how far its clock is ahead
        self.first_step = {}   # rank -> number of its first step; 100 unless given
        self.annotate = True   # ProfilerStep#
        self.group = "0"
        self.description = "default_pg"
        self.world_size = ranks
        self.more_events = lambda rank: []
        self.host_name = None  # of each rank, as later releases say it
        self.random = random.Random(seed)

    def traces(self):
        """{rank: the trace as an object}"""
        now = 1000.0
        events = {rank: [] for rank in range(self.ranks)}
        for step in range(self.steps):
            begin = now
            ready = {}
            for rank in range(self.ranks):
                since, more = self.extra.get(rank, (0, 0))
                work = 50 + self.random.gauss(0, .3) + (more if step >= since else 0)
                ready[rank] = begin + work + self.idle_ms(rank, step)
            done = max(ready.values()) + 2
            for rank in range(self.ranks):
                self.add_step(events[rank], rank, step, begin, ready[rank], done)
            now = done + 3
        return {rank: self.trace(rank, events[rank]) for rank in events}

    def idle_ms(self, rank, step):
        since, ms = self.idle.get(rank, (0, 0))
        return ms if step >= since else 0

    def add_step(self, events, rank, step, begin, ready, done):
        ahead = self.clock_ms.get(rank, 0)

        def event(name, category, start, end, tid, **args):
            events.append({"ph": "X", "cat": category, "name": name, "pid": 1234, "tid": tid,
                           "ts": round((start + ahead) * MS, 3), "dur": round((end - start) * MS, 3), "args": args})
        number = self.first_step.get(rank, 100) + step
        comm = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": self.ranks,
                "dtype": "Float", "Process Group Name": self.group, "Process Group Description": self.description,
                "Process Group Ranks": str(list(range(self.ranks)))}
        if self.annotate:
            event(f"ProfilerStep#{number}", "user_annotation", begin, done + 3, 1234)
            event(f"ProfilerStep#{number}", "gpu_user_annotation", begin + .5, done + 2, 7)
        event("aten::mm", "cpu_op", begin + 1, begin + 4, 1234)
        comm["External id"] = 1 + step
        event("record_param_comms", "cpu_op", begin + 5, begin + 5.1, 1234, **comm)
        first = begin + 2 + self.idle_ms(rank, step)
        event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", first, first + 1, 7, device=rank, stream=7)
        event("vectorized_elementwise_kernel<4, float>", "kernel", first + 1, first + 20, 7, device=rank, stream=7)
        event("ampere_bf16_s16816gemm", "kernel", first + 20, ready, 7, device=rank, stream=7)
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", ready, done, 20,
              device=rank, stream=20, **comm)
        if self.annotate:
            event("nccl:all_reduce", "gpu_user_annotation", ready, done, 20)

    def trace(self, rank, events):
        host = {"host_name": self.host_name(rank)} if self.host_name else {}
        return {
            "schemaVersion": 1,
            **host,
            "deviceProperties": [{"id": rank, "name": "NVIDIA H100"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.world_size, "pg_count": 1,
                                "pg_config": [{"pg_name": self.group, "pg_desc": self.description,
                                               "backend_config": "cuda:nccl", "pg_size": self.ranks,
                                               "ranks": list(range(self.ranks))}]},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1234, "tid": 0, "ts": 0, "args": {"name": "python"}}]
            + events + self.more_events(rank)
            + [{"ph": "s", "id": 1, "pid": 1234, "tid": 1234, "ts": 1.5, "cat": "ac2g", "name": "ac2g"}],
            "traceName": "trace.json",
        }

    def write(self, folder, name="node-{node}_{pid}.{time}.pt.trace.json", compress=False):
        """`name` may use rank, node (of two ranks), pid and time."""
        folder.mkdir(exist_ok=True)
        paths = []
        for rank, trace in self.traces().items():
            path = folder / name.format(rank=rank, node=rank // 2, pid=4000 + rank, time=1767225600000 + rank)
            data = json.dumps(trace, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass")
            if compress:
                path = path.with_name(path.name + ".gz")
                data = gzip.compress(data, 6)
            path.write_bytes(data)
            paths.append(path)
        return paths


def slow_job(**options):
    """Rank 2 computes 20 ms longer from the 30th step on."""
    job = GpuJob(**options)
    job.extra[2] = (30, 20)
    return job
