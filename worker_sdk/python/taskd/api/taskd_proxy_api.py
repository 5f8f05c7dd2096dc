"""The proxy: one a node."""
import atexit
import os
import threading
import time

from taskd.python.framework.common import type as keys
from taskd.python.utils import check, daemon
from taskd.python.utils.log import never_raises

__all__ = ["init_taskd_proxy", "destroy_taskd_proxy"]

START_TIMEOUT_S = 5.0
_POLL_S = 0.02

_lock = threading.Lock()
_proxy = None


def socket_path():
    """Where this node's ranks find their proxy."""
    path = os.environ.get("TASKD_SOCKET")
    task = os.environ.get("MINDX_TASK_ID") or "default"
    return path or f"/tmp/taskd-{os.getuid()}/{task}/proxy.sock"


def _node_rank(config):
    if keys.CONFIG_SERVERRANK_KEY in config:
        return check.number_text(keys.CONFIG_SERVERRANK_KEY, config[keys.CONFIG_SERVERRANK_KEY])
    # In a launcher RANK is the node's; in a process that a launcher started it is the process's.
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    per_node = int(local_size) if "LOCAL_RANK" in os.environ and local_size.isdecimal() else 1
    for name, divisor in (("GROUP_RANK", 1), ("RANK", per_node or 1), ("MS_NODE_RANK", 1)):
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value) // divisor
    slurm_node = os.environ.get("SLURM_NODEID", "")
    if os.environ.get("SLURM_STEP_ID", "").isdecimal() and slurm_node.isdecimal():  # else the batch shell's, which is 0
        return int(slurm_node)
    return int(keys.DEFAULT_SERVERRANK)


def _arguments(config):
    if not isinstance(config, dict):
        raise ValueError(f"config is {config!r}; it must be a dict")
    listen = check.host(keys.CONFIG_LISTENIP_KEY, config.get(keys.CONFIG_LISTENIP_KEY, keys.LOCAL_HOST))
    listen_port = check.port(
        keys.CONFIG_LISTENPORT_KEY, config.get(keys.CONFIG_LISTENPORT_KEY, keys.DEFAULT_PROXY_LISTEN_PORT))
    upstream = config.get(keys.CONFIG_UPSTREAMIP_KEY) or os.environ.get("MASTER_ADDR") or keys.LOCAL_HOST
    upstream = check.host(keys.CONFIG_UPSTREAMIP_KEY, upstream)
    if os.environ.get("LOCAL_PROXY_ENABLE") == "on":  # a local relay protects the way to the manager
        upstream = keys.LOCAL_HOST
    upstream_port = check.port(
        keys.CONFIG_UPSTREAMPORT_KEY, config.get(keys.CONFIG_UPSTREAMPORT_KEY, keys.DEFAULT_PROXY_UPSTREAM_PORT))
    arguments = daemon.flag("--manager", check.host_port(upstream, upstream_port))
    # The program's own default may be in use by another job's proxy and is then done without; an explicit one may not.
    if keys.CONFIG_LISTENIP_KEY in config or keys.CONFIG_LISTENPORT_KEY in config:
        arguments += daemon.flag("--listen", check.host_port(listen, listen_port))
    return arguments + daemon.flag("--node-rank", _node_rank(config)) + daemon.plaintext_flag()


def _socket_identity(path):
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_ctime_ns
    except OSError:
        return None


@never_raises
def init_taskd_proxy(config: dict) -> bool:
    """Starts this node's proxy; it ends with this process. True once it accepts ranks. A second call changes nothing.

    config: ListenAddr (127.0.0.1), ListenPort (9602), UpstreamAddr (MASTER_ADDR, else 127.0.0.1), UpstreamPort (9601),
    ServerRank (the node's rank; from RANK, MS_NODE_RANK or a Slurm step, else 0). Ports and ranks are ints or digits. The environment
    wins: TASKD_LISTEN, TASKD_MANAGER, TASKD_NODE_RANK, and every other flag of `taskd proxy` as TASKD_<FLAG>.
    """
    global _proxy
    arguments = _arguments(config)
    with _lock:
        if _proxy is not None and _proxy.exit_code() is None:
            return True
        path = socket_path()
        before = _socket_identity(path)
        proxy = daemon.Daemon("proxy", *arguments)
        deadline = time.monotonic() + START_TIMEOUT_S
        # A proxy whose disk or network is slow is still a proxy: only one that ended has failed.
        while _socket_identity(path) in (None, before) and time.monotonic() < deadline:
            if proxy.exit_code() is not None:
                code = proxy.wait()
                raise RuntimeError(f"the proxy ended at once with exit code {code}; its own line in the log says why")
            time.sleep(_POLL_S)
        _proxy = proxy
    return True


@never_raises
def destroy_taskd_proxy() -> bool:
    """Ends the proxy that init_taskd_proxy started, after it wrote everything recorded. False if there is none."""
    global _proxy
    with _lock:
        proxy, _proxy = _proxy, None
    if proxy is None:
        return False
    return proxy.stop()


def _forget_in_forked_child():
    global _proxy, _lock
    _proxy = None
    _lock = threading.Lock()


def _at_exit():
    # The ranks have ended by now: once this process is gone, everything they recorded is in the files.
    if _proxy is not None:
        destroy_taskd_proxy()


os.register_at_fork(after_in_child=_forget_in_forked_child)
atexit.register(_at_exit)
