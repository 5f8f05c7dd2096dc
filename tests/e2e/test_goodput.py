"""The ledger (docs/goodput.md): `taskd goodput`, /api/v1/goodput and the metrics, of real jobs and of what a launcher says."""
import datetime
import glob
import json
import os
import re
import signal
import sqlite3
import time
import urllib.request

import goodput_job
import harness
import pytest
from deadlines import Deadline, HANG_S
from harness import wait_until
from launchers import daemons_of, wait_manager
from ports import free_port
from test_supervision import Launcher

# The stimulus of tests that suspend a job.
SUSPENDED_S = 5
# A process is looked at five times a second, and the manager knows a little later. On an idle machine both ends of a suspension
# together are off by no more than this.
SEEN_S = 0.5
SAVE_S = 0.5  # between the moment of which a save tells and the end of its write
CATEGORIES = ["queue", "waiting", "launch", "link_up", "warm_up", "productive", "data", "checkpoint", "straggler", "other", "redone",
              "hang", "restart", "suspended", "unmarked", "unknown"]


def check_sum(goodput):
    assert list(goodput["seconds"]) == CATEGORIES
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["rank_s"], rel=1e-3, abs=1e-3)
    assert goodput["rank_s"] == pytest.approx(goodput["slots"] * goodput["wall_s"], rel=1e-3, abs=1e-2)
    for incident in goodput["incidents"]:
        assert sum(incident["seconds"].values()) == pytest.approx(incident["rank_s"], abs=1e-3)
    assert 0 <= goodput["goodput_low"] <= goodput["goodput_high"] <= 1 + 1e-9
    return goodput


def goodput_of(stage, address):
    done = stage.run("goodput", "--manager", address, "--json")
    assert done.returncode == 0, done.stderr
    return check_sum(json.loads(done.stdout))


def since(goodput):
    return datetime.datetime.fromisoformat(goodput["since"].replace("Z", "+00:00")).timestamp()


SIZE = ["--nodes", "2", "--procs-per-node", "2"]


@pytest.fixture
def manager(stage):
    return stage.manager(flags=SIZE)


@pytest.fixture
def launcher(manager):
    launcher = Launcher(manager)
    yield launcher
    launcher.close()


def fetch(manager, path):
    with urllib.request.urlopen(f"http://{manager.http}{path}", timeout=HANG_S) as answer:
        return answer.read().decode()


def test_what_a_launcher_says_is_in_it(stage, manager, launcher):
    kinds = launcher.messages.SupervisionEvent
    launcher.report(kinds.STARTED)
    launcher.report(kinds.EXITED, rank=3, node=1, pid=4711, code=139, signal=11)
    launcher.report(kinds.RESTARTING, message="rank 3 on node 1 (b) was killed by SIGSEGV", cause=kinds.RANK_EXIT)
    launcher.report(kinds.STARTED, round=1, restart_count=1)
    goodput = goodput_of(stage, manager.address)
    assert [(i["number"], i["kind"], i["ranks"], i["nodes"], i["text"]) for i in goodput["incidents"]] == [
        (1, "rank_exit", [3], [1], "rank 3 on node 1 (b) was killed by SIGSEGV")]
    assert json.loads(fetch(manager, "/api/v1/goodput"))["incidents"][0]["number"] == 1
    metrics = fetch(manager, "/metrics")
    for category in CATEGORIES:
        assert re.search(rf'^taskd_rank_seconds_total{{category="{category}"}} \d', metrics, re.M), category
    assert 'taskd_incidents_total{kind="rank_exit"} 1\n' in metrics
    launcher.report(kinds.ENDED, round=1, restart_count=1, code=0)
    ended = goodput_of(stage, manager.address)
    assert ended["attempts"][0]["outcome"] == "ended"
    assert goodput_of(stage, manager.address)["rank_s"] == ended["rank_s"]  # its time stands still
    text = stage.run("goodput", "--manager", manager.address).stdout
    assert re.search(r"\d+\.\d % (of .* )?were productive", text) and "#1 " in text and "link_up" in text
    report = stage.run("report", "--manager", manager.address, "-o", "-").stdout
    assert f"<p>{ended['text']}</p>" in report and "<td>rank 3 on node 1 (b) was killed by SIGSEGV</td>" in report


def test_an_elastic_job_has_the_slots_of_its_round(jobs):
    port, environment = free_port(), {"TASKD_MANAGER": ""}
    nodes = [jobs.elastic(name, port, action=["wait"], environment=environment) for name in ("first", "second")]
    host = wait_until(lambda: next((node for node in nodes if daemons_of(node.pid, "manager")), None), "one of them has a manager")
    address = wait_manager(host)

    def await_slots(slots):
        def has_them():
            done = jobs.stage.run("goodput", "--manager", address, "--json")
            return done.returncode == 0 and json.loads(done.stdout)["slots"] == slots
        wait_until(has_them, f"it has {slots} slots")
    await_slots(2)
    next(node for node in nodes if node is not host).kill()
    await_slots(1)
    jobs.put("go")
    assert host.wait() == 0, host.log()[-3000:]


def test_wrong_usage(stage, manager):
    for arguments, said in [(("--incidents", "-1"), "--incidents: -1 is below 0"), (("--from", "/nowhere"), "--from: "),
                            (("--from", "/nowhere", "--manager", manager.address), "only one of them")]:
        done = stage.run("goodput", *arguments)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def test_is_kept_over_a_kill_of_the_manager(stage):
    state = os.path.join(stage.folder, "state")
    port = harness.free_port()
    manager = stage.manager(state_dir=state, port=port, flags=SIZE)
    launcher, late = Launcher(manager), Deadline()
    kinds = launcher.messages.SupervisionEvent
    launcher.report(kinds.STARTED)
    launcher.report(kinds.EXITED, rank=0, node=0, code=3)
    launcher.close()

    def kept():
        """When the incident was saved."""
        for file in glob.glob(os.path.join(state, "*.ledger.json")):
            with open(file, encoding="utf-8") as text:
                if "rank 0 ended with code 3" in text.read():
                    return os.stat(file).st_mtime
        return None
    saved = wait_until(kept, "the incident is kept")
    before, asked = goodput_of(stage, manager.address), time.time()
    manager.kill()
    after = goodput_of(stage, stage.manager(name="next", state_dir=state, port=port, flags=SIZE).address)
    assert since(after) == pytest.approx(since(before), abs=0.01) and len(after["attempts"]) == 1
    assert [i["text"] for i in after["incidents"]] == ["rank 0 ended with code 3"]
    assert after["rank_s"] >= before["rank_s"] - 1e-3
    # It is written at each incident and every few seconds: what was not, and while nobody was there, is unknown.
    lost_s = asked - saved + SAVE_S + late.extension_s()
    assert after["seconds"]["restart"] >= before["seconds"]["restart"] - after["slots"] * lost_s


def test_a_database_that_is_in_use_keeps_no_ledger_back(stage):
    """Nor does the ledger keep a switch back: they are files of their own."""
    state = os.path.join(stage.folder, "state")
    launcher = Launcher(stage.manager(state_dir=state, flags=SIZE))
    database = sqlite3.connect(os.path.join(state, "manager.db"), isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    launcher.report(launcher.messages.SupervisionEvent.STARTED)
    launcher.report(launcher.messages.SupervisionEvent.EXITED, rank=0, node=0, code=3)
    launcher.close()

    def kept():
        done = stage.run("goodput", "--state-dir", state, "--json")
        return done.returncode == 0 and json.loads(done.stdout)["incidents"]
    assert [i["kind"] for i in wait_until(kept, "the incident is kept")] == ["rank_exit"]
    database.close()


class Shared:
    """A ledger folder that attempts share, and managers of one job that have it."""

    def __init__(self, stage):
        self.stage, self.folder, self.managers = stage, os.path.join(stage.folder, "ledger"), 0

    def manager(self, folder=None):
        self.managers += 1
        return self.stage.manager(name=f"attempt{self.managers}", flags=[*SIZE, "--ledger", folder or self.folder])

    def report(self, manager, *events):
        launcher = Launcher(manager)
        for kind, fields in events:
            launcher.report(getattr(launcher.messages.SupervisionEvent, kind), **fields)
        launcher.close()

    def file(self):
        return next((os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".ledger.json")), None)

    def read(self):
        done = self.stage.run("goodput", "--ledger", self.folder, "--json")
        return check_sum(json.loads(done.stdout)) if done.returncode == 0 else {"incidents": [], "attempts": []}


@pytest.fixture
def shared(stage):
    return Shared(stage)


KILLED = ("EXITED", {"rank": 3, "node": 1, "code": 137, "signal": 9})
EVICTED = ("ENDED", {"code": 143, "message": "node 0 (a) left: SIGTERM", "cause": 3})  # TERMINATED


def test_attempts_that_share_a_folder_are_one_ledger(stage, shared):
    first = shared.manager()
    shared.report(first, ("STARTED", {}), KILLED, ("STARTED", {"round": 1}), EVICTED)
    wait_until(lambda: any(a["outcome"] for a in shared.read()["attempts"]), "its end is kept")
    first.kill()
    before = shared.read()
    assert [i["kind"] for i in before["incidents"]] == ["rank_exit"]
    second = shared.manager()  # at once: the one that was killed is known to be dead
    shared.report(second, ("STARTED", {}))
    # Where the folder is slow to answer, what was before comes a little later.
    wait_until(lambda: len(goodput_of(stage, second.address)["attempts"]) == 2, "the second attempt knows of the first")
    after = goodput_of(stage, second.address)
    assert [(a["number"], a["outcome"]) for a in after["attempts"]] == [(1, "code 143: node 0 (a) left: SIGTERM"), (2, "")]
    assert [(i["number"], i["kind"]) for i in after["incidents"]] == [(1, "rank_exit"), (2, "eviction")]
    assert since(after) == pytest.approx(since(before), abs=0.01) and after["seconds"]["queue"] > 0
    assert after["incidents"][1]["seconds"]["queue"] == pytest.approx(after["seconds"]["queue"])
    wait_until(lambda: len(shared.read()["attempts"]) == 2, "the second attempt is kept")
    second.terminate()
    assert not [name for name in os.listdir(shared.folder) if name.endswith(".lock")]


def test_the_platforms_id_names_the_job(jobs):
    """`taskd run` has no option for a name: attempts with one MINDX_TASK_ID are one ledger."""
    folder = os.path.join(jobs.stage.folder, "ledger")
    for attempt in (1, 2):
        launcher = jobs.launch(f"attempt{attempt}", "--standalone", "--nproc-per-node=1", f"--ledger={folder}",
                               environment={"TASKD_MANAGER": "", "MINDX_TASK_ID": "0a1b-2c3d"})
        assert launcher.wait() == 0, launcher.log()[-3000:]
        assert "--ledger" not in launcher.log(), launcher.log()[-3000:]
    done = jobs.stage.run("goodput", "--ledger", folder, "--json")
    assert done.returncode == 0, done.stderr
    goodput = check_sum(json.loads(done.stdout))
    assert goodput["job"] == "default/0a1b-2c3d"
    assert [a["outcome"] for a in goodput["attempts"]] == ["ended", "ended"]


def test_a_job_without_a_name_is_told_what_its_user_can_set(jobs):
    launcher = jobs.launch("launcher", "--standalone", "--nproc-per-node=1", "--ledger=ledger",
                           environment={"TASKD_MANAGER": "", "MINDX_TASK_ID": ""})
    assert launcher.wait() == 0, launcher.log()[-3000:]
    assert "--ledger: not used" in launcher.log() and "give TASKD_JOB, TASKD_TASK_ID or MINDX_TASK_ID" in launcher.log()


def test_a_killed_manager_goes_on_in_the_shared_ledger(stage, shared):
    first = shared.manager()
    shared.report(first, ("STARTED", {}), KILLED)
    wait_until(lambda: shared.read()["incidents"], "the incident is kept")
    before = goodput_of(stage, first.address)
    first.kill()
    second = shared.manager()
    wait_until(lambda: goodput_of(stage, second.address)["incidents"], "it knows what was kept")
    after = goodput_of(stage, second.address)
    assert len(after["attempts"]) == 1 and since(after) == pytest.approx(since(before), abs=0.01)
    assert [i["text"] for i in after["incidents"]] == ["rank 3 ended by signal 9"]
    assert after["seconds"]["queue"] == 0


def test_one_manager_at_a_time_has_a_ledger(stage, shared):
    first = shared.manager()
    shared.report(first, ("STARTED", {}), KILLED)
    wait_until(lambda: shared.read()["incidents"], "the incident is kept")
    second = shared.manager()
    wait_until(lambda: "another manager has it" in second.log(), "the second one says so")
    shared.report(second, ("STARTED", {}), EVICTED)
    assert goodput_of(stage, second.address)["attempts"][0]["outcome"]  # it counts all the same
    shared.report(first, ("STARTED", {"round": 1}), KILLED)
    wait_until(lambda: len(shared.read()["incidents"]) == 2, "the first one goes on")
    assert len(shared.read()["attempts"]) == 1
    first.terminate()
    # What the first one kept comes before what the second one has counted meanwhile.
    wait_until(lambda: len(shared.read()["attempts"]) == 2, "the second one has it now", timeout_s=60)
    kept = shared.read()
    assert [i["kind"] for i in kept["incidents"]] == ["rank_exit", "rank_exit", "requeue"]


@pytest.mark.parametrize("trouble", ["a pipe", "others write", "no folder", "a later release"])
def test_a_ledger_folder_that_is_of_no_use_stops_nothing(stage, shared, trouble):
    first = shared.manager()
    shared.report(first, ("STARTED", {}))
    wait_until(lambda: os.path.isdir(shared.folder) and shared.file(), "the ledger is kept")
    first.terminate()
    kept, folder = shared.file(), shared.folder
    if trouble == "a pipe":
        os.unlink(kept)
        os.mkfifo(kept)
        said = "is not a regular file"
    elif trouble == "others write":
        os.chmod(folder, 0o777)
        said = "others can write to"
    elif trouble == "no folder":
        folder = kept  # a file
        said = "Not a directory"
    else:
        with open(kept, encoding="utf-8") as file:
            later = file.read().replace('"schema":1', '"schema":9', 1)
        with open(kept, "w", encoding="utf-8") as file:
            file.write(later)
        said = "it is of a later release (schema 9)"
        done = stage.run("goodput", "--ledger", folder)
        assert done.returncode != 0 and said in done.stderr
    second = shared.manager(folder)
    shared.report(second, ("STARTED", {}), KILLED)
    wait_until(lambda: said in second.log(), "it says so")
    assert "has a hole from 20" in second.log()
    assert [i["kind"] for i in goodput_of(stage, second.address)["incidents"]] == ["rank_exit"]
    second.terminate()
    if trouble == "a later release":
        with open(kept, encoding="utf-8") as file:
            assert file.read() == later


def test_what_a_manager_has_kept_can_be_read_without_it(stage, manager, launcher):
    launcher.report(launcher.messages.SupervisionEvent.STARTED)
    manager.terminate()
    done = stage.run("goodput", "--state-dir", manager.state_dir, "--json")
    assert done.returncode == 0, done.stderr
    assert check_sum(json.loads(done.stdout))["job"] == manager.job
    for arguments, said in [(("--state-dir", "/nowhere"), "--state-dir: /nowhere: No such file"),
                            (("--ledger", "/nowhere"), "--ledger: /nowhere: No such file"),
                            (("--ledger", "/nowhere", "--state-dir", "/nowhere"), "only one of them"),
                            (("--ledger", "/nowhere", "--manager", "127.0.0.1:1"), "only one of them"),
                            (("--state-dir", manager.state_dir, "--job", "ns/other"), "no ledger of job ns/other is there")]:
        done = stage.run("goodput", *arguments)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def read_times(folder):
    times = {}
    for name in os.listdir(folder):
        if name.startswith("times."):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file.read().splitlines()]
            times[tuple(map(int, name.split(".")[1:]))] = ({l["what"]: l["time"] for l in lines if "what" in l},
                                                           {l["step"]: (l["begin"], l["end"]) for l in lines if "step" in l})
    return times


class Training:
    """goodput_job on two nodes of two ranks each, marked by taskd.torch."""

    def __init__(self, jobs, steps, save_every, kill_step, flags=(), environment=None):
        pytest.importorskip("torch", reason="Debian 12's PyTorch is not installed: apt-get install python3-torch")
        self.stage, self.folder = jobs.stage, jobs.folder
        self.profiling, self.state = os.path.join(jobs.folder, "profiling"), os.path.join(jobs.stage.folder, "state")
        switch = os.path.join(jobs.folder, "switch")
        with open(switch, "w", encoding="utf-8") as file:
            json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)
        self.kill_step = kill_step
        goodput_job.write_plan(jobs.folder, steps, save_every, kill_step, awaited=True)
        port = free_port()
        environment = {"TASKD_MANAGER": "", "TASKD_PROFILING_DIR": self.profiling, "MINDX_TASK_ID": "goodput",
                       "TASKD_SWITCH_FILE": switch, "GLOO_SOCKET_IFNAME": "lo", "TASKD_STATE_DIR": self.state,
                       **(environment or {})}
        self.nodes = [jobs.static(node, port, "--max-restarts=1", *flags, "-m", "taskd.torch", environment=environment,
                                  script=goodput_job.SCRIPT, script_arguments=[jobs.folder])
                      for node in (0, 1)]
        self.address = wait_manager(self.nodes[0])

    def follow(self, each=lambda goodput: None):
        """Asks for the ledger again and again until the job is over. The last one comes from its state."""
        kill = os.path.join(self.folder, "kill")

        def over():
            if not os.path.exists(kill) and self.knows_steps():
                open(kill, "w", encoding="utf-8").close()
            done = self.stage.run("goodput", "--manager", self.address, "--json")
            if done.returncode == 0:
                each(check_sum(json.loads(done.stdout)))
            return not self.nodes[0].alive()
        wait_until(over, "the job is over", timeout_s=90, interval_s=0.1)
        assert [node.wait() for node in self.nodes] == [0, 0], self.nodes[0].log()[-3000:]
        manager = self.stage.manager(name="reader", job="", task="", state_dir=self.state)
        return goodput_of(self.stage, manager.address)

    def knows_steps(self):
        """The manager has all steps that were ended before the kill: what it was never told is in no ledger."""
        done = self.stage.run("status", "--manager", self.address, "--all", "--json")
        ranks = [rank for node in json.loads(done.stdout)["nodes"] for rank in node["ranks"]] if done.returncode == 0 else []
        return len(ranks) == 4 and all(rank["step"] >= self.kill_step - 1 for rank in ranks)

    def notes(self, rank, attempt=0):
        try:
            with open(os.path.join(self.folder, f"times.{rank}.{attempt}"), encoding="utf-8") as file:
                return [json.loads(line) for line in file.read().splitlines()]
        except FileNotFoundError:
            return []


@pytest.mark.parametrize("kill_step", [35, 40], ids=["long after a checkpoint", "in the step in which one was saved"])
def test_a_killed_rank_is_an_incident_whose_hops_add_up(jobs, kill_step):
    """A true PyTorch job on two nodes; what its ranks wrote down by their own clock is the truth."""
    steps, save_every = 60, 20
    training, seen = Training(jobs, steps, save_every, kill_step), []
    goodput = training.follow(seen.append)
    times, ranks = read_times(jobs.folder), range(4)
    assert goodput["slots"] == 4 and goodput["attempts"][0]["outcome"] == "ended"
    assert [(i["kind"], i["ranks"]) for i in goodput["incidents"]] == [("rank_exit", [1])]
    incident = goodput["incidents"][0]["seconds"]
    assert {"restart", "launch", "link_up", "redone"} <= set(incident)

    def took(attempt, first, last):
        return sum(end - begin for rank in ranks for step, (begin, end) in times[rank, attempt][1].items() if first <= step <= last)
    again = kill_step // save_every * save_every  # the first step of the second life
    truth = {
        # The step in which it was killed lasted until then, and is in no category of an interruption.
        "productive": took(0, 1, kill_step - 1) + took(1, kill_step, steps) +
                      sum(times[1, 0][0]["killed"] - times[rank, 0][1][kill_step - 1][1] for rank in ranks),
        "redone": took(1, again, kill_step - 1),
        "launch and link-up": sum(min(b for b, _ in times[rank, 1][1].values()) - times[rank, 1][0]["began"] for rank in ranks),
    }
    # A busy machine has stragglers, and steps that nothing explains.
    steps_of = ("productive", "data", "checkpoint", "straggler", "unknown")
    found = {"productive": sum(goodput["seconds"][category] for category in steps_of),
             "redone": incident["redone"],
             "launch and link-up": incident["launch"] + incident["link_up"]}
    # The second life's first step: of it the ledger knows what is more than usual, the truth all.
    found["redone" if again < kill_step else "productive"] += incident.get("warm_up", 0)
    # Where between the joining and the end of the second life's first step the marked step begins is not the script's to say, nor
    # whether the ledger knew of the step that was lost.
    first_s = sum(times[rank, 1][1][again][1] - times[rank, 1][0]["joined"] for rank in ranks)
    for what, value in truth.items():
        assert found[what] == pytest.approx(value, rel=0.02, abs=0.25 * len(ranks) + first_s), (what, truth, found, goodput)
    assert len(seen) > 5
    # The marks alone.
    done = jobs.stage.run("goodput", "--from", os.path.join(training.profiling, "goodput"), "--json", timeout_s=60)
    assert done.returncode == 0, done.stderr
    from_files = json.loads(done.stdout)
    assert sum(from_files["seconds"].values()) == pytest.approx(from_files["rank_s"], rel=1e-3)
    # A step that has no end is in no file: what was saved in it either, and so the steps since the checkpoint before are redone.
    lost = took(0, again - save_every, again - 1) if kill_step == again else 0
    assert from_files["seconds"]["productive"] + lost == pytest.approx(goodput["seconds"]["productive"], rel=0.02, abs=0.25 * len(ranks))
    assert from_files["seconds"]["launch"] == 0 and from_files["seconds"]["unknown"] > 0


def tree_of(pid):
    """A process and all that it has started, directly or not."""
    pids = [pid]
    for one in pids:
        try:
            with open(f"/proc/{one}/task/{one}/children", encoding="ascii") as file:
                pids += [int(child) for child in file.read().split()]
        except FileNotFoundError:
            pass
    return pids


@pytest.mark.parametrize("whole_nodes", [False, True], ids=["the ranks", "whole nodes"])
def test_processes_that_were_stopped_are_suspended(jobs, whole_nodes):
    """All ranks are stopped, or with them launchers, proxies and the manager, as a scheduler suspends a job."""
    training, ranks = Training(jobs, steps=100, save_every=1000, kill_step=-1), range(4)
    wait_until(lambda: all(len(training.notes(rank)) > 20 for rank in ranks), "all ranks train")
    pids = [training.notes(rank)[0]["pid"] for rank in ranks]
    if whole_nodes:
        pids = [pid for node in training.nodes for pid in tree_of(node.pid)]
        assert {training.notes(rank)[0]["pid"] for rank in ranks} < set(pids)

    def signal_all(number, order=1):
        for pid in pids[::order]:
            os.kill(pid, number)
    truth_s, late_s = suspend(lambda: signal_all(signal.SIGSTOP), lambda: signal_all(signal.SIGCONT, -1))
    check_suspended(training.follow(), truth_s, late_s)


def suspend(stop, go_on):
    """Stops a job for SUSPENDED_S. Returns the seconds in which it was stopped, and those in which the machine was starved when it was
    stopped and when it went on: the ledger may have seen that so much later."""
    late, began = Deadline(), time.monotonic()
    stop()
    time.sleep(SEEN_S)
    late_s = late.extension_s()
    time.sleep(SUSPENDED_S - SEEN_S)
    late = Deadline()
    go_on()
    stopped_s = time.monotonic() - began
    time.sleep(SEEN_S)
    return stopped_s, late_s + late.extension_s()


def check_suspended(goodput, truth_s, late_s):
    slots, seconds = goodput["slots"], goodput["seconds"]
    assert seconds["suspended"] == pytest.approx(slots * truth_s, rel=0.02, abs=slots * (SEEN_S + late_s)), (goodput, truth_s, late_s)
    assert seconds["unknown"] + seconds["hang"] < slots * (truth_s / 2 + late_s), (goodput, truth_s, late_s)


@pytest.fixture
def freezer():
    """Files of a cgroup of its own: where process ids are written to, the one that freezes it, and what that takes."""
    for parent, name, freeze, thaw in (("freezer", "freezer.state", "FROZEN", "THAWED"), ("unified", "cgroup.freeze", "1", "0"),
                                       ("", "cgroup.freeze", "1", "0")):
        folder = os.path.join("/sys/fs/cgroup", parent, f"taskd-goodput-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        state = os.path.join(folder, name)
        if os.path.exists(state):
            yield os.path.join(folder, "cgroup.procs"), state, freeze, thaw
            write(state, thaw)
            wait_until(lambda: not read(os.path.join(folder, "cgroup.procs")), "its processes have ended")
            os.rmdir(folder)
            return
        os.rmdir(folder)
    pytest.skip("no cgroup can be made that freezes")


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@pytest.mark.root("a cgroup")
def test_processes_in_a_frozen_cgroup_are_suspended(jobs, freezer):
    """The ranks alone: what looks at them runs."""
    procs, state, freeze, thaw = freezer
    training, ranks = Training(jobs, steps=100, save_every=1000, kill_step=-1), range(4)
    wait_until(lambda: all(len(training.notes(rank)) > 20 for rank in ranks), "all ranks train")
    for rank in ranks:
        write(procs, str(training.notes(rank)[0]["pid"]))
    truth_s, late_s = suspend(lambda: write(state, freeze), lambda: write(state, thaw))
    check_suspended(training.follow(), truth_s, late_s)


def test_a_job_that_is_killed_and_started_again(jobs):
    """Everything of an attempt is killed, as with a node; the next one finds the ledger in the folder that both have."""
    ledger, named = os.path.join(jobs.stage.folder, "ledger"), {"TASKD_JOB": "default/again", "TASKD_TASK_ID": "again"}

    def attempt(steps):
        # Nothing is saved: right after a save nothing would have to be done again.
        return Training(jobs, steps=steps, save_every=100_000, kill_step=-1, flags=("--ledger", ledger), environment=named)

    def kept():
        done = jobs.stage.run("goodput", "--ledger", ledger, "--json")
        return check_sum(json.loads(done.stdout)) if done.returncode == 0 else None
    first, ranks = attempt(10_000), range(4)  # it does not come to its end
    wait_until(lambda: all(len(first.notes(rank)) > 30 for rank in ranks), "all ranks train")
    wait_until(lambda: (kept() or {"seconds": {"productive": 0}})["seconds"]["productive"] > 0, "some of it is kept")
    for pid in [pid for node in first.nodes for pid in tree_of(node.pid)]:
        os.kill(pid, signal.SIGKILL)
    for node in first.nodes:
        node.wait()
    before = kept()
    second = attempt(first.notes(0)[-1]["step"] + 40)
    wait_until(lambda: not second.nodes[0].alive(), "the job is over", timeout_s=90)
    assert [node.wait() for node in second.nodes] == [0, 0], second.nodes[0].log()[-3000:]
    whole = kept()
    assert [a["outcome"] for a in whole["attempts"]] == ["its launcher was lost", "ended"]
    assert [i["kind"] for i in whole["incidents"]] == ["requeue"]
    hops = whole["incidents"][0]["seconds"]
    assert {"queue", "launch", "link_up", "redone"} <= set(hops)
    # The queue begins with what was kept last, and the next launcher has ended it by now.
    assert whole["seconds"]["queue"] <= len(ranks) * (time.time() - since(before) - before["wall_s"])
    assert since(whole) == pytest.approx(since(before), abs=0.01) and whole["rank_s"] > before["rank_s"]
    for category in CATEGORIES:
        assert whole["seconds"][category] >= before["seconds"][category] - 1e-3 or category in ("productive", "unknown", "link_up")
