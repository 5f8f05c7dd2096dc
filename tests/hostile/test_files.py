"""Files that an untrusted user puts where TaskD looks for its own: nothing is believed for its place, and no file of this user's
is written through them.

Everything happens in a mount namespace with a /tmp and a /run of its own; the users are real ones.
"""
import json
import subprocess

import pytest
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
