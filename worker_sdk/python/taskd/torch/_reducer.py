"""DistributedDataParallel's all-reduce where nothing sees it in C++: a range around the wait for it, at the end of backward.

Gradients are reduced in buckets while backward goes on, and the reducer waits for all of them in a callback that autograd
runs at the end of backward. Callbacks run in the order in which they were asked for, and the reducer asks when its last
bucket is full. So one that is asked for with the first gradient of the output runs just before that wait; it asks for
another, which runs just after it. Nothing of DDP is touched: same numbers, any hook, any bucket.

The range has the operation, group and type of DDP's all-reduce, and as its count the elements of all gradients. What is
reduced while backward still computes is hidden behind it, and is not in the range. For gradients on the host only, as it does
not wait for a device. A communication hook of the program calls torch.distributed, where its operations are marked as any
others.
"""
import sys
import weakref

from taskd.torch import _collectives, _gate, _imports, _patches

_with_hooks = weakref.WeakSet()  # DDP instances with a communication hook in Python


def _queue(callback):
    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(callback)


class _Wait:
    """Of one backward."""

    def __init__(self, ddp):
        self._ddp = weakref.ref(ddp)
        self._range_id = 0
        self._begun = False

    def first_gradient(self, _):
        if not self._begun:
            self._begun = True
            _patches.quietly(_queue, self._computed)

    def _computed(self):
        _patches.quietly(self._open)

    def _open(self):
        ddp = self._ddp()
        if ddp is None:
            return
        parameters = [p for p in ddp.parameters() if p.requires_grad]
        self._range_id = _collectives.start("HcclAllreduce", parameters, ddp.process_group)
        if self._range_id:
            _queue(self._waited)

    def _waited(self):
        _gate.range_end(self._range_id)


def _watch(ddp, output):
    torch = sys.modules["torch"]
    if not (torch.is_grad_enabled() and ddp.require_backward_grad_sync) or ddp in _with_hooks:
        return
    if next(ddp.parameters()).device.type != "cpu":
        return
    wait = _Wait(ddp)
    for tensor in _tensors(torch, output):
        if tensor.grad_fn is not None:
            tensor.register_hook(wait.first_gradient)


def _tensors(torch, value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(torch, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(torch, inner)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(torch, getattr(value, name))


def _make_forward(original):
    def forward(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        if _gate.kinds() & _gate.COMMUNICATION:
            _patches.quietly(_watch, self, output)
        return output

    return forward


def _make_register(original):
    def register_comm_hook(self, state, hook):
        original(self, state, hook)
        _patches.quietly(_with_hooks.add, self)

    return register_comm_hook


def _wrap(module):
    _patches.wrap(module.DistributedDataParallel, "forward", _make_forward)
    _patches.wrap(module.DistributedDataParallel, "register_comm_hook", _make_register)


def install():
    _imports.when_imported("torch.nn.parallel.distributed", _wrap)
