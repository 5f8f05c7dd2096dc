"""What the interpreter of each rank starts with: TaskD, as its installed wheel has it, and room for a fault of its own.

While the file gc-storm-RANK is there, a thread makes cyclic garbage and collects it: the whole process stands meanwhile.
While slow-optimizer-RANK is there, each step of the optimizer takes 16 ms longer.
In an "unmarked" way DistributedDataParallel is left as TaskD finds it in a PyTorch whose reducer it cannot see.
"""
import gc
import os
import sys
import threading
import time

import taskd  # noqa: F401
from taskd.torch import _reducer

if "unmarked" in os.environ.get("WAY", ""):
    _reducer.install = lambda: None


def storm():
    trigger = os.path.join(os.environ["FOLDER"], "gc-storm-" + os.environ["RANK"])
    while True:
        time.sleep(0.25)
        if not os.path.exists(trigger):
            continue
        garbage = []
        for _ in range(100000):
            one = []
            one.append(one)
            garbage.append(one)
        del garbage
        gc.collect()


def slow_optimizer():
    trigger = os.path.join(os.environ["FOLDER"], "slow-optimizer-" + os.environ["RANK"])
    while not os.path.exists(trigger):
        time.sleep(0.1)
    sgd = sys.modules["torch.optim"].SGD
    step = sgd.step

    def slower(*arguments, **named):
        if os.path.exists(trigger):
            time.sleep(0.016)
        return step(*arguments, **named)

    slower.hooked = True
    sgd.step = slower


if "RANK" in os.environ:
    threading.Thread(target=storm, daemon=True).start()
    threading.Thread(target=slow_optimizer, daemon=True).start()
