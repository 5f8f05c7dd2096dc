"""The gradient all-reduce of DistributedDataParallel, which C++ does and no Python function sees.

A communication hook is DDP's own, documented way in. Ours does what DDP does without one and puts a range around it. It is
registered at the first forward, when the program has registered none; one that it registers later is called from ours.

Same numbers, bit for bit: DDP multiplies by 1/size when it copies gradients into a bucket, and divides by size when they
live in the bucket (gradient_as_bucket_view). Both are exact, and so the same, for sizes that are powers of two. For other
sizes the hook multiplies, and a DDP whose gradients live in the bucket is left alone. Left alone as well: sparse gradients,
mixed-precision DDP, and uneven inputs (Join) that divide by the number of ranks still there.

Cost: one more pass over each bucket and one call into Python; on the host also a hand-over to a thread (see _waiter), and a
process group of the host that DDP used lives until the process ends. It is off unless TASKD_TORCH_DDP=1 asks for it. On an NPU there is
no hook: torch_npu marks by itself.
"""
import ctypes
import os
import sys
import weakref

from taskd.torch import _collectives, _gate, _patches, _waiter

_seen = weakref.WeakSet()  # DDP instances that were looked at
_ours = weakref.WeakKeyDictionary()  # DDP instance: the _Hook in it
_has_own = weakref.WeakSet()  # DDP instances with a hook of the program


class _Hook:
    def __init__(self, group):
        self.group = group
        self.factor = 1.0 / group.size()
        self.delegate = None  # (state, hook) that the program registered after ours


def _allreduce(state, bucket):
    if state.delegate is not None:
        return state.delegate[1](state.delegate[0], bucket)
    tensor = bucket.buffer()
    tensor.mul_(state.factor)
    range_id = 0
    if _gate.kinds() & _gate.COMMUNICATION:
        range_id = _patches.quietly(_collectives.start, "HcclAllreduce", [tensor], state.group)
    work = _plain_all_reduce()(tensor, group=state.group, async_op=True)

    def end():
        if range_id:
            _gate.range_end(range_id)

    if tensor.device.type == "cpu":
        return _future_of(work, tensor, end)

    def done(future):  # at once: the host does not wait for the device
        end()
        return future.value()[0]

    return work.get_future().then(done)


def _future_of(work, tensor, end):
    future = sys.modules["torch"].futures.Future()

    def done():
        end()
        future.set_result(tensor)

    def failed(error):
        end()
        future.set_exception(error)

    _waiter.when_done(work, done, failed)
    return future


def _plain_all_reduce():
    function = sys.modules["torch.distributed.distributed_c10d"].all_reduce
    return getattr(function, "__wrapped__", function) if getattr(function, "__taskd_hook__", False) else function


def _may_hook(ddp):
    size = ddp.process_group.size()
    power_of_two = size & (size - 1) == 0
    return not (
        ddp in _has_own
        or getattr(ddp, "_comm_hooks", None)
        or _gate.on_npu()
        or size == 1
        or (getattr(ddp, "gradient_as_bucket_view", False) and not power_of_two)
        or getattr(ddp, "mixed_precision", None) is not None
        or getattr(ddp, "_delay_all_reduce_all_params", False)
        or not getattr(ddp, "_divide_by_initial_world_size", True)
        or any(getattr(module, "sparse", False) for module in ddp.module.modules())
        or any(p.is_complex() for p in ddp.parameters())
    )


def _look_at(ddp):
    _seen.add(ddp)
    if _may_hook(ddp):
        state = _Hook(ddp.process_group)
        if any(p.device.type == "cpu" for p in ddp.parameters()):
            # A gloo thread still has to let go of the last bucket, which Python has seen, for which it needs the GIL: the
            # group must not be destroyed, see _waiter. So it lives as long as the process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(ddp.process_group))
        sys.modules["torch.distributed"]._register_comm_hook(ddp.reducer, state, _allreduce)
        _ours[ddp] = state


def _make_forward(original):
    def forward(self, *args, **kwargs):
        if self not in _seen:
            _patches.quietly(_look_at, self)
        return original(self, *args, **kwargs)

    return forward


def _make_register(original):
    def register_comm_hook(self, state, hook):
        ours = _ours.get(self)
        if ours is None:
            original(self, state, hook)
            _has_own.add(self)
            return
        if ours.delegate is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._check_comm_hook(hook)
        ours.delegate = (state, hook)

    return register_comm_hook


def _make_register_builtin(original):
    def _register_builtin_comm_hook(self, comm_hook_type):
        original(self, comm_hook_type)
        _has_own.add(self)

    return _register_builtin_comm_hook


def install(module):
    if os.environ.get("TASKD_TORCH_DDP") != "1":
        return
    ddp = module.DistributedDataParallel
    _patches.wrap(ddp, "forward", _make_forward)
    _patches.wrap(ddp, "register_comm_hook", _make_register)
    _patches.wrap(ddp, "_register_builtin_comm_hook", _make_register_builtin)
