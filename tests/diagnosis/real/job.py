"""A training as somebody writes it, which knows nothing of the faults that real_faults.py brings upon it.

WAY says how the ranks meet. Data and checkpoints come from and go to a storage server, STORAGE. Each rank computes as a
host with a device does: some of the time is the processor's, the rest is waited for. With a WAY that ends in "ragged"
batches differ in size by 30 %, and take as much longer. PROFILE names a folder for what PyTorch's profiler records of all
steps but the first. A stopwatch of the script's own writes what the rank takes by itself in each step to a file in FOLDER.
"""
import contextlib
import itertools
import os
import socket
import struct
import time

import torch
import torch.distributed as dist
from torch.autograd import kineto_available
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, IterableDataset

WAY = os.environ["WAY"]
RANK = int(os.environ["RANK"])
HOST_S, DEVICE_S = 0.003, 0.008  # of each layer, forward and backward, for a batch of BATCH
BATCH = 16
LOAD = os.environ.get("LOAD")  # "imbalance": rank 0 has more work than the others; "ragged": each rank and step has its own
CHECKPOINT_STEPS = 20
TABLE_ROWS, ROWS = 65536, 256  # of 4 KiB; those of a layer's forward or backward


class Stopwatch:
    """Writes a line a step: its number, and seconds: what this rank loaded, saved and computed, and the whole step."""

    def __init__(self):
        self.file = open(os.path.join(os.environ["FOLDER"], f"stopwatch-{RANK}"), "w", encoding="ascii", buffering=1)
        self.seconds, self.began = {"load": 0.0, "save": 0.0, "compute": 0.0}, time.monotonic()

    @contextlib.contextmanager
    def running(self, what):
        begin = time.monotonic()
        yield
        self.seconds[what] += time.monotonic() - begin

    def end_step(self, step):
        now = time.monotonic()
        print(step, *self.seconds.values(), now - self.began, file=self.file)
        self.seconds, self.began = dict.fromkeys(self.seconds, 0.0), now


STOPWATCH = Stopwatch()


class Storage:
    """One connection: a request and its answer at a time."""

    def __init__(self):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(os.environ["STORAGE"])
        self.connection.sendall(struct.pack("<i", RANK))

    def ask(self, kind, number, content=b""):
        self.connection.sendall(struct.pack("<cqi", kind, number, len(content)) + content)
        return struct.unpack("<i", self.connection.recv(4, socket.MSG_WAITALL))[0]


class CheckpointFile:
    """What torch.save writes to."""

    def __init__(self, storage):
        self.storage = storage

    def write(self, content):
        self.storage.ask(b"w", 0, bytes(content))
        return len(content)

    def flush(self):
        pass


class Samples(IterableDataset):
    """Batches of a made-up function, until the storage says that it is enough."""

    def __init__(self, storage):
        self.storage = storage

    def __iter__(self):
        for number in itertools.count():
            stop_at = self.storage.ask(b"r", number)
            if 0 <= stop_at <= number:
                return
            generator = torch.Generator().manual_seed(number * 1000 + RANK)
            batch = BATCH
            if LOAD == "imbalance" and RANK == 0:
                batch = BATCH * 8 // 5
            if LOAD == "ragged" or WAY.endswith("ragged"):
                batch = max(1, round(BATCH * torch.exp(0.3 * torch.randn(1, generator=generator)).item()))
            inputs = torch.randn(batch, 64, generator=generator)
            yield inputs, inputs[:, :8].sin()


TABLE = torch.ones(TABLE_ROWS, 1024)  # of embeddings


def work(batch):
    with STOPWATCH.running("compute"):
        end = time.thread_time() + HOST_S * batch / BATCH
        square = torch.ones(192, 192)  # a profiler keeps an event of each product
        TABLE[torch.randint(TABLE_ROWS, (ROWS,))]
        while time.thread_time() < end:
            square @ square
        time.sleep(DEVICE_S * batch / BATCH)


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        work(len(value))
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        work(len(gradient))
        return gradient


class Layer(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, value):
        return torch.relu(self.linear(Work.apply(value)))


def average(model):
    """Gradients by hand, in one all-reduce."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.view(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(mean.view_as(gradient))


def train(model, trained, optimizer, profiler):
    storage = Storage()
    batches = iter(DataLoader(Samples(storage), batch_size=None))
    for step in itertools.count():
        with STOPWATCH.running("load"):
            batch = next(batches, None)
        if batch is None:
            return
        inputs, target = batch
        optimizer.zero_grad()
        if WAY == "ddp-accumulate":
            with trained.no_sync():
                torch.nn.functional.mse_loss(trained(inputs), target).backward()
        loss = torch.nn.functional.mse_loss(trained(inputs), target)
        loss.backward()
        if WAY.startswith("own"):
            average(model)
        # ZeRO's optimizer waits for the other ranks.
        with contextlib.nullcontext() if WAY == "ddp-zero" else STOPWATCH.running("compute"):
            optimizer.step()
        if WAY.endswith("logged"):
            total = loss.detach().clone()
            dist.all_reduce(total)
        if step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            with record_function("save_checkpoint"), STOPWATCH.running("save"):
                torch.save(model.state_dict(), CheckpointFile(storage), _use_new_zipfile_serialization=False)
        STOPWATCH.end_step(step)
        if profiler:
            profiler.step()


def profiled():
    """Around training; its value has a step() that is called after each one."""
    if "PROFILE" not in os.environ:
        return contextlib.nullcontext()
    name = None if kineto_available() else f"rank{RANK}"  # without Kineto a trace does not say its rank
    return profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=1 << 30),
                   on_trace_ready=tensorboard_trace_handler(os.environ["PROFILE"], name))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(64, 128), Layer(128, 64), torch.nn.Linear(64, 8))
    trained = model
    if WAY.startswith("ddp"):
        trained = DistributedDataParallel(model)
    if WAY == "ddp-hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        trained.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if WAY == "ddp-zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(trained.parameters(), torch.optim.SGD, lr=0.05)
    else:
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    with profiled() as profiler:
        train(model, trained, optimizer, profiler)
    with contextlib.suppress(RuntimeError):  # a rank that ends first takes the connections with it
        dist.barrier()
    # PyTorch 1.13 deadlocks at times if a thread of gloo still has a tensor that Python made: it waits for the interpreter,
    # which waits for it to end.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
