"""`taskd trace --from DIR`: small folders of mark files, written here line by line, through the program and the checker."""
import json
import os
import random
import resource
import signal
import subprocess
import sys

import deadlines
import harness
import pytest
from test_command_line import usage_error

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import check_trace  # noqa: E402

BASE = 1745567190_000000000
MS = 1_000_000


class RankFiles:
    """The mark file of one rank, in the contract's format."""

    def __init__(self, task, rank, node=0, host="", groups=None):
        self.folder = os.path.join(task, str(rank))
        os.makedirs(self.folder)
        self.path = os.path.join(self.folder, "1745567190")
        self.pid = 1000 + rank
        self.lines = []
        self.next_id = 0
        with open(os.path.join(self.folder, ".rank.json"), "w", encoding="utf-8") as file:
            json.dump({"node": node, "host": host, "local_rank": rank}, file)
        if groups:
            with open(os.path.join(self.folder, "parallel_group.json"), "w", encoding="utf-8") as file:
                json.dump(groups, file)

    def line(self, flag, time_ns, mark_id, name="", domain="", device=None, stream=7):
        pid, tid = (device, stream) if device is not None else (self.pid, self.pid)
        self.lines.append(
            f'{{"Kind":1,"Flag":{flag},"SourceKind":{int(device is not None)},"Timestamp":{BASE + time_ns},"Id":{mark_id},'
            f'"MsptiObjectId":{{"Pt":{{"ProcessId":{pid},"ThreadId":{tid}}},"Ds":{{"DeviceId":{pid},"StreamId":{tid}}}}},'
            f'"Name":{json.dumps(name)},"Domain":"{domain}"}}\n')

    def start(self, time_ns, name, domain="default"):
        self.next_id += 1
        self.line(16, time_ns, self.next_id, name, domain)
        return self.next_id

    def end(self, time_ns, mark_id):
        self.line(32, time_ns, mark_id)

    def range(self, start_ns, end_ns, name, domain="default"):
        self.end(end_ns, self.start(start_ns, name, domain))

    def write(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(self.lines)


def communication(op, group, count=1024, **more):
    return json.dumps({"count": str(count), "dataType": "fp32", "groupName": group, "opName": op, "streamId": "3",
                       **{k: str(v) for k, v in more.items()}})


def group(label, members, rank):
    return {"group_name": label, "group_rank": members.index(rank), "global_ranks": members}


@pytest.fixture
def task(tmp_path):
    folder = tmp_path / "profiling" / "job-1"
    folder.mkdir(parents=True)
    return str(folder)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return str(folder / "trace.json")


def trace(stage, task, out, *arguments):
    """The checked timeline."""
    done = stage.run("trace", "--from", task, "-o", out, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.count("\n") == 1 and out in done.stdout
    assert os.listdir(os.path.dirname(out)) == [os.path.basename(out)]
    report = check_trace.check(out)
    assert report.problems == []
    return report


def two_ranks(task):
    """Rank 0 on node 0, rank 9 on node 1, three steps of 10 ms."""
    for rank, node in ((0, 0), (9, 1)):
        groups = {"g_pp": group("pp", [0, 9], rank)}
        files = RankFiles(task, rank, node, f"host-{node}", groups)
        for step in range(3):
            at = step * 10 * MS
            files.range(at, at + 1 * MS, "dataloader")
            step_id = files.start(at + 1 * MS, f"step {step}")
            files.range(at + 2 * MS, at + 4 * MS + 1, "forward")
            name = communication("HcclSend", "g_pp", srcRank=0, destRank=1)
            files.range(at + 5 * MS + 123, at + 6 * MS, name, "communication")
            files.line(1, at + 7 * MS, 1000 + step, "loss", "mine")
            files.end(at + 9 * MS, step_id)
        files.write()


def spans(report, pid, track):
    return [(event.name, event.start_ns, event.end_ns) for event in report.on(pid, track)]


def test_every_mark_is_there_to_the_ns(stage, task, out):
    two_ranks(task)
    report = trace(stage, task, out)
    assert report.processes == {0: "rank 0 (node 0, host-0)", 9: "rank 9 (node 1, host-1)"}
    assert report.process_order[0] < report.process_order[9]
    assert report.tracks(9) == ["step", "forward", "dataloader", "communication pp", "other"]
    steps = [s * 10 * MS for s in range(3)]
    assert spans(report, 9, "step") == [(f"step {n}", s + MS, s + 9 * MS) for n, s in enumerate(steps)]
    assert spans(report, 9, "forward") == [("forward", s + 2 * MS, s + 4 * MS + 1) for s in steps]
    assert spans(report, 0, "dataloader") == [("dataloader", s, s + MS) for s in steps]
    assert spans(report, 0, "communication pp") == [("send pp", s + 5 * MS + 123, s + 6 * MS) for s in steps]
    assert report.on(0, "communication pp")[0].args == {"group": "g_pp", "op": "send", "bytes": 4096, "peer": 9}
    assert [(e.phase, e.name, e.start_ns) for e in report.on(0, "other")] == [("i", "loss", s + 7 * MS) for s in steps]
    assert report.other_data["unix_start_ns"] == str(BASE)
    assert report.other_data["task"] == "job-1"


def test_profiling_directory_with_one_task(stage, task, out):
    two_ranks(task)
    assert len(trace(stage, os.path.dirname(task), out).processes) == 2


def test_ranks_and_steps(stage, task, out):
    two_ranks(task)
    report = trace(stage, task, out, "--ranks", "1-9,12", "--steps", "1")
    assert list(report.processes) == [9]
    assert spans(report, 9, "step") == [("step 1", 11 * MS, 19 * MS)]
    # What lies between two steps belongs to the later one.
    assert spans(report, 9, "dataloader") == [("dataloader", 10 * MS, 11 * MS)]
    assert len(report.events) == 5
    report = trace(stage, task, out, "--steps", "0,2")
    assert [name for name, *_ in spans(report, 0, "step")] == ["step 0", "step 2"]
    assert len(report.events) == 20


def test_to_stdout(stage, task, tmp_path):
    two_ranks(task)
    done = stage.run("trace", "--from", task, "-o", "-")
    assert done.returncode == 0 and done.stderr == ""
    assert check_trace.check_text(done.stdout).problems == []


def test_device_records_have_tracks_of_their_own(stage, task, out):
    files = RankFiles(task, 0)
    mark = files.start(MS, communication("HcclAllreduce", "g"), "communication")
    files.end(2 * MS, mark)
    late = files.start(2 * MS, "step 0")
    files.end(3 * MS, late)
    files.line(16, 4 * MS, mark, device=3)
    files.line(32, 9 * MS, mark, device=3)
    files.line(16, 5 * MS, late, device=3, stream=8)
    files.line(32, 6 * MS, late, device=3, stream=8)
    files.write()
    report = trace(stage, task, out)
    assert report.tracks(0) == ["step", "step (device, stream 8)", "communication g", "communication g (device, stream 7)"]
    assert spans(report, 0, "communication g") == [("all_reduce g", 0, MS)]
    assert spans(report, 0, "communication g (device, stream 7)") == [("all_reduce g", 3 * MS, 8 * MS)]
    assert spans(report, 0, "step (device, stream 8)") == [("step 0", 4 * MS, 5 * MS)]


def test_crossing_ranges_and_open_ones(stage, task, out):
    files = RankFiles(task, 0)
    files.start(0, "never ended", "mine")
    first, second = files.start(1 * MS, "a", "mine"), files.start(2 * MS, "b", "mine")
    files.end(3 * MS, first)
    files.end(4 * MS, second)
    files.line(32, 5 * MS, 999)  # its start is not there
    files.write()
    report = trace(stage, task, out)
    assert spans(report, 0, "other 2") == [("b", 2 * MS, 4 * MS)]
    assert ("never ended", 0, 5 * MS) in spans(report, 0, "other")
    assert [e.name for e in report.events if e.args.get("open")] == ["never ended"]
    assert report.other_data["unmatched"] == "1"


def test_any_bytes_in_a_name(stage, task, out):
    files = RankFiles(task, 0)
    files.range(0, MS, 'a "quoted" \\ name\n\u2028 é', "mine")
    files.write()
    with open(files.path, "ab") as file:
        file.write(files.lines[0].replace('"Id":1', '"Id":2').encode().replace(b"quoted", b"\xff\xfe"))
        file.write(b"no mark at all\n")
    report = trace(stage, task, out)
    assert 'a "quoted" \\ name\n\u2028 é' in [e.name for e in report.events]


@pytest.mark.parametrize("arguments,words", [
    (["--from", "{task}"], ["-o"]),
    (["--from", "{task}/nothing", "-o", "{out}"], ["--from", "nothing"]),
    (["--from", "{task}", "-o", "{out}", "--ranks", "0-"], ["--ranks", "'0-'"]),
    (["--from", "{task}", "-o", "{out}", "--ranks", "7-3"], ["--ranks", "7-3"]),
    (["--from", "{task}", "-o", "{out}", "--ranks", "1,,2"], ["--ranks", "1,,2"]),
    (["--from", "{task}", "-o", "{out}", "--ranks", "-1"], ["-1"]),
    (["--from", "{task}", "-o", "{out}", "--ranks", "3-8"], ["--ranks", "3-8", "from 0 to 9"]),
    (["--from", "{task}", "-o", "{out}", "--steps", "ten"], ["--steps", "ten"]),
    (["--from", "{task}", "-o", "{out}", "--steps", "99999999999999999999"], ["--steps", "99999999999999999999"]),
    (["--from", "{task}", "-o", "{out}", "--steps", "50-60"], ["--steps", "50-60"]),
    (["--from", "{task}", "-o", "{out}", "--suspects", "--steps", "1"], ["--suspects"]),
    (["--from", "{task}", "-o", "{out}/x/y"], ["{out}/x/y"]),
    (["--from", "{task}", "-o", "{task}"], ["{task}", "directory"]),
    (["--from", "{task}", "-o", "{out}", "--colour", "red"], ["--colour"]),
], ids=lambda value: " ".join(value[2:]) or "empty")
def test_wrong_usage(stage, task, out, arguments, words):
    two_ranks(task)
    fill = lambda texts: [text.format(task=task, out=out) for text in texts]  # noqa: E731
    usage_error(stage.run("trace", *fill(arguments)), *fill(words))
    assert os.listdir(os.path.dirname(out)) == []


def test_folder_without_marks(stage, tmp_path, out):
    usage_error(stage.run("trace", "--from", str(tmp_path), "-o", out), str(tmp_path))
    assert os.listdir(os.path.dirname(out)) == []


def test_a_link_is_replaced_and_not_what_it_points_to(stage, task, out):
    """Anybody may have made a link in /tmp. What nobody could read stays so."""
    two_ranks(task)
    folder = os.path.dirname(out)
    for target in ("old.json", "new.json"):  # the second is not there
        link = os.path.join(folder, f"to-{target}")
        os.symlink(target, link)
        if target == "old.json":
            with open(os.path.join(folder, target), "w", encoding="utf-8") as file:
                file.write("old")
            os.chmod(os.path.join(folder, target), 0o600)
        assert stage.run("trace", "--from", task, "-o", link).returncode == 0
        assert not os.path.islink(link) and os.stat(link).st_mode & 0o777 == 0o600
        assert check_trace.check(link).ok
    assert sorted(os.listdir(folder)) == ["old.json", "to-new.json", "to-old.json"]
    with open(os.path.join(folder, "old.json"), encoding="utf-8") as file:
        assert file.read() == "old"


def test_a_name_of_a_descriptor_is_written_to_as_it_is(stage, task, out):
    """Also where that is a file: neither the link nor what it points to is replaced."""
    two_ranks(task)
    with open(out, "wb") as file:
        subprocess.run([harness.TASKD, "trace", "--from", task, "-o", f"/dev/fd/{file.fileno()}"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env=harness.clean_environment(), pass_fds=(file.fileno(),))
        assert os.fstat(file.fileno()).st_nlink == 1
    assert check_trace.check(out).ok
    assert os.listdir(os.path.dirname(out)) == [os.path.basename(out)]


def test_no_room_leaves_the_old_file(stage, task, out):
    two_ranks(task)
    with open(out, "w", encoding="utf-8") as file:
        file.write("old")

    def small_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = subprocess.run([harness.TASKD, "trace", "--from", task, "-o", out], check=False, capture_output=True, text=True,
                          env=harness.clean_environment(), preexec_fn=small_disk)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and out in done.stderr
    assert os.listdir(os.path.dirname(out)) == [os.path.basename(out)]
    with open(out, encoding="utf-8") as file:
        assert file.read() == "old"


def test_device_that_is_full(stage, task):
    two_ranks(task)
    done = stage.run("trace", "--from", task, "-o", "/dev/full")
    assert done.returncode == 1 and "No space left" in done.stderr
    assert os.path.exists("/dev/full")


def test_interrupted_leaves_nothing_half_done(stage, task, out):
    files = RankFiles(task, 0)
    for i in range(50_000):
        files.range(i * 1000, i * 1000 + 500, "forward")
    files.write()
    with subprocess.Popen([harness.TASKD, "trace", "--from", task, "-o", out], env=harness.clean_environment(),
                          stdout=subprocess.DEVNULL) as child:
        harness.wait_until(lambda: os.listdir(os.path.dirname(out)), "it has begun", interval_s=0.001)
        child.send_signal(signal.SIGINT)
        code = deadlines.wait_child(child)
    # It may have been faster than the signal.
    assert code in (-signal.SIGINT, 0)
    assert os.listdir(os.path.dirname(out)) == ([] if code else [os.path.basename(out)])


def simulated(task, slow_rank=None, onset=40, steps=90, ranks=8, skew_ns=0):
    """Data parallel ranks, four to a node, that meet in an all-reduce four times a step. The clocks of node 1 are ahead."""
    noise = random.Random(7)
    everybody = list(range(ranks))
    files = []
    for rank in everybody:
        groups = {"g_dp": group("dp", everybody, rank)}
        files.append(RankFiles(task, rank, rank // 4, f"host-{rank // 4}", groups))
    skew = [skew_ns * (rank // 4) for rank in everybody]
    now = 5 * MS
    for step in range(steps):
        open_steps = [f.start(now + s, f"step {step}") for f, s in zip(files, skew)]
        for _ in range(4):
            ready = []
            for rank in everybody:
                work = 10 * MS * (1.5 if rank == slow_rank and step >= onset else 1)
                ready.append(now + int(work * noise.gauss(1, 0.004)))
            meet = max(ready) + 2 * MS + noise.randrange(20_000)
            for rank, file in enumerate(files):
                end = meet + noise.randrange(10_000)
                file.range(ready[rank] + skew[rank], end + skew[rank], communication("HcclAllreduce", "g_dp", 1 << 20),
                           "communication")
            now = meet + 20_000
        for file, open_step, s in zip(files, open_steps, skew):
            file.end(now + s, open_step)
        now += 10_000
    for file in files:
        file.write()


def test_clocks_of_nodes_are_aligned(stage, task, out):
    simulated(task, steps=30, skew_ns=30 * MS)
    report = trace(stage, task, out)
    ends = [[e.end_ns for e in report.on(rank, "communication dp")] for rank in (0, 7)]
    assert len(ends[0]) == len(ends[1]) == 120
    differences = [abs(a - b) for a, b in zip(*ends)]
    assert sorted(differences)[60] < 1 * MS, "30 ms apart in the files"


def test_suspects(stage, task, out):
    simulated(task, slow_rank=5, ranks=24)
    diagnosis = json.loads(stage.run("diagnose", "--from", task, "--json").stdout)
    [verdict] = diagnosis["verdicts"]
    assert verdict["ids"] == [5]
    report = trace(stage, task, out, "--suspects")
    assert 5 in report.processes and 4 <= len(report.processes) <= 16
    steps = [int(e.name.split()[1]) for e in report.on(5, "step")]
    assert steps == list(range(verdict["since_step"] - 5, verdict["since_step"] + 11))
    [line] = [e for e in report.events if e.scope == "g"]
    assert line.pid == 5 and line.args["text"] == verdict["text"] and line.args["cause"] == verdict["cause"]
    [span] = [e for e in report.on(5, "verdict") if e.phase == "X"]
    of_onset = {e.name: e for e in report.on(5, "step")}[f"step {verdict['since_step']}"]
    assert (span.start_ns, span.end_ns) == (of_onset.start_ns, report.on(5, "step")[-1].end_ns)
    assert all("verdict" not in report.tracks(rank) for rank in report.processes if rank != 5)
    # All of the timeline has the verdict, too, over all steps since.
    whole = trace(stage, task, out)
    assert len(whole.processes) == 24
    [span] = [e for e in whole.on(5, "verdict") if e.phase == "X"]
    assert span.end_ns - span.start_ns > 40 * 40 * MS


def test_suspects_of_a_healthy_job(stage, task, out):
    simulated(task)
    done = stage.run("trace", "--from", task, "--suspects", "-o", out)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and "accused" in done.stdout
    assert os.listdir(os.path.dirname(out)) == []


def test_help(stage):
    done = stage.run("trace", "--help")
    assert done.returncode == 0 and "nobody is accused" in " ".join(done.stdout.split())
