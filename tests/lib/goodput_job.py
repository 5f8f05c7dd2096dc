"""A PyTorch training that writes down what it did when (tests/goodput/job.py), as tests run it."""
import json
import os

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "goodput", "job.py")


def write_plan(folder, steps, save_every, kill_step, awaited=False):
    """Steps of 0.05 s after a slow import. In the job's first life rank 1 kills itself in the middle of `kill_step`; -1: it lives.
    `awaited`: not before there is a file `kill` in the folder."""
    plan = {"import_s": 1, "first_step_s": 0, "save_every": save_every, "save_s": 0, "step_s": 0.05, "steps": steps,
            "events": {"kill": {"step": kill_step, "rank": 1, "awaited": awaited}}}
    with open(os.path.join(folder, "plan.json"), "w", encoding="utf-8") as file:
        json.dump(plan, file)
