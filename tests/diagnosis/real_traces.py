#!/usr/bin/python3
"""Do the traces of PyTorch's profiler say what TaskD's marks of the same run say?

real_traces.py [--ways own,ddp] [--faults none,quota,...] [--ranks 2,3,4] [--runs 1] [--seconds 20] [--python COMMAND]
               [--keep FOLDER] [--out FILE]
real_traces.py --of FILE... [--again FOLDER]   the table of runs that were made before

Each run is one of real_faults.py's jobs with a real fault of one rank, or none, under TaskD and for its whole time under the
profiler, too. `taskd diagnose --from` judges the traces, and by themselves the marks of the same steps. Compared is who is
named at the end with which cause, since the fault lasts until then, and whose verdicts have been cleared; what both say of
runs that differ stands below the table. Needs PyTorch, and root as real_faults.py does.
"""
import collections
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

import real_faults
import real_jobs
from real_faults import rate
from real_jobs import FAULTS, HEALTHY, WARM_STEPS, harness

# `shrink` is two jobs, and a trace is of one; no trace tells of an `imbalance` that it is no slowness, as marks do.
COMPARED = tuple(fault for fault in FAULTS if fault not in ("shrink", "imbalance"))


def judge(folder, fault):
    """What `taskd diagnose` says of whom."""
    done = subprocess.run([harness.TASKD, "diagnose", "--from", folder, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    named = [{name: verdict[name] for name in ("scope", "ids", "cause", "state", "since_step", "text")}
             for verdict in real_jobs.entities(report, fault)]
    return {"state": report["state"], "steps": report["steps"], "named": named, "notes": [note["text"] for note in report["notes"]]}


def judge_both(torch, fault, marks, traces):
    """Of the marks the steps that the traces have, too."""
    of_traces = judge(traces, fault)
    # The profiler counts from 0, as TaskD does; that of 1.13 calls each step by the number of the one before.
    behind = 1 if torch == "1.13" else 0
    for counted in (of_traces["steps"], *of_traces["named"]):
        counted.update({name: value + behind for name, value in counted.items() if name in ("first", "last", "since_step")})
    with tempfile.TemporaryDirectory(prefix="taskd-marks-") as folder:
        first, last = of_traces["steps"]["first"], of_traces["steps"]["last"]
        cut = real_faults.marks_before(marks, last + 1, os.path.join(folder, "marks"), since=first - 1)
        return {"marks": judge(cut, fault), "traces": of_traces}


def measure(torch, way, fault, ranks, arguments, rng, keep):
    """One run; a dictionary of what came of it. Its files go to the folder `keep`."""
    inject = FAULTS[fault][0]
    culprit = rng.randrange(ranks) if inject else None
    first = WARM_STEPS + rng.randrange(WARM_STEPS)
    with tempfile.TemporaryDirectory(prefix="taskd-traces-") as folder:
        traces = os.path.join(folder, "traces")
        os.mkdir(traces)
        run = real_jobs.Run(folder, way, ranks, fault, culprit, arguments.python, PROFILE=traces)
        try:
            began = run.reached(first)["steps"]["last"]
            with inject(run, culprit) if inject else contextlib.nullcontext():
                time.sleep(arguments.seconds)
                run.storage.stop()
                harness.wait_until(run.storage.is_over, "the last step")
            run.finish()
            for proxy in run.proxies:
                proxy.terminate()
            result = {"torch": torch, "way": way, "fault": fault, "ranks": ranks, "rank": culprit, "began": began,
                      "load": os.getloadavg()[0], "bytes": sum(entry.stat().st_size for entry in os.scandir(traces)),
                      **judge_both(torch, fault, run.task_dir, traces)}
            if keep:
                shutil.copytree(run.task_dir, os.path.join(keep, "marks"))
                shutil.copytree(traces, os.path.join(keep, "traces"))
            return result
        finally:
            run.close()


def named(judged, *what, states=("open",)):
    return sorted(str([verdict[name] for name in what]) for verdict in judged["named"] if verdict["state"] in states)


def is_same(result, *what, **which):
    return named(result["marks"], *what, **which) == named(result["traces"], *what, **which)


def is_all_same(result):
    return is_same(result, "scope", "ids", "cause", states=("open", "cleared"))


def is_named(result, source):
    """The culprit; of a healthy job anybody."""
    return any(result["fault"] in HEALTHY or real_jobs.names(verdict, result["fault"], result["rank"])
               for verdict in result[source]["named"])


def steps_apart(result):
    """Between the beginnings of what both say."""
    since = {(v["scope"], str(v["ids"])): v["since_step"] for v in result["marks"]["named"]}
    return [abs(v["since_step"] - since[key]) for v in result["traces"]["named"]
            if (key := (v["scope"], str(v["ids"]))) in since]


def table(results):
    """As Markdown."""
    lines = ["| PyTorch | fault | runs | named from marks | from traces | the same named | with the same cause | and the same cleared |",
             "|---|---|---|---|---|---|---|---|"]
    kinds = collections.defaultdict(list)
    for result in results:
        kinds[tuple(map(int, result["torch"].split("."))), result["fault"]].append(result)
    for (torch, fault), rows in sorted(kinds.items()):
        counts = [sum(is_named(r, "marks") for r in rows), sum(is_named(r, "traces") for r in rows),
                  sum(is_same(r, "scope", "ids") for r in rows), sum(is_same(r, "scope", "ids", "cause") for r in rows),
                  sum(is_all_same(r) for r in rows)]
        lines.append(f"| {torch[0]}.{torch[1]} | {fault} | {len(rows)} | " + " | ".join(map(str, counts)) + " |")
    healthy = [r for r in results if r["fault"] in HEALTHY]
    apart = [steps for result in results for steps in steps_apart(result)]
    lines += ["", f"the same named: {rate(sum(is_same(r, 'scope', 'ids') for r in results), len(results))}",
              f"with the same cause: {rate(sum(is_same(r, 'scope', 'ids', 'cause') for r in results), len(results))}",
              f"and the same cleared: {rate(sum(is_all_same(r) for r in results), len(results))}",
              f"healthy runs of whose traces somebody is named: {rate(sum(is_named(r, 'traces') for r in healthy), len(healthy))}",
              f"steps between the beginnings of the same verdict, median (most): {real_faults.spread(apart)}"]
    for result in results:
        if is_all_same(result):
            continue
        lines += ["", f"{result['run']}: rank {result['rank']} of {result['ranks']} since step {result['began']}"]
        for source in ("marks", "traces"):
            said = "; ".join(f"{v['text']} ({v['state']})" for v in result[source]["named"])
            lines.append(f"  {source}, {result[source]['state']}: {said or 'nobody'}")
    return "\n".join(lines)


def judge_again(result, folder):
    judged = judge_both(result["torch"], result["fault"], os.path.join(folder, "marks"), os.path.join(folder, "traces"))
    return {**result, **judged}


def summary(result):
    said = (f"{source} {result[source]['state']}, {named(result[source], 'scope', 'ids', 'cause')}" for source in ("marks", "traces"))
    return f"{result['run']}: {'; '.join(said)}"


def main():
    arguments = real_jobs.parser(__doc__, ("own", "ddp"), COMPARED, seconds=20).parse_args()
    if arguments.of:
        print(table(real_jobs.recorded(arguments, judge_again)))
        return
    version = subprocess.run([*arguments.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                             check=True).stdout
    torch = ".".join(version.split(".")[:2])

    def run(way, fault, ranks, rng, keep):
        return measure(torch, way, fault, ranks, arguments, rng, keep)
    print(table(real_jobs.run_all(arguments, f"{torch}-", run, summary)))


if __name__ == "__main__":
    main()
