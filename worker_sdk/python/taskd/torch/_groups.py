"""Process groups: their names in marks, and parallel_group.json beside the rank's mark files (TaskD contract §4.8).

The file maps the name that marks carry to {"group_name", "group_rank", "global_ranks"} for every group that this rank
belongs to. A thread writes it, as the folder appears only once the proxy knows this rank, and may be on a slow disk. It
looks at the groups, too, and rests in between: a program may make thousands, and is not to wait for each look at all.

Any thread may look and write. look() keeps the newest view of the groups, and write_newest() writes that view while it holds
the folder's lock, so a file never gets older, and a disk that hangs stops only those who write to that folder.
"""
import atexit
import functools
import inspect
import json
import os
import re
import socket
import struct
import sys
import threading
import time

from taskd import _own_user
from taskd.python.utils import files
from taskd.python.utils.log import run_log
from taskd.torch import _patches

DEFAULT_GROUP = "default_group"
FILE_NAME = "parallel_group.json"
_MAX_NAME_BYTES = 96  # as JSON; with it the longest mark stays below 254 bytes
_RETRY_MIN_S, _RETRY_MAX_S = 0.25, 10.0
_REST = 20  # times what a look took

_given_names = {}  # name in marks: the name that the program gave, such as "tp"
_wake = threading.Event()
_lock = threading.Lock()
_unseen = False  # groups have changed since the last look
_thread = None
_looking = threading.Lock()  # guards _newest; never held while a file is written
_newest = None  # the last snapshot that was not empty
_writing = {}  # folder: the lock that is held while its file is written
_ending = False  # the thread begins no file any more
_LAST_WRITE_S = 1.0
_MAX_STATE_BYTES = 8192  # as the proxy itself reads it


@functools.lru_cache(maxsize=4096)
def mark_name(name):
    """A group's name, short enough for a mark."""
    name = str(name)
    while len(json.dumps(name)) - 2 > _MAX_NAME_BYTES:
        name = name[:-1]
    return name


@functools.lru_cache(maxsize=4096)
def json_text(name):
    return json.dumps(mark_name(name))[1:-1]


def _c10d():
    return sys.modules["torch.distributed.distributed_c10d"]


def _names(c10d):
    world = getattr(c10d, "_world", None)
    return world.pg_names if world is not None else c10d._pg_names


def name_of(group):
    """What marks call a group; None if it is none that this rank belongs to."""
    c10d = _c10d()
    if group is None or group is c10d.GroupMember.WORLD or group is c10d._get_default_group():
        return DEFAULT_GROUP
    return _names(c10d).get(group)


def backend_of(group, device):
    """What does a group's communication on a device: "gloo", "nccl", ..."""
    by_device = getattr(group, "_get_backend", None)
    if group is None:
        return _c10d().get_backend()
    return (by_device(device) if by_device is not None else group).name()


def rank_in(group, global_rank):
    """A global rank's rank within a group."""
    c10d = _c10d()
    if name_of(group) == DEFAULT_GROUP:
        return global_rank
    translate = getattr(c10d, "get_group_rank", None) or c10d._get_group_rank
    return translate(group, global_rank)


def _hccl_names(group, rank):
    """(the name by which torch_npu's own marks call a group, once it has a communicator; the one that the program gave).

    None for what there is not.
    """
    mark = given = None
    try:
        backend = group._get_backend(sys.modules["torch"].device("npu"))
        mark = backend.get_hccl_comm_name(rank, init_comm=False)
        given = backend.options.hccl_config.get("group_name")
    except Exception:  # another backend, or another torch_npu
        pass
    return [name if isinstance(name, str) and name else None for name in (mark, given)]


def own_rank():
    """This process's global rank; None if torch.distributed is not initialized."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d.get_rank() if c10d is not None and c10d.is_initialized() else None


def snapshot():
    """{"rank": ..., "groups": ...} of now; None where there are no groups, or all are gone by now."""
    rank = own_rank()
    if rank is None:
        return None
    c10d = _c10d()
    groups = {}
    for group, torch_name in list(_names(c10d).items()):
        ranks = _global_ranks(c10d, group)
        if rank not in ranks:
            continue
        default = group is c10d._get_default_group()
        name = DEFAULT_GROUP if default else mark_name(torch_name)
        description = getattr(group, "group_desc", None)
        hccl_mark, hccl_given = _hccl_names(group, rank) if "torch_npu" in sys.modules else (None, None)
        given = DEFAULT_GROUP if default else (
            _given_names.get(torch_name) or hccl_given or
            (description if description not in (None, "", "undefined") else None) or name)
        groups[hccl_mark or name] = {"group_name": given, "group_rank": ranks.index(rank), "global_ranks": ranks}
    return {"rank": rank, "groups": groups}


def _global_ranks(c10d, group):
    world = getattr(c10d, "_world", None)
    ranks = (world.pg_group_ranks if world is not None else c10d._pg_group_ranks).get(group)
    return sorted(ranks, key=ranks.get) if ranks else list(range(group.size()))


def changed():
    """Groups were made or taken away."""
    _patches.quietly(_changed)


def _changed():
    global _unseen, _thread
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    with _lock:
        _unseen = True
        _wake.set()
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_write_when_possible, name="taskd-groups", daemon=True)
            _thread.start()


def _write_when_possible():
    global _unseen, _thread
    due, pause, said = False, _RETRY_MIN_S, False
    while True:
        with _lock:
            _wake.clear()
            unseen, _unseen = _unseen, False
            if not due and not unseen:
                _thread = None
                return
        if unseen:
            began = time.perf_counter()
            due = _patches.quietly(look) is not None or due
            pause = _RETRY_MIN_S
            time.sleep(_REST * (time.perf_counter() - began))
        try:
            if not due or _write():
                due = False
                continue
        except OSError as error:
            if not said:
                run_log.error("%s: %s", FILE_NAME, error)
                said = True
        if not _wake.wait(pause):
            pause = min(2 * pause, _RETRY_MAX_S)


def _write():
    """False: the proxy has not made the rank's folder yet."""
    folder = rank_folder(_newest["rank"])
    if folder is None:
        return False
    write_newest(folder, also_at_exit=False)
    return True


def look():
    """The snapshot of now. While there are no groups, the last one that had some; None before that."""
    global _newest
    with _looking:
        _newest = snapshot() or _newest
        return _newest


def write_newest(folder, also_at_exit=True):
    """Writes what the newest look of any thread has found. OSError if that fails; the file is then as it was."""
    with _writing.setdefault(os.path.realpath(folder), threading.Lock()):
        if also_at_exit or not _ending:
            write_file(folder, _newest["groups"])


@atexit.register
def _let_it_finish():
    """Waits for a file that is begun, if its disk takes it: a part of it would stay."""
    global _ending
    _ending = True
    deadline = time.monotonic() + _LAST_WRITE_S
    for lock in list(_writing.values()):
        if lock.acquire(timeout=max(0, deadline - time.monotonic())):
            lock.release()


def write_file(folder, groups):
    """OSError also where the folder, or the task's folder above it, is a link."""
    text = json.dumps(groups, indent=4)
    above, rank = os.path.split(folder)
    base, task = os.path.split(above)
    opened = [files.open_folder(base or ".", follow_links=True)]
    try:
        for name in (task or ".", rank):
            opened.append(files.open_folder(name, dir_fd=opened[-1]))
        files.replace_file(opened[-1], FILE_NAME, text)
    finally:
        for one in opened:
            os.close(one)


def rank_folder(rank):
    """The folder in which the proxy looks for this rank's groups, or None while there is none.

    The proxy says where that is, beside its socket. Where it does not, and without a task's name, it is the newest
    task's folder that has been in use since this process began, or an earlier job's would do.
    """
    task = os.environ.get("MINDX_TASK_ID")
    base = profiling_dir()
    told = _folders_of_proxy()
    if told:
        base, task_name = os.path.split(told)
        tasks = [task_name]
    elif task:
        tasks = [task]
    else:
        try:
            names = os.listdir(base)
        except OSError:
            return None
        begun = {n: re.fullmatch(r"default_task_id_([0-9]{1,19})(_.*)?", n) for n in names}
        tasks = sorted((n for n, match in begun.items() if match), key=lambda n: int(begun[n][1]), reverse=True)
    for task_name in tasks:
        folder = os.path.join(base, task_name, str(rank))
        if os.path.isdir(folder) and not os.path.islink(folder):
            if task or os.stat(folder).st_mtime >= _process_start() - 1:
                return folder
    return None


def profiling_dir():
    """Where mark files go unless the proxy says otherwise."""
    return os.environ.get("TASKD_PROFILING_DIR") or "/user/cluster-info/profiling"


def folder_to_come(rank):
    """The folder that the proxy will make for this rank; None: it has not said."""
    told = _folders_of_proxy()
    return os.path.join(told, str(rank)) if told else None


def _folders_of_proxy():
    """The folder with the ranks' folders, as the proxy of this node has it; None: it has not said.

    Anybody may have made the socket's folder below /tmp. So the file is believed only where nobody but this user and root can
    write to that folder, and only while their proxy answers on the socket: a dead one's file may be of an earlier job.
    """
    task = os.environ.get("MINDX_TASK_ID") or "default"
    path = os.environ.get("TASKD_SOCKET") or f"/tmp/taskd-{os.geteuid()}/{task}/proxy.sock"
    folder = None
    try:
        folder = files.open_own_folder(os.path.dirname(path) or ".")
        if not _is_own_proxy(path):
            return None
        state = files.read_own(f"{os.path.basename(path)}.state", _MAX_STATE_BYTES, dir_fd=folder)
        folders = json.loads(state).get("rank_folders")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    finally:
        if folder is not None:
            os.close(folder)
    return folders if isinstance(folders, str) and os.path.isabs(folders) else None


def _is_own_proxy(path):
    """Whether a process of this user or root listens on the socket. OSError: nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        probe.connect(path)
        _, user, _ = struct.unpack("iII", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
        return _own_user.is_own_user_or_root(user)


@functools.lru_cache(maxsize=None)
def _process_start():
    """Unix seconds."""
    with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
        return time.time() - float(uptime.read().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")


def _make_init_process_group(original):
    signature = inspect.signature(original)

    def init_process_group(*args, **kwargs):
        _patches.quietly(_before_init, signature, args, kwargs)
        result = original(*args, **kwargs)
        _patches.quietly(_on_init)
        return result

    return init_process_group


def _before_init(signature, args, kwargs):
    """Where it is known which rank this will be, the process is seen before it waits for the others."""
    rank = _rank_to_come(signature.bind(*args, **kwargs).arguments)
    if rank is not None:
        _init_worker(rank)


def _rank_to_come(given):
    """As the caller gives it (Megatron, Lightning), or as env:// will; None: nobody knows before it has joined."""
    rank = given.get("rank", -1)
    if str(given.get("backend")).lower() == "mpi" or not isinstance(rank, int):
        return None
    if rank >= 0:
        return rank
    rank = os.environ.get("RANK", "")
    method = given.get("init_method") or "env://"
    return int(rank) if rank.isdecimal() and method == "env://" and given.get("store") is None else None


def _on_init():
    """Nobody needs to call init_taskd_worker: the rank is known from here on."""
    _init_worker(_c10d().get_rank())
    changed()


def _init_worker(rank):
    from taskd.api import taskd_worker_api

    if not taskd_worker_api.is_initialized():
        taskd_worker_api.init_taskd_worker(rank, 0)  # 0: no wish about the disk


def _make_new_group(original):
    def new_group(*args, **kwargs):
        group = original(*args, **kwargs)
        _patches.quietly(_on_new_group, group, kwargs)
        return group

    return new_group


def _on_new_group(group, kwargs):
    name = _names(_c10d()).get(group)
    given = getattr(kwargs.get("pg_options"), "hccl_config", None)
    given = given.get("group_name") if isinstance(given, dict) else None
    if name is not None and isinstance(given, str) and given:
        _given_names[name] = given
    changed()


def install(c10d, wrap_export):
    package = sys.modules["torch.distributed"]
    wrap_export(c10d, package, "init_process_group", _make_init_process_group)
    for name in ("new_group", "split_group"):
        wrap_export(c10d, package, name, _make_new_group)
    if c10d.is_initialized():
        _on_init()


def _forget_in_forked_child():
    global _thread, _unseen, _lock, _looking, _writing
    _thread, _unseen, _lock, _looking, _writing = None, False, threading.Lock(), threading.Lock(), {}


os.register_at_fork(after_in_child=_forget_in_forked_child)
