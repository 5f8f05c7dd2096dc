"""The worker: recording in this training process."""
import os

from taskd.python.cython_api import cython_api
from taskd.python.utils import check
from taskd.python.utils.log import never_raises

__all__ = ["init_taskd_worker", "start_taskd_worker", "destroy_taskd_worker"]

_initialized_pid = None


@never_raises
def init_taskd_worker(rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt") -> bool:
    """Tells TaskD the global rank of this process. From then on, marks that are switched on are recorded.

    rank_id: global rank, >= 0. upper_limit_of_disk_in_mb: wished limit of the mark files that the
    ranks of the job with this limit or a lower one have on the node, >= 0, 0 for none; it costs no other files, and the
    proxy's --disk-limit-mb holds besides. framework: "pt" or "ms"; both are treated alike.
    """
    global _initialized_pid
    check.non_negative_int("rank_id", rank_id)
    check.non_negative_int("upper_limit_of_disk_in_mb", upper_limit_of_disk_in_mb)
    # -1: the library knows the variables of all launchers that tell the local rank.
    if cython_api.load().taskd_worker_init(rank_id, -1, upper_limit_of_disk_in_mb) != 0:
        return False
    _initialized_pid = os.getpid()
    return True


def is_initialized():
    """Whether init_taskd_worker succeeded in this very process; a forked child has not."""
    return _initialized_pid == os.getpid()


@never_raises
def start_taskd_worker() -> bool:
    """False before init_taskd_worker."""
    return is_initialized() and cython_api.load().taskd_worker_start() == 0


@never_raises
def destroy_taskd_worker() -> bool:
    """Ends recording in this process; what was recorded is still written. False before init_taskd_worker."""
    global _initialized_pid
    if not is_initialized():
        return False
    _initialized_pid = None
    return cython_api.load().taskd_worker_destroy() == 0
