#!/usr/bin/python3
"""What TaskD costs a training step: training_cost.py TASKD [--jobs 4] [--rounds 10] [--steps 50] [--ranks 1]

Two jobs train the same (DistributedDataParallel and an all-reduce of their own, over gloo), one without TaskD
and one by `TASKD run`, with all kinds of marks on. They take turns while the other waits, and the second job takes three turns,
in which taskd.torch records nothing, all but communication, and all; in another order each time. So the steps that are compared
have the same machine, which is noisier than what is measured, and what is recorded is compared within the same processes: two of
the same program are never equally fast. A turn is two steps, and the second one counts: the first one finds the processor's
caches filled by whoever was there before.

The cost of a round is the mean ratio of its steps' times, of the middle 80 % of them: wall, and CPU of all threads of the ranks.
The table has means over all rounds with their 95 % interval. "daemons" is the CPU time of `taskd run`, manager and proxy meanwhile.

Needs PyTorch and nothing else: tests/distros/torch_ways.sh ROOT --cost runs it in root filesystems with other releases.
"""
import argparse
import json
import math
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# tests/distros/torch_ways.sh puts these modules beside this file.
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import deadlines  # noqa: E402
from ports import free_port  # noqa: E402

COMMUNICATION = 0x10
RECORDED = {"nothing": 0, "all but communication": ~COMMUNICATION, "all": ~0}  # bits of taskd.mstx.KIND_*
WARM_STEPS = 20
TURN_STEPS = 2


def rank_main():
    """Trains as many steps as it is told, and says how long the last one took."""
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
        steps, *recorded = map(int, request.split())
        kinds = record(*recorded) if recorded else 0
        for _ in range(steps):
            began, cpu = time.perf_counter(), time.process_time()
            step()
            took, used = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps({"step": took, "cpu": used, "kinds": kinds}), file=lines, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def record(kinds):
    """Of those that TaskD has switched on, from now on; which they are."""
    from taskd import mstx
    from taskd.torch import _gate

    _gate.kinds = lambda: mstx.enabled_kinds() & kinds
    return _gate.kinds()


class Job:
    def __init__(self, name, folder, ranks, launch):
        path = os.path.join(folder, name)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(deadlines.HANG_S)
        self.processes = launch(path, ranks)
        self.connections = [listener.accept()[0] for _ in range(ranks)]
        self.ranks = [connection.makefile("rw") for connection in self.connections]
        self.release = [rank.readline().split()[1] for rank in self.ranks][0]
        self.train(WARM_STEPS)

    def train(self, steps, *recorded):
        """(the last step, s; CPU time of the ranks in it, s); `recorded`: bits of kinds, for a job of TaskD's."""
        for rank in self.ranks:
            print(steps, *recorded, file=rank, flush=True)
        answers = [json.loads(rank.readline()) for rank in self.ranks]
        assert all(bool(answer["kinds"]) == any(recorded) for answer in answers), (recorded, answers)
        return answers[0]["step"], sum(answer["cpu"] for answer in answers)

    def end(self):
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)
        return [deadlines.wait_child(process) for process in self.processes]


def environment(**extra):
    steering = re.compile(r"TASKD_(?!BUILD_DIR)|MINDX_|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|LD_PRELOAD|TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not steering.match(name)}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONDONTWRITEBYTECODE": "1",
            **{name: str(value) for name, value in extra.items()}}


def without_taskd(path, ranks):
    port = free_port()
    return [subprocess.Popen([sys.executable, os.path.abspath(__file__)], stdin=subprocess.DEVNULL,
                             env=environment(COST_SOCKET=path, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks,
                                             MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in range(ranks)]


def daemons_cpu_s(program):
    """Of all processes that run `program`, by their command lines: a daemon's exe is root's to see."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                first = command.read().split(b"\0")[0]
            if first and os.path.realpath(first) == os.path.realpath(os.fsencode(program)):
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended, or is the kernel's
            continue
    return total


def share(ratios):
    """Mean and half of the 95 % interval, in %. `ratios`: logarithms near 0; at least ten."""
    freedom = len(ratios) - 1
    student = 1.96 + 2.4 / freedom + 3 / freedom**2  # 97.5 % of its distribution, within 0.01 from 9 degrees of freedom on
    return f"{100 * statistics.mean(ratios):+.2f} ± {100 * student * statistics.stdev(ratios) / math.sqrt(len(ratios)):.2f}"


def take_turns(plain, traced, steps, taskd):
    """Of so many steps of each turn: {turn: (wall, CPU) as logarithms of ratios}, {"step": without TaskD, s; "daemons": their CPU
    time by the clock's}."""
    turns = {"without TaskD": lambda: plain.train(TURN_STEPS)}
    turns.update((name, lambda kinds=kinds: traced.train(TURN_STEPS, kinds)) for name, kinds in RECORDED.items())
    taken = {name: [] for name in turns}
    order = list(turns)
    began, daemons = time.monotonic(), daemons_cpu_s(taskd)
    for _ in range(steps):
        random.shuffle(order)
        for name in order:
            taken[name].append(turns[name]())
    daemons = (daemons_cpu_s(taskd) - daemons) / (time.monotonic() - began)
    result = {"daemons": daemons, "step": statistics.median(wall for wall, _ in taken["without TaskD"])}
    for name in RECORDED:
        other = taken["without TaskD" if name == "nothing" else "nothing"]
        result[name] = tuple(middle(math.log(one[of] / another[of]) for one, another in zip(taken[name], other)) for of in (0, 1))
    return result


def middle(values):
    """Mean of the middle 80 %."""
    values = sorted(values)
    cut = len(values) // 10
    return statistics.mean(values[cut:len(values) - cut])


def table(rounds):
    """As Markdown."""
    lines = ["| recorded | compared with | wall, % | CPU of the ranks, % |", "|---|---|---|---|"]
    for name in RECORDED:
        wall, cpu = zip(*(one[name] for one in rounds))
        lines.append(f"| {name} | {'no TaskD' if name == 'nothing' else 'nothing recorded'} | {share(wall)} | {share(cpu)} |")
    return "\n".join([*lines, "", f"A step without TaskD: {1e3 * statistics.median(one['step'] for one in rounds):.1f} ms. "
                      f"Daemons: {100 * statistics.mean(one['daemons'] for one in rounds):.1f} % of a core."])


def main():
    if "COST_SOCKET" in os.environ:
        return rank_main()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taskd", type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=4, help="times that both start")
    parser.add_argument("--rounds", type=int, default=10, help="with each of them")
    parser.add_argument("--steps", type=int, default=50, help="turns of each kind in a round")
    parser.add_argument("--ranks", type=int, default=1, help="of each job")
    arguments = parser.parse_args()
    if arguments.jobs * arguments.rounds < 10:
        parser.error(f"{arguments.jobs} jobs of {arguments.rounds} rounds: at least 10 rounds, for an interval")
    rounds = []
    for _ in range(arguments.jobs):
        release = run(arguments, rounds)
    print(f"PyTorch {release}, {arguments.jobs} times {arguments.rounds} rounds of {arguments.steps} steps of each\n\n{table(rounds)}")
    return 0


def run(arguments, rounds):
    """Both jobs, from start to end; the release."""
    with tempfile.TemporaryDirectory(prefix="taskd-cost-") as folder:
        switch = os.path.join(folder, "switch")
        with open(switch, "w", encoding="utf-8") as file:
            json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)

        def by_taskd(path, ranks):
            return [subprocess.Popen(
                [arguments.taskd, "run", "--standalone", "--nproc-per-node", str(ranks), "-m", "taskd.torch", os.path.abspath(__file__)],
                stdin=subprocess.DEVNULL, env=environment(COST_SOCKET=path, TASKD_PROFILING_DIR=os.path.join(folder, "profiling"),
                                                          MINDX_TASK_ID="cost", TASKD_SWITCH_FILE=switch, PYTHON_EXEC=sys.executable,
                                                          XDG_RUNTIME_DIR=folder))]
        plain, traced = Job("plain", folder, arguments.ranks, without_taskd), Job("traced", folder, arguments.ranks, by_taskd)
        traced.train(WARM_STEPS, RECORDED["all"])
        rounds += [take_turns(plain, traced, arguments.steps, arguments.taskd) for _ in range(arguments.rounds)]
        codes = plain.end() + traced.end()
        assert not any(codes), codes
        return plain.release


if __name__ == "__main__":
    sys.exit(main())
