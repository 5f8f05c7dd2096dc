#!/usr/bin/python3
"""What a mark costs from Python, in ns a call: recording on and off, by the extension and by ctypes.

    PYTHONPATH=build/release/python /usr/bin/python3 tests/bench/python_mark_cost.py

No proxy is needed: a process that no proxy has spoken to records everything ("on"), one that has destroyed its worker
nothing ("off"). Each number is the best of several rounds, with the cost of the empty loop taken off.
"""
import glob
import json
import os
import sys
import time

os.environ.setdefault("TASKD_SOCKET", "/nonexistent/taskd-bench.sock")

ROUNDS = 9
CALLS = 50_000


def cost_ns(function, *arguments, **keywords):
    """The processor's time, so that other work on the machine counts as little as possible."""
    loop = range(CALLS)
    full, empty = [], []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in loop:
            function(*arguments, **keywords)
        between = time.process_time_ns()
        for _ in loop:
            pass
        full.append(between - started)
        empty.append(time.process_time_ns() - between)
    return (min(full) - min(empty)) / CALLS


def hooks_off():
    """What a hook of taskd.torch adds to a call while its kind is off."""
    from taskd.torch import _collectives, _gate, _local

    class Owner:
        def __call__(self, argument):
            return argument

        def __next__(self):
            return None

    _gate.open_gate()

    def collective(tensor, op=None, group=None, async_op=False):
        return None

    owner = Owner()
    call, next_batch = _local._make_call(Owner.__call__), _local._make_next(Owner.__next__)
    all_reduce = _collectives._maker("HcclAllreduce", ("tensor",), None)(collective)
    costs = {
        "forward": cost_ns(call, owner, 1) - cost_ns(Owner.__call__, owner, 1),
        "dataloader": cost_ns(next_batch, owner) - cost_ns(Owner.__next__, owner),
        "all_reduce": cost_ns(all_reduce, owner, async_op=True) - cost_ns(collective, owner, async_op=True),
    }
    _local._inside_module = True
    costs["forward, inside another"] = cost_ns(call, owner, 1) - cost_ns(Owner.__call__, owner, 1)
    _local._inside_module = False
    return costs


def shapes():
    """What work costs a forward that is marked: its arguments' shapes and the mark."""
    try:
        import torch
    except ImportError:
        return {}
    from taskd.torch import _amount, _gate, _patches

    _amount.install(torch)
    _gate.open_gate()
    ids, mask = torch.zeros(8, 4096, dtype=torch.long), torch.ones(8, 1, 64, 64)

    def forward(args, kwargs):
        return cost_ns(_patches.quietly, _amount.of_forward, args, kwargs)

    return {"one tensor": forward((ids,), {}), "three by name": forward((), {"a": ids, "b": ids, "c": ids}),
            "four, one a mask": forward((ids, ids, mask, ids), {})}


def measure(calls):
    mark, range_start, range_end, enabled_kinds = calls

    def pair():
        range_end(range_start("step 1"))

    return {
        "mark": cost_ns(mark, "a moment"),
        "mark with domain": cost_ns(mark, "a moment", None, "communication"),
        "range_start + range_end": cost_ns(pair),
        "enabled_kinds": cost_ns(enabled_kinds),
    }


def main():
    from taskd import mstx
    from taskd.api import destroy_taskd_worker, init_taskd_worker
    from taskd.python.cython_api import cython_api

    if mstx.backend != "extension" or not init_taskd_worker(0, 0):
        print("python_mark_cost: the package has no extension, or its library does not work", file=sys.stderr)
        return 1
    library = cython_api.load()
    backends = {"extension": mstx._by_extension(library), "ctypes": mstx._by_ctypes(library)}
    result = {"on": {name: measure(calls) for name, calls in backends.items()}}
    result["work of a forward, on"] = shapes()
    destroy_taskd_worker()
    result["off"] = {name: measure(calls) for name, calls in backends.items()}
    result["hooks of taskd.torch, off"] = hooks_off()
    result["empty Python function"] = cost_ns(lambda *_: None, "a moment")

    print(f"{'ns a call':36} {'extension':>10} {'ctypes':>10} {'ratio':>6}")
    for state in ("on", "off"):
        for call, extension in result[state]["extension"].items():
            ctypes = result[state]["ctypes"][call]
            print(f"{state + ': ' + call:36} {extension:10.1f} {ctypes:10.1f} {ctypes / extension:6.1f}")
    for what, added in result["work of a forward, on"].items():
        print(f"{'on: work, ' + what:36} {added:10.1f}")
    for hook, added in result["hooks of taskd.torch, off"].items():
        print(f"{'off: hook ' + hook:36} {added:10.1f}")
    print(f"{'an empty Python function':36} {result['empty Python function']:10.1f}")
    for segment in glob.glob(f"/dev/shm/taskd-{os.getuid()}-*-{os.getpid()}-*"):  # no proxy takes it
        os.unlink(segment)
    if "--json" in sys.argv:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
