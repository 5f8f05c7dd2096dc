"""A rank of a small PyTorch training that knows nothing of TaskD: torch_ways_rank.py WAY FOLDER STEPS [SLOW_RANK SLOW_S]

WAY is one of WAYS, each a way to train as people's scripts have it. Trains STEPS steps; FOLDER gets rank.N.json with the
losses, and what torch.compile did where there is one. A slow rank sleeps in each step from step SLOW_FROM on.
"""
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

SLOW_FROM = 10
BUSY_S = float(os.environ.get("WAYS_BUSY_S", "0.02"))  # what a step takes besides its arithmetic
BACKEND = "aot_eager"  # all of Dynamo and AOTAutograd; no C++ compiler


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 48)
        self.second = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(48, 4))

    def forward(self, x):
        return self.second(self.first(x))


class Unused(Net):
    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Linear(4, 4)


def sequential():
    return torch.nn.Sequential(torch.nn.Linear(16, 48), torch.nn.ReLU(), torch.nn.Linear(48, 4))


class Way:
    """Plain DistributedDataParallel; others change parts of it."""

    model_class = Net
    options = {}

    def __init__(self):
        self.model = self.wrapped(self.model_class())
        self.optimizers = self.make_optimizers()

    def wrapped(self, model):
        return DDP(model, **self.options)

    def make_optimizers(self):
        return [torch.optim.AdamW(self.model.parameters(), lr=0.01)]

    def loss(self, x):
        return self.model(x).pow(2).mean()

    def step(self, number, x):
        loss = self.loss(x)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss


class Logged(Way):
    """All ranks meet at each step's end as well, and begin the next one together."""

    def step(self, number, x):
        loss = super().step(number, x)
        time.sleep(2 * BUSY_S)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()


class BucketView(Way):
    options = {"gradient_as_bucket_view": True}


class StaticGraph(Way):
    options = {"static_graph": True}


class FindUnused(Way):
    model_class = Unused
    options = {"find_unused_parameters": True}


class Accumulation(Way):
    def step(self, number, x):
        with self.model.no_sync():
            self.loss(x).backward()
        return super().step(number, x)


class TwoModels(Way):
    def __init__(self):
        super().__init__()
        self.other = DDP(sequential())
        self.optimizers.append(torch.optim.SGD(self.other.parameters(), lr=0.01))

    def loss(self, x):
        return super().loss(x) + self.other(x).pow(2).mean()


class PythonHook(Way):
    def wrapped(self, model):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DDP(model)
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        return model


class PowerSgd(Way):
    def wrapped(self, model):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        model = DDP(model)
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5),
                                 powerSGD_hook.powerSGD_hook)
        return model


class CppHook(Way):
    def wrapped(self, model):
        model = DDP(model)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        return model


class Joined(Way):
    def step(self, number, x):
        with self.model.join() if number % 10 == 0 else contextlib.nullcontext():
            return super().step(number, x)


class Zero(Way):
    def make_optimizers(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return [ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=0.01)]


class ByHand(Way):
    """Gradients averaged by the script, a call for each."""

    def wrapped(self, model):
        return model

    def step(self, number, x):
        loss = self.loss(x)
        loss.backward()
        for parameter in self.model.parameters():
            self.average(parameter.grad)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def average(self, gradient):
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


class AsyncByHand(ByHand):
    def average(self, gradient):
        work = dist.all_reduce(gradient, async_op=True)
        work.wait()
        gradient /= dist.get_world_size()


class Functional(ByHand):
    def average(self, gradient):
        import torch.distributed._functional_collectives as functional

        gradient.copy_(functional.all_reduce(gradient, "sum", dist.group.WORLD))
        gradient /= dist.get_world_size()


class Coalesced(ByHand):
    def step(self, number, x):
        loss = self.loss(x)
        loss.backward()
        with dist._coalescing_manager(async_ops=True) as manager:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        manager.wait()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return loss


class Subgroups(ByHand):
    def __init__(self):
        super().__init__()
        self.group = dist.new_group(list(range(dist.get_world_size())))

    def average(self, gradient):
        dist.all_reduce(gradient, group=self.group)
        gradient /= dist.get_world_size()


class Pipeline(Way):
    """Two stages, activations forth and gradients back."""

    def __init__(self):
        self.first = dist.get_rank() == 0
        self.model = torch.nn.Linear(16, 16) if self.first else torch.nn.Linear(16, 4)
        self.optimizers = self.make_optimizers()

    def step(self, number, x):
        if self.first:
            y = self.model(x)
            dist.send(y.detach(), 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, 1)
            y.backward(gradient)
            loss = y.sum()
        else:
            activation = torch.empty(8, 16)
            dist.recv(activation, 0)
            activation.requires_grad_()
            loss = self.model(activation).pow(2).mean()
            loss.backward()
            dist.send(activation.grad, 0)
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return loss


class BatchedPipeline(Way):
    """A ring."""

    def wrapped(self, model):
        return model

    def step(self, number, x):
        loss = super().step(number, x)
        size, rank = dist.get_world_size(), dist.get_rank()
        received = torch.empty(8, 16)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % size),
                                            dist.P2POp(dist.irecv, received, (rank - 1) % size)]):
            work.wait()
        return loss + received.mean()


class Fsdp(Way):
    def wrapped(self, model):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


class TensorParallel(Way):
    def wrapped(self, model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(model, mesh, {"first": ColwiseParallel(), "second.1": RowwiseParallel()})


# ---- Loops

class Scaled(Way):
    """A GradScaler that overflows in every seventh step, which the optimizer then leaves out."""

    def __init__(self):
        super().__init__()
        self.scale = 1024.0

    def make_optimizers(self):
        optimizers = super().make_optimizers()
        scaler = getattr(torch, "amp", None) and getattr(torch.amp, "GradScaler", None)
        self.scaler = scaler("cpu", growth_interval=3) if scaler else None
        return optimizers

    def step(self, number, x):
        if self.scaler is None:
            return super().step(number, x)
        loss = self.loss(x)
        self.scaler.scale(loss * (float("inf") if number % 7 == 5 else 1.0)).backward()
        self.scaler.step(self.optimizers[0])
        self.scaler.update()
        self.optimizers[0].zero_grad()
        return loss


class InTurns(Way):
    """As generator and discriminator that are trained in turns."""

    def make_optimizers(self):
        return [torch.optim.SGD(self.model.parameters(), lr=0.01), torch.optim.SGD(self.model.parameters(), lr=0.02)]

    def step(self, number, x):
        loss = self.loss(x)
        loss.backward()
        self.optimizers[number % 2].step()
        self.optimizers[number % 2].zero_grad()
        return loss


class EachParameter(Way):
    def make_optimizers(self):
        return [torch.optim.SGD([parameter], lr=0.01) for parameter in self.model.parameters()]


class Lbfgs(Way):
    def make_optimizers(self):
        return [torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=2)]

    def step(self, number, x):
        def closure():
            self.optimizers[0].zero_grad()
            loss = self.loss(x)
            loss.backward()
            return loss

        return self.optimizers[0].step(closure)


class NoOptimizer(Way):
    def make_optimizers(self):
        return []

    def step(self, number, x):
        loss = self.loss(x)
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        return loss


# ---- torch.compile

class Compiled(Way):
    model_class = staticmethod(sequential)


class ModuleCompile(Compiled):
    def wrapped(self, model):
        model.compile(backend=BACKEND)
        return DDP(model)


class CompiledDdp(Compiled):
    def wrapped(self, model):
        return torch.compile(DDP(model), backend=BACKEND)


class CompiledDdpOfOwn(CompiledDdp):
    model_class = Net


class ModuleCompileAlone(Compiled):
    def wrapped(self, model):
        model.compile(backend=BACKEND)
        return model


class DdpOfCompiled(Compiled):
    model_class = Net

    def wrapped(self, model):
        return DDP(torch.compile(model, backend=BACKEND))


class OwnModuleCompile(ModuleCompileAlone):
    model_class = Net


class CompiledOptimizer(Compiled):
    model_class = Net

    def make_optimizers(self):
        optimizers = super().make_optimizers()
        optimizers[0].step = torch.compile(optimizers[0].step, backend=BACKEND)
        return optimizers


class CompiledCollectives(Compiled):
    model_class = Net

    def __init__(self):
        super().__init__()
        self.loss = torch.compile(self.loss, backend=BACKEND)

    def loss(self, x):
        y = self.model(x)
        total = y.detach().sum()
        dist.all_reduce(total)
        return y.pow(2).mean() + 0.001 * total


class CompiledAsync(CompiledCollectives):
    """A Work inside of what is compiled breaks the graph, as it does by itself."""

    def loss(self, x):
        y = self.model(x)
        total = y.detach().sum()
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        return y.pow(2).mean() + 0.001 * total


class CompiledStep(Compiled):
    model_class = Net

    def __init__(self):
        super().__init__()
        self.step = torch.compile(self.step, backend=BACKEND)


WAYS = {
    "ddp": Way, "ddp-logged": Logged, "ddp-bucket-view": BucketView, "ddp-static-graph": StaticGraph, "ddp-find-unused": FindUnused,
    "ddp-accumulation": Accumulation, "ddp-two-models": TwoModels, "ddp-python-hook": PythonHook,
    "ddp-power-sgd": PowerSgd, "ddp-cpp-hook": CppHook, "ddp-join": Joined, "zero": Zero, "by-hand": ByHand,
    "async": AsyncByHand, "functional": Functional, "coalesced": Coalesced, "subgroups": Subgroups, "pipeline": Pipeline,
    "batched-pipeline": BatchedPipeline, "fsdp": Fsdp, "tensor-parallel": TensorParallel,
    "grad-scaler": Scaled, "optimizers-in-turns": InTurns, "optimizer-each-parameter": EachParameter, "lbfgs": Lbfgs,
    "no-optimizer": NoOptimizer,
    "compile-module-ddp": ModuleCompile, "compile-ddp-sequential": CompiledDdp, "compile-ddp-module": CompiledDdpOfOwn,
    "compile-module": ModuleCompileAlone, "ddp-of-compiled": DdpOfCompiled, "compile-own-module": OwnModuleCompile,
    "compile-optimizer": CompiledOptimizer, "compile-collectives": CompiledCollectives, "compile-async": CompiledAsync,
    "compile-step": CompiledStep,
}


def train(way, steps, slow_rank, slow_s):
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for number in range(steps):
        time.sleep(BUSY_S)
        if dist.get_rank() == slow_rank and number >= SLOW_FROM:
            time.sleep(slow_s)
        losses.append(float(way.step(number, torch.randn(8, 16, generator=generator)).detach()))
    return losses


def compiled():
    if not hasattr(torch, "compile"):
        return None
    from torch._dynamo.utils import counters

    # The reasons of breaks hold addresses, and name a wrapped function otherwise: their number is what counts.
    return {"graph_breaks": sum(counters["graph_break"].values()),
            **{name: dict(counters[name]) for name in ("frames", "stats", "recompiles")}}


def main():
    name, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    slow_rank, slow_s = (int(sys.argv[4]), float(sys.argv[5])) if len(sys.argv) > 4 else (-1, 0.0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    result = {"losses": train(WAYS[name](), steps, slow_rank, slow_s), "compiled": compiled()}
    with open(os.path.join(folder, f"rank.{dist.get_rank()}.json"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo's may still hold the last tensors. Where it lets go of them while the interpreter ends, PyTorch 2.6
    # aborts ("terminate called without an active exception"), with TaskD or without.
    time.sleep(0.2)


if __name__ == "__main__":
    main()
