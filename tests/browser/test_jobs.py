"""The page beside real jobs: a PyTorch training one of whose ranks gets slow, and a job that hangs."""
import os

import pytest

import harness
from harness import wait_until
from launchers import Jobs
from test_page import difference, drawn, feed, shot, url
from training import Training

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 120

# Steps of 50 ms until there is a file "hang": then rank 1 waits for ever, and rank 0 for it, a step later at least.
HANGS = """
import ctypes, itertools, os, sys, threading, time
import taskd  # as the wheel's .pth does
library = ctypes.CDLL(None)
library.taskd_range_start.restype = ctypes.c_uint64
library.taskd_range_start.argtypes = [ctypes.c_char_p]
library.taskd_range_end.argtypes = [ctypes.c_uint64]
rank, folder = int(os.environ["RANK"]), sys.argv[1]

def read_the_broken_shard():
    threading.Event().wait()

def wait_for_the_others():
    threading.Event().wait()

def comes_to(step):
    last = os.path.join(folder, "last")  # that rank 1 has ended
    if rank == 0:
        return not os.path.exists(last) or step <= int(open(last).read()) + 1
    if os.path.exists(os.path.join(folder, "hang")):
        with open(last + "~", "w") as file:
            file.write(str(step - 1))
        os.rename(last + "~", last)
        return False
    return True

for step in itertools.takewhile(comes_to, itertools.count()):
    mark = library.taskd_range_start(b"step %d" % step)
    time.sleep(0.05)
    library.taskd_range_end(mark)
wait_for_the_others() if rank == 0 else read_the_broken_shard()
"""


def test_a_real_training_is_seen_while_it_runs(stage, manager, browser):
    manager.all_on()
    training = Training(stage, manager)
    browser.open(url(manager))
    browser.wait_text("#verdict", "ok: 4 ranks", timeout_s=PATIENCE_S)
    training.trouble("compute", 2)
    browser.wait_text("#verdict", "slow: rank 2 (node 1)", timeout_s=PATIENCE_S)
    browser.wait_text("#suspects tbody tr", "rank 2", "slow computation")

    def seen():
        training.require_alive()
        pixels = drawn(browser, 4)
        return all(difference(pixels[2], pixels[rank]) > 60 for rank in (0, 1, 3))
    wait_until(seen, "rank 2 has another colour than its peers", PATIENCE_S)
    training.no_trouble()
    training.finish()
    browser.wait_text("#state", "ended", timeout_s=PATIENCE_S)
    browser.wait_text("#hint", "taskd diagnose --from")
    assert browser.order("errors") == []


def test_a_hang_shows_who_is_behind_and_where_all_stand(stage, manager, browser):
    manager.all_on()
    script = os.path.join(stage.folder, "hangs.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(HANGS)
    jobs = Jobs(stage)
    launcher = jobs.launch("launcher", "--standalone", "--nproc-per-node=2", script=script, script_arguments=[jobs.folder],
                           environment={"TASKD_MANAGER": manager.address, "PYTHONPATH": harness.PYTHON_PACKAGE,
                                        "TASKD_PROFILING_DIR": os.path.join(stage.folder, "profiling")})
    browser.open(url(manager))
    manager.wait_stepping(range(2), 100, PATIENCE_S)
    jobs.put("hang")
    wait_until(lambda: os.path.exists(os.path.join(jobs.folder, "last")), "rank 1 hangs", PATIENCE_S)
    with open(os.path.join(jobs.folder, "last"), encoding="ascii") as file:
        last = file.read()
    browser.wait_text("#step", last, timeout_s=PATIENCE_S)  # what both have reached
    browser.wait_text("#state", "hung", timeout_s=PATIENCE_S)
    launcher.require_alive()
    browser.wait_text("#verdict", "hung: rank 1 stands at read_the_broken_shard (hangs.py:", "; no rank has ended a step", timeout_s=PATIENCE_S)
    browser.wait_text("#hang", f"Behind, at step {last}: rank 1.", "read_the_broken_shard", "wait_for_the_others", timeout_s=PATIENCE_S)
    report = stage.run("report", "--manager", manager.address, "-o", "-").stdout
    assert "<h1>hangs: rank 1 stands at read_the_broken_shard (hangs.py:" in report
    shot(browser, "hang.png")
    assert launcher.terminate(timeout_s=60) != 0


def test_one_rank_has_no_peers(manager, browser):
    job = feed(manager, "--ranks", "1", "--steps", "100000", "--rate", "4", background=True)
    try:
        browser.open(url(manager))
        browser.wait_text("#hint", "no peers", timeout_s=PATIENCE_S)
        assert not browser.text("#verdict").startswith("slow")
        drawn(browser, 1)
    finally:
        job.kill()
        job.wait()
