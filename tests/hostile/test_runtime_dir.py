"""Strangers on the same host: what they put into shared folders is not believed, and no job is mistaken for another one.

Everything happens in a mount namespace with a /tmp and a /run of its own; the users are real ones.
"""
import json
import re
import sys

import harness
import pytest
from harness import wait_until
from launchers import OWN_PORTS, wait_manager
from strangers import STRANGER, VICTIM, host  # noqa: F401

pytestmark = pytest.mark.root("mounts, and processes of other users")


def refused(done, *words):
    """Wrong configuration: one line, exit 2."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    for word in words:
        assert word in lines[-1], done.stderr




def test_folder_in_tmp_that_a_stranger_made_first(host):
    """Nothing of a launcher's is in it, so nothing in PATH or of its sockets can be the stranger's."""
    host.sh(STRANGER, "mkdir /tmp/taskd-2001; chmod 0777 /tmp/taskd-2001")
    done = host.run(VICTIM, "taskd", "run", "--standalone", "--nproc-per-node=1", "--no-python", "sh", "-c",
                    'echo "told path=$PATH socket=$TASKD_SOCKET"', **OWN_PORTS)
    assert done.returncode == 0, done.stderr
    told = re.search(r"told path=(\S*) socket=(\S+)", done.stdout)
    assert told and "/tmp/taskd-2001" not in told[0], told
    assert "folder '/tmp/taskd-2001' belongs to user 2002, mode 0777" in done.stderr
    assert host.sh(VICTIM, "ls -A /tmp/taskd-2001") == ""
    assert host.sh(VICTIM, "ls -d /tmp/taskd-*").split() == ["/tmp/taskd-2001"], "the fresh folder goes with its launcher"


# Once both commands have begun, replaces each run-<pid> of the folder by one whose `ls` is the stranger's.
SWAPPER = r"""
import os, sys, time
parent, programs = sys.argv[1:]
print("watching", flush=True)
while not (os.path.exists("/tmp/begun.0") and os.path.exists("/tmp/begun.1")):
    time.sleep(0.01)
for name in os.listdir(parent):
    os.rename(f"{parent}/{name}", f"{parent}/{name}.old")
    os.symlink(programs, f"{parent}/{name}")
"""


# Where it can be swapped, `ls` comes after that has happened.
LIST = """
echo "told $PATH"
: > /tmp/begun.$INDEX
case $PATH in /tmp/taskd-2001/*) front=${PATH%%/mpi:*}; while [ ! -L "$front" ]; do :; done;; esac
ls / > /dev/null
"""


def test_stranger_runs_nothing_by_swapping_the_run_folder(host):
    """The victim's own command calls `ls`: it is the system's."""
    host.sh(STRANGER, "mkdir -p /tmp/taskd-2001 /tmp/evil/mpi; chmod 0777 /tmp/taskd-2001; "
                      "for name in ls mpirun mpiexec; do printf '#!/bin/sh\\nid -u > /tmp/evil/ran\\n' > /tmp/evil/mpi/$name; "
                      "chmod 755 /tmp/evil/mpi/$name; done; chmod -R a+rX /tmp/evil; : > /tmp/evil/ran; chmod 0666 /tmp/evil/ran")
    swapper = harness.Process("swapper", host.command(STRANGER, sys.executable, "-c", SWAPPER, "/tmp/taskd-2001", "/tmp/evil"),
                              host.environment(), host.stage.folder)
    host.stage.processes.append(swapper)
    wait_until(lambda: "watching" in swapper.log(), "the stranger watches")
    # Where the mode writes its host file.
    host.sh(0, "cp -a /etc /run/etc; mount --bind /run/etc /etc; mkdir -p /etc/mpi; chown 2001 /etc/mpi")
    # Both nodes of the job are here; on either a folder with an `mpirun` of TaskD's comes first in PATH.
    manager = f"127.0.0.1:{harness.free_port()}"
    nodes = [host.start(VICTIM, f"node{index}", "run", "--mode", "mpi", "--manager", manager, "--", "sh", "-c", LIST,
                        NODE_LIST="127.0.0.1:1,127.0.0.2:1", INDEX=index, **OWN_PORTS) for index in (0, 1)]
    codes = [node.wait(timeout_s=60) for node in nodes]
    assert host.sh(STRANGER, "cat /tmp/evil/ran") == "", nodes[0].log()
    assert codes == [0, 0], nodes[0].log() + nodes[1].log()
    for node in nodes:
        told = re.search(r"told (\S+)/mpi:", node.log())
        assert told and told[1].startswith("/tmp/taskd-new-"), node.log()


@pytest.mark.parametrize("trap", ["mkdir /tmp/taskd-2001", "mkdir /tmp/x; ln -s /tmp/x /tmp/taskd-2001", "mkfifo /tmp/taskd-2001",
                                  "ln -s /nowhere /tmp/taskd-2001"])
def test_daemons_refuse_a_strangers_folder(host, trap):
    host.sh(STRANGER, trap)
    refused(host.run(VICTIM, "taskd", "manager", "--task-id", "t", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            "/tmp/taskd-2001", "--state-dir")
    refused(host.run(VICTIM, "taskd", "proxy", "--profiling-dir", "/tmp/profiling", "--listen", "127.0.0.1:0"),
            "/tmp/taskd-2001", "--socket")


def test_folders_above_an_explicit_socket_count_too(host):
    """The last folder is the victim's own, but the one above is the stranger's."""
    host.sh(STRANGER, "mkdir /tmp/theirs; chmod 0777 /tmp/theirs")
    host.sh(VICTIM, "mkdir -m 700 /tmp/theirs/mine /tmp/mine; ln -s /tmp/mine /tmp/link")
    for socket, named in (("/tmp/theirs/mine/p.sock", "'/tmp/theirs' belongs to user 2002"), ("/tmp/link/p.sock", "symbolic link")):
        refused(host.run(VICTIM, "taskd", "proxy", "--profiling-dir", "/tmp/profiling", "--listen", "127.0.0.1:0", "--socket", socket),
                "--socket", named)
    proxy = host.start(VICTIM, "good", "proxy", "--profiling-dir", "/tmp/mine/profiling", "--listen", "127.0.0.1:0", "--socket",
                       "/tmp/mine/p.sock")
    wait_until(lambda: proxy.require_alive() and "p.sock" in host.sh(VICTIM, "ls /tmp/mine"), "a good folder serves")


def test_session_folder_is_used_where_there_is_one(host):
    """And the default socket stays where libtaskd.so looks for it."""
    host.sh(0, "mkdir -m 700 /run/user/2001; chown 2001:2001 /run/user/2001")
    manager, _ = host.manager(VICTIM, "manager", "--task-id", "t")
    assert "manager" in host.sh(VICTIM, "ls /run/user/2001/taskd/t")
    proxy = host.start(VICTIM, "proxy", "proxy", "--profiling-dir", "/tmp/profiling", "--listen", "127.0.0.1:0", MINDX_TASK_ID="t")
    wait_until(lambda: proxy.require_alive() and "proxy.sock" in host.sh(VICTIM, "ls /tmp/taskd-2001/t 2>/dev/null || true"), "a socket")
    assert manager.terminate() == 0 and proxy.terminate() == 0


def test_root_leaves_another_users_session_alone(host):
    """sudo -E keeps XDG_RUNTIME_DIR."""
    host.sh(0, "mkdir -m 700 /run/user/2001; chown 2001:2001 /run/user/2001")
    host.manager(0, "manager", "--task-id", "t", XDG_RUNTIME_DIR="/run/user/2001")
    assert host.sh(0, "ls -A /run/user/2001") == ""
    assert "manager" in host.sh(0, "ls /tmp/taskd-0/t")


# ---- Jobs of this user, of another one, and which is meant


def wanted(host, uid, address, **environment):
    return json.loads(host.run(uid, "taskd", "status", "--json", "--manager", address, **environment).stdout)["wanted"]["step"]


def test_two_jobs_on_one_host_are_never_mixed_up(host):
    none = host.run(VICTIM, "taskd", "status")
    assert none.returncode == 1 and "no job of this user runs on this machine" in none.stderr and "--manager" in none.stderr
    first, a = host.manager(VICTIM, "a", "--job", "default/a")
    alone = host.run(VICTIM, "taskd", "switch", "--json", "step=on")
    assert alone.returncode == 0 and json.loads(alone.stdout)["job"] == "default/a", alone.stderr
    second, b = host.manager(VICTIM, "b", "--job", "default/b")
    for command in (["switch", "step=off"], ["status"], ["status", "--watch"], ["diagnose"]):
        done = host.run(VICTIM, "taskd", *command)
        lines = done.stderr.splitlines()
        assert done.returncode == 2 and done.stdout == "" and len(lines) == 3, (command, done)
        assert "2 jobs" in lines[0] and "name one with --manager or --job" in lines[0]
        rows = {line.split()[0]: line.split()[1:4] for line in lines[1:]}
        assert rows == {a: ["default/a", "pid", str(first.pid)], b: ["default/b", "pid", str(second.pid)]}, lines
    assert wanted(host, VICTIM, a) == "on" and wanted(host, VICTIM, b) == "off"
    done = host.run(VICTIM, "taskd", "switch", "--job", "default/b", "step=on", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["job"] == "default/b", done.stderr
    done = host.run(VICTIM, "taskd", "status", "--job", "default/c")
    assert done.returncode == 1 and "default/c" in done.stderr
    done = host.run(VICTIM, "taskd", "status", "--job", "default/a", "--manager", b)
    assert done.returncode == 1 and "default/b" in done.stderr and done.stdout == ""
    assert host.run(VICTIM, "taskd", "status", TASKD_MANAGER=a).returncode == 0
    # One that was killed is not chosen, nor in the way; one that ended leaves nothing.
    second.kill()
    assert json.loads(host.run(VICTIM, "taskd", "status", "--json").stdout)["job"] == "default/a"
    assert first.terminate() == 0
    assert host.sh(VICTIM, "ls -A /tmp/taskd-2001/jobs") == ""


def test_another_users_job_is_neither_listed_nor_readable(host):
    host.manager(VICTIM, "mine", "--job", "default/mine")
    done = host.run(STRANGER, "taskd", "status")
    assert done.returncode == 1 and "no job of this user" in done.stderr
    file = host.sh(VICTIM, "ls /tmp/taskd-2001/jobs/*.json").strip()
    assert host.sh(0, f"stat -c %a:%u {file}") == "600:2001\n"
    assert host.run(STRANGER, "cat", file).returncode != 0


PLANT = """
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(file, sys.argv[2].encode())
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""


def plant(host, uid, path, address):
    """A job file as a manager's, held by its lock, that names `address`."""
    content = {"listen": address, "hosts": ["127.0.0.1"], "port": int(address.split(":")[1]), "http": "", "job": "default/planted",
               "task_id": "", "pid": 1, "started_unix_s": 1, "secret": "x", "netns": 0}
    process = harness.Process("planted", host.command(uid, sys.executable, "-c", PLANT, path, json.dumps(content)),
                              host.environment(), host.stage.folder)
    host.stage.processes.append(process)
    wait_until(lambda: process.require_alive() and "held" in process.log(), "the file is there")


def test_job_files_of_another_user_are_not_believed(host):
    """Neither a file of the stranger's in the victim's folder, nor a folder of the stranger's with the victim's name."""
    _, address = host.manager(STRANGER, "theirs", "--job", "default/theirs")
    host.sh(VICTIM, "mkdir -m 700 -p /tmp/taskd-2001/jobs")
    host.sh(0, "chmod 777 /tmp/taskd-2001 /tmp/taskd-2001/jobs")
    plant(host, STRANGER, "/tmp/taskd-2001/jobs/1-1.json", address)
    refused(host.run(VICTIM, "taskd", "status"), "/tmp/taskd-2001'", "mode 0777")
    host.sh(0, "chmod 700 /tmp/taskd-2001 /tmp/taskd-2001/jobs")
    done = host.run(VICTIM, "taskd", "status")
    assert done.returncode == 1 and "no job of this user" in done.stderr, done

    host.sh(0, "rm -r /tmp/taskd-2001")
    host.sh(STRANGER, "mkdir -p /tmp/taskd-2001; ln -s /tmp/taskd-2002/jobs /tmp/taskd-2001/jobs")
    refused(host.run(VICTIM, "taskd", "switch", "all=on"), "'/tmp/taskd-2001' belongs to user 2002")
    assert wanted(host, STRANGER, address) == "off"


def test_jobs_folder_that_is_a_link_is_refused(host):
    """Also in the victim's own folder: its manager goes on without a file, and is found by its address and token alone."""
    host.sh(VICTIM, "mkdir -m 700 -p /tmp/taskd-2001 /tmp/elsewhere; ln -s /tmp/elsewhere /tmp/taskd-2001/jobs")
    refused(host.run(VICTIM, "taskd", "status"), "/tmp/taskd-2001/jobs'", "symbolic link")
    manager, address = host.manager(VICTIM, "mine", "--job", "default/mine", TASKD_TOKEN="mine")
    wait_until(lambda: "tools need --manager to find this job" in manager.log(), "its warning")
    assert host.sh(VICTIM, "ls -A /tmp/elsewhere") == ""
    assert wanted(host, VICTIM, address, TASKD_TOKEN="mine") == "off"
    manager, _ = host.manager(VICTIM, "other", "--job", "default/other")
    wait_until(lambda: "set TASKD_TOKEN" in manager.log(), "what to do where there is no token")


def test_a_launchers_job_is_found(host):
    """`taskd run` makes its manager on any port; the tools know it."""
    launcher = host.start(VICTIM, "launcher", "run", "--standalone", "--nproc-per-node=1", "--no-python", "sh", "-c",
                          "while [ ! -e /tmp/go ]; do sleep 0.05; done", **OWN_PORTS)
    wait_manager(launcher)
    wait_until(lambda: host.run(VICTIM, "taskd", "status").returncode == 0, "and its job is found")
    assert host.run(STRANGER, "taskd", "status").returncode == 1
    host.sh(VICTIM, ": > /tmp/go")
    assert launcher.wait() == 0
    assert host.sh(VICTIM, "ls -A /tmp/taskd-2001/jobs") == ""
