#!/usr/bin/python3
"""Plays the two machines of a job and its operator; quickstart.sh calls it. Exit code 0 only if every step worked."""
import argparse
import contextlib
import datetime
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import marks

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(REPOSITORY, "tests", "lib"))
import deadlines  # noqa: E402
from ports import free_port  # noqa: E402

PATIENCE_S = 120  # for each event; an idle machine needs a few seconds
BUSY_SHARE = 0.5  # of that time processes wait on a machine that is too busy for a demonstration
LOOK_S = 1  # how often it checks that the job still runs while it waits for Enter
JOB = "default/quickstart"
TASK = "quickstart"
RANKS = range(4)
# Of `taskd goodput`, of a job that was not interrupted: the share, of how much, and what took most.
SENTENCE = re.compile(r"(?:of \d+\.\d % of [\d.]+ rank-(?:seconds|hours) nobody can tell[^;]*; )?"
                      r"(\d+\.\d) % (?:of [\d.]+ rank-(?:seconds|hours) )?were productive; (?:of the rest )?most was lost to [a-z -]+ "
                      r"\(\d+\.\d %\)(?:; of \d+\.\d % nobody can tell)?")
CLOCK_S = 1  # how exact the ledger's times are to be
SLOW_STEPS = 20  # that a slow rank has at least, once it is named
SLOW_S = 0.1  # each of them (trouble.py)
STEERING = re.compile(r"TASKD_|MINDX_|PET_|POD_IP$|RANK$|LOCAL_RANK$|WORLD_SIZE$|MASTER_|LD_PRELOAD$")


class Failed(Exception):
    """A step did not do what it promises."""


class TooBusy(Exception):
    """Something did not come in time, and the machine is starved: it is no failure of a step."""


def require(condition, message):
    if not condition:
        raise Failed(message)


def wait_until(condition, what):
    deadline = deadlines.Deadline(PATIENCE_S)
    try:
        deadlines.wait_until(condition, what, PATIENCE_S, interval_s=0.2)
    except AssertionError as late:
        waited = deadline.extension_s()
        if waited > BUSY_SHARE * PATIENCE_S:
            raise TooBusy(f"{late}: this machine has other work, for {waited:.0f} s processes waited for a CPU or a disk") from None
        raise Failed(str(late)) from None


def say(number, text):
    print(f"\n[{number}] {text}", flush=True)


class Job:
    """Two nodes with two ranks each, all on this machine."""

    def __init__(self, build, work):
        self.taskd = os.path.join(build, "bin", "taskd")
        self.work = work
        self.stop_file = os.path.join(work, "stop")
        self.trouble_file = os.path.join(work, "trouble")
        self.report = os.path.join(work, "report.html")
        self.reported = []  # verdicts that were printed: (scope, ids, cause)
        self.named = 0  # slow ranks that were named
        self.manager = None  # its address, once a rank knows it
        self.nodes = []
        self.moments = {"launched": time.time()}  # Unix times of what the ledger is held against
        self.port = port = free_port()
        clean = {k: v for k, v in os.environ.items() if not STEERING.match(k)}
        for node in (0, 1):
            folder = os.path.join(work, f"node{node}")
            os.makedirs(self.profiling(node))
            environment = {
                **clean, "NODE_RANK": str(node), "TRAINING_PORT": str(port), "WORK": folder, "STOP_FILE": self.stop_file,
                "TROUBLE_FILE": self.trouble_file, "TASKD_BUILD": build, "PYTHONPATH": os.path.join(build, "python"),
                "PYTHON_EXEC": "/usr/bin/python3", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo",
                "MINDX_TASK_ID": TASK, "TASKD_JOB": JOB,
                # Only because two nodes share one machine, with each other and with whatever else is here:
                "TASKD_PROFILING_DIR": self.profiling(node), "TASKD_STATE_DIR": os.path.join(folder, "state"),
                "TASKD_SWITCH_FILE": os.path.join(folder, "no-switch-file"),
            }
            with open(self.log_path(node), "wb") as log:
                self.nodes.append(subprocess.Popen([os.path.join(HERE, "train_node.sh")], env=environment, cwd=folder,
                                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))

    def profiling(self, node):
        return os.path.join(self.work, f"node{node}", "profiling")

    def log_path(self, node):
        return os.path.join(self.work, f"node{node}.log")

    def log(self, node):
        with open(self.log_path(node), encoding="utf-8", errors="replace") as log:
            return log.read()

    def require_running(self):
        for node, process in enumerate(self.nodes):
            require(process.poll() is None, f"node {node} ended with code {process.returncode}:\n{self.log(node)[-3000:]}")

    def training_steps(self):
        """{rank: newest step it printed}."""
        self.require_running()
        found = {}
        for node in (0, 1):
            for rank, step in re.findall(r"^rank (\d+) step (\d+) ", self.log(node), re.M):
                found[int(rank)] = int(step)
        return found

    def wait_for_training(self, more_steps):
        """Until every rank is `more_steps` further than the furthest one is now."""
        goal = max(self.training_steps().values(), default=0) + more_steps
        wait_until(lambda: all(self.training_steps().get(r, 0) >= goal for r in RANKS), f"training reaches step {goal}")
        return goal

    def status(self):
        """{rank: status}, empty while the manager does not answer."""
        done = subprocess.run([self.taskd, "status", "--manager", self.manager, "--json"], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            return {}
        return {rank["rank"]: rank for node in json.loads(done.stdout)["nodes"] for rank in node["ranks"]}

    def marks(self):
        """{rank: what is in its files}, over both nodes."""
        found = {}
        for node in (0, 1):
            found.update(marks.read_task(os.path.join(self.profiling(node), TASK)))
        return {rank: found.get(rank, marks.RankMarks()) for rank in RANKS}

    def counts(self):
        return {rank: found.counts for rank, found in self.marks().items()}

    def show(self, *arguments):
        """Runs a taskd command for the reader's eyes."""
        print(f"$ taskd {' '.join(arguments)} --manager {self.manager}", flush=True)
        done = subprocess.run([self.taskd, *arguments, "--manager", self.manager], capture_output=True, text=True, check=False)
        print("  " + done.stdout.rstrip().replace("\n", "\n  "), flush=True)
        require(done.returncode == 0, f"taskd {arguments[0]} ended with code {done.returncode}: {done.stderr}")

    def page(self):
        """Where the job is to be seen; this user's only, as everything of a job."""
        done = subprocess.run([self.taskd, "ui", "--manager", self.manager], capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"taskd ui ended with code {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def diagnosis(self):
        """The job's present state, from the manager."""
        self.require_running()
        done = subprocess.run([self.taskd, "diagnose", "--manager", self.manager, "--json"], capture_output=True, text=True,
                              check=False)
        require(done.returncode == 0, f"taskd diagnose ended with code {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def trouble(self, cause, rank):
        """From now on this rank is slow; `cause` is one that trouble.py knows."""
        with open(self.trouble_file + ".new", "w", encoding="ascii") as file:
            file.write(f"{cause} {rank}")
        os.rename(self.trouble_file + ".new", self.trouble_file)

    def trouble_since(self, cause, rank):
        """The first step in which it was slow; None before that."""
        found = re.search(rf"^rank {rank} step (\d+) trouble: {cause}$", self.log(rank // 2), re.M)
        return int(found[1]) if found else None

    def stubs(self):
        """(messages, services) of proto/profiling.proto, as anybody with protoc makes them."""
        if self.work not in sys.path:
            subprocess.run(["protoc", f"--proto_path={REPOSITORY}/proto", f"--python_out={self.work}", f"--grpc_python_out={self.work}",
                            f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", "profiling.proto"], check=True)
            sys.path.insert(0, self.work)
        return importlib.import_module("profiling_pb2"), importlib.import_module("profiling_pb2_grpc")

    def modify(self, **switch):
        """ClusterD's call, by a client that knows nothing but proto/profiling.proto."""
        messages, services = self.stubs()
        with grpc.insecure_channel(self.manager) as channel:
            answer = services.TrainingDataTraceStub(channel).ModifyTrainingDataTraceSwitch(
                messages.DataTypeReq(jobNsName=JOB, profilingSwitch=messages.ProfilingSwitch(**switch)), timeout=deadlines.HANG_S)
        shown = " ".join(f"{k}={v}" for k, v in switch.items())
        print(f"ModifyTrainingDataTraceSwitch({JOB}: {shown}) -> {answer.code} {answer.message}", flush=True)
        require(answer.code == 200, f"the manager answered {answer.code}, not 200")

    def finish(self):
        """Lets the training end; its processes must end by themselves, with code 0."""
        with open(self.stop_file, "w", encoding="utf-8"):
            pass
        for node, process in enumerate(self.nodes):
            try:
                code = deadlines.wait_child(process, PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise Failed(f"node {node} did not end within {PATIENCE_S} s:\n{self.log(node)[-3000:]}") from None
            require(code == 0, f"node {node} ended with code {code}:\n{self.log(node)[-3000:]}")

    def passed(self, moment):
        self.moments[moment] = time.time()

    def goodput(self):
        """(its sentence, as JSON) of what the manager has kept: the job has ended."""
        command = [self.taskd, "goodput", "--state-dir", os.path.join(self.work, "node0", "state")]
        answers = []
        for flags in ([], ["--json"]):
            done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
            require(done.returncode == 0, f"taskd goodput ended with code {done.returncode}: {done.stderr}")
            answers.append(done.stdout)
        print(f"$ taskd goodput --state-dir {command[-1]}", flush=True)
        return answers[0].splitlines()[0], json.loads(answers[1])

    def processes(self):
        """{pid: environment} of our processes that run: those whose environment has this job's folder."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as environ:
                    variables = dict(v.split("=", 1) for v in environ.read().split("\0") if "=" in v)
            except OSError:
                continue  # it has ended, or is another user's
            if variables.get("WORK", "").startswith(f"{self.work}/node"):
                found[int(pid)] = variables
        return found

    def find_manager(self):
        """Node 0's launcher has started it on a free port and passes its address to every rank."""
        self.require_running()
        require("no manager: " not in self.log(0), f"the manager does not start:\n{self.log(0)[:2000]}")
        self.manager = next((v["TASKD_MANAGER"] for v in self.processes().values() if "TASKD_MANAGER" in v), None)
        return self.manager

    def kill(self):
        """Ends whatever of ours still runs."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.nodes:
            process.wait()


def require_none_lost(ranks):
    """Steps are numbered: a gap would be a lost mark; and every range that began has its end."""
    for rank in RANKS:
        steps = ranks[rank].steps
        require(steps == list(range(steps[0], steps[0] + len(steps))), f"rank {rank}: its step numbers have a gap")
        require(len(ranks[rank].open) <= 1, f"rank {rank}: {len(ranks[rank].open)} ranges have no end")


def require_plausible(sentence, goodput, job):
    """The ledger against what this script knows of the run: when it began and ended, when marks were off, who was slow."""
    seconds, wall, all_s, moments = goodput["seconds"], goodput["wall_s"], goodput["rank_s"], job.moments

    def agree(holds, what):
        require(holds, f"the ledger and the run do not agree, {what}: {json.dumps(goodput)}")

    found = SENTENCE.fullmatch(sentence)
    agree(found, f"this is no sentence about it: {sentence}")
    agree(abs(float(found[1]) - 100 * seconds["productive"] / all_s) <= 0.051, f"its sentence has another share: {sentence}")
    agree(goodput["slots"] == len(RANKS) and abs(all_s - len(RANKS) * wall) <= 1e-3 * all_s, f"{len(RANKS)} ranks have lived {wall} s each")
    agree(abs(sum(seconds.values()) - all_s) <= 1e-3 * all_s, "its categories add up")
    # On a machine that stands still for a while the job hangs, but nobody has ended it.
    agree(all(incident["kind"] in ("straggler", "hang") for incident in goodput["incidents"]), "nothing was restarted")

    since, until = (datetime.datetime.fromisoformat(goodput[key].replace("Z", "+00:00")).timestamp() for key in ("since", "until"))
    agree(moments["launched"] - CLOCK_S <= since <= moments["found"] + CLOCK_S, f"it began at {moments['launched']:.3f}")
    agree(moments["stopped"] - CLOCK_S <= until <= moments["ended"] + CLOCK_S, f"it ended at {moments['ended']:.3f}")
    off_s = moments["switched_on"] - moments["trains"] + moments["stopped"] - moments["switched_off"]
    agree(seconds["unmarked"] >= len(RANKS) * (off_s - 2 * CLOCK_S), f"marks were off for {off_s:.1f} s at least")
    # Half of what trouble.py has put into the steps that watch() waited for: all ranks wait for the slow one.
    slow_s = job.named * SLOW_STEPS * SLOW_S * len(RANKS)
    agree(seconds["productive"] > 0 and seconds["straggler"] + seconds["data"] >= slow_s / 2, f"slow ranks took {slow_s:.1f} rank-seconds")


def table(counts):
    print(f"  {'rank':>4} " + " ".join(f"{kind:>15}" for kind in marks.KINDS))
    for rank in RANKS:
        print(f"  {rank:>4} " + " ".join(f"{counts[rank][kind]:>15}" for kind in marks.KINDS), flush=True)


def watch(job, wanted, steps):
    """Waits until the diagnosis has named rank `wanted` first for `steps` steps. If `wanted` is None, it must name no rank.

    Any cause counts: on a busy machine a rank that computes more may mostly wait for a CPU. Each verdict is printed once, also
    those of other ranks and of the whole job, which a busy machine may slow down for a while.
    """
    since = None

    def held():
        nonlocal since
        diagnosis = job.diagnosis()
        step = diagnosis["steps"]["last"]
        verdicts = [v for v in diagnosis["verdicts"] if v["state"] == "open"]
        keys = [(v["scope"], v["ids"], v["cause"]) for v in verdicts]
        for key, verdict in zip(keys, verdicts):
            if key not in job.reported:
                job.reported.append(key)
                print(f"  step {step}: {verdict['text']}", flush=True)
        named = [ids for scope, ids, _ in keys if scope != "job"]
        if diagnosis["state"] == "unknown" or (named[0] if named else None) != (None if wanted is None else [wanted]):
            since = None
            return False
        since = step if since is None else since
        return step >= since + steps

    wait_until(held, "the diagnosis names no slow rank" if wanted is None else f"the diagnosis names rank {wanted} as slow")


def slow_rank(job, cause, rank):
    """Makes a rank slow and waits until it is named; lets it recover and waits until that is seen."""
    job.trouble(cause, rank)
    wait_until(lambda: job.trouble_since(cause, rank) is not None, f"rank {rank} gets slow")
    print(f"It is slow since step {job.trouble_since(cause, rank)}. Now and then: "
          f"taskd diagnose --manager {job.manager} --json", flush=True)
    watch(job, rank, SLOW_STEPS)
    job.show("diagnose")
    job.named += 1
    os.unlink(job.trouble_file)
    watch(job, None, 20)
    print(f"Rank {rank} has recovered; the verdict is cleared.")


@contextlib.contextmanager
def unless_too_busy(job):
    """What the diagnosis shows on an idle machine within seconds."""
    try:
        yield
    except TooBusy as busy:
        print(f"Left out: {busy}.", flush=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(job.trouble_file)


def stay(job):
    """A rank is slow for as long as somebody wants to look."""
    print(f"\nRank 2 is slow again, and the job stays as it is. Look: {job.page()}\n"
          f"and: taskd status --manager {job.manager}; taskd diagnose --manager {job.manager}\n"
          "Enter goes on with the quick start, Ctrl-C ends it.", flush=True)
    job.trouble("compute", 2)
    enter = threading.Thread(target=sys.stdin.readline, daemon=True)
    enter.start()
    while enter.is_alive():
        job.require_running()
        enter.join(LOOK_S)
    os.unlink(job.trouble_file)


def run(job, stays):
    say(1, "A training job starts: 2 nodes x 2 ranks, PyTorch over gloo. Where you have torchrun there is taskd run:")
    for node in (0, 1):
        print(f"$ taskd run --nnodes 2 --node-rank {node} --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {job.port} train.py")
    sys.stdout.flush()
    wait_until(job.find_manager, "a rank knows the manager")
    job.passed("found")
    wait_until(lambda: job.require_running() or {r for r, s in job.status().items() if s["attached"]} == set(RANKS),
               "all four ranks are attached")
    steps = job.wait_for_training(10)
    job.passed("trains")
    print(f"All 4 ranks train (step {steps}) and are attached to their node's proxy; the manager is at {job.manager}. Marks are off.")
    print(f"In a browser, from now until the end: {job.page()}")

    say(2, "Nobody has asked for marks, so there are none")
    table(job.counts())
    require(not any(sum(c.values()) for c in job.counts().values()), "there are marks already")

    say(3, "Switch them on while the job runs; each rank answers")
    job.passed("switched_on")
    job.show("switch", "step=on", "forward=on", "dataloader=on", "checkpoint=on", "communication=off")

    say(4, "Live: what each rank recorded so far")
    job.wait_for_training(30)
    job.show("status")
    wait_until(lambda: all(c[k] > 0 for c in job.counts().values() for k in marks.KINDS if k != "communication"),
               "every rank has marks of step, forward, dataloader and checkpoint")
    require(all(c["communication"] == 0 for c in job.counts().values()), "there are communication marks, which are off")

    say(5, "Communication on, too: each all-reduce with its group, size and type")
    print("This time as MindCluster's ClusterD does it, by a gRPC client made from proto/profiling.proto:")
    job.modify(CommunicationOperator="on")
    wait_until(lambda: all(c["communication"] >= 20 for c in job.counts().values()), "every rank has communication marks")
    wait_until(lambda: all(s["marks"]["communication"] >= 20 for s in job.status().values()), "and the manager knows of them")
    job.show("status")

    say(6, "Is a rank slow? So far, none is")
    with unless_too_busy(job):
        watch(job, None, 50)
    job.show("diagnose")

    say(7, "The accelerator of rank 2 gets slower: 100 ms more in each step")
    with unless_too_busy(job):
        slow_rank(job, "compute", 2)

    say(8, "Rank 1 waits for its data: 100 ms for each batch")
    with unless_too_busy(job):
        slow_rank(job, "dataloader", 1)
    if stays:
        stay(job)

    say(9, "Everything off again; the training goes on")
    job.show("switch", "all=off")
    wait_until(lambda: all(set(s["applied"].values()) == {"off"} for s in job.status().values()), "every rank is switched off")
    job.passed("switched_off")
    steps = job.wait_for_training(10)
    wait_until(lambda: [list(job.status()[r]["marks"].values()) for r in RANKS] == [list(job.counts()[r].values()) for r in RANKS],
               "status and files agree")
    counts = job.counts()
    job.wait_for_training(20)
    require(job.counts() == counts, "marks were written after the switch to off")
    print(f"No new marks up to step {max(job.training_steps().values())}.")
    lost = {r: s["lost"] for r, s in job.status().items()}

    say(10, "The job on one page, for a ticket; then it ends, and what is on disk")
    job.show("report", "-o", job.report)
    with open(job.report, encoding="utf-8") as report:
        require(not job.named or "What was slow before" in report.read(), f"{job.report} does not name the ranks that were slow")
    job.passed("stopped")
    job.finish()
    wait_until(lambda: not job.processes(), "everything has ended by itself")
    job.passed("ended")
    ranks, counts = job.marks(), job.counts()
    table(counts)
    require(all(counts[r][kind] > 0 for r in RANKS for kind in marks.KINDS), "a rank has no marks of some kind")
    require(lost == dict.fromkeys(RANKS, 0), f"marks were lost: {lost}")
    require_none_lost(ranks)
    for node in (0, 1):
        require(os.path.isfile(os.path.join(job.profiling(node), TASK, str(2 * node), "parallel_group.json")),
                f"node {node} has no parallel_group.json")
    print("None lost: 0 counted as overwritten, step numbers without a gap, every range ended.")
    print(f"Files: {job.profiling(0)}/{TASK}/<rank>/, {job.profiling(1)}/{TASK}/<rank>/")

    say(11, "Where the time of its ranks went")
    sentence, goodput = job.goodput()
    print(f"  {sentence}", flush=True)
    require_plausible(sentence, goodput, job)
    print(f"{goodput['slots']} ranks x {goodput['wall_s']:.1f} s; from the first process's start to the last one's end it took "
          f"{job.moments['ended'] - job.moments['launched']:.1f} s.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stay", action="store_true", help="keeps the job running, with a slow rank, for you to look at")
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build", "release"))
    parser.add_argument("--work", help="folder for everything; a new one below the temporary folder by default")
    arguments = parser.parse_args()
    began = time.monotonic()
    os.umask(0o022)  # a folder that a group can write to is not trusted with a manager's state
    work = os.path.abspath(arguments.work) if arguments.work else tempfile.mkdtemp(prefix="taskd-quickstart-")
    job = Job(os.path.abspath(arguments.build), work)
    try:
        run(job, arguments.stay)
    except KeyboardInterrupt:
        print(f"\nEnded. `rm -r {work}` removes the files.", file=sys.stderr)
        return 130
    except TooBusy as busy:
        print(f"\nThe quick start stops here: {busy}. Try again when it has less to do.\nLogs: {work}/node0.log, {work}/node1.log",
              file=sys.stderr)
        return 1
    except Failed as failure:
        print(f"\nquickstart failed: {failure}\nLogs: {work}/node0.log, {work}/node1.log", file=sys.stderr)
        return 1
    finally:
        job.kill()
    print(f"\nDone in {time.monotonic() - began:.0f} s; nothing is left running. Open {job.report} in a browser.\n"
          f"`rm -r {work}` removes all files.")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
