"""What MindCluster's variables say about the log of this package (TaskD contract §1.6).

TASKD_LOG_PATH        folder of taskd.log; with it, or TASKD_FILE_LOG_LEVEL, there is one
TASKD_FILE_LOG_LEVEL  least level in the file: DEBUG, INFO (default), WARNING, ERROR
TASKD_STD_LOG_LEVEL   least level on stderr, INFO as well
TASKD_LOG_STDOUT      False: nothing on stderr

Without any of them the logger is as a library's: the program says what becomes of its lines. A program that has set
logging up itself shows them there, and not a second time on stderr.
"""
import atexit
import logging
import os
import queue
import re
import threading
import time

from taskd.python.utils import files

_LEVELS = ("DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL")
_DEFAULT_FOLDER = "taskd_log"
_FILE_NAME = "taskd.log"
_MAX_BYTES = 20 << 20
_MAX_LINE = 4096
_KEPT = 30
_ASIDE = re.compile(r"taskd-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}\.log")
_QUEUED = 1000
_EXIT_PATIENCE_S = 2.0


class LogFile:
    """Whole lines at the end of folder/taskd.log. A full file is put aside under the time and closed to writers.

    Several processes may share it. Not for several threads at once. Raises OSError.
    """

    def __init__(self, folder, max_bytes=_MAX_BYTES):
        self.folder, self.max_bytes = folder.rstrip("/") or "/", max_bytes
        self.path = os.path.join(self.folder, _FILE_NAME)
        self._fd = None

    def _open(self):
        os.makedirs(self.folder, mode=0o750, exist_ok=True)
        if os.path.islink(self.folder):
            raise OSError(f"{self.folder} is a symbolic link")
        fd = files.open_log(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        if self._fd is not None:
            os.close(self._fd)
        self._fd = fd

    def write(self, data):
        if not self._is_ours():
            self._open()
        size = os.fstat(self._fd).st_size
        if size and size + len(data) > self.max_bytes:
            self._put_aside()
        if os.write(self._fd, data) < len(data):
            raise OSError(f"{self.path}: no room for the whole line")

    def _is_ours(self):
        try:
            return self._fd is not None and os.path.samestat(os.fstat(self._fd), os.lstat(self.path))
        except OSError:  # gone, or put aside by another process
            return False

    def _put_aside(self):
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(now))
        os.rename(self.path, os.path.join(self.folder, f"taskd-{stamp}.{int(now * 1000) % 1000:03d}.log"))
        os.fchmod(self._fd, 0o400)
        for name in sorted(name for name in os.listdir(self.folder) if _ASIDE.fullmatch(name))[:-_KEPT]:
            os.unlink(os.path.join(self.folder, name))
        self._open()


class _OneLine(logging.Formatter):
    """A record is one line, whatever is in its text."""

    def __init__(self):
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s taskd[%(process)d]: %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record):
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().format(record))
        return text if len(text) <= _MAX_LINE else text[:_MAX_LINE - 1] + "…"


class _Stderr(logging.StreamHandler):
    def emit(self, record):
        if not logging.getLogger().handlers:
            super().emit(record)


class _File(logging.Handler):
    """Nobody who logs waits for the disk: a thread writes. What it does not write is counted in the file."""

    def __init__(self, file, logger):
        super().__init__()
        self._file, self._logger = file, logger
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self.flush)

    def _begin(self):
        self._lines, self._thread = queue.Queue(_QUEUED), None
        self._dropped = self._failed = self._counted = 0  # the first is emit's, the others are the thread's
        self._failing = False

    def emit(self, record):  # under the handler's lock
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_for_ever, args=(self._lines,), name="taskd-log", daemon=True)
            self._thread.start()

    def _write_for_ever(self, lines):
        while True:
            self._write(lines.get())
            lines.task_done()

    def _write(self, line):
        missing = self._dropped + self._failed
        if missing > self._counted:
            line = f"{missing - self._counted} lines could not be written here\n{line}"
        try:
            self._file.write(f"{line}\n".encode("utf-8", "replace"))
            self._counted, self._failing = missing, False
        except OSError as error:
            self._failed += 1
            if not self._failing:
                self._failing = True
                self._logger.warning("no log file: %s", error)

    def flush(self):
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _EXIT_PATIENCE_S)


def _level(variable, problems):
    text = os.environ.get(variable) or "INFO"
    if text.upper() not in _LEVELS:
        problems.append(f"{variable} is {text!r}; it must be DEBUG, INFO, WARNING or ERROR")
        return logging.INFO
    return getattr(logging, text.upper())


def apply_to(logger):
    folder, file_level, std_level, stdout = (os.environ.get(name) or None for name in (
        "TASKD_LOG_PATH", "TASKD_FILE_LOG_LEVEL", "TASKD_STD_LOG_LEVEL", "TASKD_LOG_STDOUT"))
    if not (folder or file_level or std_level or stdout):
        return
    problems, handlers = [], [logging.NullHandler(logging.CRITICAL)]
    if stdout not in (None, "True", "False"):
        problems.append(f"TASKD_LOG_STDOUT is {stdout!r}; it must be True or False")
    level = _level("TASKD_STD_LOG_LEVEL", problems)
    if stdout != "False":
        handlers.append(_Stderr())
        handlers[-1].setLevel(level)
    level = _level("TASKD_FILE_LOG_LEVEL", problems)
    if folder or file_level:
        handlers.append(_File(LogFile(folder or _DEFAULT_FOLDER), logger))
        handlers[-1].setLevel(level)
    for handler in handlers:
        handler.setFormatter(_OneLine())
        logger.addHandler(handler)
    logger.setLevel(min(handler.level for handler in handlers))
    for problem in problems:
        logger.warning("%s", problem)
