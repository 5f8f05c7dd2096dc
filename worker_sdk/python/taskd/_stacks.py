"""Python's half of "where are the ranks": on a signal of the launcher all threads' Python frames go into a file of its
folder (worker_sdk/include/taskd/stack_dump.h). The half of libtaskd.so has the rest of the frames.

faulthandler walks the frames of all threads in the signal handler, while other threads run: it is for a job that hangs,
and only the launcher sends the signal.
"""
import faulthandler
import os
import signal
import stat

from taskd._own_user import is_own_user

_file = None  # faulthandler writes into its descriptor for as long as the process lives


def arm():
    """Does nothing without TASKD_STACK_DIR, and where the program has taken the signal itself."""
    global _file
    folder = os.environ.get("TASKD_STACK_DIR")
    if not folder or _file is not None or not hasattr(signal, "SIGRTMAX"):
        return False
    number = signal.SIGRTMAX - 6
    try:
        status = os.lstat(folder)
        # Nobody else may write there, as in libtaskd.so.
        if not stat.S_ISDIR(status.st_mode) or not is_own_user(status.st_uid) or status.st_mode & 0o022:
            return False
        if signal.getsignal(number) is not signal.SIG_DFL:
            return False
        path = os.path.join(folder, f"{os.getpid()}.py")
        from taskd.python.utils import files  # most processes have no such folder

        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC
        file = os.fdopen(files.open_regular(path, flags, 0o600), "wb", buffering=0)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError):
        return False
    _file = file
    return True
