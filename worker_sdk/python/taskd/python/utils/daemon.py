"""`taskd manager` and `taskd proxy` as children that end with this Python process, even when it is killed.

The child's standard input is a pipe whose other end only this process holds; the child ends at its end of file. A parent
death signal would not do: it follows the thread that started the child, and init_taskd_proxy is called from threads that
end at once.
"""
import os
import shutil
import subprocess
import time

from taskd.python.utils.log import run_log

STOP_TIMEOUT_S = 5.0
# These record in training processes; in a daemon they have no business.
_PRELOADS_OF_RANKS = ("libtaskd.so", "libmspti.so")

_live = []  # every Daemon that may still hold its pipe


def program():
    """The `taskd` program: TASKD_BIN, else the one in this package, else the one in PATH. Raises OSError: there is none."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    named = os.environ.get("TASKD_BIN")
    candidates = [named] if named else [os.path.join(package, "bin", "taskd"), shutil.which("taskd") or ""]
    for candidate in candidates:
        # The console script of this package is called taskd too; it would only come back here.
        if candidate and os.access(candidate, os.X_OK) and not _is_script(candidate):
            return candidate
    raise OSError(f"the taskd program was not found; looked at {', '.join(c for c in candidates if c)}")


def _is_script(path):
    with open(path, "rb") as file:
        return file.read(2) == b"#!" and b"taskd.python.utils" in file.read(4096)


def run_program(*arguments):
    """Becomes the program, with these arguments and then this process's own: the console script `taskd`."""
    import sys

    arguments = [*arguments, *sys.argv[1:]]
    try:
        path = program()
    except OSError as error:
        print(f"taskd: {error}", file=sys.stderr)
        sys.exit(1)
    # As with torchrun, ranks get the Python that this script belongs to, also one that is not in PATH.
    if arguments[:1] == ["run"]:
        os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(path, ["taskd", *arguments])


def plaintext_flag():
    """ClusterD speaks without TLS, and this API is a drop-in for it, unless the operator asked for protection."""
    protected = any(os.environ.get(name) for name in ("TASKD_TLS_DIR", "TASKD_TOKEN"))
    return [] if protected or "TASKD_ALLOW_PLAINTEXT" in os.environ else ["--allow-plaintext"]


def flag(name, value):
    """A flag unless its environment variable is set: the environment wins over what the Python code says."""
    variable = "TASKD_" + name.lstrip("-").replace("-", "_").upper()
    return [] if value is None or os.environ.get(variable) else [name, str(value)]


class Daemon:
    def __init__(self, *arguments, variables=None):
        """variables: of the child's environment, beside this process's."""
        environment = {**os.environ, **(variables or {})}
        preloads = environment.get("LD_PRELOAD", "").replace(":", " ").split()
        kept = [path for path in preloads if os.path.basename(path) not in _PRELOADS_OF_RANKS]
        if kept != preloads:
            environment["LD_PRELOAD"] = ":".join(kept)
        read_end, self._pipe = os.pipe()
        _live.append(self)
        try:
            # A session of its own: Ctrl-C and a signal to the whole group reach the ranks, and what they record until
            # they end must still be written. The end of file comes when this process is gone.
            self._child = subprocess.Popen([program(), *arguments, "--exit-on-stdin-eof"], stdin=read_end,
                                           stdout=subprocess.DEVNULL, env=environment, start_new_session=True)
        except BaseException:
            self._close_pipe()
            raise
        finally:
            os.close(read_end)
        self.name = "taskd " + arguments[0]

    @property
    def pid(self):
        return self._child.pid

    def exit_code(self):
        """None while it runs."""
        return self._child.poll()

    def wait(self):
        """Blocks until it has ended; its exit code."""
        code = self._child.wait()
        self._close_pipe()
        return code

    def stop(self):
        """The end of its stdin, then SIGKILL after STOP_TIMEOUT_S. True if it ended by itself."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        self._close_pipe()  # SIGTERM alone is the scheduler's word to all processes of the job
        try:
            self._child.terminate()
            self._child.wait(max(0.0, deadline - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            run_log.error("%s (pid %d) did not end within %g s and was killed", self.name, self.pid, STOP_TIMEOUT_S)
            self._child.kill()
            self._child.wait()
            return False

    def _close_pipe(self):
        if self in _live:
            _live.remove(self)
            os.close(self._pipe)


def _forget_in_forked_child():
    # A forked child that held the pipe would keep the daemon alive after its parent's death.
    while _live:
        try:
            os.close(_live.pop()._pipe)
        except OSError:
            pass


os.register_at_fork(after_in_child=_forget_in_forked_child)
