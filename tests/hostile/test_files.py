"""Files that an untrusted user puts where TaskD looks for its own: nothing is believed for its place, and no file of this user's
is written through them.

Everything happens in a mount namespace with a /tmp and a /run of its own; the users are real ones.
"""
import contextlib
import json
import os
import subprocess

import pytest
import segments
from strangers import STRANGER, VICTIM, host  # noqa: F401

pytestmark = pytest.mark.root("mounts, and processes of other users")

STATE = "/tmp/taskd-2001/default/proxy.sock.state"  # where a rank without TASKD_SOCKET looks


def test_a_state_file_that_a_stranger_made_first(host):
    """Also where the stranger's process answers on the socket."""
    host.sh(STRANGER, f"""mkdir -p -m 755 /tmp/taskd-2001/default /tmp/thief/0
echo '{json.dumps({"rank_folders": "/tmp/thief"})}' > {STATE}""")
    script = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/taskd-2001/default/proxy.sock'); s.listen(); "
              "print('up', flush=True); sys.stdin.read()")
    with subprocess.Popen(host.command(STRANGER, "/usr/bin/python3", "-c", script), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, env=host.environment()) as proxy:
        assert proxy.stdout.readline() == "up\n"
        done = host.run(VICTIM, "/usr/bin/python3", "-c", "from taskd.torch import _groups; print(_groups.folder_to_come(0))",
                        PYTHONPATH="/run/build/python", PYTHONDONTWRITEBYTECODE="1")
        proxy.stdin.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "None\n"


@pytest.fixture
def marks(host):
    """A folder of the victim's with a rank's marks, and a file that only the victim can read."""
    host.sh(VICTIM, """mkdir -p /tmp/marks/task/0 && cd /tmp/marks
echo '{"Kind":1,"Flag":1,"SourceKind":0,"Timestamp":1745567190000000000,"Id":7,"MsptiObjectId":{"Pt":{"ProcessId":1,"ThreadId":1},'\\
'"Ds":{"DeviceId":0,"StreamId":0}},"Name":"loss","Domain":"default"}' > task/0/1745567190
echo kept > mine && chmod 0600 mine""")
    return "/tmp/marks/task"


@pytest.mark.parametrize("put", ["ln -s /tmp/marks/mine /tmp/out", "ln -s /tmp/marks/new /tmp/out", "mkfifo -m 666 /tmp/out"])
def test_a_result_that_a_stranger_waits_for(host, marks, put):
    """The kernel follows such a link for nobody in a sticky folder; a program that resolves it itself does. Nor does a
    stranger's pipe get the result, or hold the command."""
    host.sh(STRANGER, put)
    done = host.run(VICTIM, "taskd", "trace", "--from", marks, "-o", "/tmp/out")
    assert done.returncode == 2 and "belongs to user 2002" in done.stderr, done.stderr
    assert host.sh(VICTIM, "cat /tmp/marks/mine; stat -c %a /tmp/marks/mine; ls /tmp/marks").split() == ["kept", "600", "mine", "task"]
    host.sh(VICTIM, "ln -s mine /tmp/marks/link")
    done = host.run(VICTIM, "taskd", "trace", "--from", marks, "-o", "/tmp/marks/link")
    assert done.returncode == 0, done.stderr
    assert host.sh(VICTIM, "cat /tmp/marks/mine; stat -c %F%a /tmp/marks/link").split() == ["kept", "regular", "file600"]


def test_a_strangers_files_in_dev_shm_cost_no_marks(stage, manager):
    """They have the names of the rank's segments. To open each, every second, took the time that emptying the rings needs."""
    manager.all_on()
    proxy = stage.proxy(manager)
    names = f"/dev/shm/taskd-0-{segments.socket_hash(proxy.socket):016x}-1-"
    first = names + "0"
    with open(first, "wb"):
        os.chown(first, STRANGER, STRANGER)
    try:
        for number in range(1, 600_000):
            os.link(first, f"{names}{number}")
        # The ring holds what is made in seconds: a proxy that gets no CPU for a while loses none. To open all of these files takes longer.
        rank = stage.rank(0, proxy, rate=10_000)
        rank.wait_made(100_000)
        assert rank.terminate() == 0
        assert proxy.terminate() == 0
    finally:
        for name in os.listdir("/dev/shm"):
            if name.startswith(os.path.basename(names)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"/dev/shm/{name}")
    rank.verify(proxy.check(keep_marks=True))
