#!/usr/bin/python3
"""Real PyTorch jobs on two "nodes" of this machine, into which known amounts of lost time are put; does the ledger find them?

inject.py [--runs 30] [--seed N] [--events kill,hang,...] [--out FILE] [--python COMMAND]
inject.py --of FILE...                   the table of runs that were made before

Plan of a run, drawn at random: how long imports, the first step and saving take, and two to five of
  late        node 1's launcher comes 5 s after node 0's
  loader      the data loader of one rank stalls for 2 s
  straggler   a rank computes longer, by half a step to a whole one, for 300 steps
  evaluation  3 s between two steps, of all ranks
  hang        a rank does nothing for 8 s
  suspended   SIGSTOP of all ranks for 5 s
  off         step marks are switched off for 6 s
  kill        a rank kills itself; the next attempt goes on from the checkpoint
  node_lost   kill -9 of node 1's launcher; another one comes 3 s later
  manager     kill -9 of the manager

The truth is the ranks' own (job.py: each writes down by time.time() what it did when) and this script's: both know what they
have done, neither reads a mark. Compared is each category's rank-seconds a slot: within 1 s or 2 % of the truth counts. What
people compute without a ledger is shown beside it, for the same runs: the two counters taskd_productive_seconds_total by
taskd_wall_seconds_total, steps done x median step / wall time, and what torchrun's own log could tell: the time in which an
attempt ran. Needs PyTorch.
"""
import argparse
import collections
import contextlib
import glob
import json
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import deadlines  # noqa: E402
import harness  # noqa: E402
from ports import free_port  # noqa: E402

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")
CATEGORIES = ("queue", "waiting", "launch", "link_up", "warm_up", "productive", "data", "checkpoint", "straggler", "other", "redone",
              "hang", "restart", "suspended", "unmarked", "unknown")
EVENTS = ("late", "loader", "straggler", "evaluation", "hang", "suspended", "off", "kill", "node_lost", "manager")
SLOTS = 4
NEAR_S, NEAR_RATIO = 1.0, 0.02
GAP_STEPS = 60  # between two events
LATE_S, LOADER_S, EVALUATION_S, HANG_S, SUSPENDED_S, OFF_S, REPLACED_S = 5, 2, 3, 8, 5, 6, 3


def draw_plan(rng, names):
    """Events at steps that lie apart, each rank that one hits at random."""
    chosen = [name for name in EVENTS if name in rng.sample(names, min(len(names), rng.randint(2, 5)))]
    plan = {"import_s": round(rng.uniform(0.2, 3), 2), "first_step_s": round(rng.uniform(0, 4), 2), "save_every": rng.randint(40, 80),
            "save_s": round(rng.uniform(0.1, 0.6), 2), "step_s": 0.05, "events": {}}
    step = GAP_STEPS
    timed = [name for name in chosen if name != "late"]
    rng.shuffle(timed)
    for name in timed:
        event = {"step": step, "rank": rng.randrange(SLOTS)}
        if name == "straggler":
            event.update(steps=300, s=round(rng.uniform(0.5, 1) * plan["step_s"], 3))
        event["s"] = {"loader": LOADER_S, "evaluation": EVALUATION_S, "hang": HANG_S}.get(name, event.get("s", 0))
        if name == "off":
            event["steps"] = round(2 * OFF_S / plan["step_s"])
        if name == "evaluation":
            del event["rank"]
        plan["events"][name] = event
        step += event.get("steps", 0) + GAP_STEPS
    if "late" in chosen:
        plan["events"]["late"] = {"s": LATE_S}
    plan["steps"] = step
    # What happens in a later life than the first: after an end of one before it.
    attempt = 0
    for event in sorted((e for e in plan["events"].values() if "step" in e), key=lambda e: e["step"]):
        event["attempt"] = attempt
        attempt += event in (plan["events"].get("kill"), plan["events"].get("node_lost"))
    return plan


class Run:
    """One job. Knows when it did what."""

    def __init__(self, folder, plan, python):
        self.folder, self.plan, self.python = folder, plan, python
        self.ranks_folder = os.path.join(folder, "ranks")
        os.mkdir(self.ranks_folder)
        with open(os.path.join(self.ranks_folder, "plan.json"), "w", encoding="utf-8") as file:
            json.dump(plan, file)
        self.state = os.path.join(folder, "state")
        self.switch_file = os.path.join(folder, "switch")
        with open(self.switch_file, "w", encoding="utf-8") as file:
            json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)
        self.port = free_port()
        self.launchers = {}
        self.told = {}  # what this script has done -> (begin, end), Unix time
        self.counters = (0.0, 0.0)

    def launch(self, node):
        environment = harness.clean_environment(
            PYTHON_EXEC=self.python[0] if len(self.python) == 1 else None, TMPDIR=self.folder,
            PYTHONPATH=harness.PYTHON_PACKAGE, PYTHONDONTWRITEBYTECODE=1,
            OMP_NUM_THREADS=1, TASKD_PROFILING_DIR=os.path.join(self.folder, "profiling"), MINDX_TASK_ID="goodput",
            TASKD_SWITCH_FILE=self.switch_file, GLOO_SOCKET_IFNAME="lo", TASKD_STATE_DIR=self.state)
        command = [harness.TASKD, "run", "--nnodes=2:2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--max-restarts=5",
                   f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}"]
        program = ["-m", "taskd.torch", JOB] if len(self.python) == 1 else ["--no-python", *self.python, "-m", "taskd.torch", JOB]
        self.launchers[node] = harness.Process(f"node{node}", [*command, *program, self.ranks_folder], environment, self.folder)

    def lines(self, rank):
        """(attempt, what it wrote) of a rank so far."""
        for path in sorted(glob.glob(os.path.join(self.ranks_folder, f"times.{rank}.*")), key=lambda path: int(path.rpartition(".")[2])):
            with open(path, encoding="utf-8") as file:
                for line in file.read().splitlines(keepends=True):
                    if line.endswith("\n"):
                        yield int(path.rpartition(".")[2]), json.loads(line)

    def wait_step(self, event):
        """Until rank 0 has done this step in this attempt."""
        def done():
            self.launchers[0].require_alive()
            return any(attempt == event["attempt"] and line.get("step", -1) >= event["step"] for attempt, line in self.lines(0))
        harness.wait_until(done, f"rank 0 does step {event['step']}", timeout_s=120)

    def rank_pids(self):
        """Of ranks that run: children of the launchers."""
        found = []
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                with open(os.path.join(entry, "cmdline"), "rb") as file:
                    command = file.read().split(b"\0")
                with open(os.path.join(entry, "environ"), "rb") as file:
                    is_rank = b"TORCHELASTIC_RESTART_COUNT" in file.read()
                if is_rank and self.ranks_folder.encode() in command:
                    found.append(int(os.path.basename(entry)))
        return found

    def pause(self):
        pids = self.rank_pids()
        assert len(pids) == SLOTS, pids
        begin = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.told["suspended"] = (begin, time.time())

    def set_steps(self, state):
        manager = "127.0.0.1:" + re.search(r"the manager is at port (\d+)", self.launchers[0].log())[1]
        deadlines.run([harness.TASKD, "switch", "--manager", manager, f"step={state}"], env=harness.clean_environment(),
                      stdout=subprocess.DEVNULL, check=True)

    def switch_off(self):
        self.set_steps("off")
        begin = time.time()
        time.sleep(OFF_S)
        self.set_steps("on")
        self.told["off"] = (begin, time.time())

    def lose_node(self):
        begin = time.time()
        self.launchers[1].kill()
        harness.wait_until(lambda: len(self.rank_pids()) == 0, "the ranks of the round have ended", interval_s=0.01)
        ended = time.time()
        time.sleep(max(0.0, begin + REPLACED_S - time.time()))
        self.told["node_lost"] = (begin, ended)
        self.launch(1)

    def kill_manager(self):
        os.kill(self.manager_pid(), signal.SIGKILL)

    def manager_pid(self):
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                with open(os.path.join(entry, "cmdline"), "rb") as file:
                    command = file.read().split(b"\0")
                with open(os.path.join(entry, "stat"), encoding="ascii") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                if command[1:2] == [b"manager"] and parent == self.launchers[0].pid:
                    return int(os.path.basename(entry))
        raise AssertionError("no manager of this job runs")

    def go(self):
        self.began = time.time()
        self.launch(0)
        if "late" in self.plan["events"]:
            time.sleep(LATE_S)
        self.launch(1)
        mine = {"suspended": self.pause, "off": self.switch_off, "node_lost": self.lose_node, "manager": self.kill_manager}
        events = [(name, event) for name, event in self.plan["events"].items() if name in mine]
        for name, event in sorted(events, key=lambda item: item[1]["step"]):
            self.wait_step(event)
            mine[name]()
        while self.launchers[0].alive():
            self.read_counters()
            time.sleep(0.2)
        self.ended = time.time()
        codes = [launcher.wait() for launcher in self.launchers.values()]
        if codes != [0, 0]:
            raise AssertionError(f"the job ended with {codes}:\n{self.launchers[0].log()[-3000:]}")

    def job_file(self):
        """What the manager has left for its user."""
        pid = self.manager_pid()
        for folder in harness.runtime_dirs():
            for path in glob.glob(os.path.join(glob.escape(folder), "jobs", "*.json")):
                with open(path, encoding="utf-8") as file:
                    job = json.load(file)
                if job["pid"] == pid:
                    return job
        raise AssertionError("the manager has left no job file yet")

    def read_counters(self):
        with contextlib.suppress(OSError, AssertionError):  # it is starting, or ending
            with urllib.request.urlopen(f"http://{self.job_file()['http']}/metrics", timeout=deadlines.HANG_S) as answer:
                text = answer.read().decode()
            values = [re.search(rf"^taskd_{name}_seconds_total (\S+)$", text, re.M) for name in ("productive", "wall")]
            if all(values):
                self.counters = tuple(float(value[1]) for value in values)

    def ledger(self):
        done = deadlines.run([harness.TASKD, "goodput", "--state-dir", self.state, "--json"], env=harness.clean_environment(),
                             capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self):
        for launcher in self.launchers.values():
            launcher.terminate(timeout_s=60)


class Truth:
    """Rank-seconds by category, as the ranks and the script know them."""

    def __init__(self, run):
        self.run = run
        self.seconds = dict.fromkeys(CATEGORIES, 0.0)
        self.lives = [self.read_lives(rank) for rank in range(SLOTS)]
        steps = [s for lives in self.lives for life in lives for s in life["steps"][1:]]
        self.usual_s = statistics.median(s["end"] - s["begin"] - s["data"] - s["save"] for s in steps)
        self.worst = {}  # (attempt, step) -> data and saving of the rank that all wait for
        for lives in self.lives:
            for attempt, life in enumerate(lives):
                for s in life["steps"]:
                    data_s, save_s = self.worst.get((attempt, s["step"]), (0, 0))
                    self.worst[attempt, s["step"]] = (max(data_s, s["data"]), max(save_s, s["save"]))
        for lives in self.lives:
            self.add_slot(lives)

    def read_lives(self, rank):
        lives = []
        for attempt, line in self.run.lines(rank):
            while len(lives) <= attempt:
                lives.append({"steps": [], "evaluation": []})
            life = lives[attempt]
            if "step" in line:
                life["steps"].append(line)
            elif line["what"] == "evaluation":
                life["evaluation"].append((line["time"], line["end"]))
            else:
                life[line["what"]] = line["time"]
        return lives

    def add(self, category, begin, end):
        self.seconds[category] += max(0.0, end - begin)

    def failure(self, attempt):
        """When this attempt failed, and when its ranks had ended; None: it did not."""
        killed = [lives[attempt]["killed"] for lives in self.lives if "killed" in lives[attempt]]
        if killed:
            return killed[0], None
        lost = self.run.plan["events"].get("node_lost")
        return self.run.told["node_lost"] if lost and lost["attempt"] == attempt else None

    def add_slot(self, lives):
        at, done = self.run.began, -1
        for attempt, life in enumerate(lives):
            failed = self.failure(attempt - 1) if attempt else None
            if failed is None:
                self.add("waiting", at, life["began"])
            elif failed[1] is None:
                self.add("restart", failed[0], life["began"])
            else:
                self.add("restart", failed[0], failed[1])
                self.add("waiting", failed[1], life["began"])
            self.add("launch", life["began"], life["reached"])
            self.add("link_up", life["reached"], life["steps"][0]["begin"])
            at = life["steps"][0]["begin"]
            for number, step in enumerate(life["steps"]):
                self.add_step(attempt, life, step, first=number == 0, redone=step["step"] <= done, since=at)
                at = step["end"]
            done = max(done, life["steps"][-1]["step"])
            failed = self.failure(attempt)
            if failed is not None:
                self.add("redone", at, failed[0])  # the step under way
                at = failed[0]
        self.add("other", at, self.run.ended)

    def add_step(self, attempt, life, step, first, redone, since):
        between = sum(end - begin for begin, end in life["evaluation"] if since <= begin < step["begin"])
        self.seconds["other"] += between
        whole = step["end"] - since - between
        for told, category in (("suspended", "suspended"), ("off", "unmarked")):
            begin, end = self.run.told.get(told, (0, 0))
            inside = max(0.0, min(end, step["end"]) - max(begin, since))
            self.seconds[category] += inside
            whole -= inside
        if redone:
            warm = max(0.0, whole - self.usual_s) if first else 0.0
            self.seconds["warm_up"] += warm
            self.seconds["redone"] += whole - warm
            return
        data_s, save_s = (value if value > 0.01 * (step["end"] - since) else 0.0 for value in self.worst[attempt, step["step"]])
        data_s, save_s = min(data_s, whole), min(save_s, max(0.0, whole - data_s))
        self.seconds["data"] += data_s
        self.seconds["checkpoint"] += save_s
        rest = whole - data_s - save_s
        events = self.run.plan["events"]
        slow, hang = events.get("straggler"), events.get("hang")
        if first:
            warm = max(0.0, rest - self.usual_s)
            self.seconds["warm_up"] += warm
            rest -= warm
        if slow and slow["step"] <= step["step"] < slow["step"] + slow["steps"]:
            self.seconds["straggler"] += min(rest, slow["s"])
            rest -= min(rest, slow["s"])
        if hang and hang["step"] == step["step"] and hang["attempt"] == attempt:
            self.seconds["hang"] += min(rest, hang["s"])
            rest -= min(rest, hang["s"])
        self.seconds["productive"] += rest


def baselines(run, truth):
    """Goodput as people compute it without a ledger."""
    wall_s = run.ended - run.began
    steps = {step["step"]: step for life in truth.lives[0] for step in life["steps"]}
    durations = [step["end"] - step["begin"] for step in steps.values()]
    attempts_s = 0.0
    for attempt, life in enumerate(truth.lives[0]):
        failed = truth.failure(attempt)
        attempts_s += (failed[0] if failed else run.ended) - life["began"]
    productive_s, counted_s = run.counters
    return {"two counters": productive_s / counted_s if counted_s else 0.0,
            "steps x median / wall": len(steps) * statistics.median(durations) / wall_s,
            "torchrun's log": attempts_s / wall_s}


def one_run(number, rng, arguments):
    plan = draw_plan(rng, arguments.events)
    with contextlib.ExitStack() as stack:
        if arguments.keep:
            folder = os.path.join(arguments.keep, f"{arguments.seed}-{number}")
            os.makedirs(folder)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="taskd-inject-"))
        run = Run(folder, plan, arguments.python)
        try:
            run.go()
        finally:
            run.close()
        truth, ledger = Truth(run), run.ledger()
        all_s = sum(truth.seconds.values())
        known_s = all_s - truth.seconds["unmarked"] - truth.seconds["unknown"]
        return {"run": number, "seed": arguments.seed, "events": sorted(plan["events"]), "plan": plan, "truth": truth.seconds, "rank_s": all_s,
                "found": ledger["seconds"], "found_rank_s": ledger["rank_s"], "goodput": truth.seconds["productive"] / known_s,
                "goodput_of_all": truth.seconds["productive"] / all_s, "found_goodput": ledger["goodput"],
                "incidents": [(i["kind"], i["rank_s"]) for i in ledger["incidents"]], "baselines": baselines(run, truth),
                "sum_error": abs(sum(ledger["seconds"].values()) / ledger["rank_s"] - 1)}


def near(truth, found):
    return abs(found - truth) <= max(NEAR_S * SLOTS, NEAR_RATIO * truth)


def table(results):
    lines = [f"{len(results)} runs, {sum(r['rank_s'] for r in results):.0f} rank-seconds; seconds a slot",
             f"{'category':12} {'truth, mean':>11} {'error, mean':>11} {'least':>7} {'most':>7}  within 1 s or 2 %"]
    for category in CATEGORIES:
        errors = [(r["found"][category] - r["truth"][category]) / SLOTS for r in results]
        held = sum(near(r["truth"][category], r["found"][category]) for r in results)
        lines.append(f"{category:12} {statistics.mean(r['truth'][category] for r in results) / SLOTS:11.2f} {statistics.mean(errors):+11.2f} "
                     f"{min(errors):+7.2f} {max(errors):+7.2f}  {held} of {len(results)}")
    lines.append(f"sums: off by at most {max(r['sum_error'] for r in results):.2g}; "
                 f"wall time: by at most {max(abs(r['found_rank_s'] - r['rank_s']) / SLOTS for r in results):.2f} s a slot")
    lines.append(f"{'goodput':24} {'error, mean':>11} {'least':>7} {'most':>7}   points")
    found = collections.defaultdict(list)
    for r in results:
        found["taskd goodput"].append(r["found_goodput"] - r["goodput"])
        for name, value in r["baselines"].items():
            found[name].append(value - r["goodput_of_all"])
    for name, errors in found.items():
        lines.append(f"{name:24} {100 * statistics.mean(errors):+11.1f} {100 * min(errors):+7.1f} {100 * max(errors):+7.1f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--events", type=lambda text: text.split(","), default=list(EVENTS), help="to draw from")
    parser.add_argument("--python", type=shlex.split, default=[harness.PYTHON], help="command that runs the ranks")
    parser.add_argument("--out", help="an object of JSON a run, appended")
    parser.add_argument("--keep", help="folder for what each run has written: logs, marks, the ledger")
    parser.add_argument("--of", nargs="+", help="no runs, but the table of those in these files of --out")
    arguments = parser.parse_args()
    unknown = set(arguments.events) - set(EVENTS)
    if unknown:
        parser.error(f"--events: {sorted(unknown)[0]!r} is none of {', '.join(EVENTS)}")
    results = []
    if arguments.of:
        for path in arguments.of:
            with open(path, encoding="utf-8") as file:
                results += [json.loads(line) for line in file]
        print(table(results))
        return
    rng = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    for number in range(1, arguments.runs + 1):
        result = one_run(number, rng, arguments)
        results.append(result)
        off = [f"{c} {result['found'][c] / SLOTS:.2f} for {result['truth'][c] / SLOTS:.2f}" for c in CATEGORIES
               if not near(result["truth"][c], result["found"][c])]
        print(f"{number}: {', '.join(result['events'])}: {'all within' if not off else '; '.join(off)}", file=sys.stderr, flush=True)
        if arguments.out:
            with open(arguments.out, "a", encoding="utf-8") as file:
                print(json.dumps(result), file=file)
    print(table(results))


if __name__ == "__main__":
    main()
