"""A rank of a small training job, for test_torch.py: torch_job.py CASE. What it marked goes to marks.RANK.json."""
import hashlib
import json
import os
import sys

CASE = sys.argv[1]
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
marks = []
instants = []
by_id = {}


def range_start(message, stream=None, domain=None):
    mark = {"name": message, "stream": stream, "domain": domain, "open": True}
    by_id[len(by_id) + 1] = mark
    marks.append(mark)
    return len(by_id)


def range_end(range_id):
    assert by_id[range_id]["open"], "ended twice"
    by_id[range_id]["open"] = False


if not CASE.endswith("without"):
    import taskd.torch
    from taskd.torch import _gate

    _gate.range_start, _gate.range_end = range_start, range_end
    _gate.mark = instants.append
    assert taskd.torch.enable() is True
    assert "torch" not in sys.modules

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

if not CASE.endswith("without") and CASE != "off":
    _gate.kinds = lambda: 0x3F
if CASE == "off":
    _gate.kinds = lambda: 0


def train(model, steps=6):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    generator = torch.Generator().manual_seed(RANK)
    data = torch.utils.data.TensorDataset(torch.randn(steps * 16, 32, generator=generator))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=int(os.environ.get("LOADERS", "0")))
    loss_function = torch.nn.MSELoss()
    for (batch,) in loader:
        optimizer.zero_grad()
        loss_function(model(batch), torch.zeros(16, 4)).backward()
        optimizer.step()
        scheduler.step()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 4))


def own_hook(state, bucket):
    dist.all_reduce(bucket.buffer().div_(WORLD))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def collectives(group):
    tensor = torch.ones(6)
    dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(torch.ones(7, dtype=torch.int64), async_op=True)
    assert isinstance(work, dist.distributed_c10d.Work)
    assert work.wait() and work.is_completed()
    future = dist.all_reduce(torch.ones(8), async_op=True).get_future()
    assert future.wait()[0][0] == WORLD
    dist.all_gather([torch.zeros(2, dtype=torch.float64) for _ in range(WORLD)], torch.ones(2, dtype=torch.float64))
    dist.broadcast(torch.ones(3), src=0)
    dist.reduce(torch.ones(3), 0)
    dist.scatter(torch.zeros(4), [torch.ones(4)] * WORLD if RANK == 0 else None, src=0)
    dist.gather(torch.zeros(5), [torch.ones(5) for _ in range(WORLD)] if RANK == 0 else None)
    dist.barrier()
    peer = 1 - RANK
    if RANK == 0:
        dist.send(torch.ones(9), 1)
        dist.isend(torch.ones(10), 1).wait()
    else:
        dist.recv(torch.zeros(9), 0)
        dist.irecv(tensor=torch.zeros(10)).wait()
    # isend as a program may have taken it before the hooks came.
    plain = getattr(dist.isend, "__wrapped__", dist.isend)
    for work in dist.batch_isend_irecv([dist.P2POp(plain, torch.ones(11), peer), dist.P2POp(dist.irecv, torch.ones(11), peer)]):
        work.wait()
    try:
        dist.all_reduce("no tensor")
        raise AssertionError("torch accepted a str")
    except RuntimeError:
        pass
    torch.save(tensor, f"checkpoint-{RANK}.pt")


def main():
    result = {}
    dist.init_process_group("gloo")
    options = {"bucket_view": {"gradient_as_bucket_view": True}, "static_graph": {"static_graph": True}}
    model = DistributedDataParallel(network(), **options.get(CASE, {}))
    if CASE == "own_hook":
        model.register_comm_hook(None, own_hook)
    if CASE.startswith("cpp_hook"):
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    train(model)
    result["digest"] = digest(model)
    result["train"] = [dict(mark) for mark in marks]
    result["instants"] = [text for text in instants if "work" not in text]
    del marks[:]
    if CASE == "everything":
        collectives(dist.new_group(list(range(WORLD))))
        result["collectives"] = [dict(mark) for mark in marks]
    del marks[:], instants[:]
    for _ in torch.utils.data.DataLoader(torch.zeros(4, 1)):  # an evaluation
        pass
    result["instants after evaluation"] = list(instants)
    dist.destroy_process_group()
    result["instants after groups"] = list(instants)
    if CASE == "everything":
        result["local"] = local_cases()
    with open(f"marks.{RANK}.json", "w", encoding="utf-8") as file:
        json.dump(result, file)
    if CASE == "own_hook":
        # torch 1.13 may hang when it destroys a gloo group that a Python hook has used, with or without taskd.torch.
        os._exit(0)


def local_cases():
    """Cases without a process group: name, then the marks that it made."""
    import pickle
    import threading

    found = {}

    def case(name, function):
        del marks[:]
        function()
        found[name] = [m["name"] for m in marks if not m["name"].startswith("step") or name.startswith("step")]
        assert not any(m["open"] for m in marks if not m["name"].startswith("step")), name

    model = network()
    batch = torch.zeros(1, 32)
    case("a model", lambda: model(batch))
    case("in evaluation", lambda: model.eval()(batch))
    model.train()
    case("a part of it, computed again", lambda: model[0](batch))
    case("scripted", lambda: torch.jit.script(model)(batch))
    case("traced", lambda: torch.jit.trace(model, batch, check_trace=False))
    case("pickled", lambda: pickle.loads(pickle.dumps(model)) and pickle.loads(pickle.dumps((torch.save, dist.all_reduce))))
    case("saved in a save", lambda: torch.save({"a": 1}, "checkpoint.pt"))

    # As the package has it.
    os.makedirs("safetensors", exist_ok=True)
    for name, text in (("__init__.py", ""), ("torch.py", "def save_file(tensors, filename, metadata=None):\n    return filename\n")):
        with open(os.path.join("safetensors", name), "w", encoding="utf-8") as file:
            file.write(text)
    sys.path.insert(0, os.getcwd())
    from safetensors.torch import save_file
    case("saved as safetensors", lambda: save_file({}, "model.safetensors"))

    def raises():
        try:
            model(torch.zeros(1, 5))
        except RuntimeError:
            return
        raise AssertionError("a wrong shape was accepted")

    case("an error", raises)
    case("after the error", lambda: model(batch))
    case("another thread", lambda: run_thread(threading.Thread(target=model, args=(batch,))))
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))

    class Child(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    child = Child(model.parameters(), lr=0.1)
    case("step of the first", first.step)
    case("step of the second in the same iteration", second.step)
    case("step of the first again", first.step)
    case("step of the second once", second.step)
    case("step of the second twice: it counts now", second.step)
    case("step of a child once", child.step)
    case("step of a child twice: it counts now", child.step)
    in_turns(case)
    case("step by the program", lambda: taskd.torch.step(100))
    case("step by the program, next", lambda: taskd.torch.step())
    case("step of an optimizer after that", child.step)

    def in_with():
        with taskd.torch.step():
            pass
        assert not any(m["open"] for m in marks)

    case("step by the program as a context", in_with)
    case("step that is none", lambda: taskd.torch.step("x"))
    assert taskd.torch.disable() is True
    assert not hasattr(torch.save, "__taskd_hook__") and not hasattr(torch.nn.Module.__call__, "__taskd_hook__")
    case("after disable", lambda: (model(batch), first.step(), torch.save({}, "checkpoint.pt")))
    assert taskd.torch.enable() is True
    _gate.kinds = lambda: 0x3F
    case("enabled again", lambda: model(batch))
    return found


def in_turns(case):
    """Loops whose steps are not the plain steps of one optimizer."""
    from taskd.torch import _steps

    model = network()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    first.step()
    loader = torch.utils.data.DataLoader([torch.zeros(32)] * 8)

    def each_batch(*optimizers):
        for number, _ in enumerate(loader):
            optimizers[number % len(optimizers)].step()

    case("steps of optimizers that take turns, a batch each", lambda: each_batch(first, second))
    case("steps of optimizers that both step in each batch", lambda: [(first.step(), second.step()) for _ in loader])
    scaler_class = torch.amp.GradScaler if hasattr(getattr(torch, "amp", None), "GradScaler") else torch.cuda.amp.GradScaler
    scaler = scaler_class(enabled=False)
    case("steps of a scaler", lambda: [(scaler.step(first), scaler.update()) for _ in range(3)])

    _steps.reset()
    del marks[:]
    case("steps of batches", lambda: [model(batch[0:1]) for batch in loader])
    assert taskd.torch.coverage()["steps"] == "batches, as there is no optimizer"
    _steps.reset()
    case("steps of forwards", lambda: [model(torch.zeros(1, 32)) for _ in range(5)])
    assert taskd.torch.coverage()["steps"] == "forwards, as there is neither an optimizer nor a DataLoader"


def run_thread(thread):
    thread.start()
    thread.join()


main()
