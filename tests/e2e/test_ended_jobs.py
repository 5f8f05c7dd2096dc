"""A job that has ended is asked as one that runs, and its marks have a folder of its own; the real launcher and real ranks."""
import glob
import json
import os
import re
import shutil
import signal

import pytest

import harness
from harness import TASKD, wait_until
from needs import needs_torch
from test_command_line import usage_error

pytestmark = needs_torch

# Each rank creates a file once it trains, and trains in steps of at least 10 ms until the file `stop` exists.
SCRIPT = """
import os, time
import taskd.torch
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
stop = torch.zeros(1)
while not stop.item():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    open(os.environ["NAME"] + ".trains." + os.environ["RANK"], "w").close()
    stop[0] = os.path.exists("stop")
    dist.all_reduce(stop)
    time.sleep(0.01)
dist.destroy_process_group()
raise SystemExit(int(os.environ.get("EXIT", "0")))
"""


class Place:
    """A working folder, and the runtime folder of jobs that were started in it."""

    def __init__(self, stage):
        self.stage = stage
        self.folder = stage.folder
        runtime = os.path.join(stage.folder, "runtime")
        os.mkdir(runtime, 0o700)
        with open(os.path.join(self.folder, "train.py"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        self.environment = harness.clean_environment(XDG_RUNTIME_DIR=runtime, PYTHONPATH=harness.PYTHON_PACKAGE, GLOO_SOCKET_IFNAME="lo",
                                                     OMP_NUM_THREADS=1)

    def launch(self, name, *arguments, **environment):
        """Starts a job named default/NAME with marks on."""
        environment = {**self.environment, "TASKD_JOB": name, "NAME": name, **environment}
        launcher = harness.Process(name, [TASKD, "run", "--marks", "all", *arguments, "train.py"], environment, self.folder)
        self.stage.processes.append(launcher)
        return launcher

    def wait_trains(self, name, launcher, ranks):
        wait_until(lambda: launcher.require_alive() and len(glob.glob(os.path.join(self.folder, f"{name}.trains.*"))) == ranks,
                   f"{name} trains")

    def stop(self):
        with open(os.path.join(self.folder, "stop"), "w", encoding="ascii"):
            pass

    def job(self, name, **environment):
        """A job of two ranks, to its end; its exit code."""
        launcher = self.launch(name, "--standalone", "--nproc-per-node", "2", **environment)
        self.wait_trains(name, launcher, 2)
        self.stop()
        code = launcher.wait()
        os.unlink(os.path.join(self.folder, "stop"))
        return code

    def run(self, command, *arguments, **environment):
        return self.stage.run(command, *arguments, environment={**self.environment, **environment})

    def ask(self, command, *arguments):
        done = self.run(command, *arguments)
        assert done.returncode == 0, done.stderr
        return done

    def folders(self, name):
        return sorted(glob.glob(os.path.join(self.folder, f"taskd-{name}-*")))


@pytest.fixture
def place(stage):
    return Place(stage)


def test_a_job_that_has_ended_answers(place):
    assert place.job("first") == 0 and place.job("last", EXIT="3") == 3
    (folder,) = place.folders("last")
    assert "2 ranks" in place.ask("trace", "--from", folder, "-o", "trace.json").stdout
    assert "2 ranks" in place.ask("trace", "--job", "last", "-o", "trace.json").stdout
    why = place.ask("diagnose", "--why", "1", "--job", "last").stdout.splitlines()
    assert why[0].startswith("job default/last ended ") and "rank 1" in why[1], why
    for command in ("diagnose", "status", "goodput", "report"):
        first = place.ask(command, "--job", "last").stdout.splitlines()[0]
        assert re.fullmatch(rf"job default/last ended \d+ (s|minutes?) ago, exit 3; its marks are in {folder}", first), first
    for command, key, value in (("diagnose", "job", "default/last"), ("status", "job", "default/last"), ("goodput", "job", "default/last")):
        done = place.ask(command, "--job", "last", "--json")
        assert json.loads(done.stdout)[key] == value and done.stderr.startswith("job default/last ended ")
    with open(os.path.join(place.folder, "taskd-report.html"), encoding="utf-8") as file:
        assert "default/last" in file.read()
    assert "exit 0" in place.ask("diagnose", "--job", "first").stdout.splitlines()[0]
    page = place.run("ui", "--job", "last")
    assert page.returncode == 1 and page.stderr.startswith("taskd ui: job default/last ended ") and "taskd report" in page.stderr
    assert place.job("last") == 0
    first = place.ask("diagnose", "--job", "last").stdout.splitlines()[0]
    assert re.search(r" ended .*, exit 0; .*; 1 ended before it: taskd jobs$", first), first


def test_a_job_that_failed_before_a_rank_attached_answers(place):
    assert place.run("run", "--standalone", "--no-python", "false", TASKD_JOB="failed").returncode == 1
    first = place.ask("diagnose", "--job", "failed").stdout.splitlines()[0]
    assert re.fullmatch(r"job default/failed ended .* ago, exit 1.*", first), first


def test_a_watched_status_ends_with_the_job(place):
    launcher = place.launch("watched", "--standalone")
    place.wait_trains("watched", launcher, 1)
    watcher = harness.Process("watcher", [TASKD, "status", "--job", "watched", "--watch"], place.environment, place.folder)
    place.stage.processes.append(watcher)
    wait_until(lambda: "default/watched" in watcher.log(), "it has printed once")
    place.stop()
    assert launcher.wait() == 0
    assert watcher.wait() == 0 and watcher.log().endswith("taskd status: job default/watched has ended\n"), watcher.log()


def test_a_watched_diagnosis_ends_with_the_jobs_last_answer(place):
    launcher = place.launch("watched", "--standalone")
    place.wait_trains("watched", launcher, 1)
    watcher = harness.Process("watcher", [TASKD, "diagnose", "--job", "watched", "--watch"], place.environment, place.folder)
    place.stage.processes.append(watcher)
    wait_until(lambda: "default/watched" in watcher.log(), "it has printed once")
    place.stop()
    assert launcher.wait() == 0
    assert watcher.wait() == 0, watcher.log()
    assert re.search(r"^job default/watched ended \d+ s ago, exit 0; its marks", watcher.log(), re.M), watcher.log()
    assert "is the job running?" not in watcher.log()


def test_marks_that_are_not_there_are_not_named(place):
    assert place.job("bare") == 0
    (folder,) = place.folders("bare")
    shutil.rmtree(folder)
    for arguments in (["diagnose", "--job", "bare"], ["jobs"]):
        said = place.ask(*arguments).stdout
        assert "default/bare" in said and folder not in said
    trace = place.run("trace", "--job", "bare")
    assert trace.returncode == 2 and folder not in trace.stderr


def test_jobs_lists_and_removes(place):
    launcher = place.launch("running", "--standalone")
    place.wait_trains("running", launcher, 1)

    def rows():
        return [row for row in json.loads(place.ask("jobs", "--json").stdout) if row["job"] in ("default/running", "default/it-s")]
    assert [row["state"] for row in rows()] == ["running"]
    place.stop()
    assert launcher.wait() == 0
    os.unlink(os.path.join(place.folder, "stop"))
    assert place.job("it-s", EXIT="1") == 1
    assert [(row["job"], row["state"], row["exit_code"]) for row in rows()] == [("default/it-s", "ended", 1), ("default/running", "ended", 0)]
    assert rows()[0]["marks"] in place.folders("it-s")
    listed = place.ask("jobs").stdout
    assert re.search(r"^default/it-s +since [-\d]+ [:\d]+  ended .* ago, exit 1; marks in /", listed, re.M), listed
    assert f"its marks stay in {rows()[0]['marks']}" in place.ask("jobs", "remove", "it-s").stdout
    assert [row["job"] for row in rows()] == ["default/running"] and place.folders("it-s")
    gone = place.run("jobs", "remove", "it-s")
    assert gone.returncode == 1 and "no job 'it-s' that ended is kept" in gone.stderr
    for arguments in (["remove"], ["list", "it-s"], ["forget"]):
        usage_error(place.run("jobs", *arguments), arguments[0])


def test_a_job_whose_launcher_was_killed_answers(place):
    launcher = place.launch("killed", "--standalone", "--nproc-per-node", "2")
    place.wait_trains("killed", launcher, 2)
    launcher.child.send_signal(signal.SIGKILL)
    wait_until(lambda: place.run("diagnose", "--job", "killed").stdout.startswith("job default/killed ended "), "it has ended")
    (folder,) = place.folders("killed")
    first, *status = place.ask("status", "--job", "killed").stdout.splitlines()
    assert re.fullmatch(rf"job default/killed ended \d+ s ago, its launcher was lost; its marks are in {folder}", first), "nobody knows its code"
    assert any(line.startswith("job is ended") for line in status) and not any("as wanted" in line for line in status), status
    assert sum("gone: its launcher was lost" in line for line in status) == 2, status


def test_all_nodes_have_one_folder_and_each_start_its_own(place):
    port = harness.free_port()
    nodes = [place.launch("twins", "--nnodes", "2", "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", str(port),
                          "--nproc-per-node", "2") for node in ("0", "1")]
    place.wait_trains("twins", nodes[0], 4)
    (folder,) = place.folders("twins")
    assert re.fullmatch(r"taskd-twins-\d{8}-\d{6}", os.path.basename(folder))
    assert f"they go to {folder}" in nodes[0].log() and "they go to" not in nodes[1].log()
    again = [place.launch("twins", "--standalone") for _ in range(2)]
    wait_until(lambda: len(place.folders("twins")) == 3, "two more starts have folders of their own")
    place.stop()
    assert [launcher.wait() for launcher in (*nodes, *again)] == [0] * 4
    assert sorted(os.listdir(folder)) == ["0", "1", "2", "3"]
    newest = place.ask("diagnose", "--from", place.folder, "--json").stdout
    assert json.loads(newest)["job"] == os.path.basename(place.folders("twins")[-1])


def test_a_folder_without_marks_goes(place):
    place.stop()
    quiet = harness.Process("quiet", [TASKD, "run", "--standalone", "train.py"],
                            {**place.environment, "TASKD_JOB": "quiet", "NAME": "quiet"}, place.folder)
    place.stage.processes.append(quiet)
    assert quiet.wait() == 0, quiet.log()
    assert "marks are off" in quiet.log() and place.folders("quiet") == []


def test_the_launchers_line_stands_last_after_an_interrupt(place):
    launcher = place.launch("interrupted", "--standalone", "--nproc-per-node", "3")
    place.wait_trains("interrupted", launcher, 3)
    launcher.child.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
    log = launcher.log()
    assert log.splitlines()[-1] == "taskd run: interrupted, and all ranks have ended", log
    traces = re.findall(r"^Traceback .*?^KeyboardInterrupt$", log, re.M | re.S)
    assert len(traces) == len(set(traces)), log
