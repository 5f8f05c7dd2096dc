"""`taskd diagnose`: who is named, and who is not, from files that a test makes; its errors; and a manager's report."""
import json
import os

import harness
import pytest
from from_files import named
from harness import JOB, wait_until
from synthetic_job import MS, START_NS, Job


def run(stage, folder, *flags):
    done = stage.run("diagnose", "--from", str(folder), *flags)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stderr == ""
    return done.stdout


def diagnose(stage, folder, *flags):
    lines = run(stage, folder, "--json", *flags).splitlines()
    assert len(lines) == 1
    report = json.loads(lines[0])
    assert list(report) == ["schema", "job", "ranks", "steps", "state", "verdicts", "notes", "coverage", "resolution"]
    for verdict in report["verdicts"]:
        assert list(verdict) == ["scope", "ids", "alternatives", "cause", "state", "since_step", "since_time", "slowdown", "slowdown_interval",
                                 "cost_ms_per_step", "cost_interval_ms", "confidence", "evidence", "nodes", "text"]
    return report


def slow_from(step, factor=1.5):
    return lambda now: factor if now >= step else 1


def usage_error(done, *words):
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, f"not one line: {done.stderr!r}"
    assert done.stdout == ""
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"


@pytest.fixture
def marks(tmp_path):
    return tmp_path / "marks"


# Who is slow

def test_healthy_job_has_no_verdicts(stage, marks):
    job = Job(ranks=4, steps=60)
    job.data_parallel()
    job.write(marks)
    report = diagnose(stage, marks)
    assert report["state"] == "ok" and report["verdicts"] == []
    assert report["job"] == "marks" and report["ranks"] == 4
    assert report["steps"]["first"] <= 2 and report["steps"]["last"] == 59
    assert run(stage, marks).startswith("ok: 4 ranks, steps ")


def test_slow_rank_of_a_data_parallel_job(stage, marks):
    job = Job(ranks=4, steps=60)
    job.compute[2] = slow_from(30)
    job.data_parallel()
    job.write(marks)
    report = diagnose(stage, marks, "--job", "default/llm")
    assert report["job"] == "default/llm" and report["state"] == "slow"
    assert named(report) == [("rank", [2])]
    verdict = report["verdicts"][0]
    assert verdict["state"] == "open" and verdict["cause"] in ("compute", "memory")
    assert 29 <= verdict["since_step"] <= 33
    assert verdict["since_time"].startswith("2026-01-01T00:00:0") and verdict["since_time"].endswith("Z")
    # A step of 74 ms has 65 ms of computation, of which half as much comes on top; most of that is in nobody's shade.
    assert 15 < verdict["cost_ms_per_step"] < 40 and 1.1 < verdict["slowdown"] < 1.6
    assert verdict["confidence"] > 0.5 and verdict["evidence"]
    assert "rank 2" in verdict["text"]
    text = run(stage, marks)
    assert text.startswith("slow: rank 2 (node 0)")
    assert max(map(len, text.splitlines())) <= 120


def test_slow_rank_of_a_pipeline_though_others_come_last(stage, marks):
    """The stage behind the slow rank is the last to reduce its gradients."""
    job = Job(ranks=8, steps=60)
    job.compute[1] = slow_from(30)
    job.pipeline(replicas=4)
    job.write(marks)
    report = diagnose(stage, marks)
    assert named(report) == [("rank", [1])]
    assert 29 <= report["verdicts"][0]["since_step"] <= 33


def test_slow_from_the_first_step(stage, marks):
    job = Job(ranks=8, steps=60)
    job.compute[6] = slow_from(0, 1.3)
    job.pipeline(replicas=4)
    job.write(marks)
    assert named(diagnose(stage, marks)) == [("rank", [6])]


def test_slow_dataloader(stage, marks):
    job = Job(ranks=4, steps=60)
    job.dataloader[3] = slow_from(30, 6)
    job.data_parallel()
    job.write(marks)
    report = diagnose(stage, marks)
    assert named(report) == [("rank", [3])]
    assert report["verdicts"][0]["cause"] == "dataloader"


def test_fault_that_ends_is_cleared(stage, marks):
    job = Job(ranks=4, steps=120)
    job.compute[1] = lambda step: 1.5 if 20 <= step < 50 else 1
    job.data_parallel()
    job.write(marks)
    report = diagnose(stage, marks)
    assert named(report) == [("rank", [1])]
    assert report["verdicts"][0]["state"] == "cleared" and report["state"] == "ok"
    assert "\ncleared: rank 1: " in run(stage, marks)


def test_stage_that_is_longer_by_design_is_no_fault(stage, marks):
    job = Job(ranks=8, steps=60)
    job.pipeline(replicas=4, last_stage=1.6)
    job.write(marks)
    report = diagnose(stage, marks)
    assert report["verdicts"] == [] and report["state"] == "ok"


# Why a rank has a verdict, or none

WHY_KEYS = ["feature", "value", "reference", "excess", "statistic", "threshold", "since_step", "decision", "veto", "needs"]


def why(stage, *arguments):
    done = stage.run("diagnose", "--json", *arguments)
    assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)
    trace = json.loads(done.stdout)
    assert list(trace) == ["rank", "text", "detectors"] and len(done.stdout.splitlines()) == 1
    for detector in trace["detectors"]:
        assert list(detector) == WHY_KEYS
        assert detector["decision"] in ("verdict", "below_threshold", "vetoed", "no_data")
        assert (detector["veto"] is not None) == (detector["decision"] == "vetoed")
    return trace, {detector["feature"]: detector for detector in trace["detectors"]}


def test_why_of_files(stage, marks):
    job = Job(ranks=4, steps=60)
    job.compute[2] = slow_from(30)
    job.data_parallel()
    job.write(marks)
    trace, detectors = why(stage, "--from", str(marks), "--why", "2")
    assert trace["rank"] == 2 and trace["text"].startswith("rank 2: self time ") and "; verdict: rank 2 (node 0)" in trace["text"]
    own = detectors["own_time"]
    assert own["decision"] == "verdict" and own["needs"] is None and 29 <= own["since_step"] <= 33
    assert own["value"] > 1.2 * own["reference"] and own["excess"] > 0.2 and own["statistic"] > 0 < own["threshold"]
    assert detectors["save_checkpoint"]["decision"] == "no_data" and detectors["save_checkpoint"]["value"] is None
    trace, detectors = why(stage, "--from", str(marks), "--why", "1")
    assert "; no verdict: " in trace["text"] and detectors["own_time"]["decision"] == "below_threshold"
    text = run(stage, marks, "--why", "1")
    assert text.startswith("rank 1: ") and "\nown_time " in text and max(map(len, text.splitlines())) <= 120


def test_why_a_young_rise_is_no_verdict(stage, marks):
    job = Job(ranks=2, steps=40)
    job.compute[1] = slow_from(20, 1.3)
    job.data_parallel()
    job.write(marks)
    assert diagnose(stage, marks)["verdicts"] == []
    trace, detectors = why(stage, "--from", str(marks), "--why", "1")
    assert detectors["own_time"]["veto"] == "duration" and detectors["own_time"]["needs"].endswith(" s more")
    assert "that a small peer group needs" in trace["text"]


def test_why_of_a_rank_without_marks_and_of_no_rank(stage, marks):
    job = Job(ranks=4, steps=30)
    job.data_parallel()
    job.write(marks, ranks=[0, 1, 2])
    trace, _ = why(stage, "--from", str(marks), "--why", "3")
    assert trace["detectors"] == [] and "no marks have come" in trace["text"]
    usage_error(stage.run("diagnose", "--from", str(marks), "--why", "4"), "--why: rank 4: this job has rank 0-3")
    for nonsense in ("-1", "131072", "one"):
        usage_error(stage.run("diagnose", "--from", str(marks), "--why", nonsense), "--why", nonsense)
    usage_error(stage.run("diagnose", "--why", "1", "--watch"), "--why", "--watch")
    usage_error(stage.run("diagnose", "--why", "1", "--wait", "1"), "--why", "--wait")


# What files may be like

def loose(mark):
    """As other writers may put it: spaces, and other keys first."""
    return json.dumps(dict(reversed(mark.items())))


def test_files_as_they_come(stage, marks):
    """Lines in another form, broken lines, a torn end, clocks apart, a rank without files: the same rank is named."""
    job = Job(ranks=8, steps=60)
    job.clock_ns = {0: 40 * MS, 1: -60 * MS}
    job.compute[6] = slow_from(30)
    job.data_parallel()
    job.write(marks, line=loose, files=3, ranks=[0, 1, 3, 4, 5, 6, 7])
    os.makedirs(marks / "2")
    names = sorted(name for name in os.listdir(marks / "6") if name.isdigit())
    with open(marks / "6" / names[1], "r+", encoding="utf-8") as file:
        lines = file.readlines()
        lines.insert(100, '{"Kind":1,"Flag":\n')
        lines.insert(200, "\x00\x00 no JSON at all\n")
        file.seek(0)
        file.write("".join(lines))
    with open(marks / "5" / names[2], "r+b") as file:
        file.truncate(os.path.getsize(marks / "5" / names[2]) - 57)
    (marks / "6" / "notes.txt").write_text("not ours\n")
    report = diagnose(stage, marks)
    assert named(report) == [("rank", [6])]
    lines = sum(len(job.lines(rank)) for rank in (0, 1, 3, 4, 5, 6, 7)) + 2 - 1
    assert f"2 of {lines} lines are no marks and were left out" in [note["text"] for note in report["notes"]]


def test_nodes_are_told_by_devices_without_rank_files(stage, marks):
    job = Job(ranks=8, steps=60)
    job.compute[6] = slow_from(30)
    job.data_parallel()
    job.write(marks, places=False)
    assert run(stage, marks).startswith("slow: rank 6 (node 1)")


def test_communication_off(stage, marks):
    """Then the waits are in no mark: nobody who waits may be named."""
    job = Job(ranks=4, steps=60, communication=False)
    job.compute[2] = slow_from(30)
    job.data_parallel()
    job.write(marks)
    assert named(diagnose(stage, marks)) in ([], [("rank", [2])])


def test_job_in_progress(stage, marks):
    """Ranks are written one after the other: their files end at different steps, in the middle of lines."""
    job = Job(ranks=4, steps=60)
    job.compute[2] = slow_from(20)
    job.data_parallel()
    job.write(marks, files=1)
    for rank in range(4):
        path = marks / str(rank) / str(START_NS // 10**9)
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 7013 * rank)
    assert named(diagnose(stage, marks)) == [("rank", [2])]


def test_rank_that_dies(stage, marks):
    job = Job(ranks=4, steps=60)
    job.compute[2] = slow_from(30)
    job.data_parallel()
    job.write(marks, files=1)
    path = marks / "1" / str(START_NS // 10**9)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 3)
    assert ("rank", [1]) not in named(diagnose(stage, marks))


def test_restart_with_fewer_ranks(stage, marks):
    job = Job(ranks=8, steps=40)
    job.data_parallel()
    job.write(marks)
    after = Job(ranks=4, steps=40, seed=2, first_step=30, start_ns=START_NS + 60 * 1000 * MS, pid=2000)
    after.data_parallel("dp-group-2")
    after.write(marks)
    report = diagnose(stage, marks)
    assert report["verdicts"] == [] and report["steps"]["last"] == 69


def test_same_files_same_report(stage, marks):
    job = Job(ranks=8, steps=60)
    job.compute[1] = slow_from(30, 1.1)
    job.pipeline(replicas=4)
    job.write(marks)
    first = run(stage, marks, "--json")
    assert all(run(stage, marks, "--json") == first for _ in range(5))


def test_names_with_quotes(stage, marks):
    job = Job(ranks=4, steps=60)
    job.compute[2] = slow_from(30)
    job.data_parallel('gr"oup\\ <é>')
    job.write(marks)
    report = diagnose(stage, marks, "--job", 'a"b\\c')
    assert report["job"] == 'a"b\\c'
    assert named(report) == [("rank", [2])]


def test_profiling_directory_with_one_task(stage, tmp_path):
    job = Job(ranks=2, steps=20)
    job.data_parallel()
    job.write(tmp_path / "profiling" / "4711")
    assert diagnose(stage, tmp_path / "profiling")["job"] == "4711"
    job.write(tmp_path / "profiling" / "task-b")
    usage_error(stage.run("diagnose", "--from", str(tmp_path / "profiling")), "4711", "task-b")
    assert diagnose(stage, tmp_path / "profiling" / "task-b")["ranks"] == 2


def test_too_few_steps_are_no_answer(stage, marks):
    job = Job(ranks=4, steps=3)
    job.data_parallel()
    job.write(marks)
    report = diagnose(stage, marks)
    assert report["state"] == "unknown" and report["verdicts"] == []
    assert run(stage, marks).startswith("unknown: ")


def test_marks_without_steps(stage, marks):
    """Recording of steps was off."""
    job = Job(ranks=2, steps=10)
    job.data_parallel()
    for rank in range(2):
        job.marks[rank] = [mark for mark in job.marks[rank] if not mark[2]["Name"].startswith("step")]
    job.write(marks)
    assert diagnose(stage, marks)["state"] == "unknown"


# Wrong usage

def test_no_marks_is_wrong_usage(stage, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    usage_error(stage.run("diagnose", "--from", str(tmp_path / "nowhere")), "nowhere", "No such file")
    usage_error(stage.run("diagnose", "--from", str(empty)), "empty")
    (empty / "0").mkdir()
    usage_error(stage.run("diagnose", "--from", str(empty)), "empty")
    (empty / "0" / "1767225600").write_text("these\nare no marks\n")
    usage_error(stage.run("diagnose", "--from", str(empty)), "none of its 2 lines")
    usage_error(stage.run("diagnose", "--from", str(empty / "0")), "folder above")
    usage_error(stage.run("diagnose", "--from", str(empty / "0" / "1767225600")), "is of no known format")


def test_wrong_usage(stage, tmp_path):
    usage_error(stage.run("diagnose", "--from", str(tmp_path), "--manager", "127.0.0.1:1"), "--from", "--manager")
    usage_error(stage.run("diagnose", "--from", str(tmp_path), "--watch"), "--watch")
    usage_error(stage.run("diagnose", "--manager", "nonsense"), "nonsense")
    usage_error(stage.run("diagnose", "--frobnicate"), "--frobnicate")


def test_flag_wins_over_variable(stage, marks):
    job = Job(ranks=2, steps=20)
    job.data_parallel()
    job.write(marks)
    environment = harness.clean_environment(TASKD_MANAGER="127.0.0.1:1", TASKD_FROM=str(marks / "nowhere"))
    done = stage.run("diagnose", "--from", str(marks), "--json", environment=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["ranks"] == 2, done.stderr
    done = stage.run("diagnose", "--manager", f"127.0.0.1:{harness.free_port()}", environment=environment)
    assert done.returncode == 1, done.stderr


# Live

STEPS = """
import ctypes, sys, time
taskd = ctypes.CDLL(None)
taskd.taskd_range_start.restype = ctypes.c_uint64
taskd.taskd_range_start.argtypes = [ctypes.c_char_p]
taskd.taskd_range_end.argtypes = [ctypes.c_uint64]
assert taskd.taskd_worker_init(int(sys.argv[1]), 0, 0) == 0
for step in range(1000000):
    mark = taskd.taskd_range_start(b"step %d" % step)
    time.sleep(0.02)
    taskd.taskd_range_end(mark)
"""


def test_manager_that_is_not_there(stage):
    done = stage.run("diagnose", "--manager", f"127.0.0.1:{harness.free_port()}")
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "cannot be reached: Connection refused: is the job running?" in done.stderr


def test_live_job(stage, manager, recording, proxy):  # noqa: ARG001
    """The manager's report, the files of the job in progress, and a watcher."""
    done = stage.run("diagnose", "--manager", manager.address, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["job"] == JOB and report["ranks"] == 0 and report["state"] == "unknown"
    watcher = harness.Process("watcher", [harness.TASKD, "diagnose", "--manager", manager.address, "--watch", "--json"],
                              harness.clean_environment(), stage.folder)
    stage.processes.append(watcher)
    for rank in range(2):
        stage.python(f"steps{rank}", STEPS, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": proxy.socket}, str(rank))

    def live():
        answer = stage.run("diagnose", "--manager", manager.address, "--job", JOB, "--json")
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)
        return found if found["ranks"] == 2 and found["steps"]["last"] >= 5 else None
    report = wait_until(live, "the manager has judged steps of both ranks")
    assert report["verdicts"] == []
    from_files = wait_until(lambda: os.path.isdir(proxy.task_dir) and len(os.listdir(proxy.task_dir)) == 2 and
                            (lambda d: d if d.returncode == 0 and json.loads(d.stdout)["ranks"] == 2 else None)(
                                stage.run("diagnose", "--from", proxy.profiling_dir, "--json")), "marks of both ranks")
    assert json.loads(from_files.stdout)["job"] == proxy.task
    other = stage.run("diagnose", "--manager", manager.address, "--job", "default/another")
    assert other.returncode == 1 and other.stdout == "" and "default/another" in other.stderr
    trace, _ = why(stage, "--manager", manager.address, "--why", "1")
    assert trace["text"].startswith("rank 1: ") and trace["detectors"]
    usage_error(stage.run("diagnose", "--manager", manager.address, "--why", "7"), "--why: rank 7: this job has ")
    other = stage.run("diagnose", "--manager", manager.address, "--job", "default/another", "--why", "1")
    assert other.returncode == 1 and other.stdout == "" and "default/another" in other.stderr
    assert json.loads(watcher.log().splitlines()[0])["job"] == JOB
    assert watcher.alive()


def test_marks_that_are_off_are_said_first(stage, manager, proxy):
    stage.python("steps", STEPS, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": proxy.socket}, "0")

    def said(words):
        def everywhere():
            diagnosed, status = (stage.run(command, "--manager", manager.address).stdout for command in ("diagnose", "status"))
            return words in " ".join(diagnosed.split()) and words in status
        wait_until(everywhere, f"diagnose and status say {words!r}")
    said("cannot say: marks are off (taskd switch all=on)")
    manager.all_on()
    wait_until(lambda: "marks are off" not in stage.run("diagnose", "--manager", manager.address).stdout, "they are on")
    wait_until(lambda: manager.rank_status()[0]["step"] > 3, "steps are recorded")
    assert manager.switch("all=off")[0] == 0
    said("cannot say: marks are off since step ")


def test_waits_for_the_manager_and_an_answer(stage, tmp_path):
    port = harness.free_port()
    address = f"127.0.0.1:{port}"
    done = stage.run("diagnose", "--wait", "0.3", "--manager", address)
    assert done.returncode == 1 and "cannot be reached" in done.stderr
    early = [harness.Process(name, [harness.TASKD, *command, "--manager", address, "--wait", "300"], harness.clean_environment(),
                             stage.folder)
             for name, command in (("switch", ["switch", "all=on"]), ("diagnose", ["diagnose"]))]
    stage.processes += early
    manager = stage.manager(port=port)
    late = stage.run("diagnose", "--wait", "0.3", "--manager", address)
    assert late.returncode == 1 and late.stdout.startswith("unknown: "), "there is no answer yet"
    simulated = ["simulate", "--manager", address, "--ranks", "8", "--steps", "120", "--fault", "compute:3:1.5@50"]
    assert stage.run(*simulated, timeout_s=100).returncode == 0
    # The first answer: on a slow machine that is given before the fault has cost enough.
    assert early[1].wait() == 0 and early[1].log().startswith(("slow: rank 3 ", "ok: 8 ranks, ")), early[1].log()
    wait_until(lambda: manager.status()["wanted"]["step"] == "on", "the switch has come through")
    for arguments in (["--wait", "-1"], ["--wait", "1", "--watch"], ["--wait", "1", "--from", str(tmp_path)]):
        usage_error(stage.run("diagnose", *arguments), "--wait")


def test_a_job_name_without_namespace_is_defaults(stage):
    stage.manager(job="default/my-run")
    done = stage.run("diagnose", "--job", "my-run", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["job"] == "default/my-run", done.stderr


def test_watch_prints_what_changes_the_answer(stage, manager):
    watcher = harness.Process("watcher", [harness.TASKD, "diagnose", "--manager", manager.address, "--watch"],
                              harness.clean_environment(), stage.folder)
    stage.processes.append(watcher)
    wait_until(lambda: watcher.log().startswith("unknown: "), "it prints the first report")
    simulated = ["simulate", "--manager", manager.address, "--ranks", "8", "--steps", "300", "--fault", "compute:3:1.5@50"]
    assert stage.run(*simulated, timeout_s=100).returncode == 0
    wait_until(lambda: "slow: rank 3 " in watcher.log(), "it prints the answer")
    headlines = [line for line in watcher.log().splitlines() if line.startswith(("unknown: ", "ok: ", "slow: "))]
    assert len(headlines) == len(set(headlines)) < 20, headlines
