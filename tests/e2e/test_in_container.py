"""`taskd run` as the program of a container: killed for memory, first process of its PID namespace, heard by Kubernetes."""
import os
import re
import signal

import deadlines
import harness
import pytest
from harness import TASKD, wait_until
from launchers import running

HUNGRY = """
import os, sys, time
if os.environ["RANK"] == "1":
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 20)))
time.sleep(600)
"""


def script(jobs, name, text):
    path = os.path.join(jobs.stage.folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def memory_folder():
    """(folder of this process's memory cgroup, whether it is v2's); skips where there is none that could be written."""
    paths = {}
    for line in read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths["cgroup"] = path
        elif number == "0" and not controllers:
            paths["cgroup2"] = path
    kind = "cgroup" if "cgroup" in paths else "cgroup2"
    for line in read("/proc/self/mountinfo").splitlines():
        place, _, kinds = line.partition(" - ")
        fields, (found, _, options) = place.split(), kinds.split()[:3]
        if found == kind and (kind == "cgroup2" or "memory" in options.split(",")) and paths.get(kind, "").startswith(fields[3].rstrip("/")):
            folder = fields[4] + paths[kind][len(fields[3].rstrip("/")):]
            return folder.rstrip("/"), kind == "cgroup2"
    pytest.skip("no memory cgroup is mounted")


@pytest.fixture
def limited():
    """A prefix for a command that runs it in a memory cgroup of 200 MiB."""
    parent, is_v2 = memory_folder()
    folder = os.path.join(parent, f"taskd-test-{os.getpid()}")
    try:
        os.mkdir(folder)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    try:
        limits = ["memory.max", "memory.swap.max"] if is_v2 else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        for name, value in zip(limits, [200 << 20, 0 if is_v2 else 200 << 20]):
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                if name == limits[0]:
                    pytest.skip(f"{path} is not there: the controller is not enabled for cgroups below {parent}")
                continue
            with open(path, "w", encoding="utf-8") as file:
                file.write(str(value))
        yield ["sh", "-ec", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh"]
    finally:
        def removed():
            try:
                os.rmdir(folder)
            except OSError:
                return False
            return True
        wait_until(removed, f"nothing runs in {folder} any more")


@pytest.fixture
def termination_log(tmp_path):
    """(prefix for a command that has it as /dev/termination-log, its path)."""
    folder, path = str(tmp_path / "dev"), str(tmp_path / "termination-log")
    os.mkdir(folder)
    with open(path, "w", encoding="utf-8") as file:
        file.write("of an earlier start " * 400)
    lines = [f"mount --rbind /dev {folder}", "mount -t tmpfs none /dev", "ln -s /proc/self/fd /dev/fd", "mkdir /dev/shm",
             f"mount --bind {folder}/shm /dev/shm", f"touch /dev/termination-log; mount --bind {path} /dev/termination-log"]
    lines += [f"touch /dev/{name}; mount --bind {folder}/{name} /dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    probe = deadlines.run(["unshare", "--mount", "sh", "-ec", "; ".join(lines)], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no /dev of its own: {probe.stderr.strip()}")
    return ["unshare", "--mount", "sh", "-ec", "; ".join([*lines, 'exec "$@"']), "sh"], path


# ---- Where it is

def dry_run(*options, **variables):
    environment = harness.clean_environment(KUBERNETES_SERVICE_HOST="10.96.0.1", **variables)
    return deadlines.run([TASKD, "run", *options, "--dry-run", "train.py"], env=environment, capture_output=True, text=True,
                         check=False)


def test_a_pod_by_itself_is_one_node():
    done = dry_run()
    assert done.returncode == 0 and done.stdout.startswith("nnodes: 1\n")


def test_an_option_comes_before_a_variable_and_both_before_the_scheduler():
    group = {"LWS_LEADER_ADDRESS": "train-0.train", "LWS_GROUP_SIZE": 4, "LWS_WORKER_INDEX": 3}
    done = dry_run(**group)
    assert done.returncode == 0
    assert "under LeaderWorkerSet group default/train-0: 4 nodes, node rank by LWS_WORKER_INDEX, master train-0.train:29500\n" in done.stdout
    assert "\nshutdown-timeout: 20\n" in done.stdout
    done = dry_run("--shutdown-timeout=7", PET_MASTER_PORT=1234, TASKD_MASTER_ADDR="other", **group)
    assert "master other:1234\n" in done.stdout and "\nshutdown-timeout: 7\n" in done.stdout
    assert "\nnode-rank: 3\n" in done.stdout


@pytest.mark.parametrize("variables, options, said", [
    ({"JOB_COMPLETION_INDEX": 0}, [], ["--nnodes is not given", "Kubernetes Indexed Job default/", "--nnodes N, or --standalone"]),
    ({"JOB_COMPLETION_INDEX": 0, "NODE_LIST": "a,b"}, ["--nnodes=3"], ["--nnodes '3'", "2 nodes (NODE_LIST)"]),
    ({"JOB_COMPLETION_INDEX": 2}, ["--nnodes=2"], ["'2'"]),
    ({"LWS_LEADER_ADDRESS": "a", "LWS_GROUP_SIZE": 2, "LWS_WORKER_INDEX": 1}, ["--node-rank=0"],
     ["--node-rank '0'", "this is node 1 of LeaderWorkerSet group default/a (LWS_WORKER_INDEX)"]),
    ({"LWS_LEADER_ADDRESS": "a", "LWS_GROUP_SIZE": 2, "LWS_WORKER_INDEX": 1},
     ["--rdzv-backend=c10d", "--rdzv-endpoint=a:1"], ["--nnodes is not given", "2 nodes (LWS_GROUP_SIZE)"]),
    ({"JOB_COMPLETION_INDEX": 1}, ["--rdzv-backend=c10d", "--rdzv-endpoint=a:1"], ["--nnodes is not given", "Kubernetes Indexed Job default/"]),
    ({"VC_TASK_INDEX": "", "VC_WORKER_HOSTS": "a,b"}, [], ["VC_TASK_INDEX ''"]),
    ({"VC_TASK_INDEX": 1, "JOB_COMPLETION_INDEX": 1}, [], ["VC_TASK_INDEX '1' of Volcano", "JOB_COMPLETION_INDEX '1' of an Indexed Job"])])
def test_a_world_of_its_own_on_each_node_never_comes_about(variables, options, said):
    done = dry_run(*options, **variables)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for part in said:
        assert part in done.stderr


def test_each_pod_by_itself_where_that_is_wanted():
    for options in (["--standalone"], ["--nnodes=1", "--rdzv-backend=c10d"]):
        assert dry_run(*options, JOB_COMPLETION_INDEX=2).returncode == 0


# ---- Memory

@pytest.mark.root("a memory cgroup")
def test_a_rank_that_is_killed_for_memory(jobs, limited):
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", prefix=limited, script=script(jobs, "hungry.py", HUNGRY))
    assert job.wait() == 137
    assert re.search(r"\n  rank: +1 \(local rank 1\)\n", job.log())
    assert "  end:         killed by the kernel: out of memory (limit 200 MiB)\n" in job.log()


@pytest.mark.root("a memory cgroup")
def test_a_rank_of_a_shell_that_is_killed_for_memory(jobs, limited):
    command = ["sh", "-c", f"{harness.PYTHON} {script(jobs, 'hungry.py', HUNGRY)}; exit $?"]
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", "--no-python", prefix=limited, script=command[0],
                      script_arguments=command[1:])
    assert job.wait() == 137
    assert "  end:         exit code 137, what it ran was killed by the kernel: out of memory (limit 200 MiB)\n" in job.log()


@pytest.mark.root("a memory cgroup")
def test_a_rank_that_somebody_kills(jobs, limited):
    job = jobs.launch("job", "--standalone", "--nproc-per-node=2", prefix=limited, action=("wait",))
    victim = next(rank for rank in jobs.wait_started(2) if rank["RANK"] == "1")
    os.kill(victim["pid"], signal.SIGKILL)
    assert job.wait() == 137
    assert "  end:         SIGKILL from outside\n" in job.log()


# ---- The termination log

@pytest.mark.root("mounts a /dev")
def test_the_reason_is_in_the_termination_log(jobs, termination_log):
    prefix, path = termination_log
    fails = script(jobs, "fails.py", "import sys; print('no data in /data', file=sys.stderr); sys.exit(3)")
    job = jobs.launch("job", "--standalone", prefix=prefix, script=fails)
    assert job.wait() == 3
    lines = read(path).splitlines()
    assert re.fullmatch(r"First failure: rank 0 \(local rank 0\) on \S+ \(node 0\): exit code 3", lines[0]), job.log()
    assert os.path.getsize(path) <= 4096


@pytest.mark.root("mounts a /dev")
def test_a_refusal_is_in_the_termination_log(jobs, termination_log):
    prefix, path = termination_log
    job = jobs.launch("job", "--nnodes", "many", prefix=prefix)
    assert job.wait() == 2
    assert read(path).startswith("--nnodes 'many': ")


@pytest.mark.root("mounts a /dev")
def test_an_end_without_a_failed_rank_is_in_the_termination_log(jobs, termination_log):
    prefix, path = termination_log
    job = jobs.launch("job", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=join_timeout=1",
                      prefix=prefix)
    assert job.wait() == 1
    assert read(path).strip() and read(path).strip() in job.log()


@pytest.mark.root("mounts a /dev")
def test_success_leaves_the_termination_log_alone(jobs, termination_log):
    prefix, path = termination_log
    before = read(path)
    assert jobs.launch("job", "--standalone", prefix=prefix, script=script(jobs, "good.py", "")).wait() == 0
    assert read(path) == before


# ---- The first process

ORPHANS = """
import os, signal, sys, time
folder, mode = sys.argv[1:]

def put(name, text=""):
    with open(os.path.join(folder, name + "~"), "w") as file:
        file.write(text)
    os.rename(os.path.join(folder, name + "~"), os.path.join(folder, name))

def orphan(body):
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            body()
            os._exit(0)
        os.write(told, str(pid).encode())
        os._exit(0)
    os.wait()
    return int(os.read(ready, 16))

first = orphan(lambda: None)
while os.path.exists(f"/proc/{first}"):  # a zombie until the first process has waited for it
    time.sleep(0.01)
orphan(lambda: time.sleep(600))
if mode == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: put("terminated"))
put("ready", str(os.getppid()))
while True:
    time.sleep(600)
"""


def first_process(job):
    """Pid of what unshare has started, as it is seen from here."""
    children = read(f"/proc/{job.pid}/task/{job.pid}/children").split()
    return int(children[0]) if children else None


@pytest.mark.root("PID namespaces")
@pytest.mark.parametrize("mode", ["polite", "stubborn"])
def test_the_first_process_of_a_pid_namespace(jobs, mode):
    probe = deadlines.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no PID namespace: {probe.stderr.strip()}")
    job = jobs.launch("job", "--standalone", "--shutdown-timeout=1", prefix=["unshare", "--pid", "--fork", "--mount-proc"],
                      script=script(jobs, "orphans.py", ORPHANS), script_arguments=[jobs.folder, mode], environment={"TASKD_MANAGER": None})
    wait_until(lambda: os.path.exists(os.path.join(jobs.folder, "ready")), "the orphan was waited for, and the rank is ready")
    assert read(os.path.join(jobs.folder, "ready")) == "1"
    first = wait_until(lambda: first_process(job), "the launcher is there")
    inside = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if namespace(pid) == namespace(first)]
    assert len(inside) >= 4, "launcher, rank, orphan, and daemons"
    os.kill(first, signal.SIGTERM)
    # What outlives the launcher is killed by the kernel, at the latest; it is given its grace by then.
    assert job.wait() == 143
    assert os.path.exists(os.path.join(jobs.folder, "terminated")) == (mode == "stubborn")
    wait_until(lambda: not [pid for pid in inside if running(pid)], "nothing is left")


def namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
