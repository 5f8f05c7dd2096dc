"""How much work a step is: from the shapes of the outermost forward's arguments, or said by the program."""
import json
import os
import sys

import pytest

import deadlines
from needs import needs_torch

pytestmark = needs_torch
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_work_job.py")


def work(*amounts):
    return ['{"work": %s}' % amount for amount in amounts]


def test_work_is_what_the_arguments_shapes_say_or_the_program():
    done = deadlines.run([sys.executable, JOB], 120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "a tensor": work(400), "by name": work(800), "nested": work(800), "a user's dictionary": work(400),
        "a mask over pairs": work(800), "a picture": work(4 * 3 * 32 * 32), "values stay unread": work(32),
        "nothing with a shape": [], "many": work(64), "in evaluation": [], "only communication is on": [],
        "enabled again": work(400), "said by the program": work(4096, 12.5), "a tensor is no number": [],
        "text is no number": [], "no work": work(0), "marks are off": [],
        "said": [f"taskd.torch: work: ValueError: work({amount}): the amount of work is a finite number from 0 on; it is not used"
                 for amount in ("-1", "-2", str(10**400)[:40], "inf", "nan")],
    }
