"""`taskd run` when something is wrong: ranks that do not want to end, daemons that die, disks, names, no init, other masters."""
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import deadlines
import harness
import pytest
from harness import PYTHON, TASKD, wait_until
from launchers import LAUNCHED, OWN_PORTS, complaints, running, wait_log
from needs import needs_torch
from ports import free_port

SEGMENTS = "/dev/shm/taskd-*"
# Daemons as in a user's job: no variable names a manager.
WITH_DAEMONS = {"TASKD_MANAGER": None}
# A daemon that was given a default port that was free says so if another job, or another test, takes it just then.
DEFAULT_PORT_TAKEN = r"--(http|listen): .*127\.0\.0\.1:960[23]"


def script(jobs, name, text):
    path = os.path.join(jobs.stage.folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def processes_of(folder):
    """(pid, name) of what runs and has `folder` in its environment: what a test's launchers have started. TaskD's own
    daemons show theirs to nobody: they are known by their command lines, which have the folder or their launcher's."""
    found = []
    runs = [b"/run-%d/" % launcher for launcher in LAUNCHED.get(folder, ())]
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            try:
                with open(path, "rb") as environment:
                    is_ours = os.fsencode(folder) in environment.read()
            except PermissionError:
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    line = command.read()
                is_ours = any(part in line for part in [os.fsencode(folder), *runs])
            if not is_ours:
                continue
            with open(f"/proc/{pid}/comm", encoding="utf-8") as name:
                name = name.read().strip()
        except OSError:
            continue
        if pid != os.getpid() and running(pid):
            found.append((pid, name))
    return found


def daemons(jobs, kind):
    """Pids of this test's managers or proxies."""
    found = []
    for pid, _ in processes_of(jobs.stage.folder):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                arguments = command.read().split(b"\0")
        except OSError:
            continue
        if len(arguments) > 1 and os.path.basename(arguments[0]) == b"taskd" and arguments[1] == kind.encode():
            found.append(pid)
    return found


def run_folders(nodes):
    folders = [f"{place}/run-{node.pid}" for place in harness.runtime_dirs() for node in nodes]
    return [folder for folder in folders if os.path.isdir(folder)]


def wait_nothing_left(jobs, nodes, timeout_s=harness.PATIENCE_S):
    """Neither a process nor a folder of theirs, nor shared memory of their ranks."""
    wait_until(lambda: not processes_of(jobs.stage.folder), "all processes have ended", timeout_s)
    pids = {str(e["pid"]) for e in jobs.started()}

    def left():
        for path in glob.glob(SEGMENTS):
            try:
                if path.split("-")[-2] in pids and os.stat(path).st_uid == os.geteuid():  # others' processes had these numbers, too
                    yield path
            except FileNotFoundError:
                continue
    wait_until(lambda: not list(left()), "no segment is left in /dev/shm", timeout_s)
    assert not run_folders(nodes)


# ---- Ranks that do not want to end

# Each local rank in another way. The file `ready.N` marks that it has got that far.
HARD = r"""
import os, signal, subprocess, sys, threading, time
rank, folder = int(os.environ["LOCAL_RANK"]), sys.argv[1]
child = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"

def note(pid):
    path = os.path.join(folder, f"child.{rank}.{pid}")
    with open(path + "~", "w") as file:
        file.write(str(pid))
    os.rename(path + "~", path)

def start_child(**arguments):
    one = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, **arguments)
    one.stdout.read(1)
    note(one.pid)

def ready():
    open(os.path.join(folder, f"ready.{rank}"), "w").close()

note(os.getpid())
if rank == 0:    # deaf
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif rank == 1:  # children in its session and in others, deaf, and orphans
    start_child()
    start_child(start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            time.sleep(600)
        os._exit(0)
elif rank == 2:  # prints more than is ever read
    ready()
    line = "y" * 8191 + "\n"
    while True:
        sys.stdout.write(line)
elif rank == 3:  # without output
    os.close(1)
    os.close(2)
elif rank == 4:  # stopped
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
ready()
while rank != 5:
    time.sleep(600)
while not os.path.exists(os.path.join(folder, "fail")):
    time.sleep(0.02)
sys.exit(9)
"""


@pytest.mark.parametrize("tee", [["--tee=3"], []], ids=["teed", "straight"])
@pytest.mark.parametrize("how, code", [("SIGTERM", 143), ("failure", 9), ("killed launcher", -9)])
def test_ranks_that_do_not_want_to_end(jobs, how, code, tee):
    fifo = os.path.join(jobs.stage.folder, "nobody-reads")
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR)
    job = jobs.launch("job", "--standalone", "--nproc-per-node=6", "--shutdown-timeout=1", *tee,
                      prefix=["/bin/sh", "-c", f"exec \"$@\" > {fifo}", "sh"], script=script(jobs, "hard.py", HARD),
                      script_arguments=[jobs.folder])
    wait_until(lambda: job.require_alive() and len(glob.glob(f"{jobs.folder}/ready.*")) == 6
               and len(jobs.read("child")) == 9, "all ranks are ready")
    if how == "failure":
        jobs.put("fail")
    else:
        job.child.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
    assert job.wait() == code, job.log()[-3000:]
    jobs.wait_none_left()
    os.close(held)


# ---- Daemons

def manager_of(rank):
    return rank["TASKD_MANAGER"]


def test_two_jobs_with_their_daemons(jobs):
    ports = [free_port(), free_port()]
    nodes = [jobs.static(node, port, f"--rdzv-id=job{port}", procs=1, action=["wait"], environment=WITH_DAEMONS)
             for port in ports for node in (0, 1)]
    ranks = jobs.wait_started(4)
    managers = {port: {manager_of(e) for e in ranks if e["MASTER_PORT"] == str(port)} for port in ports}
    assert [len(managers[port]) for port in ports] == [1, 1]  # one for both nodes
    assert managers[ports[0]] != managers[ports[1]]
    assert len({e["TASKD_SOCKET"] for e in ranks}) == 4
    assert len(daemons(jobs, "manager")) == 2 and len(daemons(jobs, "proxy")) == 4
    for port in ports:
        (manager,) = managers[port]

        def nodes_seen(manager=manager):
            status = jobs.stage.run("status", "--manager", manager, "--json")
            return status.returncode == 0 and sorted(n["node"] for n in json.loads(status.stdout)["nodes"]) == [0, 1]
        wait_until(nodes_seen, f"the manager at {manager} has both proxies", interval_s=0.2)
    jobs.put("go")
    assert [node.wait() for node in nodes] == [0] * 4, nodes[0].log()
    wait_nothing_left(jobs, nodes)


def test_killed_launchers_take_their_daemons_along(jobs):
    port = free_port()
    nodes = [jobs.static(node, port, procs=1, action=["wait", "child"], environment=WITH_DAEMONS) for node in (0, 1)]
    jobs.wait_started(2)
    wait_until(lambda: len(jobs.read("child")) == 2, "each rank has a child")
    assert len(daemons(jobs, "manager")) == 1 and len(daemons(jobs, "proxy")) == 2
    for node in nodes:
        node.child.kill()
    assert [node.wait() for node in nodes] == [-signal.SIGKILL] * 2
    wait_until(lambda: not processes_of(jobs.stage.folder), "all processes have ended")
    # Their folders go with the next launcher, but not while they are young.
    left = run_folders(nodes)
    assert len(left) == 2
    os.utime(os.path.join(left[0], "lock"), (0, 0))
    later = jobs.static(0, free_port(), nodes=1, environment=WITH_DAEMONS)
    assert later.wait() == 0
    assert run_folders(nodes) == left[1:]
    shutil.rmtree(left[1])
    wait_nothing_left(jobs, [*nodes, later])


def test_many_jobs_at_once(jobs):
    """All managers find a port, also those next to or at what another part of TaskD would take."""
    environment = {**WITH_DAEMONS, **dict.fromkeys(OWN_PORTS), "TASKD_PROFILING_DIR": os.path.join(jobs.stage.folder, "marks")}
    launchers = [jobs.launch(f"job{i}", "--standalone", "--nproc-per-node=1", action=["wait"], environment=environment)
                 for i in range(5)]
    ranks = jobs.wait_started(5)
    assert len({manager_of(e) for e in ranks}) == 5
    for rank in ranks:
        wait_until(lambda rank=rank: jobs.stage.run("status", "--manager", manager_of(rank)).returncode == 0,
                   f"the manager at {manager_of(rank)} answers", interval_s=0.2)
    jobs.put("go")
    assert [launcher.wait() for launcher in launchers] == [0] * 5
    for launcher in launchers:  # no part complains of the ports that another job has
        assert re.search(r" info run: the manager is at port \d+: |the manager does not answer yet", launcher.log()), launcher.log()
        assert complaints(launcher.log(), DEFAULT_PORT_TAKEN) == []
    wait_nothing_left(jobs, launchers)


def test_a_port_at_which_a_slow_manager_is_about_to_listen(jobs):
    """Its launcher has told its ranks that port, and has the port's name until it ends."""
    taken = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for port, name in zip((9601, 9604), taken):
        try:
            name.bind(f"\0taskd-manager-at-{port}")
        except OSError:
            pass  # a launcher of another test has it
    launcher = jobs.launch("job", "--standalone", "--nproc-per-node=1", action=["wait"], environment=WITH_DAEMONS)
    manager = manager_of(jobs.wait_started(1)[0])
    assert manager.rsplit(":", 1)[1] not in ("9601", "9604")
    jobs.put("go")
    assert launcher.wait() == 0
    for name in taken:
        name.close()


@pytest.mark.parametrize("kind", ["manager", "proxy"])
def test_daemon_that_is_killed(jobs, kind):
    job = jobs.static(0, free_port(), nodes=1, action=["wait"], environment=WITH_DAEMONS)
    ranks = jobs.wait_started(2)
    (victim,) = wait_until(lambda: daemons(jobs, kind), f"the {kind} runs")
    os.kill(victim, signal.SIGKILL)
    wait_log(job, rf"the {kind} has ended \(signal 9\) and is started again")
    (again,) = wait_until(lambda: [pid for pid in daemons(jobs, kind) if pid != victim], f"the {kind} runs again")
    assert again != victim
    if kind == "manager":  # at the same place
        wait_until(lambda: jobs.stage.run("status", "--manager", manager_of(ranks[0])).returncode == 0,
                   "the manager answers", interval_s=0.2)
    assert jobs.alive() == ranks
    jobs.put("go")
    assert job.wait() == 0, job.log()
    wait_nothing_left(jobs, [job])


def test_daemon_that_dies_again_and_again(jobs):
    """More slowly each time."""
    job = jobs.static(0, free_port(), nodes=1, procs=1, action=["wait"], environment=WITH_DAEMONS)
    jobs.wait_started(1)
    killed = {None}
    for pause in ("0.5", "1", "2"):
        (proxy,) = wait_until(lambda: [pid for pid in daemons(jobs, "proxy") if pid not in killed], "a proxy runs")
        os.kill(proxy, signal.SIGKILL)
        killed.add(proxy)
        wait_log(job, rf"the proxy has ended \(signal 9\) and is started again in {pause} s")
    wait_until(lambda: [pid for pid in daemons(jobs, "proxy") if pid not in killed], "a proxy runs again")
    jobs.put("go")
    assert job.wait() == 0, job.log()
    wait_nothing_left(jobs, [job])


def test_daemon_that_cannot_start(jobs):
    """It is reported once, and not tried again."""
    job = jobs.static(0, free_port(), nodes=1, procs=1, action=["wait"],
                      environment={**WITH_DAEMONS, "TASKD_LISTEN": "127.0.0.1:1x"})
    jobs.wait_started(1)
    wait_log(job, r"the proxy has ended \(code 2\); training goes on without it")
    assert "127.0.0.1:1x" in job.log() and "is started again" not in job.log(), job.log()
    jobs.put("go")
    assert job.wait() == 0, job.log()
    wait_nothing_left(jobs, [job])


@pytest.mark.parametrize("how", [["--manager=off"], ["--no-taskd"]])
def test_without_daemons(jobs, how):
    job = jobs.static(0, free_port(), *how, nodes=1, procs=1, action=["wait"], environment=WITH_DAEMONS)
    (rank,) = jobs.wait_started(1)
    assert not {"TASKD_SOCKET", "LD_PRELOAD"} & set(rank)
    assert not daemons(jobs, "manager") and not daemons(jobs, "proxy")
    jobs.put("go")
    assert job.wait() == 0
    assert "warn" not in job.log(), job.log()


def test_program_without_its_library(jobs):
    folder = os.path.join(jobs.stage.folder, "alone")
    os.mkdir(folder)
    alone = shutil.copy(TASKD, folder)
    job = jobs.static(0, free_port(), "--max-restarts=1", nodes=1, action=["fail", 0, 5, 1], environment=WITH_DAEMONS,
                      program=alone)
    jobs.put("fail")
    jobs.wait_started(2, TORCHELASTIC_RESTART_COUNT=1)
    jobs.put("go")
    assert job.wait() == 0, job.log()
    assert "libtaskd.so is not beside" in job.log(), job.log()
    assert not [e for e in jobs.started() if "LD_PRELOAD" in e]


def test_node_without_a_manager_uses_no_other(jobs):
    """Node 0 starts none; the proxy of node 1 must not find the manager of another job, which is at the first port."""
    other = jobs.static(0, free_port(), nodes=1, procs=1, action=["wait"], environment=WITH_DAEMONS)
    jobs.wait_started(1)
    port = free_port()
    nodes = [jobs.static(node, port, *option, procs=1, action=["wait"], environment=WITH_DAEMONS)
             for node, option in ((0, ["--manager=off"]), (1, []))]
    jobs.wait_started(3)
    wait_log(nodes[1], "no proxy, so nothing is recorded: the job has no manager")
    assert len(daemons(jobs, "proxy")) == 1
    jobs.put("go")
    assert [node.wait() for node in (other, *nodes)] == [0] * 3
    wait_nothing_left(jobs, [other, *nodes])


# ---- Names

@pytest.mark.parametrize("variable, refused_by, complains", [
    (None, "", []), ("TASKD_JOB", "taskd manager: TASKD_JOB: job name: ", ["no manager: it does not start", "no proxy, so nothing is recorded: the job has no manager"]),
    ("MINDX_TASK_ID", "taskd proxy: MINDX_TASK_ID: ", ["the proxy has ended (code 2); training goes on without it"])])
def test_names_that_are_no_file_names(jobs, variable, refused_by, complains):
    name = "a job's \"name\"/../../with everything;$(touch no)\\"
    logs = os.path.join(jobs.stage.folder, "logs")
    environment = {**WITH_DAEMONS, **({variable: name} if variable else {})}
    job = jobs.static(0, free_port(), f"--rdzv-id={name}", f"--log-dir={logs}", "--redirects=3", nodes=1, procs=1,
                      environment=environment)
    assert job.wait() == 0, job.log()
    (rank,) = jobs.started()
    assert rank["TORCHELASTIC_RUN_ID"] == name
    assert variable is None or f"{refused_by}'{name}'" in job.log(), job.log()
    assert all(one in job.log() for one in complains), job.log()
    assert (variable == "TASKD_JOB") == ("they go to" not in job.log()), "marks are announced where somebody writes them"
    assert complaints(job.log(), *map(re.escape, complains)) == [], job.log()
    (folder,) = os.listdir(logs)
    assert os.path.exists(os.path.join(logs, folder, "attempt_0", "0", "stdout.log"))
    wait_nothing_left(jobs, [job])


# ---- Disks

def mounted(folder, options):
    """Prefix of a command that sees a tmpfs with these options at `folder`."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    os.mkdir(folder)
    return ["unshare", "--mount", "/bin/sh", "-c", f"mount -t tmpfs -o {options} none {folder} && exec \"$@\"", "sh"]


@pytest.mark.root("mounts a file system")
@pytest.mark.parametrize("options, reason", [("ro", "Read-only file system"), ("nr_inodes=1", "No space left on device")])
def test_log_folder_that_cannot_be_made(jobs, options, reason):
    logs = os.path.join(jobs.stage.folder, "logs")
    job = jobs.static(0, free_port(), f"--log-dir={logs}", "--redirects=3", nodes=1, prefix=mounted(logs, options))
    assert job.wait() == 2, job.log()
    assert job.log() == f"taskd run: --log-dir '{logs}': {reason}: ranks cannot write their logs there\n"
    assert not jobs.started()


@pytest.mark.root("mounts a file system")
@pytest.mark.parametrize("option", ["--tee=3", "--redirects=3"])
def test_disk_that_fills_up(jobs, option):
    """Lines are lost in the file, not on the console, and no rank fails because of it."""
    logs = os.path.join(jobs.stage.folder, "logs")
    loud = script(jobs, "loud.py", """
import os, sys
for i in range(20000):
    try:
        os.write(1, b"line %06d of a rank that says much\\n" % i)
    except OSError as error:  # its own file
        assert error.errno == 28
        break
""")
    job = jobs.static(0, free_port(), f"--log-dir={logs}", option, nodes=1, procs=2, prefix=mounted(logs, "size=128k"),
                      script=loud, script_arguments=[])
    assert job.wait() == 0, job.log()[-2000:]
    if option == "--tee=3":
        lines = re.findall(r"^\[default(0|1|0,1)\]:line \d{6} of a rank that says much$", job.log(), re.M)
        assert sum(2 if ranks == "0,1" else 1 for ranks in lines) == 40000
        assert re.search(r"log file .*No space left on device; output is lost there", job.log()), job.log()[-2000:]


# ---- Masters that are something else

TORCH_STORE = """
import datetime, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=60), wait_for_workers=False)
print("port", store.port, flush=True)
sys.stdin.readline()
assert store.add("n", 1) == 1
print("still there", flush=True)
"""


@needs_torch
def test_master_is_a_store_of_pytorch(jobs):
    with subprocess.Popen([PYTHON, "-c", TORCH_STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        port = store.stdout.readline().split()[1]
        job = jobs.static(1, port)
        assert job.wait() == 1
        assert re.search(rf"taskd run: 127.0.0.1:{port} is no taskd launcher", job.log()), job.log()
        assert deadlines.communicate(store, "\n")[0] == "still there\n"


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b"* OK IMAP4rev1 ready\r\n", b"\x16\x03\x01\x02\x00"])
def test_master_speaks_first(jobs, banner):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job = jobs.static(1, port)
        with server.accept()[0] as connection:
            connection.sendall(banner)
            assert job.wait() == 1
        assert re.search(rf"taskd run: 127.0.0.1:{port} is no taskd launcher", job.log()), job.log()


# ---- The first process of a container

ORPHANS = r"""
import os, signal, subprocess, sys, time
folder = sys.argv[1]
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(writer, b"%d\n" % os.getpid())
        os._exit(0)
    os._exit(0)
os.wait()
orphan = int(os.read(reader, 100))
while os.path.exists(f"/proc/{orphan}"):  # until it has been reaped
    time.sleep(0.02)
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
open(os.path.join(folder, "ready." + os.environ["RANK"]), "w").write(str(os.getppid()))
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.02)
sys.exit(5)
"""


@pytest.mark.root("PID namespaces")
@pytest.mark.parametrize("how, code", [("ends", 5), ("SIGTERM", 143), ("SIGINT", 130)])
def test_without_an_init(jobs, how, code):
    """As PID 1: signals reach it, orphans are waited for, the code is the job's, and nothing outlives it."""
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False,
                      capture_output=True).returncode != 0:
        pytest.skip("no PID namespaces here")
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", prefix=["unshare", "--pid", "--fork", "--mount-proc"],
                      script=script(jobs, "orphans.py", ORPHANS), script_arguments=[jobs.folder],
                      environment=WITH_DAEMONS)
    wait_until(lambda: job.require_alive() and jobs.read("ready") == ["1", "1"], "the ranks of PID 1 are ready")
    if how == "ends":
        jobs.put("go")
    else:
        with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="utf-8") as children:
            (launcher,) = map(int, children.read().split())
        os.kill(launcher, getattr(signal, how))
    assert job.wait() == code, job.log()
    wait_until(lambda: not processes_of(jobs.stage.folder), "nothing is left")
