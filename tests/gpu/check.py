#!/usr/bin/env python3
"""TaskD on a real GPU; one is enough, its ranks share it. By hand, where taskd's wheel, PyTorch with CUDA and NCCL are.

check.py [--only cost,verdicts,hangs] [--out FOLDER] [--faults none,kernel,host,copy,loader] [--kinds missing,pair,order,size]

* cost: what a training step takes with TaskD switched off and on by turns, and without TaskD.
* verdicts: a job with a slow rank, recorded by TaskD's marks and by PyTorch's profiler at once: what is said from each, and
  how far the times of NCCL's kernels in marks are from the profiler's.
* hangs: what `taskd diagnose` says of a job that hangs: live, from the flight recorder's dumps, and from NCCL's RAS.

Ten minutes or so; prints tables, and keeps what was recorded in FOLDER.
"""
import argparse
import contextlib
import glob
import gzip
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RAS_S = 10.0  # NCCL's RAS collects for up to 5 s before it answers

FOLDER = os.path.dirname(os.path.abspath(__file__))
KINDS = ("step", "fp", "dataloader", "save_checkpoint", "communication")
SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
           "OMP_NUM_THREADS": "2"}


def taskd(*arguments):
    done = subprocess.run(["taskd", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"


def switch(job, value):
    return taskd("switch", "--job", job, *(f"{kind}={value}" for kind in KINDS))


def wait_for(condition, what, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not so; the job is {'over' if process.poll() is not None else 'running'}")
        time.sleep(.2)


@contextlib.contextmanager
def training(out, name, ranks, script, launcher="taskd", **variables):
    """Runs a job; on exit it is ended if it still runs."""
    environment = dict(os.environ, **SOCKETS, TASKD_JOB=f"gpu/{name}", TASKD_TORCH="1",
                       TASKD_PROFILING_DIR=f"{out}/{name}.marks", **variables)
    command = ["taskd", "run"] if launcher == "taskd" else [sys.executable, "-m", "torch.distributed.run"]
    with open(f"{out}/{name}.log", "wb") as log:
        process = subprocess.Popen([*command, "--standalone", f"--nproc-per-node={ranks}", os.path.join(FOLDER, script)], env=environment,
                                   stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


# Cost

def step_times(path):
    with open(path, encoding="ascii") as file:
        begins = json.load(file)
    return [(begin, (end - begin) * 1e3) for begin, end in zip(begins[50:], begins[51:])]


def cost(out):
    """Medians of one run are compared with each other: on and off by turns, half a second each."""
    rows = {"torchrun": [], "off": [], "on": []}
    for run in range(3):
        times = f"{out}/times"
        with training(out, f"torchrun-{run}", 1, "train.py", "torchrun", STEPS="2000", WIDTH="1024", TIMES=times) as process:
            process.wait()
        rows["torchrun"].append(statistics.median(ms for _, ms in step_times(times)))
        job, spans = f"gpu/cost-{run}", []
        with training(out, f"cost-{run}", 1, "train.py", STEPS="4000", WIDTH="1024", TIMES=times) as process:
            while process.poll() is None:
                for value in ("on", "off"):
                    if switch(job, value).startswith("exit"):
                        break
                    began = time.time() + .1
                    time.sleep(.6)
                    spans.append((value, began, time.time()))
        for value in ("off", "on"):
            rows[value].append(statistics.median(
                ms for begin, ms in step_times(times) if any(v == value and a <= begin < b for v, a, b in spans)))
    print("\ncost: median of a step in ms, 3 runs")
    for name, values in rows.items():
        print(f"  {name:<10}" + "  ".join(f"{value:8.4f}" for value in values))
    print("  on/off    " + "  ".join(f"{on / off:8.4f}" for on, off in zip(rows["on"], rows["off"])))


# Verdicts

def named(report):
    return [(v["scope"], v["ids"], v["cause"], v["since_step"], round(v["cost_ms_per_step"], 1)) for v in report["verdicts"]]


def kernels_of(path):
    with gzip.open(path) as file:
        trace = json.load(file)
    base = trace["baseTimeNanoseconds"]
    return [(base + event["ts"] * 1e3, base + (event["ts"] + event["dur"]) * 1e3) for event in trace["traceEvents"]
            if event.get("cat") == "kernel" and event["name"].startswith("nccl")]


def marks_of(path):
    """[(start, end)] in ns of NCCL's operations."""
    open_marks, done = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            mark = json.loads(line)
            if mark["Domain"] == "communication":
                open_marks[mark["Id"]] = mark["Timestamp"]
            elif mark["Id"] in open_marks:
                done.append((open_marks.pop(mark["Id"]), mark["Timestamp"]))
    return done


def compare_times(out, name, ranks):
    errors = []
    for rank in range(ranks):
        marks = [mark for path in glob.glob(f"{out}/{name}.marks/*/{rank}/[0-9]*") for mark in marks_of(path)]
        for trace in glob.glob(f"{out}/{name}.traces/host{rank}_*"):
            for start, end in kernels_of(trace):
                near = min(marks, key=lambda mark: abs(mark[1] - end))
                errors.append((abs(near[0] - start) / 1e3, abs(near[1] - end) / 1e3))
    for which, values in zip(("start", "end"), zip(*errors)):
        print(f"    marks of NCCL's kernels against the profiler's, {which}: median {statistics.median(values):.1f} µs, "
              f"95 % below {sorted(values)[len(values) * 95 // 100]:.0f} µs of {len(values)}")


def verdicts(out, faults):
    print("\nverdicts: 3 ranks, fault on rank 1 from step 60 on")
    for fault in faults:
        os.makedirs(f"{out}/{fault}.traces", exist_ok=True)
        with training(out, fault, 3, "train.py", STEPS="200", FAULT=fault, PROFILE=f"{out}/{fault}.traces") as process:
            wait_for(lambda: not switch(f"gpu/{fault}", "on").startswith("exit"), "switched on", process)
            process.wait()
        for source in ("marks", "traces"):
            text = taskd("diagnose", "--json", "--from", f"{out}/{fault}.{source}")
            with open(f"{out}/{fault}.{source}.json", "w", encoding="utf-8") as file:
                file.write(text)
            print(f"  {fault:<8}{source:<8}", text if text.startswith("exit") else
                  (json.loads(text)["state"], *named(json.loads(text))))
        compare_times(out, fault, 3)


# Hangs

def ask_ras(port):
    with socket.create_connection(("localhost", port), RAS_S) as connection:
        connection.sendall(b"set format json\nverbose status\n")
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def hangs(out, kinds):
    """All at once: a hang is called one after 30 s."""
    print("\nhangs: 4 ranks in two pairs; rank 2, of the pair rank 3")
    with contextlib.ExitStack() as stack:
        jobs = {}
        for index, kind in enumerate(kinds):
            dumps = f"{out}/{kind}.dumps"
            os.makedirs(dumps, exist_ok=True)
            jobs[kind] = (28028 + index, stack.enter_context(training(
                out, kind, 4, "hang.py", KIND=kind, DUMPS=dumps, DUMP_AFTER="15", TORCH_FR_BUFFER_SIZE="2000",
                NCCL_RAS_ADDR=f"localhost:{28028 + index}", TORCH_FR_DUMP_TEMP_FILE=f"{dumps}/nccl_trace_rank_",
                TORCH_NCCL_DEBUG_INFO_TEMP_FILE=f"{dumps}/nccl_trace_rank_")))
        for kind, (port, process) in jobs.items():
            wait_for(lambda job=f"gpu/{kind}": not switch(job, "on").startswith("exit"), "switched on", process)
        for kind, (port, process) in jobs.items():
            wait_for(lambda path=f"{out}/{kind}.dumps/json_rank_3": os.path.exists(path), "dumped", process)
            for number in range(2):
                with open(f"{out}/{kind}.dumps/ras_{number}.json", "wb") as file:
                    file.write(ask_ras(port))
                time.sleep(1.1)
        time.sleep(45)
        for kind in kinds:
            print(f"  {kind}, live:", taskd("diagnose", "--job", f"gpu/{kind}").strip())
            for what in ("nccl_trace_rank_*", "json_rank_*", "ras_*.json"):
                print(f"  {kind}, {what}:", taskd("diagnose", "--from", f"{out}/{kind}.dumps/{what}").split("\njob ")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="cost,verdicts,hangs")
    parser.add_argument("--faults", default="none,kernel,host,copy,loader")
    parser.add_argument("--kinds", default="missing,pair,order,size")
    parser.add_argument("--out")
    options = parser.parse_args()
    out = os.path.abspath(options.out or tempfile.mkdtemp(prefix="taskd-gpu-"))
    os.makedirs(out, exist_ok=True)
    sections = {"cost": lambda: cost(out), "verdicts": lambda: verdicts(out, options.faults.split(",")),
                "hangs": lambda: hangs(out, options.kinds.split(","))}
    for section in options.only.split(","):
        if section not in sections:
            parser.error(f"--only {section}: is not {', '.join(sections)}")
    for section in options.only.split(","):
        sections[section]()
    print(f"\nrecorded: {out}")


if __name__ == "__main__":
    main()
