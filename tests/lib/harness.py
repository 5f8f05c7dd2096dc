"""Starts TaskD's programs and small ranks for tests and benchmarks, talks to them, and ends all of them.

Everything lives in one temporary folder and on loopback ports that were free a moment ago, so that any number of stages
can run beside each other. Programs come from the build folder in TASKD_BUILD_DIR (build/release by default).
"""
import functools
import glob
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_marks  # noqa: E402
import deadlines  # noqa: E402
from deadlines import HANG_S, PATIENCE_S, wait_until  # noqa: E402
from ports import free_port  # noqa: E402
from segments import segments_of  # noqa: E402
import stubs  # noqa: E402
import grpc  # noqa: E402

BUILD = os.environ.get("TASKD_BUILD_DIR") or os.path.join(stubs.REPOSITORY, "build", "release")
TASKD = os.path.join(BUILD, "bin", "taskd")
LIBRARY = os.path.join(BUILD, "lib", "libtaskd.so")
RANK_MAIN = os.path.join(BUILD, "tests", "e2e_rank")
JOB_CERTIFICATES = os.path.join(BUILD, "tests", "job_certificates")
PYTHON = "/usr/bin/python3"
# LeakSanitizer attaches as a debugger does, to which daemons are closed; some tests preload; and a rank may have two libtaskd.so.
ASAN_OPTIONS = "detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0"
PYTHON_PACKAGE = os.path.join(BUILD, "python")
JOB = "default/e2e"
TASK = "e2e-task"
KINDS = ("step", "save_checkpoint", "fp", "dataloader", "communication")
CLUSTERD_FIELDS = {"step": "Step", "save_checkpoint": "SaveCheckpoint", "fp": "FP", "dataloader": "DataLoader",
                   "communication": "CommunicationOperator"}
# Within this the manager answers, and a store its ranks, whoever attacks: the one bound of time that a test asserts, since
# others wait for the answer. Of a connection that is there already, not of a program's start; and one answer of three,
# because a machine that is starved of CPUs may hold up the test as well.
ANSWER_S = 1.0
ANSWER_TRIES = 3


@functools.lru_cache
def build_variable(name):
    """What CMake's cache of the build has under this name."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        found = re.search(rf"^{name}:\w+=(.*)$", cache.read(), re.MULTILINE)
    return found[1] if found else ""


def sanitized():
    """Whether a sanitizer is in the build, which shadows what is used and keeps what is freed: limits of memory are the other builds'."""
    return build_variable("TASKD_SANITIZE") != ""


def status_number(process, name):
    """A number of its /proc/PID/status: kB where that has a unit."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))


def resident_bytes(process):
    """The memory that it has resident; 0 where a sanitizer is in it."""
    return 1024 * status_number(process, "VmRSS") if not sanitized() else 0


def peak_bytes(process):
    """The most memory that it ever had resident; 0 where a sanitizer is in it."""
    return 1024 * status_number(process, "VmHWM") if not sanitized() else 0


def thread_count(process):
    return status_number(process, "Threads")


def clean_environment(**extra):
    """This process's environment without what would steer TaskD, and with `extra` (None removes)."""
    steering = re.compile(r"TASKD_(?!BUILD_DIR)|MINDX_|POD_IP|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|LD_PRELOAD|OMPI_|PMIX_|PMI_|SLURM|"
                          r"PET_|TORCHELASTIC_|JOB_COMPLETION_INDEX|JOBSET_|LWS_|VC_|KUBERNETES_|MSTX_|NVTX_")
    environment = {k: v for k, v in os.environ.items() if not steering.match(k)}
    if sanitized():
        environment.setdefault("ASAN_OPTIONS", ASAN_OPTIONS)
    environment.update({k: str(v) for k, v in extra.items() if v is not None})
    return environment


def runtime_dirs(environment=None):
    """The folders in which a user's managers may leave their job files."""
    named = (environment or os.environ).get("XDG_RUNTIME_DIR")
    uid = os.geteuid()
    return ([os.path.join(named, "taskd")] if named else []) + [f"/run/user/{uid}/taskd", f"/tmp/taskd-{uid}", f"/dev/shm/taskd-{uid}"]


def job_secret(pid, environment=None):
    """The secret that the manager `pid` has left for its user; None: no job file of it is there."""
    for folder in runtime_dirs(environment):
        for path in glob.glob(os.path.join(glob.escape(folder), "jobs", "*.json")):
            try:
                with open(path, encoding="utf-8") as file:
                    job = json.load(file)
            except (OSError, ValueError):  # a manager's that ends just now
                continue
            if job["pid"] == pid:
                return job["secret"]
    return None


def view_token(secret):
    """What `taskd token` makes of the job's secret."""
    done = subprocess.run([TASKD, "token"], env=clean_environment(TASKD_TOKEN=secret), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.lru_cache
def job_certificates(secret):
    """What a part of the job with this secret shows and believes: PEM texts, and the name that certificates have."""
    done = subprocess.run([JOB_CERTIFICATES], input=secret, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def secure_channel(address, secret, options=()):
    """A channel as TaskD's own parts have it: mutual TLS by the job's secret."""
    pem = {name: text.encode() for name, text in job_certificates(secret).items()}
    credentials = grpc.ssl_channel_credentials(pem["authority"], pem["key"], pem["certificate"])
    return grpc.secure_channel(address, credentials, options=[("grpc.use_local_subchannel_pool", 1),
                                                              ("grpc.ssl_target_name_override", pem["name"].decode()),
                                                              *options])


def prompt_status(channel):
    """A function that asks a manager for the status, over this channel's connection, and fails where ANSWER_S is not kept."""
    grpc.channel_ready_future(channel).result(HANG_S)
    get_status = channel.unary_unary("/taskd.v1.Control/GetStatus")

    def ask():
        for last in (False,) * (ANSWER_TRIES - 1) + (True,):
            try:
                return get_status(b"", timeout=ANSWER_S)
            except grpc.RpcError as error:
                if last or error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
    return ask


class Process:
    """A child whose output goes to a file."""

    def __init__(self, name, command, environment, folder):
        self.name = name
        self.log_path = os.path.join(folder, f"{name}.{time.monotonic_ns()}.log")
        with open(self.log_path, "wb") as log:
            self.child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=subprocess.STDOUT, cwd=folder)
        self.pid = self.child.pid

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def alive(self):
        return self.child.poll() is None

    def require_alive(self):
        if not self.alive():
            raise AssertionError(f"{self.name} ended with code {self.child.returncode}:\n{self.log()[-3000:]}")
        return True

    def wait(self, timeout_s=PATIENCE_S):
        return deadlines.wait_child(self.child, timeout_s)

    def terminate(self, timeout_s=5.0):
        """SIGTERM; returns the exit code. AssertionError if that takes longer than promised (marks.md 3)."""
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not end within {timeout_s:g} s of SIGTERM:\n{self.log()[-3000:]}")
        return self.child.returncode

    def kill(self):
        if self.alive():
            self.child.kill()
        self.child.wait()


class Manager(Process):
    def __init__(self, folder, name="manager", port=None, job=JOB, task=TASK, flags=(), state_dir=None, environment=None,
                 wait=True, wrap=(), http=None):
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.job = job
        self.state_dir = state_dir or os.path.join(folder, f"{name}-state")
        self.folder = folder
        self.http = http or f"127.0.0.1:{free_port()}"
        command = [*wrap, TASKD, "manager", "--job", job, "--task-id", task, "--listen", self.address,
                   "--http", self.http, "--state-dir", self.state_dir, *flags]
        if "--switch-file" not in flags:
            command += ["--switch-file", os.path.join(folder, f"{name}-no-switch-file")]
        super().__init__(name, command, environment or clean_environment(), folder)
        self.environment = environment
        if wait:
            self.wait_ready()

    def secure_channel(self, **arguments):
        """For calls of taskd.v1, as TaskD's own parts make them."""
        secret = (self.environment or {}).get("TASKD_TOKEN")
        if not secret:
            secret = wait_until(lambda: self.require_alive() and job_secret(self.pid, self.environment),
                                f"{self.name} leaves a job file")
        return secure_channel(self.address, secret, **arguments)

    def wait_ready(self, timeout_s=PATIENCE_S):
        def ready():
            self.require_alive()
            try:
                return self.get()[0] is not None
            except grpc.RpcError:
                return False
        wait_until(ready, f"{self.name} answers gRPC", timeout_s)

    def call(self, method, request, timeout_s=HANG_S):
        """One call over a connection of its own, as a one-shot tool does it."""
        services = stubs.profiling()[1]
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            return getattr(services.TrainingDataTraceStub(channel), method)(request, timeout=timeout_s)

    def modify(self, job=None, timeout_s=HANG_S, **kinds):
        """ModifyTrainingDataTraceSwitch with kinds as in step="on"; returns the code."""
        messages = stubs.profiling()[0]
        switch = messages.ProfilingSwitch(**{CLUSTERD_FIELDS[k]: v for k, v in kinds.items()})
        request = messages.DataTypeReq(jobNsName=self.job if job is None else job, profilingSwitch=switch)
        return self.call("ModifyTrainingDataTraceSwitch", request, timeout_s).code

    def all_on(self):
        assert self.modify(**dict.fromkeys(KINDS, "on")) == 200

    def all_off(self):
        assert self.modify(**dict.fromkeys(KINDS, "off")) == 200

    def get(self, job=None, timeout_s=HANG_S):
        """(code, {kind: "on"|"off"}) of GetTrainingDataTraceSwitch."""
        messages = stubs.profiling()[0]
        answer = self.call("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName=job or self.job), timeout_s)
        return answer.code, {k: getattr(answer.profilingSwitch, f) for k, f in CLUSTERD_FIELDS.items()}

    def switch(self, *arguments, timeout_s=PATIENCE_S):
        """`taskd switch ... --json`: (exit code, parsed answer)."""
        done = deadlines.run([TASKD, "switch", "--manager", self.address, "--job", self.job, *arguments, "--json"], timeout_s,
                             env=self.environment or clean_environment(), capture_output=True, text=True)
        assert done.stdout, f"taskd switch printed nothing, code {done.returncode}: {done.stderr}"
        return done.returncode, json.loads(done.stdout)

    def status(self):
        done = deadlines.run([TASKD, "status", "--manager", self.address, "--json"], PATIENCE_S if not sanitized() else 4 * PATIENCE_S,
                             env=self.environment or clean_environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"taskd status: code {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def rank_status(self):
        """{rank: its status}, over all nodes."""
        return {rank["rank"]: rank for node in self.status()["nodes"] for rank in node["ranks"]}

    def wait_attached(self, ranks, timeout_s=PATIENCE_S):
        """Until exactly these ranks are attached."""
        wanted = set(ranks)
        wait_until(lambda: {r for r, s in self.rank_status().items() if s["attached"]} == wanted,
                   f"ranks {sorted(wanted)[:10]} are attached", timeout_s, 0.1)

    def wait_applied(self, states, ranks, timeout_s=PATIENCE_S):
        """Until the gates of these ranks hold `states`, e.g. {"step": "on"}."""
        def applied():
            found = self.rank_status()
            return all(r in found and all(found[r]["applied"].get(k) == v for k, v in states.items()) for r in ranks)
        wait_until(applied, f"ranks have {states}", timeout_s, 0.05)

    def wait_stepping(self, ranks, steps, timeout_s=PATIENCE_S):
        """Until the manager has seen each of these ranks end so many steps more than when it first knew of a step of all."""
        def newest():
            found = self.rank_status()
            return [found[rank]["step"] if rank in found else -1 for rank in ranks]
        first = wait_until(lambda: min(seen := newest()) >= 0 and seen, "all ranks have ended a step", timeout_s, 0.2)
        wait_until(lambda: all(now >= then + steps for now, then in zip(newest(), first)), f"{steps} more steps of each", timeout_s, 0.2)


class Proxy(Process):
    def __init__(self, folder, manager, node=0, name=None, task=TASK, profiling_dir=None, socket_path=None, port=None,
                 flags=(), environment=None, wait=True, wrap=()):
        name = name or f"proxy{node}"
        self.task = task
        self.socket = socket_path or os.path.join(folder, f"{name}.sock")
        self.profiling_dir = profiling_dir or os.path.join(folder, f"{name}-profiling")
        self.port = port or free_port()
        address = manager if isinstance(manager, str) else manager.address
        command = [*wrap, TASKD, "proxy", "--manager", address, "--listen", f"127.0.0.1:{self.port}", "--socket", self.socket,
                   "--node-rank", str(node), "--profiling-dir", self.profiling_dir, *flags]
        if "--switch-file" not in flags:
            command += ["--switch-file", os.path.join(folder, f"{name}-no-switch-file")]
        if wait and profiling_dir is None:
            os.makedirs(self.profiling_dir, exist_ok=True)
        super().__init__(name, command, environment or clean_environment(MINDX_TASK_ID=task), folder)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        def accepts():
            self.require_alive()
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(self.socket) == 0
        wait_until(accepts, f"{self.name} accepts ranks at {self.socket}")

    def knows_what_is_on(self):
        with open(f"{self.socket}.state", encoding="utf-8") as state:
            return "wanted" in json.load(state)

    @property
    def task_dir(self):
        return os.path.join(self.profiling_dir, self.task)

    def check(self, **arguments):
        """Report of the files so far; none is an empty report."""
        if not os.path.isdir(self.task_dir):
            return check_marks.Report({}, [])
        return check_marks.check(self.task_dir, live=self.alive(), **arguments)

    def counts(self, rank):
        found = self.check().ranks.get(rank)
        return found.counts if found else dict.fromkeys(check_marks.KINDS, 0)


class Rank(Process):
    """tests/e2e/rank_main.cc with libtaskd.so preloaded. `sequence` ranks prove that nothing was lost or doubled."""

    def __init__(self, folder, rank, proxy, threads=1, rate=200, count=0, pattern="sequence", name_bytes=0, hold=True,
                 name=None, environment=None, init=True):
        self.rank = rank
        self.threads = threads
        self.counter_path = os.path.join(folder, f"rank{rank}.{time.monotonic_ns()}.count")
        self.socket = proxy if isinstance(proxy, str) else proxy.socket
        command = [RANK_MAIN, "--rank", str(rank), "--threads", str(threads), "--rate", str(rate), "--count", str(count),
                   "--pattern", pattern, "--name-bytes", str(name_bytes), "--counter", self.counter_path,
                   "--hold", str(int(hold)), "--init", str(int(init))]
        environment = clean_environment(**{"LD_PRELOAD": LIBRARY, "TASKD_SOCKET": self.socket, "RANK": rank, **(environment or {})})
        super().__init__(name or f"rank{rank}", command, environment, folder)

    def segments(self):
        return segments_of(self.pid, self.socket)

    def made(self):
        """Marks made so far, by thread. A killed rank may have recorded one more a thread than it had time to count."""
        try:
            with open(self.counter_path, "rb") as counter:
                content = counter.read()
        except FileNotFoundError:
            return [0] * self.threads
        return list(struct.unpack(f"{len(content) // 64 * 8}Q", content[:len(content) // 64 * 64])[::8])

    def wait_made(self, count, timeout_s=PATIENCE_S):
        """Until each thread made `count` marks."""
        wait_until(lambda: self.require_alive() and min(self.made(), default=0) >= count,
                   f"rank {self.rank} made {count} marks", timeout_s)

    def wait_finished(self, count, timeout_s=PATIENCE_S):
        """Until each thread made its `count` marks; a rank that does not hold may have ended by then."""
        wait_until(lambda: min(self.made(), default=0) >= count, f"rank {self.rank} made all {count} marks", timeout_s)

    def verify(self, report, killed=False):
        """AssertionError unless the files hold each mark of this process exactly once."""
        made = self.made()
        assert made and max(made) > 0, "the rank made no marks: nothing is proved"
        found = {thread: [] for thread in range(len(made))}
        for mark in report.ranks[self.rank].marks:
            match = re.fullmatch(r"seq (\d+) (\d+) x*", mark.name)
            if match and mark.pid == self.pid:
                found[int(match[1])].append(int(match[2]))
        for thread, count in enumerate(made):
            got = found[thread]
            assert got == sorted(got), f"rank {self.rank} thread {thread}: marks are out of order"
            doubled = sorted({n for n in got if got.count(n) > 1}) if len(set(got)) != len(got) else []
            assert not doubled, f"rank {self.rank} thread {thread}: written twice: {doubled[:10]}"
            missing = sorted(set(range(count)) - set(got))
            assert not missing, (f"rank {self.rank} thread {thread}: {len(missing)} of {count} marks missing, "
                                 f"from {missing[0]} to {missing[-1]}")
            assert len(got) <= count + (1 if killed else 0), f"rank {self.rank} thread {thread}: {len(got)} of {count} marks"
        return sum(made)


class Stage:
    """Everything that one test started. Ends all of it."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.processes = []

    def _add(self, process):
        self.processes.append(process)
        return process

    def manager(self, **arguments):
        return self._add(Manager(self.folder, **arguments))

    def proxy(self, manager, **arguments):
        return self._add(Proxy(self.folder, manager, **arguments))

    def rank(self, rank, proxy, **arguments):
        return self._add(Rank(self.folder, rank, proxy, **arguments))

    def python(self, name, script, environment, *arguments):
        """A Python program with the package importable. `script` is its text."""
        path = os.path.join(self.folder, f"{name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        environment = clean_environment(PYTHONPATH=PYTHON_PACKAGE, **environment)
        return self._add(Process(name, [PYTHON, path, *arguments], environment, self.folder))

    def run(self, *arguments, environment=None, timeout_s=PATIENCE_S, stdin=None):
        """`taskd ARGUMENTS` to its end."""
        return deadlines.run([TASKD, *arguments], timeout_s, env=environment or clean_environment(), capture_output=True, text=True,
                             stdin=stdin, cwd=self.folder)

    def close(self):
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes if sanitized() else []:
            report = re.search(r"(ERROR: \w*Sanitizer|runtime error:)[^\0]{0,3000}", process.log())
            assert not report, f"{process.name}: {report[0]}"

    def print_logs(self):
        for process in self.processes:
            print(f"--- {process.name} (pid {process.pid}, code {process.child.returncode})\n{process.log()[-2000:]}")
