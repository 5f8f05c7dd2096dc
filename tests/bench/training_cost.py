#!/usr/bin/python3
"""What TaskD costs a training step: training_cost.py TASKD [--jobs 4] [--rounds 8] [--steps 50] [--kinds off,...,all]

Two jobs of two ranks each train the same (DistributedDataParallel and an all-reduce of their own, over gloo), one without TaskD
and one by `TASKD run`. They take turns, a step each, while the other waits: so each pair of steps has the same machine, which is
noisier than what is measured. The second job's kinds of marks are switched while it trains, all of them in each round. The cost
of a round is the median ratio of its pairs (wall time), and the ratio of the ranks' CPU time, all threads counted; means over the
rounds with a 95 % interval, of so many rounds of so many times two jobs: two processes of the same program are never equally fast.
"daemons" is the CPU time of `taskd run`, manager and proxy meanwhile, as a share of one core.

Needs PyTorch and nothing else: tests/distros/torch_ways.sh ROOT --cost runs it in root filesystems with other releases.
"""
import argparse
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 2
KINDS = ("step", "fp", "dataloader", "save_checkpoint", "communication")
WARM_STEPS = 20


def rank_main():
    """Trains as many steps as it is told, and says how long each took."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, IterableDataset

    class Samples(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(8, 32, 128)

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["COST_SOCKET"])
    lines = connection.makefile("rw")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = iter(DataLoader(Samples(), batch_size=None))

    def step():
        batch = next(data)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())

    print(dist.get_rank(), torch.__version__, file=lines, flush=True)
    for request in lines:
        durations = []
        cpu = time.process_time()
        for _ in range(int(request)):
            began = time.perf_counter()
            step()
            durations.append(time.perf_counter() - began)
        print(json.dumps({"steps": durations, "cpu": time.process_time() - cpu}), file=lines, flush=True)
    dist.barrier()
    dist.destroy_process_group()


class Job:
    def __init__(self, name, folder, launch):
        path = os.path.join(folder, name)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(120)
        self.processes = launch(path)
        self.connections = [listener.accept()[0] for _ in range(RANKS)]
        self.ranks = [connection.makefile("rw") for connection in self.connections]
        self.release = [rank.readline().split()[1] for rank in self.ranks][0]
        self.train(WARM_STEPS)

    def train(self, steps):
        """(the last step, s; CPU time of the ranks, s)"""
        for rank in self.ranks:
            print(steps, file=rank, flush=True)
        answers = [json.loads(rank.readline()) for rank in self.ranks]
        return answers[0]["steps"][-1], sum(answer["cpu"] for answer in answers)

    def end(self):
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)
        return [process.wait(60) for process in self.processes]


def environment(**extra):
    steering = re.compile(r"TASKD_(?!BUILD_DIR)|MINDX_|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|LD_PRELOAD|TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not steering.match(name)}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONDONTWRITEBYTECODE": "1",
            **{name: str(value) for name, value in extra.items()}}


def without_taskd(path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [subprocess.Popen([sys.executable, os.path.abspath(__file__)], stdin=subprocess.DEVNULL,
                             env=environment(COST_SOCKET=path, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=RANKS,
                                             MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in range(RANKS)]


def daemons_cpu_s(program):
    """Of all processes that run `program`."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.samefile(f"/proc/{pid}/exe", program):
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended, or is the kernel's
            continue
    return total


def switch(taskd, kinds):
    words = [f"{kind}={'on' if kind in kinds else 'off'}" for kind in KINDS]
    done = subprocess.run([taskd, "switch", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(), check=False)
    assert done.returncode == 0, done.stdout


def share(ratios):
    """Mean and half of the 95 % interval, in %. `ratios`: logarithms near 0; at least ten."""
    freedom = len(ratios) - 1
    student = 1.96 + 2.4 / freedom + 3 / freedom**2  # 97.5 % of its distribution, within 0.01 from 9 degrees of freedom on
    return f"{100 * statistics.mean(ratios):+.2f} ± {100 * student * statistics.stdev(ratios) / math.sqrt(len(ratios)):.2f}"


def take_turns(plain, traced, steps, taskd):
    """Of so many pairs of steps: (without TaskD, s; ratio of their times; of the CPU times; CPU time of the daemons by the clock's)"""
    times, ratios = [], []
    cpu = {plain: 0, traced: 0}
    began, daemons = time.monotonic(), daemons_cpu_s(taskd)
    for pair in range(steps):
        took = {}
        for job in (plain, traced) if pair % 2 == 0 else (traced, plain):
            took[job], used = job.train(1)
            cpu[job] += used
        times.append(took[plain])
        ratios.append(math.log(took[traced] / took[plain]))
    daemons = (daemons_cpu_s(taskd) - daemons) / (time.monotonic() - began)
    return statistics.median(times), statistics.median(ratios), math.log(cpu[traced] / cpu[plain]), daemons


def measure(plain, traced, arguments, seen):
    for _ in range(arguments.rounds):
        for kinds, results in seen.items():
            switch(arguments.taskd, KINDS if kinds == "all" else kinds.split("+"))
            traced.train(2)  # it gets there
            results.append(take_turns(plain, traced, arguments.steps, arguments.taskd))


def table(seen):
    lines = ["| kinds on | step without, ms | wall, % | CPU of the ranks, % | daemons, % of a core |", "|---|---|---|---|---|"]
    for kinds, results in seen.items():
        times, wall, cpu, daemons = zip(*results)
        lines.append(f"| {kinds} | {1e3 * statistics.median(times):.1f} | {share(wall)} | {share(cpu)} "
                     f"| {100 * statistics.mean(daemons):.1f} |")
    return "\n".join(lines)


def main():
    if "COST_SOCKET" in os.environ:
        return rank_main()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taskd", type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=4, help="times that both start")
    parser.add_argument("--rounds", type=int, default=8, help="with each of them")
    parser.add_argument("--steps", type=int, default=50, help="pairs of a round")
    parser.add_argument("--kinds", default="off,step+fp+dataloader+save_checkpoint,all", help="one after the other, in each round")
    arguments = parser.parse_args()
    if arguments.jobs * arguments.rounds < 10:
        parser.error(f"{arguments.jobs} jobs of {arguments.rounds} rounds: at least 10 rounds, for an interval")
    seen = {kinds: [] for kinds in arguments.kinds.split(",")}
    for _ in range(arguments.jobs):
        release = run(arguments, seen)
    print(f"PyTorch {release}, {arguments.jobs} times {arguments.rounds} rounds of {arguments.steps} pairs of steps\n\n{table(seen)}")
    return 0


def run(arguments, seen):
    """Both jobs, from start to end; the release."""
    with tempfile.TemporaryDirectory(prefix="taskd-cost-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder  # so that `taskd switch` finds this job, and no other

        def by_taskd(path):
            return [subprocess.Popen(
                [arguments.taskd, "run", "--standalone", "--nproc-per-node", str(RANKS), "-m", "taskd.torch", os.path.abspath(__file__)],
                stdin=subprocess.DEVNULL, env=environment(COST_SOCKET=path, TASKD_PROFILING_DIR=os.path.join(folder, "profiling"),
                                                          MINDX_TASK_ID="cost", PYTHON_EXEC=sys.executable))]
        plain, traced = Job("plain", folder, without_taskd), Job("traced", folder, by_taskd)
        measure(plain, traced, arguments, seen)
        codes = plain.end() + traced.end()
        assert not any(codes), codes
        return plain.release


if __name__ == "__main__":
    sys.exit(main())
