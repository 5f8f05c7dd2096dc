"""What tests/distros.sh does with a wheel inside of each root filesystem: scenario.py WHEEL RESULT

Installs the wheel, uses what it brought as a user would, and takes it away again. Nothing but the standard library, Python
3.9 and later. RESULT gets one line: glibc, Python, PyTorch, the steps that passed, and "passed" or which steps failed.
"""
import glob
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import traceback

WORK = "/tmp/scenario"
PYTHON = sys.executable
# For a slow machine that plays another one; nothing here measures time.
PATIENCE_S = 300.0
MACHINES = {62: "x86_64", 183: "aarch64"}

# A training process that marks its steps itself, until the file in its argument is there.
RANK = """
import os, sys, time
from taskd import mstx
from taskd.api import init_taskd_worker, start_taskd_worker
assert init_taskd_worker(int(os.environ["RANK"])) and start_taskd_worker()
assert mstx.backend == "extension", mstx.backend
step = 0
while not os.path.exists(sys.argv[1]):
    whole = mstx.range_start(f"step {step}")
    forward = mstx.range_start("forward")
    time.sleep(0.01)
    mstx.range_end(forward)
    mstx.mark("all_reduce", domain="communication")
    time.sleep(0.01)
    mstx.range_end(whole)
    step += 1
    print(step, flush=True)
"""

# PyTorch's client of the store: two processes, one at the root and one at a tier.
STORE_CLIENT = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
me, port = int(sys.argv[1]), int(sys.argv[2])
where = dict(host_name="127.0.0.1", port=port, world_size=2, is_master=False, timeout=timedelta(seconds=200))
try:
    store = TCPStore(use_libuv=False, **where)
except TypeError:  # a release that knows no libuv
    store = TCPStore(**where)
store.set(f"from {me}", f"value {me}")
store.wait([f"from {1 - me}"])
assert store.get(f"from {1 - me}") == f"value {1 - me}".encode()
store.add("sum", me + 1)
store.set(f"added {me}", "")
store.wait(["added 0", "added 1"])
assert store.add("sum", 0) == 3, store.get("sum")
if hasattr(store, "compare_set"):
    first = store.compare_set("winner", "", f"{me}")
    assert first in (b"0", b"1"), first
print("answered")
"""

# Data-parallel training that knows nothing of TaskD, until the file in its argument is there.
DDP = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_world_size() == 2
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps, ended = 0, torch.zeros(1)
while ended.item() == 0:
    optimizer.zero_grad()
    model(torch.rand(4, 8)).pow(2).sum().backward()
    optimizer.step()
    ended.fill_(os.path.exists(sys.argv[1]))
    dist.all_reduce(ended)
    steps += 1
total = sum(p.detach().double().sum() for p in model.parameters()).reshape(1)
least, most = total.clone(), total.clone()
dist.all_reduce(least, op=dist.ReduceOp.MIN)
dist.all_reduce(most, op=dist.ReduceOp.MAX)
assert least.item() == most.item(), "the replicas differ"
print(f"rank {dist.get_rank()} trained {steps} steps", flush=True)
dist.destroy_process_group()
"""

# The same by way of Hugging Face.
TRAINER = """
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {"loss": self.layer(x).pow(2).sum()}


arguments = TrainingArguments(output_dir="/tmp/scenario/trainer", max_steps=20, per_device_train_batch_size=4, use_cpu=True,
                              ddp_backend="gloo", save_strategy="no", report_to=[], disable_tqdm=True)
assert arguments.world_size == 2
trainer = Trainer(model=Model(), args=arguments, train_dataset=[{"x": torch.rand(8)} for _ in range(400)])
print(f"rank {arguments.process_index} trained {trainer.train().global_step} steps", flush=True)
"""


class Failed(Exception):
    """Something is not as it has to be."""


def require(condition, what):
    if not condition:
        raise Failed(what)


def wait_until(condition, what):
    """The first true value of condition()."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        require(time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.1)


def run(*command, **environment):
    """Its standard output; it must be a success."""
    done = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    require(done.returncode == 0, f"{' '.join(command)}: code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def ask(*command):
    """The answer to `taskd ... --json`."""
    return json.loads(run("taskd", *command, "--json"))


def write(name, text):
    path = os.path.join(WORK, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


class Child:
    """A process of the scenario, with what it prints in a file."""

    running = []

    def __init__(self, name, *command, **environment):
        self.name = name
        self.log_path = os.path.join(WORK, f"{name}.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)
        self.pid = self.process.pid
        Child.running.append(self)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def require_alive(self):
        require(self.process.poll() is None, f"{self.name} ended with code {self.process.returncode}:\n{self.log()[-3000:]}")
        return True

    def wait(self):
        """Until it has ended, which must be a success."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} does not end:\n{self.log()[-3000:]}") from None
        require(code == 0, f"{self.name} ended with code {code}:\n{self.log()[-3000:]}")
        Child.running.remove(self)

    def terminate(self):
        self.process.terminate()
        self.wait()

    @classmethod
    def end_all(cls):
        """After a failure."""
        while cls.running:
            child = cls.running.pop()
            print(f"  --- {child.name}:\n{child.log()[-2000:]}")
            child.process.send_signal(signal.SIGKILL)
            child.process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def elf_machine(path):
    """"x86_64", "aarch64"; None: no ELF file."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    return MACHINES.get(int.from_bytes(head[18:20], "little"), "another") if head[:4] == b"\x7fELF" else None


def mapped_programs(pid):
    """{path: machine} of the ELF files that a process runs, without the QEMU that may play its processor."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
    machines = {path: elf_machine(path) for path in paths if not os.path.basename(path).startswith("qemu-")}
    return {path: machine for path, machine in machines.items() if machine is not None}


def all_files():
    """Of the root filesystem, folders with a / at the end: what an installation may leave behind."""
    found = set()
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev", "tmp", "run", "scenario")]
        found.update(os.path.join(folder, name) for name in names)
        found.update(os.path.join(folder, name, "") for name in folders)
    return found


class Scenario:
    def __init__(self, wheel):
        self.wheel = wheel
        self.torch = version_of("torch")
        self.machine = elf_machine(os.path.realpath(PYTHON))
        # PEP 668
        marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
        self.pip = ["--break-system-packages"] if os.path.exists(marker) else []

    def steps(self):
        yield self.install
        yield self.version
        yield self.files
        yield self.marks
        yield self.simulate
        if self.torch:
            yield self.store
            yield self.ddp
            if version_of("transformers"):
                yield self.trainer
        yield self.uninstall

    def install(self):
        self.before = all_files()
        run(PYTHON, "-m", "pip", "install", "--no-index", *self.pip, self.wheel)
        require(shutil.which("taskd"), "no taskd in PATH")

    def version(self):
        said = run("taskd", "--version")
        require(said == f"taskd {importlib.metadata.version('taskd')}\n", f"taskd --version says {said!r}")

    def files(self):
        listed = {str(file): os.path.realpath(file.locate()) for file in importlib.metadata.files("taskd")}
        programs = {name: elf_machine(path) for name, path in listed.items() if elf_machine(path)}
        print("\n".join(f"  {machine} {name}" for name, machine in programs.items()))
        for name in ("taskd/bin/taskd", "taskd/_mstx.abi3.so", "taskd/python/cython_api/libs/libtaskd.so"):
            require(name in programs, f"{name} is not in the wheel")
        require(set(programs.values()) == {self.machine}, f"not all for {self.machine}: {programs}")
        self.library = listed["taskd/python/cython_api/libs/libtaskd.so"]
        self.program = listed["taskd/bin/taskd"]

    def marks(self):
        """Manager, proxy and two marking processes; switched on and off; status; diagnose."""
        profiling = os.path.join(WORK, "profiling")
        address = f"127.0.0.1:{free_port()}"
        stop = os.path.join(WORK, "stop")
        ask_job = ("--manager", address, "--job", "default/distros")
        manager = Child("manager", "taskd", "manager", "--job", "default/distros", "--listen", address, "--http",
                        f"127.0.0.1:{free_port()}", "--state-dir", os.path.join(WORK, "state"))
        proxy = Child("proxy", "taskd", "proxy", "--manager", address, "--listen", f"127.0.0.1:{free_port()}", "--socket",
                      os.path.join(WORK, "proxy.sock"), "--profiling-dir", profiling)
        wait_until(lambda: proxy.require_alive() and "connected to manager" in proxy.log(), "the proxy has its manager")
        script = write("rank.py", RANK)
        ranks = [Child(f"rank{rank}", PYTHON, script, stop, RANK=str(rank), LD_PRELOAD=self.library,
                       TASKD_SOCKET=os.path.join(WORK, "proxy.sock")) for rank in (0, 1)]

        def status():
            for child in (manager, proxy, *ranks):
                child.require_alive()
            found = ask("status", *ask_job)
            return {rank["rank"]: rank for node in found["nodes"] for rank in node["ranks"] if rank["attached"]}

        wait_until(lambda: set(status()) == {0, 1}, "both ranks are attached")
        self.show_processes(manager, proxy, *ranks)

        answer = ask("switch", *ask_job, "all=on")
        require((answer["applied"], answer["total"]) == (2, 2), f"switched on: {answer}")
        wait_until(lambda: all(rank["marks"][kind] >= 20 for rank in status().values()
                               for kind in ("step", "fp", "communication")), "marks of every kind of both ranks are written")
        report = wait_until(lambda: [r for r in [ask("diagnose", *ask_job)] if r["steps"]["last"] >= 20], "steps are judged")[0]
        require((report["ranks"], report["job"]) == (2, "default/distros"), f"diagnosed: {report}")

        answer = ask("switch", *ask_job, "all=off")
        require((answer["applied"], answer["total"]) == (2, 2), f"switched off: {answer}")
        deadline_ns = time.time_ns() + 1_000_000_000
        wait_until(lambda: time.time_ns() > deadline_ns, "a second after the switch")
        made = [len(rank.log()) for rank in ranks]
        wait_until(lambda: all(len(rank.log()) > before + 100 for rank, before in zip(ranks, made)), "training goes on")
        write("stop", "")
        for rank in ranks:
            rank.wait()
        proxy.terminate()
        manager.terminate()
        for rank in (0, 1):
            written = marks_of(profiling, rank)
            require(written and written[0]["Name"], f"rank {rank} has no marks")
            require(max(mark["Timestamp"] for mark in written) < deadline_ns, f"rank {rank} was marked after the switch")
        folder = glob.glob(os.path.join(profiling, "*"))[0]
        report = ask("diagnose", "--from", folder)
        require(report["ranks"] == 2, f"diagnosed from files: {report}")

    def simulate(self):
        """A rank that is known to be slow is found: the arithmetic of the diagnosis, from files."""
        out = os.path.join(WORK, "simulated")
        run("taskd", "simulate", "--ranks", "8", "--ranks-per-node", "4", "--fault", "compute:5:1.4@40", "--out", out)
        report = ask("diagnose", "--from", out)
        found = [(verdict["scope"], verdict["ids"], verdict["cause"]) for verdict in report["verdicts"]]
        require(found == [("rank", [5], "compute")], f"diagnosed: {report}")

    def store(self):
        ports = [free_port(), free_port()]
        root = Child("store", "taskd", "store", "--listen", f"127.0.0.1:{ports[0]}")
        tier = Child("tier", "taskd", "store", "--listen", f"127.0.0.1:{ports[1]}", "--upstream", f"127.0.0.1:{ports[0]}")
        for server in (root, tier):
            wait_until(lambda: server.require_alive() and "listening" in server.log(), f"{server.name} listens")
        script = write("store_client.py", STORE_CLIENT)
        clients = [Child(f"client{me}", PYTHON, script, str(me), str(port)) for me, port in enumerate(ports)]
        for client in clients:
            client.wait()
            require(client.log().endswith("answered\n"), client.log())
        for server in (tier, root):
            server.terminate()

    def ddp(self):
        """Two ranks of `taskd run`; nothing is given to them but the script."""
        profiling = os.path.join(WORK, "ddp")
        stop = os.path.join(WORK, "stop-ddp")
        job = Child("run", "taskd", "run", "--standalone", "--nproc-per-node", "2", write("ddp.py", DDP), stop,
                    TASKD_PROFILING_DIR=profiling, TASKD_JOB="default/ddp")

        def attached():
            job.require_alive()
            done = subprocess.run(["taskd", "status", "--job", "default/ddp", "--json"], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0:  # there is no manager yet
                return []
            return [rank for node in json.loads(done.stdout)["nodes"] for rank in node["ranks"] if rank["attached"]]

        ranks = wait_until(lambda: len(attached()) == 2 and attached(), "both ranks are attached")
        self.show_processes(*(rank["pid"] for rank in ranks))
        answer = ask("switch", "--job", "default/ddp", "all=on")
        require((answer["applied"], answer["total"]) == (2, 2), f"switched on: {answer}")
        wait_until(lambda: all(rank["marks"]["step"] >= 20 and rank["marks"]["fp"] >= 20 for rank in attached()),
                   "PyTorch's steps are marked")
        write("stop-ddp", "")
        job.wait()
        for rank in (0, 1):
            require(f"rank {rank} trained" in job.log(), job.log())

    def trainer(self):
        job = Child("trainer", "taskd", "run", "--standalone", "--nproc-per-node", "2", write("trainer.py", TRAINER),
                    TASKD_PROFILING_DIR=os.path.join(WORK, "trainer-marks"))
        job.wait()
        for rank in (0, 1):
            require(f"rank {rank} trained 20 steps" in job.log(), job.log())

    def uninstall(self):
        run(PYTHON, "-m", "pip", "uninstall", "--yes", *self.pip, "taskd")
        left = sorted(all_files() - self.before)
        require(not left, "is left: " + " ".join(left[:20]))
        gone = sorted(path for path in self.before - all_files() if not path.endswith("/"))  # pip removes empty folders
        require(not gone, "is gone: " + " ".join(gone[:20]))

    def show_processes(self, *processes):
        """Each has to be a program of this root's architecture."""
        for process in processes:
            pid = process.pid if isinstance(process, Child) else process
            programs = mapped_programs(pid)
            main = next((path for path in programs if path in (self.program, os.path.realpath(PYTHON))), None)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            print(f"  pid {pid} {programs.get(main)} {main}: {command[:160]}")
            require(main is not None, f"pid {pid} runs neither taskd nor Python: {programs}")
            require(set(programs.values()) == {self.machine}, f"pid {pid} runs {programs}")
            if main != self.program:
                require(self.library in programs, f"libtaskd.so is not in rank {pid}: {sorted(programs)}")


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def marks_of(profiling, rank):
    """The marks in the files of a rank, oldest file first."""
    marks = []
    for path in sorted(glob.glob(os.path.join(profiling, "*", str(rank), "[0-9]*"))):
        with open(path, encoding="utf-8") as file:
            marks += [json.loads(line) for line in file]
    return marks


def main():
    wheel, result = sys.argv[1:]
    os.makedirs(WORK)
    scenario = Scenario(wheel)
    print(f"{platform.platform()} {scenario.machine}, PyTorch {scenario.torch}")
    passed, failed = [], []
    for step in scenario.steps():
        name = step.__name__
        if {"install", "version", "files"} & set(failed) and name != "uninstall":
            continue
        begin = time.monotonic()
        try:
            step()
            passed.append(name)
            print(f"passed {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception as error:
            failed.append(name)
            print(f"FAILED {name} ({time.monotonic() - begin:.1f} s): {error}", flush=True)
            if not isinstance(error, Failed):
                traceback.print_exc(file=sys.stdout)
            Child.end_all()
    fields = (os.confstr("CS_GNU_LIBC_VERSION").split()[1], platform.python_version(), (scenario.torch or "-").split("+")[0], " ".join(passed) or "-",
              "FAILED: " + " ".join(failed) if failed else "passed")
    with open(result, "w", encoding="utf-8") as file:
        file.write("\t".join(fields) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
