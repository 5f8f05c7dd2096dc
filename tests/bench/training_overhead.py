#!/usr/bin/python3
"""What TaskD costs a training: training_overhead.py [--time-only] [--steps N]

Counts the instructions of a training step without TaskD and with everything recorded (taskd.torch, all kinds on, a proxy reading), with
valgrind's cachegrind: virtual machines seldom have hardware counters, and user time is noisier than the budget of 0.1 %.
A step's instructions are the difference between a long and a short run, so start-up cancels out. Takes about 5 minutes.
Then CPU time of both, in turns, with a 95 % confidence interval, to show what the clock can resolve.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import harness  # noqa: E402

# A GPT-like block stack, sized so that a step takes a few hundred ms on one CPU core: still short for a training step.
TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
steps, with_taskd = int(sys.argv[1]), sys.argv[2] == "with"
dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://" + sys.argv[3])
if with_taskd:
    from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
    import taskd.torch
    assert init_taskd_worker(0, 5000) and start_taskd_worker()
    taskd.torch.enable()
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
model = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(4 * steps, 64, 128)), batch_size=4)
began = time.process_time()
for (batch,) in data:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
print("cpu_s_per_step", (time.process_time() - began) / steps)
"""


def run(folder, proxy, mode, steps, counting):
    program = os.path.join(folder, "training.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write(TRAINING)
    store = os.path.join(folder, "store")
    if os.path.exists(store):
        os.unlink(store)
    environment = harness.clean_environment(PYTHONPATH=harness.PYTHON_PACKAGE, PYTHONHASHSEED=0, OMP_NUM_THREADS=1,
                                            PYTHONDONTWRITEBYTECODE=1)
    if mode == "with":
        environment.update(LD_PRELOAD=harness.LIBRARY, TASKD_SOCKET=proxy.socket)
    command = [harness.PYTHON, program, str(steps), mode, store]
    if counting:
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--error-limit=no",
                   *command]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"training ended with {done.returncode}: {done.stderr[-2000:]}")
    if counting:
        return int(re.search(r"I +refs: +([\d,]+)", done.stderr)[1].replace(",", ""))
    return float(re.search(r"cpu_s_per_step (\S+)", done.stdout)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-only", action="store_true", help="leave out the instruction counts")
    parser.add_argument("--count-only", action="store_true", help="leave out the CPU times")
    parser.add_argument("--steps", type=int, default=40, help="steps of a timed run")
    parser.add_argument("--pairs", type=int, default=8, help="timed runs of each kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        stage = harness.Stage(folder)
        try:
            manager = stage.manager()
            manager.all_on()
            proxy = stage.proxy(manager)
            if not arguments.time_only:
                count = {}
                for name, mode in (("without", "without"), ("again", "without"), ("with", "with")):
                    short, long = (run(folder, proxy, mode, steps, True) for steps in (2, 10))
                    count[name] = (long - short) / 8
                    print(f"{name:<8} {count[name] / 1e6:10.3f} million instructions a step", flush=True)
                for name, what in (("again", "noise (the same twice)"), ("with", "TaskD")):
                    added = count[name] - count["without"]
                    print(f"{what}: {added:+,.0f} instructions a step, {100 * added / count['without']:+.4f} %", flush=True)
            if not arguments.count_only:
                pairs = [[run(folder, proxy, mode, arguments.steps, False) for mode in ("without", "with")]
                         for _ in range(arguments.pairs)]
                ratios = [100 * (b / a - 1) for a, b in pairs]
                half = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
                print(f"CPU time: {statistics.median(a for a, _ in pairs) * 1e3:.1f} ms a step without; with TaskD "
                      f"{statistics.mean(ratios):+.2f} % +- {half:.2f} % ({len(ratios)} pairs)", flush=True)
            counts = proxy.check().ranks[0].counts
            print("recorded:", ", ".join(f"{k} {v}" for k, v in counts.items()))
        finally:
            stage.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
