"""What the tests of the Python package share. Each runs scripts in processes of their own, in an environment of their own."""
import os
import re
import signal
import struct
import subprocess
import sys
import types

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import ports  # noqa: E402
from deadlines import wait_child  # noqa: E402
from segments import segments_of  # noqa: E402

BUILD = os.environ.get("TASKD_BUILD_DIR", "")
# What must not reach them from the environment of the tests.
STEERING = re.compile(r"(TASKD_|MINDX_|PET_|OMPI_|TORCHELASTIC_|LOCAL_|GROUP_|MASTER_|MS_|PMI_|PMIX_|MPI_|SLURM_)|"
                      r"(POD_IP|PROCESS_RECOVER|ENABLE_RESTART_FAULT_PROCESS|HIGH_AVAILABILITY|GROUP_BASE_DIR|RANK|RANK_ID|WORLD_SIZE|LD_PRELOAD)$")

# Plays `taskd`: notes how it was called, makes its socket, and ends like the program at its input's end or at SIGTERM.
FAKE_PROGRAM = """#!/usr/bin/python3 -B
import json, os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "preload": os.environ.get("LD_PRELOAD"),
        "recover": [os.environ.get(name) for name in ("PROCESS_RECOVER", "TASKD_PROCESS_ENABLE")]}) + "\\n")
code = os.environ.get("FAKE_EXIT")
if code:
    sys.exit(int(code))
if sys.argv[1] == "proxy":
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(os.environ["TASKD_SOCKET"]):
        os.unlink(os.environ["TASKD_SOCKET"])
    listener.bind(os.environ["TASKD_SOCKET"])
    listener.listen()
while os.read(0, 1):
    pass
"""


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


class World:
    """A folder, an environment, and what was started in it."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.socket = os.path.join(self.folder, "proxy.sock")
        self.environment = {k: v for k, v in os.environ.items() if not STEERING.match(k)}
        self.environment["TASKD_SOCKET"] = self.socket
        self.environment["PYTHONUNBUFFERED"] = "1"
        self.interpreter = sys.executable
        self._children = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def start(self, *command, **environment):
        """Output of all goes to the file `output`."""
        merged = {**self.environment, **environment}
        with open(self.path("output"), "ab") as output:
            child = subprocess.Popen(command, env=merged, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT, start_new_session=True)
        self._children.append(child)
        return child

    def python(self, code, *arguments, **environment):
        return self.start(self.interpreter, self.write(f"script{len(self._children)}.py", code), *arguments, **environment)

    def output(self):
        with open(self.path("output"), encoding="utf-8", errors="replace") as output:
            return output.read()

    def run(self, code, *arguments, **environment):
        """Runs a script to its end, which must be a success; its output."""
        before = len(self.output()) if os.path.exists(self.path("output")) else 0
        child = self.python(code, *arguments, **environment)
        assert wait_child(child, 60) == 0, self.output()
        return self.output()[before:]

    def fake_program(self):
        self.environment["TASKD_BIN"] = self.write("fake-taskd", FAKE_PROGRAM, 0o755)
        self.environment["FAKE_LOG"] = self.path("fake.log")

    def calls(self):
        """How the fake program was called so far, oldest first."""
        import json

        try:
            with open(self.path("fake.log"), encoding="utf-8") as log:
                return [json.loads(line) for line in log.read().splitlines()]
        except FileNotFoundError:
            return []

    def segments(self, pid):
        return segments_of(pid, self.socket)

    def record(self, pid, name):
        """The record with this name in the process's segment (worker_sdk/include/taskd/ring.h), None if there is none."""
        for path in self.segments(pid):
            with open(path, "rb") as file:
                data = file.read()
            for found in re.finditer(re.escape(name), data):
                if found.start() >= 32:
                    word0, _, identity, word3 = struct.unpack_from("=4Q", data, found.start() - 32)
                    if word3 >> 32 & 0xFFFF == len(name):
                        return types.SimpleNamespace(type=word0 >> 16 & 0xFF, flags=word0 >> 24 & 0xFF, id=identity,
                                                     domain=word3 >> 48 & 0xFF, kind=word3 >> 56)
        return None

    def close(self):
        for child in self._children:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        for call in self.calls():
            if is_running(call["pid"]):
                os.kill(call["pid"], signal.SIGKILL)
        for path in self.segments("*"):
            os.unlink(path)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def program():
    """The true `taskd`."""
    path = os.path.join(BUILD, "bin", "taskd")
    if not os.access(path, os.X_OK):
        pytest.skip(f"{path} is not built")
    return path


@pytest.fixture
def free_port():
    return ports.free_port()
