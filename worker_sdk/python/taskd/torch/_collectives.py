"""Marks of communication: their text, and wrapped functions of torch.distributed (TaskD contract §4.4).

A range is named by JSON text with count, streamId, dataType, groupName and opName, for point-to-point also srcRank and
destRank within the group. Operations have HCCL's names; those that HCCL has not are called HcclGather and HcclBarrier. The
count is in elements: what a rank puts in, for scatter and reduce-scatter what it gets out. An unknown sender is srcRank -1.

The range is what the calling thread sees: from the call to its return. With async_op=True and for isend, irecv and
batch_isend_irecv it lasts until the work is done (_work). On a GPU that is when the work has been queued, because the host
does not wait for more.

Nothing is marked for tensors on an NPU: torch_npu marks those itself, with the device's times. Nor for what NCCL's profiler
plugin marks: libtaskd.so decides who does.
"""
import functools
import inspect
import sys
import threading

from taskd.python.cython_api import cython_api
from taskd.torch import _gate, _groups, _patches, _work
from taskd.torch._local import wrap_export

DOMAIN = "communication"
_A_STREAM = 1  # any but 0: readers of these marks expect the flags of a range with a stream

# function: (operation, parameters that may hold the tensor or tensors, parameter of the peer or None)
_FUNCTIONS = {
    "all_reduce": ("HcclAllreduce", ("tensor",), None),
    "all_reduce_coalesced": ("HcclAllreduce", ("tensors",), None),
    "all_gather": ("HcclAllGather", ("tensor",), None),
    "all_gather_coalesced": ("HcclAllGather", ("input_tensor_list",), None),
    "all_gather_into_tensor": ("HcclAllGather", ("input_tensor",), None),
    "_all_gather_base": ("HcclAllGather", ("input_tensor",), None),
    "reduce_scatter": ("HcclReduceScatter", ("output",), None),
    "reduce_scatter_tensor": ("HcclReduceScatter", ("output",), None),
    "_reduce_scatter_base": ("HcclReduceScatter", ("output",), None),
    "broadcast": ("HcclBroadcast", ("tensor",), None),
    "reduce": ("HcclReduce", ("tensor",), None),
    "all_to_all_single": ("HcclAlltoAll", ("input",), None),
    "all_to_all": ("HcclAlltoAll", ("input_tensor_list",), None),
    "scatter": ("HcclScatter", ("tensor",), None),
    "gather": ("HcclGather", ("tensor",), None),
    "barrier": ("HcclBarrier", (), None),
    "monitored_barrier": ("HcclBarrier", (), None),
    "send": ("HcclSend", ("tensor",), "dst"),
    "isend": ("HcclSend", ("tensor",), "dst"),
    "recv": ("HcclRecv", ("tensor",), "src"),
    "irecv": ("HcclRecv", ("tensor",), "src"),
}

_calling = threading.local()  # .inside: a marked function; .begun: an operation that libtaskd.so knows to be ours
_data_types = {}  # torch.dtype: name


def mark_text(operation, count, data_type, group_name, source=None, destination=None):
    peers = "" if source is None else ',"srcRank": "%d","destRank": "%d"' % (source, destination)
    return '{"count": "%d","streamId": "0","dataType": "%s","groupName": "%s","opName": "%s"%s}' % (
        count, data_type, _groups.json_text(group_name), operation, peers)


@functools.lru_cache(maxsize=None)
def _library():
    library = cython_api.load()
    return library if hasattr(library, "taskd_communication_begin") else None


@functools.lru_cache(maxsize=None)
def _nccl_version():
    from torch.cuda import nccl

    major, minor, patch = (tuple(nccl.version()) + (0, 0))[:3]
    return major * 10000 + minor * 100 + patch


def start(operation, tensors, group, source=None, destination=None):
    """Opens a range; 0 where it is not ours to mark or the group is not this rank's. If not 0, returned() has to follow."""
    name = _groups.name_of(group)
    if name is None:
        return 0
    device = tensors[0].device.type if tensors else None
    on_npu = _gate.on_npu()
    if on_npu and device in (None, "npu"):
        return 0
    count = sum(tensor.numel() for tensor in tensors)
    data_type = _data_types.get(tensors[0].dtype, "na") if tensors else "na"
    text = mark_text(operation, count, data_type, name, source, destination)
    if device == "cuda" and _library() is not None:
        version = _nccl_version() if _groups.backend_of(group, tensors[0].device) == "nccl" else 0
        if not _library().taskd_communication_begin(version):
            return 0
        _calling.begun = True
    range_id = _gate.range_start(text, None if on_npu else _A_STREAM, domain=DOMAIN)
    if not range_id:
        returned()
    return range_id


def returned():
    """The call that makes the operation has returned or failed, on the thread that started it."""
    if getattr(_calling, "begun", False):
        _calling.begun = False
        _library().taskd_communication_end()


class _Arguments:
    """Where a function's parameters are in a call's arguments."""

    def __init__(self, function):
        self._positions = {name: i for i, name in enumerate(inspect.signature(function).parameters)}

    def get(self, name, args, kwargs, default=None):
        if name in kwargs:
            return kwargs[name]
        position = self._positions.get(name)
        return args[position] if position is not None and position < len(args) else default


def _peers(arguments, args, kwargs, parameter, group):
    """(source, destination) within the group."""
    mine = _groups._c10d().get_rank(group)
    peer = arguments.get("group_" + parameter, args, kwargs)
    if peer is None:
        peer = arguments.get(parameter, args, kwargs)
        peer = -1 if peer is None else _groups.rank_in(group, peer)
    return (mine, peer) if parameter == "dst" else (peer, mine)


def _maker(operation, parameters, peer_parameter):
    def make(original):
        arguments = _Arguments(original)

        def open_range(args, kwargs):
            group = arguments.get("group", args, kwargs)
            tensors = []
            for parameter in parameters:
                value = arguments.get(parameter, args, kwargs)
                tensors += value if isinstance(value, (list, tuple)) else [value]
            peers = (None, None) if peer_parameter is None else _peers(arguments, args, kwargs, peer_parameter, group)
            return start(operation, tensors, group, *peers)

        def function(*args, **kwargs):
            if not _gate.kinds() & _gate.COMMUNICATION:
                return original(*args, **kwargs)
            return _call(original, args, kwargs, open_range)

        return function

    return make


def _make_batch(original):
    def open_range(args, kwargs):
        operations = args[0] if args else kwargs.get("p2p_op_list")
        return start("HcclBatchSendRecv", [o.tensor for o in operations], operations[0].group)

    def batch_isend_irecv(*args, **kwargs):
        if not _gate.kinds() & _gate.COMMUNICATION:
            return original(*args, **kwargs)
        return _call(original, args, kwargs, open_range)

    return batch_isend_irecv


def _call(original, args, kwargs, open_range):
    if is_inside():
        return original(*args, **kwargs)
    try:
        range_id = open_range(args, kwargs)
    except Exception:  # arguments that the original will refuse, with its own words
        range_id = 0
    _calling.inside = True
    try:
        result = original(*args, **kwargs)
    except BaseException:
        if range_id:
            _gate.range_end(range_id)
        raise
    finally:
        _calling.inside = False
        returned()
    if range_id:
        _patches.quietly(_work.end_with, result, range_id)
    return result


def is_inside():
    """In a call that is marked: what it calls in turn is a part of it."""
    return getattr(_calling, "inside", False)


def learn_types():
    torch = sys.modules["torch"]
    names = {"int8": "int8", "uint8": "uint8", "int16": "int16", "int32": "int32", "int64": "int64", "uint16": "uint16",
             "uint32": "uint32", "uint64": "uint64", "float16": "fp16", "float32": "fp32", "float64": "fp64",
             "bfloat16": "bfp16"}
    _data_types.update((getattr(torch, name), text) for name, text in names.items() if hasattr(torch, name))


def install_functions(c10d, names=None):
    """All of them, or those that the point in use does not see or would see in pieces."""
    package = sys.modules["torch.distributed"]
    for name, (operation, parameters, peer) in _FUNCTIONS.items():
        if names is None or name in names:
            wrap_export(c10d, package, name, _maker(operation, parameters, peer))
    if names is None or "batch_isend_irecv" in names:
        wrap_export(c10d, package, "batch_isend_irecv", _make_batch)
    if names is None:
        _accept_both(c10d)


def _accept_both(c10d):
    """P2POp takes isend and irecv only, by identity: those that a program took before the hooks came, or while they were
    there, are as good as those in the module now. Stays after disable(), for the same reason."""
    original = getattr(c10d, "_check_op", None)
    if original is None or getattr(original, "__taskd_known__", None) is not None:
        known = getattr(original, "__taskd_known__", None)
        if known is not None:
            known.update((c10d.isend, c10d.irecv))
        return
    known = {c10d.isend, c10d.irecv, c10d.isend.__wrapped__, c10d.irecv.__wrapped__}

    def _check_op(op):
        if op not in known:
            original(op)

    _check_op.__taskd_known__ = known
    c10d._check_op = _check_op
