#!/usr/bin/python3
"""Real PyTorch jobs on this machine, with real faults that are brought upon one rank from outside, and without.

real_faults.py [--ways own,ddp] [--faults none,quota,...] [--ranks 2,3,4] [--runs 1] [--seconds 25] [--out FILE]
               [--restless N] [--python COMMAND] [--from-start]

Prints who was named, of how many faults that had an effect, with which cause, and after how many steps; intervals are
Clopper-Pearson's, 95 %. And what the verdict said that it costs against what a stopwatch in the training script measured in
the same steps. With --from-start the fault is there from the first step on. A fault has an effect if it costs at least 10 %
of the step, or, where it is meant to be small, if the rank's own time has grown by 8 % against its peers': time outside of
communication, read from the mark files by this script. Needs PyTorch, and root for cgroups, a swap file and network
namespaces.
"""
import collections
import contextlib
import glob
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import real_jobs
from real_jobs import FAULTS, HEALTHY, MARKED, UNMARKED, WARM_STEPS, entities, harness, names

BY_OWN_TIME = ("slow8", "slow15", "slow25", "slow40", "optimizer")
VISIBLE = 0.10  # of the step
FELT = 0.08     # of the rank's own time against its peers'
DETECTORS = os.path.join(harness.BUILD, "bench", "baseline_claims")


def pace(run, steps=20):
    """Seconds of a step, and the last of some that it was measured in."""
    began, since = run.report()["steps"]["last"], time.monotonic()
    last = run.reached(began + steps)["steps"]["last"]
    return (time.monotonic() - since) / (last - began), last


def measure(way, fault, ranks, seconds, rng, keep=None, python=(harness.PYTHON,), from_start=False):
    """One run; a dictionary of what came of it. Its mark files go to the folder `keep`; `python` runs the ranks."""
    inject, causes = FAULTS[fault]
    culprit = None if not inject else ranks - 1 if fault == "shrink" else rng.randrange(ranks)
    with tempfile.TemporaryDirectory(prefix="taskd-real-") as folder:
        run = real_jobs.Run(folder, way, ranks, fault, culprit, python)
        try:
            found, states, healthy_s, began, wrong = None, collections.Counter(), None, 0, {}
            from_start = from_start and inject is not None
            with contextlib.ExitStack() as lasting:
                if from_start:
                    lasting.enter_context(inject(run, culprit))
                before = run.reached(WARM_STEPS)
                if not from_start:
                    wrong = {(v["scope"], str(v["ids"])): v["text"] for v in entities(before, fault)}
                    began = before["steps"]["last"]
                    if inject:
                        healthy_s, began = pace(run)
                        lasting.enter_context(inject(run, culprit))
                clock, first = time.monotonic(), max(began, before["steps"]["last"])
                while time.monotonic() < clock + seconds:
                    report = run.report()
                    states[report["state"]] += 1
                    right = []
                    for verdict in entities(report, fault):
                        if inject and names(verdict, fault, culprit) and verdict["since_step"] >= began - 15:
                            right.append(verdict)
                        else:
                            wrong[verdict["scope"], str(verdict["ids"])] = verdict["text"]
                    if right:  # open ones first, by cost
                        found = found or {"steps": report["steps"]["last"] - began, "text": right[0]["text"]}
                        found |= {"cause": right[0]["cause"], "since": right[0]["since_step"] - began, **numbers(right[0])}
                    time.sleep(0.2)
                step_s = (time.monotonic() - clock) / max(1, report["steps"]["last"] - first)
            last = report["steps"]["last"]
            if from_start:
                healthy_s, _ = pace(run)
            if fault == "shrink":
                wrong |= after_shrinking(run, culprit, seconds)
            result = {"way": way, "fault": fault, "ranks": ranks, "rank": culprit, "began": began, "found": found,
                      "cause_right": bool(found) and found["cause"] in causes, "wrong": sorted(wrong.values()),
                      "from_start": from_start, "step_s": round(step_s, 4), "healthy_s": healthy_s and round(healthy_s, 4),
                      "steps": last, "state": report["state"], "states": states, "notes": report["notes"],
                      "coverage": [rank["ratio"] for rank in report.get("coverage", [])]}
            run.finish()
            for proxy in run.proxies:
                proxy.terminate()
            result["baselines"] = baselines(run.task_dir, began, culprit)
            result["measured"] = found and stopwatch(folder, result)
            if fault in BY_OWN_TIME:
                result["own_effect"] = own_effect(run.task_dir, culprit, began, result["steps"])
            if keep:
                shutil.copytree(run.task_dir, keep)
                for path in glob.glob(os.path.join(folder, "stopwatch-*")):
                    shutil.copy(path, keep)
            return result
        finally:
            run.close()


def after_shrinking(run, culprit, seconds):
    """What is said of anybody when the job has gone on without the culprit for so long."""
    run.shrink()
    over = time.monotonic() + seconds
    harness.wait_until(lambda: run.report()["ranks"] == culprit or time.monotonic() > over, "the smaller job is judged", seconds + 60, 0.5)
    while time.monotonic() < over:
        run.report()
        time.sleep(1)
    return {(v["scope"], str(v["ids"])): v["text"] for v in run.report()["verdicts"] if v["state"] == "open" and v["scope"] != "job"}


def numbers(verdict):
    """What it says that the fault costs, ms a step, and what its rank takes longer by; and of which steps."""
    evidence = verdict["evidence"][0]
    return {"cost": verdict["cost_ms_per_step"], "interval": verdict["cost_interval_ms"],
            "excess": evidence["value"] - evidence["reference"], "of_steps": evidence["steps"]}


def stopwatch(folder, result):
    """What the script's stopwatch says of the steps that the verdict is of, in its unit: what the culprit takes longer than its
    peers, and what a step would be shorter without that. None: it does not say."""
    rows = {}
    for path in glob.glob(os.path.join(folder, "stopwatch-*")):
        with open(path, encoding="ascii") as file:
            rows[int(path.rsplit("-", 1)[1])] = {int(step): [float(value) for value in values] for step, *values in map(str.split, file)}
    first, last = result["found"]["of_steps"]
    if result["fault"] == "link":
        # Nobody works longer: steps are compared with those before.
        def mean(steps):
            return statistics.fmean(values[-1] for of_rank in rows.values() for step, values in of_rank.items() if step in steps)
        before = range(WARM_STEPS // 2, result["began"] - 1)
        return None if result["from_start"] else {"cost": 1e3 * (mean(range(first, last + 1)) - mean(before))}
    if result["fault"] == "checkpoint":
        first -= real_jobs.CHECKPOINT_STEPS - 1
    steps = [step for step in range(first, last + 1) if all(step in of_rank for of_rank in rows.values())]
    if len(rows) < 2 or not steps:
        return None
    place = {"loader": slice(0, 1), "checkpoint": slice(1, 2)}.get(result["fault"], slice(2, 3))  # of load, save, compute

    def times(places):
        """Of each step: the culprit's, and those of the others."""
        return [(sum(rows[result["rank"]][step][places]), [sum(of_rank[step][places]) for rank, of_rank in rows.items()
                                                           if rank != result["rank"]]) for step in steps]
    longer = statistics.fmean(mine - statistics.median(theirs) for mine, theirs in times(place))
    # The excess of a checkpoint comes in the steps that save.
    share = [1 if result["fault"] != "checkpoint" else mine / statistics.fmean(m for m, _ in times(place)) for mine, _ in times(place)]
    cost = statistics.fmean(max(mine, *theirs) - max(mine - part * longer, *theirs)
                            for part, (mine, theirs) in zip(share, times(slice(0, 3))))
    scale = real_jobs.CHECKPOINT_STEPS if result["fault"] == "checkpoint" else 1  # evidence is of one saving
    return {"cost": 1e3 * cost, "excess": 1e3 * longer * scale}


def own_times(folder):
    """By rank and step: seconds outside of communication, from the end of the step before."""
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, "[0-9]*", "[0-9]*"))):
        ranges, operations, steps = {}, [], {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                mark = json.loads(line)
                if mark["Flag"] in (2, 16):
                    ranges[mark["Id"]] = mark
                elif mark["Id"] in ranges:
                    start = ranges.pop(mark["Id"])
                    if start["Domain"] == "communication":
                        operations.append((start["Timestamp"], mark["Timestamp"]))
                    elif start["Name"].startswith("step "):
                        steps[int(start["Name"][5:])] = mark["Timestamp"]
        operations.sort()
        own = times.setdefault(int(os.path.basename(os.path.dirname(path))), {})
        for step in sorted(steps):
            if step - 1 not in steps:
                continue
            begin, end = steps[step - 1], steps[step]
            covered, until = 0, begin
            for first, last in operations:
                if last > until and first < end:
                    covered += min(last, end) - max(first, until)
                    until = min(last, end)
            own[step] = (end - begin - covered) / 1e9
    return times


def own_effect(folder, culprit, began, last):
    """By how much the culprit's own time has grown against its peers' since `began`, in the mean; where that is the first step, by
    how much it is longer."""
    times = own_times(folder)

    def ratio(first, until):
        means = {rank: statistics.fmean(own for step, own in steps.items() if first <= step < until) for rank, steps in times.items()}
        return means[culprit] / statistics.fmean(own for rank, own in means.items() if rank != culprit)
    return round(ratio(max(10, began + 2), last) / (ratio(10, began - 1) if began > 0 else 1) - 1, 4)


def baselines(folder, began, culprit):
    """What the other detectors say of the same marks, counted as TaskD's verdicts are."""
    done = subprocess.run([DETECTORS, folder], capture_output=True, text=True, check=True)
    result = {}
    for name, claims in json.loads(done.stdout).items():
        right = [claim for claim in claims if claim["ranks"] == [culprit] and claim["since_step"] >= began - 15]
        wrong = {str(claim["ranks"]) for claim in claims if claim not in right}
        result[name] = {"steps": right[0]["opened"] - began if right else None, "wrong": len(wrong)}
    return result


def judge_again(result, folder):
    """The same run with what this build's `taskd diagnose` says of its marks."""
    def judge(before):
        with tempfile.TemporaryDirectory(prefix="taskd-real-") as part:
            marks = marks_before(folder, before, os.path.join(part, "marks"))
            done = subprocess.run([harness.TASKD, "diagnose", "--from", marks, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def rightly(report):
        return [v for v in entities(report, result["fault"]) if result["rank"] is not None and
                names(v, result["fault"], result["rank"]) and v["since_step"] >= result["began"] - 15]
    report = judge(result["steps"])  # without what is done to end the run
    found = rightly(report)
    wrong = [v["text"] for v in entities(report, result["fault"]) if v not in found]
    result = {**result, "state": report["state"], "found": None, "cause_right": False, "wrong": sorted(wrong)}
    if found:
        # Verdicts that have been cleared stay in the report: what is named once is named from then on.
        low, high = result["began"], result["steps"]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rightly(judge(middle)) else (middle, high)
        result["found"] = {"steps": high - result["began"], "cause": found[0]["cause"], **numbers(found[0]),
                           "since": found[0]["since_step"] - result["began"], "text": found[0]["text"]}
        result["measured"] = stopwatch(folder, result)
        result["cause_right"] = found[0]["cause"] in FAULTS[result["fault"]][1]
    return result


def marks_before(folder, step, copy, since=None):
    """The marks of each rank until that step of its begins; if `since` is given only from that step's begin on."""
    shutil.copytree(folder, copy)
    for path in glob.glob(os.path.join(copy, "[0-9]*", "[0-9]*")):
        with open(path, encoding="utf-8") as file:
            lines = list(itertools.takewhile(lambda line: f'"Name":"step {step}"' not in line, file))
        if since is not None:
            lines = list(itertools.dropwhile(lambda line: f'"Name":"step {since}"' not in line, lines))
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)
    return copy


def interval(hits, trials):
    """Clopper-Pearson, 95 %."""
    def tail(p, low, high):
        return sum(math.comb(trials, k) * p**k * (1 - p)**(trials - k) for k in range(low, high + 1))

    def solve(below):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) else (low, middle)
        return low

    low = 0.0 if hits == 0 else solve(lambda p: tail(p, hits, trials) < 0.025)
    high = 1.0 if hits == trials else solve(lambda p: tail(p, 0, hits) > 0.025)
    return low, high


def rate(hits, trials):
    if trials == 0:
        return "none"
    low, high = interval(hits, trials)
    return f"{100 * hits / trials:.1f} % ({hits}/{trials}; {100 * low:.1f}–{100 * high:.1f})"


def is_visible(result):
    if result["fault"] in HEALTHY:
        return False
    if result.get("own_effect") is not None:
        return result["own_effect"] >= FELT
    return result["step_s"] >= (1 + VISIBLE) * result["healthy_s"]


def spread(values):
    return f"{statistics.median(values):.0f} ({max(values)})" if values else ""


def said_of_measured(results, what):
    """Median (least to most) of what was said, as a share of what the stopwatch has."""
    shares = sorted(r["found"][what] / r["measured"][what] for r in results if r["measured"].get(what, 0) > 0)
    return f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})" if shares else ""


def table(results):
    """As Markdown."""
    lines = ["| ways | fault | runs | with effect | named | with the cause | steps to name, median (most) | others named "
             "| said ok | said unknown | cost said / measured, median (range) | excess said / measured "
             "| cost in the interval |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    ways = {way: "marked" for way in MARKED}

    def kind(r):
        return ways.get(r["way"], r["way"]), r["fault"] + (" from the first step" if r.get("from_start") else "")
    for way, fault in sorted({kind(r) for r in results}):
        rows = [r for r in results if kind(r) == (way, fault)]
        seen = [r for r in rows if is_visible(r)]
        found = [r for r in seen if r["found"]]
        timed = [r for r in rows if r["found"] and r.get("measured")]
        within = sum(r["found"]["interval"][0] <= r["measured"]["cost"] <= r["found"]["interval"][1] for r in timed)
        lines.append(f"| {way} | {fault} | {len(rows)} | {len(seen)} | {len(found)} | {sum(r['cause_right'] for r in found)} "
                     f"| {spread([r['found']['steps'] for r in found])} | {sum(len(r['wrong']) for r in rows)} "
                     f"| {sum(r['state'] == 'ok' for r in rows)} | {sum(r['state'] == 'unknown' for r in rows)} "
                     f"| {said_of_measured(timed, 'cost')} | {said_of_measured(timed, 'excess')} "
                     f"| {f'{within} of {len(timed)}' if timed else ''} |")
    return "\n".join([*lines, "", *detectors(results), "", *rates(results)])


def detectors(results):
    """The lines of a table: TaskD beside the other detectors, on jobs whose waits are marked."""
    lines = ["| detector | healthy runs in which it names somebody | precision | recall | steps to name, median (most) |",
             "|---|---|---|---|---|"]
    results = [r for r in results if r["way"] in MARKED]
    healthy = [r for r in results if r["fault"] in HEALTHY]
    visible = [r for r in results if is_visible(r)]
    for name in ["TaskD", *(results[0]["baselines"] if results else ())]:
        if name == "TaskD":
            steps = [r["found"]["steps"] for r in visible if r["found"]]
            wrong = {id(r): len(r["wrong"]) for r in results}
        else:
            steps = [r["baselines"][name]["steps"] for r in visible if r["baselines"][name]["steps"] is not None]
            wrong = {id(r): r["baselines"][name]["wrong"] for r in results}
        lines.append(f"| {name} | {rate(sum(wrong[id(r)] > 0 for r in healthy), len(healthy))} "
                     f"| {rate(len(steps), len(steps) + sum(wrong.values()))} | {rate(len(steps), len(visible))} | {spread(steps)} |")
    return lines


def rates(results):
    healthy = [r for r in results if r["fault"] in HEALTHY]
    found = [r for r in results if is_visible(r) and r["found"]]
    unmarked = [r for r in results if r["way"] in UNMARKED]
    return [f"healthy runs in which somebody was named: {rate(sum(bool(r['wrong']) for r in healthy), len(healthy))}",
            f"cause: {rate(sum(r['cause_right'] for r in found), len(found))}",
            f"ok although a wait is not marked: {rate(sum(r['state'] == 'ok' for r in unmarked), len(unmarked))}"]


def main():
    parser = real_jobs.parser(__doc__, MARKED + UNMARKED, FAULTS, seconds=25)
    parser.add_argument("--from-start", action="store_true", help="faults are there from the first step on")
    arguments = parser.parse_args()
    if arguments.of:
        print(table(real_jobs.recorded(arguments, judge_again)))
        return

    def run(way, fault, ranks, rng, keep):
        return measure(way, fault, ranks, arguments.seconds, rng, keep, arguments.python, arguments.from_start)
    print(table(real_jobs.run_all(arguments, "", run, json.dumps)))


if __name__ == "__main__":
    main()
