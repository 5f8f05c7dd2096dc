"""Where communication is seen: the best point that this torch has, in the order of POINTS.

hooks       ProcessGroup.register_pre_hook and register_post_hook: everything that a group does, whoever starts it
dispatcher  an override of torch's operators c10d::*, through which every call goes on its way to the backend
functions   wrapped functions of torch.distributed, and the wait of DistributedDataParallel's reducer (_reducer)

A point is taken as a whole or not at all: what it needs is tried out when it is installed. What a point cannot see is in
left_out, with the reason.
"""
import atexit
import itertools
import sys
import threading
import weakref

from taskd.python.utils.log import run_log
from taskd.torch import _collectives, _gate, _groups, _patches, _reducer, _work

point = None  # name of the one in use
left_out = {}  # operation: why its calls are not marked

_below_backend_select = None
_library = None  # keeps the override
_hooked = weakref.WeakSet()  # groups
_HOOK_ID = 0x7A5CD
_in_operation = threading.local()  # .range: (range id, can be waited for) between a group's two hooks


def _caller(depth):
    """The frame of the function of torch.distributed that made the call, if one did: it waits for the Work, or gives it to
    the program."""
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:  # a thread of C++
        return None
    return frame if frame.f_globals is vars(_groups._c10d()) else None


# ---- Hooks of process groups

_HOOKED = {  # the hook's name of an operation: (operation, whether the count is that of the output)
    "ALLREDUCE": ("HcclAllreduce", False), "ALLGATHER": ("HcclAllGather", False), "BROADCAST": ("HcclBroadcast", False),
    "REDUCE": ("HcclReduce", False), "REDUCE_SCATTER": ("HcclReduceScatter", True), "ALLTOALL": ("HcclAlltoAll", False),
    "GATHER": ("HcclGather", False), "SCATTER": ("HcclScatter", True), "BARRIER": ("HcclBarrier", False),
    "SEND": ("HcclSend", False), "RECV": ("HcclRecv", True),
}
_NO_COMMUNICATION = ("UNKNOWN", "SPLIT", "NEW_WINDOW")


def _install_hooks(c10d):
    group = c10d.ProcessGroup
    if not (hasattr(group, "register_pre_hook") and hasattr(group, "register_post_hook")):
        return False
    names = sys.modules["torch._C._distributed_c10d"].HookOpName
    if not all(hasattr(names, name) for name in _HOOKED):
        return False
    for name in names.__members__ if hasattr(names, "__members__") else ():
        if name not in _HOOKED and name not in _NO_COMMUNICATION:
            left_out[name] = "an operation that this release of TaskD does not know"
    _patches.wrap(c10d, "_new_process_group_helper", _make_new_group)
    for known in list(_groups._names(c10d)):
        _fits(_hook, known)
    _collectives.install_functions(c10d, ("monitored_barrier", "batch_isend_irecv"))
    return True


def _make_new_group(original):
    def _new_process_group_helper(*args, **kwargs):
        result = original(*args, **kwargs)
        group = result[0] if isinstance(result, tuple) else result
        _fits(_hook, group)
        return result

    return _new_process_group_helper


def _hook(group):
    if group is None or not hasattr(group, "register_pre_hook") or group in _hooked:  # not a member
        return True
    reference = weakref.ref(group)

    def before(operation):
        if _gate.kinds() & _gate.COMMUNICATION and not _collectives.is_inside():
            _fits(_before, reference, operation)

    def after(operation):
        if getattr(_in_operation, "range", None) is not None:
            _fits(_after, operation, _caller(1))

    group.register_pre_hook(_HOOK_ID, before)
    group.register_post_hook(_HOOK_ID, after)
    _hooked.add(group)
    return True


def _before(reference, hooked):
    _abandon()
    known = _HOOKED.get(hooked.name.name)
    group = reference()
    if known is None or group is None:
        return True
    operation, of_output = known
    tensors = [] if operation == "HcclBarrier" else hooked.output_tensors if of_output else hooked.input_tensors
    peers = (None, None)
    if operation == "HcclSend":
        peers = (group.rank(), hooked.root)
    elif operation == "HcclRecv":
        peers = (hooked.root, group.rank())
    can_be_waited_for = _can_be_waited_for(operation, tensors, group)
    range_id = _collectives.start(operation, tensors, group, *peers)
    if range_id:
        _in_operation.range = (range_id, can_be_waited_for)
    return True


def _after(hooked, caller):
    range_id, can_be_waited_for = _in_operation.range
    _in_operation.range = None
    _collectives.returned()
    try:
        _follow(hooked.work, range_id, caller, can_be_waited_for)
    except Exception:
        _gate.range_end(range_id)
        raise
    return True


def _abandon():
    """An operation that raised has no second hook."""
    abandoned = getattr(_in_operation, "range", None)
    if abandoned is not None:
        _in_operation.range = None
        _collectives.returned()
        _gate.range_end(abandoned[0])


# A group that outlives the interpreter would let go of Python's functions without it.
@atexit.register
def _unhook_all():
    for group in list(_hooked):
        _hooked.discard(group)
        _patches.quietly(group.unregister_pre_hook, _HOOK_ID)
        _patches.quietly(group.unregister_post_hook, _HOOK_ID)


# ---- The dispatcher

_OPERATORS = {  # operator: (operation, position of the tensors that count)
    "allreduce_": ("HcclAllreduce", 0), "allreduce_coalesced_": ("HcclAllreduce", 0), "broadcast_": ("HcclBroadcast", 0),
    "allgather_": ("HcclAllGather", 1), "_allgather_base_": ("HcclAllGather", 1), "allgather_coalesced_": ("HcclAllGather", 1),
    "allgather_into_tensor_coalesced_": ("HcclAllGather", 1), "reduce_scatter_": ("HcclReduceScatter", 0),
    "_reduce_scatter_base_": ("HcclReduceScatter", 0), "reduce_scatter_tensor_coalesced_": ("HcclReduceScatter", 0),
    "scatter_": ("HcclScatter", 0), "reduce_": ("HcclReduce", 0), "gather_": ("HcclGather", 1),
    "gather_into_tensor_": ("HcclGather", 1), "alltoall_": ("HcclAlltoAll", 1), "alltoall_base_": ("HcclAlltoAll", 1),
    "barrier": ("HcclBarrier", None), "monitored_barrier_": ("HcclBarrier", None), "send": ("HcclSend", 0),
    "recv_": ("HcclRecv", 0), "recv_any_source_": ("HcclRecv", 0),
}
_NO_OPERATION = ("check_for_nan",)


def _install_dispatcher(c10d):
    global _below_backend_select, _library
    torch = sys.modules["torch"]
    if not (hasattr(c10d.Work, "unbox") and hasattr(c10d.ProcessGroup, "unbox")):
        return False
    _collectives.install_functions(c10d, ("batch_isend_irecv",))
    if _library is not None:  # it stays after disable(), with the gate closed
        return True
    _below_backend_select = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    names = [name[len("c10d::"):] for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
    if "allreduce_" not in names:
        return False
    kernels = {}
    for name in names:
        if name in _NO_OPERATION:
            continue
        kernel = _patches.quietly(_make_kernel, torch, c10d, name) if name in _OPERATORS else None
        if kernel is None:
            left_out["c10d::" + name] = "an operator that this release of TaskD does not know"
        else:
            kernels[name] = kernel
    library = torch.library.Library("c10d", "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, "BackendSelect", with_keyset=True)
    _library = library
    return True


def _make_kernel(torch, c10d, name):
    operation, tensors_at = _OPERATORS[name]
    operator = getattr(torch.ops.c10d, name).default
    types = [str(argument.type) for argument in operator._schema.arguments]
    group_at = next(i for i, type_ in enumerate(types) if type_.endswith("ProcessGroup"))
    if tensors_at is not None and "Tensor" not in types[tensors_at]:
        return None
    redispatch = operator.redispatch

    def open_range(args):
        group = c10d.ProcessGroup.unbox(args[group_at])
        tensors = [] if tensors_at is None else _flat(args[tensors_at])
        if tensors and tensors[0].device.type == "meta":
            return ()
        peers = (None, None)
        if operation == "HcclSend":
            peers = (group.rank(), args[group_at + 1])
        elif operation == "HcclRecv":
            peers = (args[group_at + 1] if name == "recv_" else -1, group.rank())
        can_be_waited_for = _can_be_waited_for(operation, tensors, group)
        range_id = _collectives.start(operation, tensors, group, *peers)
        return (range_id, can_be_waited_for) if range_id else ()

    def follow(result, range_id, caller, can_be_waited_for):
        work = c10d.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        _follow(work, range_id, caller, can_be_waited_for)
        return True

    def kernel(keyset, *args):
        opened = ()
        if _gate.kinds() & _gate.COMMUNICATION and not _collectives.is_inside():
            opened = _fits(open_range, args)
        if not opened:
            return redispatch(keyset & _below_backend_select, *args)
        range_id, can_be_waited_for = opened
        try:
            result = redispatch(keyset & _below_backend_select, *args)
        except BaseException:
            _gate.range_end(range_id)
            raise
        finally:
            _collectives.returned()
        if not _fits(follow, result, range_id, _caller(1), can_be_waited_for):
            _gate.range_end(range_id)
        return result

    return kernel


def _flat(tensors):
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    return list(itertools.chain.from_iterable(tensors)) if tensors and isinstance(tensors[0], (list, tuple)) else list(tensors)


# ---- Functions of torch.distributed

def _install_functions(c10d):
    _collectives.install_functions(c10d)
    _reducer.install()
    for name in ("functional collectives", "tensor parallelism", "DistributedDataParallel's broadcasts"):
        left_out[name] = "this torch has neither hooks of process groups nor operators that can be overridden"
    return True


# ----

def _fits(function, *arguments):
    """quietly(); what does not fit this release, as it returned None, is known to be left out."""
    result = _patches.quietly(function, *arguments)
    if result is None:
        left_out["some operations"] = "this release of PyTorch is another one than expected, TaskD's log says where"
    return result


def _can_be_waited_for(operation, tensors, group):
    """Whether a second thread may wait for the Work: of gloo's collectives on the host."""
    if operation in ("HcclSend", "HcclRecv", "HcclBarrier") or not tensors or tensors[0].device.type != "cpu":
        return False
    return _groups.backend_of(group, tensors[0].device) == "gloo"


def _follow(work, range_id, caller, can_be_waited_for):
    if work is None:
        _gate.range_end(range_id)
    else:
        _work.follow(work, range_id, caller, can_be_waited_for)


POINTS = (("hooks", _install_hooks), ("dispatcher", _install_dispatcher), ("functions", _install_functions))


def install(c10d):
    global point
    _collectives.learn_types()
    _work.install(c10d)
    for name, install_point in POINTS:
        if _library is None:
            left_out.clear()
        if _patches.quietly(install_point, c10d):
            point = name
            break
    run_log.info("taskd.torch: communication is seen by %s%s", point, "".join(
        "; not %s: %s" % item for item in left_out.items()))
