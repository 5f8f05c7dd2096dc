"""dump_group_info(), which MindCluster's guide to slow nodes puts into the training loop (TaskD contract §4.8)."""
import os

from taskd.python.utils.log import never_raises, run_log
from taskd.torch import _groups

__all__ = ["dump_group_info"]


@never_raises
def dump_group_info(rank=None) -> bool:
    """Writes this rank's parallel_group.json before it returns.

    To `$GROUP_BASE_DIR/<MINDX_TASK_ID>/<rank>/`, where that variable names a folder; else beside the rank's mark files. What
    is missing below it is made; a symbolic link in place of the rank's folder or of the file is refused. HCCL's groups have
    the names of their marks once they have communicated, which is why the guide waits for the fifth iteration. rank is of
    older programs, and is torch.distributed's in any case.

    TaskD itself reads the file beside the mark files: with GROUP_BASE_DIR that one is written too, in the background.
    """
    rank = _groups.own_rank()
    if rank is None:
        raise RuntimeError("torch.distributed is not initialized")
    _groups.look()
    folder = _folder(rank)
    for path in (folder, os.path.join(folder, _groups.FILE_NAME)):
        if os.path.islink(path):
            raise RuntimeError(f"{path} is a symbolic link")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    _groups.write_newest(folder)
    if os.path.realpath(folder) != os.path.realpath(_groups.rank_folder(rank) or ""):
        _groups.changed()
    return True


def _folder(rank):
    base, task = os.environ.get("GROUP_BASE_DIR"), os.environ.get("MINDX_TASK_ID")
    if base and not os.path.isdir(base):
        run_log.warning("dump_group_info: GROUP_BASE_DIR is %r, which is no folder; the file goes beside the mark files", base)
        base = None
    beside_marks = None if base else _groups.rank_folder(rank) or _groups.folder_to_come(rank)
    if beside_marks:
        return beside_marks
    if not task:
        raise RuntimeError("MINDX_TASK_ID is not set; it is the folder's name")
    return os.path.join(base or _groups.profiling_dir(), task, str(rank))
