"""README's two commands for a user who is nobody: no root, no home, no entry in passwd, nothing set. They end in a verdict,
with a folder for the mark files and without one.

As root the user lives in a mount namespace with a /tmp of its own; else it is the one who runs the test.
"""
import glob
import json
import os
import re
import signal
import stat
import subprocess

import check_marks
import deadlines
import harness
import pytest
import stubs
from harness import wait_until
from launchers import OWN_PORTS, complaints, daemons_of
from strangers import Host

pytestmark = pytest.mark.timeout(300)
ROOT = os.geteuid() == 0
UID = 1000660000 if ROOT else os.geteuid()  # as OpenShift gives them
PATIENCE_S = 120


class User:
    """Where it can write, and how it calls programs."""

    def __init__(self, stage):
        self.stage = stage
        self.host = Host(stage) if ROOT else None
        build, source = ("/run/build", "/run/source") if ROOT else (harness.BUILD, stubs.REPOSITORY)
        self.taskd = os.path.join(build, "bin", "taskd")
        self.script = os.path.join(source, "deploy", "quickstart", "train.py")
        self.denied_calls = [harness.PYTHON, os.path.join(source, "tests", "lib", "denied_calls.py")]
        self.root = f"/proc/{self.host.holder.pid}/root" if ROOT else ""  # of its files, as the test sees them
        self.folder = "/run" if ROOT else stage.folder  # the host's own, not the user's to write to
        self.tmp = self.make("tmp")
        self.environment = harness.clean_environment(
            PATH="/usr/bin:/bin", PYTHONPATH=os.path.join(build, "python"), PYTHONDONTWRITEBYTECODE=1, OMP_NUM_THREADS=1,
            GLOO_SOCKET_IFNAME="lo", WORK=self.tmp, STOP_FILE=f"{self.tmp}/stop", TROUBLE_FILE=f"{self.tmp}/trouble", **OWN_PORTS)
        for name in ("HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "SLURM_SUBMIT_DIR"):
            self.environment.pop(name, None)
        if not ROOT:  # other tests' jobs are this user's too, on this machine
            self.environment["XDG_RUNTIME_DIR"] = self.make("runtime", 0o700)

    def make(self, name, mode=0o755):
        """A folder of its own."""
        path = os.path.join(self.folder, name)
        os.mkdir(self.root + path)
        os.chown(self.root + path, UID, UID if ROOT else -1)
        os.chmod(self.root + path, mode)
        return path

    def put(self, path, text=""):
        with open(self.root + path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.rename(self.root + path + ".new", self.root + path)

    def command(self, *command):
        return self.host.command(UID, *command) if ROOT else list(command)

    def call(self, *command):
        return deadlines.run(self.command(*command), env=self.environment, capture_output=True, text=True, timeout_s=60,
                             check=False)

    def run(self, *arguments):
        return self.call(self.taskd, *arguments)

    def start(self, name, *arguments, folder, under=(), **environment):
        process = harness.Process(name, self.command("env", "-C", folder, *under, self.taskd, *arguments),
                                  {**self.environment, **environment}, self.stage.folder)
        self.stage.processes.append(process)
        return process

    def mount(self, *arguments):
        self.as_root("mount", *arguments)

    def as_root(self, *command):
        """A command in the user's mount namespace."""
        done = subprocess.run(["nsenter", f"--mount=/proc/{self.host.holder.pid}/ns/mnt", *command], check=False,
                              capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{command[0]} is not allowed here: {done.stderr.strip()}")

    def close(self):
        if self.host:
            self.host.close()


@pytest.fixture
def user(stage):
    user = User(stage)
    yield user
    stage.close()
    user.close()


def groups_of(user, rank):
    """The process groups that the manager knows of a rank, as its page shows them."""
    page = user.run("ui")
    assert page.returncode == 0, page.stderr
    script = f"import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout={deadlines.HANG_S}).read().decode())"
    answer = user.call(harness.PYTHON, "-c", script, f"{page.stdout.strip()}api/v1/rank/{rank}")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["groups"]


def kill_proxy(launcher):
    """That of the launcher, which starts it again."""
    (proxy,) = daemons_of(launcher.pid, "proxy")
    os.kill(proxy, signal.SIGKILL)
    wait_until(lambda: launcher.require_alive() and "the proxy has ended (signal 9) and is started again" in launcher.log(),
               "the proxy is started again")


def train(user, folder, groups=False, dies=False, under=(), **environment):
    """The job of README, with a slow rank, until it is named; `taskd status` of then, and the launcher's log."""
    launcher = user.start("launcher", "run", "--standalone", "--nproc-per-node", "2", user.script, folder=folder, under=under,
                          **environment)
    wait_until(lambda: launcher.require_alive() and "step 0" in launcher.log(), "training has begun", PATIENCE_S)
    user.put(f"{user.tmp}/trouble", "compute 1")
    # The other rank may not have attached yet.
    wait_until(lambda: launcher.require_alive() and user.run("switch", "all=on").returncode == 0, "marks are on", PATIENCE_S)

    if dies:
        wait_until(lambda: "steps" in user.run("diagnose").stdout, "steps are judged", PATIENCE_S, 0.3)
        kill_proxy(launcher)

    def named():
        launcher.require_alive()
        done = user.run("diagnose", "--json")
        assert done.returncode == 0, done.stderr
        verdicts = [v for v in json.loads(done.stdout)["verdicts"] if v["state"] == "open"]
        return ("rank", [1], "compute") in [(v["scope"], v["ids"], v["cause"]) for v in verdicts]

    wait_until(named, "rank 1 is named, because it computes", PATIENCE_S, 0.3)
    if groups:  # PyTorch's groups reach the manager though no folder has them
        wait_until(lambda: groups_of(user, 1), "the manager knows rank 1's groups", PATIENCE_S, 0.3)
    status = user.run("status")
    assert status.returncode == 0, status.stderr
    machine = json.loads(user.run("status", "--json").stdout)
    report = f"{user.tmp}/report.html"
    assert user.run("report", "-o", report).returncode == 0
    with open(user.root + report, encoding="utf-8") as file:
        page = file.read()
    user.put(f"{user.tmp}/stop")
    assert launcher.wait(timeout_s=60) == 0, launcher.log()
    return status.stdout, machine["nodes"][0]["mark_files"], page, launcher.log()


def lines(text, what):
    return [line for line in text.splitlines() if what in line]


def messages(log, what):
    """Texts of the log's lines that have `what` in them, without their times: each proxy says the same."""
    return {line.split(" ", 1)[1] for line in lines(log, what)}


def test_two_commands_end_in_a_verdict(user):
    work = user.make("work")
    status, files, page, log = train(user, work)
    shown = lines(status, "mark files")
    assert len(shown) == 1 and re.fullmatch(rf"mark files: {work}/taskd-[\w.-]+", shown[0]), status
    path = shown[0].removeprefix("mark files: ")
    assert files == {"dir": path, "error": ""} and path in page
    assert re.fullmatch(rf"{work}/taskd-train-\d{{8}}-\d{{6}}", path), path
    (said,) = messages(log, "marks are")
    assert said == f"info run: marks are off (taskd switch all=on, or taskd run --marks all); they go to {path}"
    assert "the page: taskd ui" in log and complaints(log) == [], "a plain start warns of nothing"
    marks = check_marks.check(user.root + path)
    assert sorted(marks.ranks) == [0, 1] and all(rank.counts["step"] > 0 for rank in marks.ranks.values())
    files = glob.glob(f"{user.root}{path}/*/*")
    assert files and all(os.stat(file).st_uid == UID for file in files)
    for folder in (path, work):
        assert user.run("diagnose", "--from", folder).returncode == 0


def test_without_any_folder_steps_are_judged(user):
    """As in a container whose root file system is read-only."""
    barren = user.make("barren", 0o555)
    status, files, page, log = train(user, barren, groups=True)
    reason = "/user/cluster-info/profiling: Permission denied"
    assert lines(status, "mark files") == [f"mark files: none ({reason})"]
    assert files == {"dir": "", "error": reason} and f"none ({reason})" in page
    (said,) = messages(log, "marks are")
    assert f"no folder can be written ({reason}), so steps are counted and judged without files" in said
    assert os.listdir(user.root + barren) == [] and complaints(log) == [], log


def test_a_folder_that_was_asked_for_and_cannot_be_made(user):
    barren = user.make("barren", 0o555)
    work = user.make("work")
    status, _, _, log = train(user, work, TASKD_PROFILING_DIR=f"{barren}/marks")
    assert lines(status, "mark files") == [f"mark files: none ({barren}/marks: Permission denied)"]
    (said,) = messages(log, "mark files")
    assert f"{barren}/marks: Permission denied" in said, log
    assert os.listdir(user.root + work) == [], "another one is not asked for"


@pytest.mark.root("the kernel counts a user's processes: this one's must be a user of its own")
def test_with_200_processes_and_threads_for_all_of_the_job(user):
    """As with a container's pids limit: manager, proxy, launcher, and the ranks with what PyTorch starts."""
    train(user, user.make("work"), under=("prlimit", "--nproc=200:200"))


@pytest.mark.root("makes a root file system read-only")
def test_under_a_read_only_root(user):
    """All but /dev/shm, as in a pod with readOnlyRootFilesystem and no volume: /tmp, too."""
    user.mount("-t", "tmpfs", "-o", "size=64m,mode=1777", "none", "/dev/shm")
    for folder in ("/", "/tmp"):
        user.mount("-o", "remount,bind,ro", folder)
    # Which is too small for the recorder to leave anything there: a proxy that dies leaves nothing but its ranks.
    status, _, _, log = train(user, "/", groups=True, dies=True)
    shown = lines(status, "mark files")
    assert len(shown) == 1 and re.fullmatch(r"mark files: none \(/user/cluster-info/profiling: .+\)", shown[0]), status
    (said,) = messages(log, "marks are")
    assert "no folder can be written (/user/cluster-info/profiling: " in said, log


# Of what programs like these call: all that no container runtime's own filter, or not each, lets through.
DENIED = "fallocate,memfd_create,renameat2,pidfd_open,close_range,openat2,ptrace,process_vm_readv,perf_event_open,setns"


def test_under_a_seccomp_filter(user):
    """Of the whole job, and it answers with an error."""
    _, _, _, log = train(user, user.make("work"), groups=True, under=(*user.denied_calls, "errno", DENIED))
    assert complaints(log) == [], log


def test_a_seccomp_filter_that_kills_is_named(user):
    """Of the ranks alone: operations.md says what the reason is."""
    user.put(f"{user.tmp}/stop")
    launcher = user.start("launcher", "run", "--standalone", "--nproc-per-node", "2", "--no-python", *user.denied_calls, "kill", "fallocate",
                          harness.PYTHON, user.script, folder=user.make("work"))
    assert launcher.wait(PATIENCE_S) == 128 + signal.SIGSYS
    assert "SIGSYS" in launcher.log(), launcher.log()


@pytest.mark.root("mounts another /proc")
def test_with_a_proc_that_shows_no_other_users(user):
    user.mount("-t", "proc", "-o", "hidepid=2", "none", "/proc")
    assert user.call("test", "-e", "/proc/1").returncode == 1
    _, _, _, log = train(user, user.make("work"), groups=True, dies=True)
    assert complaints(log, r"has ended \(signal 9\)") == [], log


@pytest.mark.root("makes all file systems read-only")
def test_where_nothing_can_be_written(user):
    """Not even a socket has a place: it trains unseen, and says so."""
    for folder in ("/", "/tmp", "/dev/shm"):
        user.mount("-o", "remount,bind,ro", folder)
    launcher = user.start("launcher", "run", "--standalone", "--nproc-per-node", "2", user.script, folder="/", STOP_FILE="/proc/self/exe")
    assert launcher.wait(PATIENCE_S) == 0, launcher.log()
    log = launcher.log()
    assert all(f"rank {rank} step 0" in log for rank in (0, 1)), log
    assert lines(log, "no proxy, so nothing is seen of the ranks: there is no folder for its socket; TASKD_SOCKET can name one"), log
    assert complaints(log, "Read-only file system", "no proxy, so nothing is seen of the ranks", "TASKD_STATE_DIR") == [], log


# A /dev with what a program may expect there, but no shm.
NO_SHM = """
mkdir /run/dev
mount -t tmpfs -o mode=755 none /run/dev
for name in null zero full random urandom tty; do touch /run/dev/$name; mount --bind /dev/$name /run/dev/$name; done
ln -s /proc/self/fd /run/dev/fd
mount --rbind /run/dev /dev
test ! -e /dev/shm
"""


@pytest.mark.skipif(not ROOT, reason="a small /dev/shm needs root")
@pytest.mark.parametrize("size", ["64m", "1m", None])
def test_a_proxy_that_dies_has_the_same_folder_again(user, size):
    """Whatever room there is in /dev/shm, also where there is no such folder."""
    if size:
        user.mount("-t", "tmpfs", "-o", f"size={size},mode=1777", "none", "/dev/shm")
    else:
        user.as_root("sh", "-ec", NO_SHM)
    work = user.make("work")
    train(user, work, groups=True, dies=True)
    (folder,) = os.listdir(user.root + work)
    marks = check_marks.check(f"{user.root}{work}/{folder}")
    assert marks.ok, marks.problems[:5]


def test_a_killed_proxy_counts_nothing_twice_without_a_folder(stage, manager):
    barred = os.path.join(stage.folder, "file")
    with open(barred, "w", encoding="ascii"):
        pass
    manager.all_on()
    marks = 6000

    def proxy(life):
        return stage.proxy(manager, name=f"life{life}", profiling_dir=f"{barred}/marks", socket_path=f"{stage.folder}/proxy.sock")

    alive = proxy(0)
    rank = stage.rank(0, alive, threads=2, rate=2000, count=marks)
    for life in range(1, 8):
        rank.wait_made(life * marks // 10)
        alive.kill()
        alive = proxy(life)
    rank.wait_finished(marks)
    wait_until(lambda: 0 in (ranks := manager.rank_status()) and ranks[0]["marks"]["other"] >= 2 * marks, "all marks are counted")
    status = manager.rank_status()[0]
    assert status["marks"]["other"] == 2 * marks and status["lost"] == 0
    assert manager.status()["nodes"][0]["mark_files"] == {"dir": "", "error": f"{barred}/marks: Not a directory"}
    assert alive.terminate() == 0


def test_signals_meant_for_ranks_end_no_daemon(stage, manager, proxy):
    """Slurm's checkpoint signal goes to every process of the job."""
    store = harness.Process("store", [harness.TASKD, "store", "--listen", "127.0.0.1:0"], harness.clean_environment(),
                            stage.folder)
    stage.processes.append(store)
    wait_until(lambda: store.require_alive() and "listening" in store.log(), "the store listens")
    for daemon in (manager, proxy, store):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            daemon.child.send_signal(number)
    manager.all_on()  # they still do what they are there for
    rank = stage.rank(0, proxy, rate=500, count=50)
    rank.wait_finished(50)
    wait_until(lambda: proxy.counts(0)["other"] == 50, "marks are written")
    for daemon in (proxy, manager, store):
        assert daemon.terminate() == 0, daemon.log()


def test_ranks_do_not_inherit_what_daemons_ignore(jobs):
    launcher = jobs.launch("launcher", "--standalone", "--nproc-per-node=1", action=("wait",))
    (started,) = wait_until(lambda: glob.glob(os.path.join(jobs.folder, "started.*[0-9]")), "the rank has started")
    with open(started, encoding="utf-8") as file:
        pid = json.load(file)["pid"]
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        ignored = int(re.search(r"^SigIgn:\t([0-9a-f]+)$", file.read(), re.M)[1], 16)
    # Python itself ignores SIGPIPE and SIGXFSZ.
    assert not [s for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP) if ignored >> (s - 1) & 1]
    jobs.put("go")
    assert launcher.wait(timeout_s=60) == 0


def test_two_jobs_of_one_second_have_folders_of_their_own(stage, manager):
    """With one folder for all, as on a shared file system, and no names."""
    shared = os.path.join(stage.folder, "shared")
    manager.all_on()
    environment = harness.clean_environment()
    proxies = [stage.proxy(manager, node=node, name=f"proxy{node}", profiling_dir=shared, environment=environment) for node in (0, 1)]
    for number, proxy in enumerate(proxies):
        stage.rank(number, proxy, rate=500, count=50).wait_finished(50)
    folders = wait_until(lambda: len(os.listdir(shared)) == 2 and os.listdir(shared), "each has a folder")
    assert all(re.fullmatch(r"default_task_id_[0-9]{10}", name) for name in folders)
    assert all(stat.S_ISDIR(os.stat(os.path.join(shared, name)).st_mode) for name in folders)
