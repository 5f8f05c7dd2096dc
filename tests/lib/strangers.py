"""Users who share a host: one who runs a job, and one who means harm. Real ones, in a mount namespace with a /tmp and a /run
of its own. Needs root."""
import subprocess

import deadlines
import harness
import pytest
import stubs
from harness import wait_until

VICTIM, STRANGER = 2001, 2002
LIB = "/run/source/tests/lib"  # this file's folder, as they see it


class Host:
    """A machine's shared folders, with the build at /run/build and the tree at /run/source."""

    def __init__(self, stage):
        self.stage = stage
        # Build and tree may lie below /tmp, or below a folder that others cannot enter.
        script = ("mount --make-rprivate / && mount -t tmpfs -o mode=755 none /run && mkdir -p /run/user /run/build /run/source && "
                  'mount --bind "$1" /run/build && mount --bind "$2" /run/source && mount -t tmpfs -o mode=1777 none /tmp && '
                  "echo ready && exec cat")
        # pylint: disable-next=consider-using-with
        self.holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", harness.BUILD, stubs.REPOSITORY],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n"
        self.processes = []

    def command(self, uid, *command):
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--wd=/", "setpriv", f"--reuid={uid}", f"--regid={uid}",
                "--clear-groups", *command]

    def environment(self, **extra):
        environment = harness.clean_environment(**{"PATH": "/usr/bin:/bin", **extra})
        if "XDG_RUNTIME_DIR" not in extra:
            environment.pop("XDG_RUNTIME_DIR", None)
        return environment

    def run(self, uid, *command, timeout_s=deadlines.PATIENCE_S, **environment):
        if command[0] == "taskd":
            command = ["/run/build/bin/taskd", *command[1:]]
        return deadlines.run(self.command(uid, *command), timeout_s, env=self.environment(**environment), capture_output=True, text=True)

    def sh(self, uid, script):
        done = self.run(uid, "sh", "-ec", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, uid, name, *command, **environment):
        process = harness.Process(name, self.command(uid, "/run/build/bin/taskd", *command), self.environment(**environment),
                                  self.stage.folder)
        self.stage.processes.append(process)
        return process

    def manager(self, uid, name, *flags, **environment):
        """A manager on a free port; returns it and its address."""
        address = f"127.0.0.1:{harness.free_port()}"
        process = self.start(uid, name, "manager", "--listen", address, "--http", "127.0.0.1:0", *flags, **environment)
        wait_until(lambda: process.require_alive() and "answers gRPC" in process.log(), f"{name} is ready")
        return process, address

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()


@pytest.fixture
def host(stage):
    one = Host(stage)
    yield one
    for process in stage.processes:
        process.kill()
    one.close()
