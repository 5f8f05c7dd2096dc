"""What a user who may write below the profiling directory puts there: it neither stops the proxy nor another rank's files, and
nothing outside is written or deleted."""
import os
import socket
import stat
import subprocess
import threading

import harness
import pytest
from harness import wait_until

OUTSIDE = b"outside\n"


@pytest.fixture
def outside(stage):
    """A folder of the proxy's user that no rank's files are in."""
    path = os.path.join(stage.folder, "outside")
    os.mkdir(path)
    for number in range(100):
        file_path = os.path.join(path, str(1_600_000_000 + number))
        with open(file_path, "wb") as file:
            file.write(OUTSIDE)
        os.utime(file_path, (1_600_000_000 + number,) * 2)
    yield path
    assert len(os.listdir(path)) == 100, "something outside was made or deleted"
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as file:
            assert file.read() == OUTSIDE, f"{name} was written"


def put(kind, path, outside):
    """Something that is no file, or no file of its own."""
    if kind == "fifo":
        os.mkfifo(path, 0o666)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(os.path.join(outside, "1600000000"), path)
    elif kind == "link to nothing":
        os.symlink(os.path.join(outside, "made"), path)
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # /dev/full
        except PermissionError:
            pytest.skip("making a device needs root")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = os.getcwd()
            os.chdir(os.path.dirname(path))  # a socket's path is short
            try:
                bound.bind(os.path.basename(path))
            finally:
                os.chdir(here)
    elif kind == "hard link":
        os.link(os.path.join(outside, "1600000000"), path)
    else:
        raise ValueError(kind)


KINDS = ("fifo", "folder", "link", "link to nothing", "device", "socket", "hard link")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_stops_nobody(stage, manager, outside, kind):
    """In place of everything that the proxy writes for rank 0, before it comes; and again when it takes over."""
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    folder = os.path.join(profiling, harness.TASK, "0")
    os.makedirs(folder)
    newest = "1999999999"
    for name in (newest, ".rank.json.new", ".rank.json", "parallel_group.json"):
        put(kind, os.path.join(folder, name), outside)
    proxy = stage.proxy(manager, profiling_dir=profiling)
    ranks = [stage.rank(r, proxy, rate=500) for r in (0, 1)]
    for rank in ranks:
        rank.wait_made(200)
    wait_until(lambda: all(proxy.counts(r.rank)["other"] >= 200 for r in ranks), "both ranks are recorded")
    wait_until(lambda: os.path.exists(os.path.join(profiling, harness.TASK, "1", ".rank.json")), "the other rank's place")
    if kind != "folder":
        assert os.path.isfile(os.path.join(folder, ".rank.json")) and not os.path.islink(os.path.join(folder, ".rank.json"))
    proxy.kill()
    put(kind, os.path.join(folder, "2000000005"), outside)
    proxy = stage.proxy(manager, name="successor", profiling_dir=profiling, socket_path=proxy.socket)
    for rank in ranks:
        rank.wait_made(max(rank.made()) + 500)
        assert rank.terminate() == 0
    assert proxy.terminate() == 0
    own = [n for n in os.listdir(folder) if n.isdigit() and n not in (newest, "2000000005")]
    assert own and all(len(n) == 10 for n in own), own
    for name in (newest, "2000000005", "parallel_group.json"):
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
        elif os.path.isdir(path):
            os.rmdir(path)
    report = proxy.check(keep_marks=True)
    for rank in ranks:
        rank.verify(report)


def test_names_never_get_eleven_digits(stage, manager, outside):
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    folder = os.path.join(profiling, harness.TASK, "0")
    os.makedirs(folder)
    os.symlink(os.path.join(outside, "1600000000"), os.path.join(folder, "9999999999"))
    with open(os.path.join(folder, "10000000000"), "wb") as file:
        file.write(OUTSIDE)
    proxy = stage.proxy(manager, profiling_dir=profiling)
    rank = stage.rank(0, proxy, rate=500)
    rank.wait_made(200)
    wait_until(lambda: sum(n.isdigit() for n in os.listdir(folder)) == 3, "a file of its own")
    proxy.kill()
    proxy = stage.proxy(manager, name="successor", profiling_dir=profiling, socket_path=proxy.socket)
    rank.wait_made(max(rank.made()) + 500)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    for name in os.listdir(folder):
        assert not name.isdigit() or len(name) == 10 or name == "10000000000", name
    with open(os.path.join(folder, "10000000000"), "rb") as file:
        assert file.read() == OUTSIDE, "what is not ours was written"
    os.unlink(os.path.join(folder, "9999999999"))
    os.unlink(os.path.join(folder, "10000000000"))
    rank.verify(proxy.check(keep_marks=True))


class Swapper:
    """Another user, where this is root, who swaps rank 0's folder, its files and those that are about to be made, as fast as it can."""

    SCRIPT = """
import os, sys, itertools
uid, task, outside = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if uid:
    os.setgid(uid); os.setuid(uid)
folder, moved = os.path.join(task, "0"), os.path.join(task, ".moved")
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        pass
for turn in itertools.count():
    way = turn % 5
    if way == 0:
        attempt(os.rename, folder, moved); attempt(os.symlink, outside, folder)
        attempt(os.unlink, folder); attempt(os.rename, moved, folder)
    elif way == 1:
        attempt(os.rename, folder, moved); attempt(os.mkfifo, folder)
        attempt(os.unlink, folder); attempt(os.rename, moved, folder)
    elif way == 2:
        attempt(os.unlink, os.path.join(folder, ".rank.json.new")); attempt(os.symlink, os.path.join(outside, "made"), os.path.join(folder, ".rank.json.new"))
        attempt(os.unlink, os.path.join(folder, ".rank.json"))
    elif way == 3:
        attempt(os.unlink, os.path.join(folder, ".rank.json.new")); attempt(os.mkfifo, os.path.join(folder, ".rank.json.new"))
    else:
        try:
            newest = max((n for n in os.listdir(folder) if n.isdigit() and len(n) == 10), default=None)
        except OSError:
            continue
        if newest:
            path = os.path.join(folder, newest)
            attempt(os.unlink, path); attempt(os.symlink, os.path.join(outside, "1600000000"), path)
            attempt(os.unlink, path); attempt(os.mkfifo, path)
            attempt(os.unlink, path)
    if turn % 500 == 0:
        print(turn, flush=True)
"""

    def __init__(self, stage, task, outside):
        uid = 65534 if os.geteuid() == 0 else 0
        if uid:
            for path in (task, os.path.join(task, "0")):
                os.chmod(path, 0o777)
            path = stage.folder
            while path != "/":  # let it come as far as there
                os.chmod(path, os.stat(path).st_mode | 0o011)
                path = os.path.dirname(path)
        self.process = subprocess.Popen([harness.PYTHON, "-c", self.SCRIPT, str(uid), task, outside], stdout=subprocess.PIPE)

    def wait_turns(self, count):
        for line in self.process.stdout:
            if int(line) >= count:
                return
        raise AssertionError("the swapper ended")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_things_that_are_swapped_all_the_time(stage, manager, outside):
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    task = os.path.join(profiling, harness.TASK)
    os.makedirs(os.path.join(task, "0"))
    swapper = Swapper(stage, task, outside)
    try:
        proxy = stage.proxy(manager, profiling_dir=profiling)
        victim, other = stage.rank(0, proxy, rate=1000), stage.rank(1, proxy, rate=1000)
        swapper.wait_turns(20_000)
        other.wait_made(max(other.made()) + 100)
        made = max(other.made())

        def recorded():
            try:
                return proxy.counts(1)["other"]
            except OSError:  # what the check walks through is swapped, too
                return 0
        wait_until(lambda: recorded() >= made, "the other rank is recorded meanwhile")
        assert manager.modify(communication="off") == 200
        manager.wait_applied({"communication": "off"}, [0, 1], 2)
    finally:
        swapper.end()
    assert victim.terminate() == 0 and other.terminate() == 0
    assert proxy.terminate() == 0
    other.verify(proxy.check(keep_marks=True))


def test_aging_deletes_nothing_outside(stage, manager, outside):
    """A rank's folder becomes a link to another one as soon as its first file has been deleted."""
    profiling = os.path.join(stage.folder, "profiling")
    task = os.path.join(profiling, harness.TASK)
    rank = os.path.join(task, "0")
    os.makedirs(rank)
    for number in range(100):
        path = os.path.join(rank, str(1_600_000_000 + number))
        with open(path, "wb") as file:
            file.truncate(1 << 20)
        os.utime(path, (1_600_000_000 + number,) * 2)
    swapped = threading.Event()
    give_up = threading.Event()

    def swap():
        first = os.path.join(rank, "1600000000")
        while os.path.exists(first):
            if give_up.is_set():
                return
        os.rename(rank, os.path.join(task, "moved"))
        os.symlink(outside, rank)
        swapped.set()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        proxy = stage.proxy(manager, profiling_dir=profiling, flags=["--disk-limit-mb", "1"])
        wait_until(swapped.is_set, "aging has begun", 65)
        # What lies in the folder that was moved is no rank's any more; once aging has logged this, it has looked once more.
        wait_until(lambda: "limit 1 MB" in proxy.log(), "aging has looked", 65)
        proxy.require_alive()
    finally:
        give_up.set()
        swapper.join()
    assert proxy.terminate() == 0
