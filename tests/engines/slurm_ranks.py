"""A script of ranks that say where they are, and what its tests read of them."""
import collections
import os
import re

import slurm_rig
from deadlines import wait_until

# Says where it is, waits until it may go on, and counts the signals that it gets.
RANK = """
import os, signal, sys, time
name = os.environ.get("NAME", "go")
rank = int(os.environ["RANK"])
def got(number, frame):
    with open(f"{name}.signal-{number}.{rank}", "a") as file: file.write("x")
    while "stubborn" in sys.argv and not os.path.exists(name): time.sleep(0.05)
    if number == signal.SIGTERM: sys.exit(0)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM): signal.signal(number, got)
words = [os.environ.get(key, "") for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TASKD_JOB")]
os.write(1, " ".join(["rank", *words]).encode() + b"\\n")  # whole, whoever writes beside it
if "fail" in sys.argv and rank == 1: sys.exit(7)
open(f"{name}.up.{words[4]}.{rank}", "w").close()
while "wait" in sys.argv and not os.path.exists(name): time.sleep(0.05)
"""
LINE = re.compile(r"rank (\d+) (\d+) (\S+) (\d+) (\S+) (\S*)")


def ranks(text):
    """By run id: the sorted ranks; and the words that all share, world size first."""
    worlds = collections.defaultdict(list)
    shared = {}
    for rank, *words, run_id, job in LINE.findall(text):
        worlds[run_id].append(int(rank))
        assert shared.setdefault(run_id, (*words, job)) == (*words, job)
    return {run_id: sorted(one) for run_id, one in worlds.items()}, shared


def one_world(text, size):
    worlds, shared = ranks(text)
    assert list(worlds.values()) == [list(range(size))], text
    (words,) = shared.values()
    assert words[0] == str(size)
    return words


def lines_of_taskd(text):
    """Its log, and what its commands say. Not Slurm's own, nor the ranks': a signal that comes while Python starts is a traceback."""
    return [line for line in text.splitlines() if re.match(r"\d{4}-\d\d-\d\dT\S+ (debug|info|warning|error|critical) |taskd ", line)]


def errors_of_taskd(text):
    return [line for line in lines_of_taskd(text) if re.match(r"\S+ (error|critical) ", line)]


def wait_up(rig, name, count, timeout_s=60):
    wait_until(lambda: sum(one.startswith(f"{name}.up.") for one in os.listdir(rig.work)) >= count, f"{count} ranks of {name} are up", timeout_s)


def wait_output(child, size):
    """Until all ranks of one world have said where they are; what they share."""
    wait_until(lambda: len(LINE.findall(slurm_rig.output_of(child)[0])) >= size, f"{size} ranks have said where they are", 60)
    return one_world(slurm_rig.output_of(child)[0], size)


def go(rig, name="go"):
    with open(os.path.join(rig.work, name), "w", encoding="utf-8"):
        pass


def read(rig, name):
    try:
        with open(os.path.join(rig.work, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def ended_themselves(text, tasks, code=143):
    """By srun's own account: each of its tasks, by itself, and none by Slurm's SIGKILL."""
    ended = re.findall(r"srun: error: n\d: tasks? ([\d,-]+): (.*)", text)
    assert {how for _, how in ended} == {f"Exited with exit code {code}"}, text
    ranges = [one.split("-") for ids, _ in ended for one in ids.split(",")]
    assert sorted(task for one in ranges for task in range(int(one[0]), int(one[-1]) + 1)) == list(range(tasks)), text
