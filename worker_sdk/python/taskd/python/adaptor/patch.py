"""`import taskd.python.adaptor.patch`, put into torch/distributed/run.py: torchrun starts its node's proxy.

It reports to the manager on MASTER_ADDR, port 9601, unless the environment says otherwise (TASKD_MANAGER). It does nothing
in a process that a launcher started, imports nothing heavy, does not wait, and changes nothing else in torchrun: --max-restarts
is as torchrun has it, where MindCluster's makes 0 to 32767 and asks its manager before each start. A failure is one line in
the log, and so is what the environment asks for and there is not (recovery of processes).
"""
import multiprocessing
import os
import sys
import threading

from taskd.python.utils import recovery
from taskd.python.utils.log import never_raises


def _is_launcher():
    in_worker = "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    return not in_worker and not _is_multiprocessing_child()


def _is_multiprocessing_child():
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # also the fork server, which is no child itself
        return True
    if hasattr(multiprocessing, "parent_process"):
        return multiprocessing.parent_process() is not None
    return multiprocessing.current_process().name != "MainProcess"  # Python 3.7


def _option(name):
    """An option of torchrun's own command line, spelled with dashes or underscores, or its PET_ variable."""
    for index, argument in enumerate(sys.argv[1:], 1):
        option, equals, value = argument.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") == name:
            return value if equals else "".join(sys.argv[index + 1:index + 2])
    return os.environ.get("PET_" + name.upper(), "")


@never_raises
def _start_proxy():
    from taskd.api.taskd_proxy_api import init_taskd_proxy
    from taskd.python.framework.common import type as keys

    config = {}
    master = os.environ.get("MASTER_ADDR") or _option("master_addr")
    if master:
        config[keys.CONFIG_UPSTREAMIP_KEY] = master
    node_rank = os.environ.get("RANK") or _option("node_rank")
    if node_rank:
        config[keys.CONFIG_SERVERRANK_KEY] = node_rank
    return init_taskd_proxy(config)


@never_raises
def _start_in_background():
    if _is_launcher():
        recovery.say_what_will_not_happen()
        threading.Thread(target=_start_proxy, name="taskd-proxy", daemon=True).start()
    return True


_start_in_background()
