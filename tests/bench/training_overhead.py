#!/usr/bin/python3
"""What TaskD costs a training, in instructions: training_overhead.py

Counts the instructions of a training step without TaskD and with everything recorded (taskd.torch, all kinds on, a proxy reading), with
valgrind's cachegrind: virtual machines seldom have hardware counters, and user time is noisier than the budget of 0.1 %.
A step's instructions are the difference between a long and a short run, so start-up cancels out. Takes about 5 minutes.
training_cost.py shows what the clock can resolve.
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import harness  # noqa: E402

# A GPT-like block stack, sized so that a step takes a few hundred ms on one CPU core: still short for a training step.
TRAINING = """
import sys
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
for (batch,) in data:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
"""


def count_instructions(folder, proxy, mode, steps):
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
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--error-limit=no",
               harness.PYTHON, program, str(steps), mode, store]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"training ended with {done.returncode}: {done.stderr[-2000:]}")
    return int(re.search(r"I +refs: +([\d,]+)", done.stderr)[1].replace(",", ""))


def main():
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        stage = harness.Stage(folder)
        try:
            manager = stage.manager()
            manager.all_on()
            proxy = stage.proxy(manager)
            count = {}
            for name, mode in (("without", "without"), ("again", "without"), ("with", "with")):
                short, long = (count_instructions(folder, proxy, mode, steps) for steps in (2, 10))
                count[name] = (long - short) / 8
                print(f"{name:<8} {count[name] / 1e6:10.3f} million instructions a step", flush=True)
            for name, what in (("again", "noise (the same twice)"), ("with", "TaskD")):
                added = count[name] - count["without"]
                print(f"{what}: {added:+,.0f} instructions a step, {100 * added / count['without']:+.4f} %", flush=True)
            counts = proxy.check().ranks[0].counts
            print("recorded:", ", ".join(f"{k} {v}" for k, v in counts.items()))
        finally:
            stage.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
