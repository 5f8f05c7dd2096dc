"""When an operation is done: the end of its range.

The caller's wait() on the Work ends it, or is_completed() that says so, or that nobody in Python holds the Work any more.
Where C++ waits (DistributedDataParallel's reducer, functional collectives, futures), the waiter's thread does it for gloo's
collectives; for other backends the range ends with the call, as the host does not wait for a device, and who else may wait
for a request of MPI or for a gloo send only its caller knows.
"""
import atexit
import functools
import sys
import threading
import weakref

from taskd.torch import _gate, _patches, _waiter

_pending = {}  # id of a Work that Python holds: (weak reference, function that ends its part of a range)
atexit.register(_pending.clear)
_KEPT = "taskd: kept until the caller has it from C++"  # a local variable's name, as no source code can have it


class _Ending:
    """Ends a range once, with the last of `parts` that come to their end."""

    def __init__(self, range_id, parts):
        self._range_id = range_id
        self._parts = parts
        self._lock = threading.Lock()

    def part_done(self, *_):
        with self._lock:
            self._parts -= 1
            last = self._parts == 0
        if last:
            _gate.range_end(self._range_id)


def end_with(result, range_id):
    """Ends the range when what a function of torch.distributed returned is done: a Work, several, or nothing."""
    work_class = _work_class()
    if isinstance(result, work_class):
        _end_with_caller(result, functools.partial(_gate.range_end, range_id))
    elif isinstance(result, list) and result and all(isinstance(work, work_class) for work in result):
        ending = _Ending(range_id, len(result))
        for work in result:
            _end_with_caller(work, ending.part_done)
    else:
        _gate.range_end(range_id)


def follow(work, range_id, caller, can_be_waited_for):
    """Ends the range when a Work that C++ has made is done.

    caller is the frame of Python that gets it, or None. With another object of Python for the same Work it would get another
    life, so this one lives as long as the frame at least.
    """
    if caller is not None:
        caller.f_locals.setdefault(_KEPT, []).append(work)
        _end_with_caller(work, functools.partial(_gate.range_end, range_id))
    elif can_be_waited_for:
        _wait_for(work, functools.partial(_gate.range_end, range_id))
    else:
        _gate.range_end(range_id)


def _end_with_caller(work, end):
    key = id(work)
    _pending[key] = (weakref.ref(work, lambda _: _end(key)), end)


def _end(key):
    pending = _pending.pop(key, None)
    if pending is not None:
        pending[1]()


def _wait_for(work, end):
    _waiter.when_done(work, end, lambda _: end())


def _done(work):
    if _pending:
        _end(id(work))


def _make_waiting(original):
    def wait(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        finally:
            _done(self)

    return wait


def _make_is_completed(original):
    def is_completed(self):
        completed = original(self)
        if completed:
            _done(self)
        return completed

    return is_completed


def _make_get_future(original):
    def get_future(self):
        future = original(self)
        _patches.quietly(_hand_over, self, future.done())
        return future

    return get_future


def _make_set_forward_pass_work_handle(original):
    # Join's, which the reducer waits for at the end of backward.
    def _set_forward_pass_work_handle(self, work, *args, **kwargs):
        _patches.quietly(_hand_over, work, False)
        return original(self, work, *args, **kwargs)

    return _set_forward_pass_work_handle


def _hand_over(work, is_done):
    """C++ waits from now on for what Python has held."""
    pending = _pending.pop(id(work), None)
    if pending is None:
        return
    if is_done or sys.modules["torch"].cuda.is_initialized():
        pending[1]()
    else:
        _wait_for(work, pending[1])


def _work_class():
    return sys.modules["torch.distributed.distributed_c10d"].Work


def install(c10d):
    # pybind11 tells a Python function that stands for a C++ method by its name and its first argument.
    _patches.wrap(c10d.Work, "wait", _make_waiting)
    _patches.wrap(c10d.Work, "is_completed", _make_is_completed)
    _patches.wrap(c10d.Work, "get_future", _make_get_future)
    reducer = getattr(sys.modules["torch"].distributed, "Reducer", None)
    if reducer is not None:
        _patches.wrap(reducer, "_set_forward_pass_work_handle", _make_set_forward_pass_work_handle)
