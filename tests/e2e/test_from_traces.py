"""`taskd diagnose --from`: the traces of PyTorch's profiler, recorded here from real training, and of the form that later
releases have for GPUs (tests named contract: by a writer of our own)."""
import gzip
import json
import random
import re
import shutil

import chrome_traces
import pytest
from chrome_traces import MS, GpuJob, slow_job
from from_files import diagnose, named, notes
from needs import needs_torch
from synthetic_job import Job


# Real training on gloo, with the profiler that this PyTorch has

SLOW_STEPS = 220  # more than 15 s of them: of three ranks on a busy machine nobody is named before


@needs_torch
def test_real_slow_rank(stage, tmp_path):
    chrome_traces.record(tmp_path / "traces", slow_rank=1, steps=SLOW_STEPS)
    report = diagnose(stage, tmp_path / "traces")
    assert report["state"] == "slow" and named(report) == [("rank", [1])], report
    # "ProfilerStep#N" counts from the profiler's first step. On a restless machine the rise stands out later; how exact it is,
    # synthetic traces say.
    assert 15 <= report["verdicts"][0]["since_step"] < SLOW_STEPS // 2
    assert [(source["format"], source["rank"]) for source in report["sources"]] == [("kineto", rank) for rank in range(3)]
    assert all(source["records"] > 1000 and source["note"] == "" for source in report["sources"])


@needs_torch
def test_real_slow_loader(stage, tmp_path):
    chrome_traces.record(tmp_path / "traces", slow_rank=2, steps=SLOW_STEPS, how="loader")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])]
    assert report["verdicts"][0]["cause"] == "dataloader"


@needs_torch
def test_real_healthy_job_names_nobody(stage, tmp_path):
    chrome_traces.record(tmp_path / "traces")
    assert diagnose(stage, tmp_path / "traces")["verdicts"] == []


# The form of later releases, for GPUs

@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_contract_slow_rank(stage, tmp_path, compress):
    slow_job().write(tmp_path / "traces", compress=compress)
    report = diagnose(stage, tmp_path / "traces")
    assert report["state"] == "slow" and named(report) == [("rank", [2])]
    verdict = report["verdicts"][0]
    assert 128 <= verdict["since_step"] <= 134  # the first step is 100
    assert verdict["since_time"].startswith("2026-01-01T00:00:0")
    assert 15 < verdict["cost_ms_per_step"] < 25
    assert "node 1" in stage.run("diagnose", "--from", str(tmp_path / "traces")).stdout  # the host is in the file's name


def test_contract_operation_called_before_the_profiler(stage, tmp_path):
    """Its kernel is in the trace, its call is not (PyTorch 2.11): the others still have their calls, and so it is known when
    they were issued: by ranks on devices, of which four are enough to tell a small fault from a busy host."""
    job = slow_job()
    job.extra[2] = (30, 6)
    job.more_events = lambda rank: [{
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "pid": 0, "tid": 20, "ts": 1000.5 * MS, "dur": 2 * MS, "args": {"stream": 20, "correlation": 7}}]
    job.write(tmp_path / "traces")
    assert named(diagnose(stage, tmp_path / "traces")) == [("rank", [2])]


def test_contract_hosts_that_the_files_name_themselves(stage, tmp_path):
    job = slow_job()
    job.host_name = lambda rank: "ab"[rank // 2]
    job.write(tmp_path / "traces", "rank{rank}.json")
    assert "rank 2 (node 1)" in diagnose(stage, tmp_path / "traces")["verdicts"][0]["text"]


@pytest.mark.parametrize("since", [30, 0])
def test_contract_the_kernel_that_has_grown_is_named(stage, tmp_path, since):
    job = slow_job()
    job.extra[2] = (since, 20)
    job.write(tmp_path / "traces")
    verdict = diagnose(stage, tmp_path / "traces")["verdicts"][0]
    assert (verdict["ids"], verdict["cause"]) == ([2], "compute")
    kernel = verdict["evidence"][1]
    assert kernel["feature"] == "kernel ampere_bf16_s16816gemm" and kernel["peers"] == 3
    assert 26 < kernel["reference"] < 30 and 46 < kernel["value"] < 50
    share = re.search(r"; kernel ampere_bf16_s16816gemm takes 1\.7\d x, (\d+) % of the excess$", verdict["text"])
    assert share and int(share[1]) > 90, verdict["text"]


def test_contract_device_that_waits_for_launches(stage, tmp_path):
    job = GpuJob()
    job.idle[1] = (30, 20)
    job.write(tmp_path / "traces")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [1])]
    assert report["verdicts"][0]["cause"] == "host" and len(report["verdicts"][0]["evidence"]) == 1


def test_contract_healthy_job_is_ok(stage, tmp_path):
    GpuJob().write(tmp_path / "traces")
    report = diagnose(stage, tmp_path / "traces")
    assert (report["state"], report["verdicts"], report["steps"]["last"]) == ("ok", [], 159)


def test_contract_a_step_that_the_profilers_end_has_cut_is_none(stage, tmp_path):
    """A loop that is over has begun one step more: who compares by it calls 1 ms the time of a step."""
    job = GpuJob()
    whole = job.write(tmp_path / "whole")
    last = max(event["ts"] + event["dur"] for event in json.loads(whole[0].read_text())["traceEvents"] if event["ph"] == "X")
    job = GpuJob()
    job.more_events = lambda rank: [{"ph": "X", "cat": category, "name": "ProfilerStep#160", "pid": 1234, "tid": 1234, "ts": last + 10,
                                     "dur": 900} for category in ("user_annotation", "gpu_user_annotation")]
    job.write(tmp_path / "cut")
    of_whole, of_cut = diagnose(stage, tmp_path / "whole"), diagnose(stage, tmp_path / "cut")
    assert of_whole["steps"] == of_cut["steps"] and of_whole["resolution"] == of_cut["resolution"]


def test_contract_a_whole_step_whose_operation_is_missing_counts(stage, tmp_path):
    """It ends behind the profiler's end, on one rank."""
    paths = slow_job().write(tmp_path / "traces")
    trace = json.loads(paths[0].read_text())
    trace["traceEvents"].remove([event for event in trace["traceEvents"] if event["name"].startswith("ncclDevKernel")][-1])
    paths[0].write_text(json.dumps(trace))
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])] and report["verdicts"][0]["evidence"][0]["peers"] == 3, report["verdicts"]


def write_host_job(folder, forward):
    """Three ranks that compute on the processor, 90 steps of 46 ms; from the 30th on rank 1 stands in each for a time of its own before
    it has computed its loss, 25 ms in the mean. `forward`: the annotation around that, None for none."""
    folder.mkdir()
    random_ = random.Random(7)
    events, now = {rank: [] for rank in range(3)}, 0.0

    def event(rank, name, start, end, category="cpu_op", tid=1):
        events[rank].append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": 1000 * start,
                             "dur": 1000 * (end - start)})
    for step in range(90):
        arrived = {}
        for rank in events:
            loss = now + 20 + random_.gauss(0, .3) + (random_.expovariate(1 / 25) if rank == 1 and step >= 30 else 0)
            if forward:
                event(rank, forward, now + 1, loss, "user_annotation")
            for layer in range(4):
                event(rank, "autograd::engine::evaluate_function: MmBackward0", loss + 6 * layer, loss + 6 * layer + 5)
            arrived[rank] = loss + 24
        for rank, at in arrived.items():
            event(rank, "gloo:all_reduce", at, max(arrived.values()) + 1, "user_annotation", tid=2)
            event(rank, f"ProfilerStep#{step}", now, max(arrived.values()) + 2, "user_annotation")
        now = max(arrived.values()) + 2
    for rank, of_rank in events.items():
        (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": of_rank}))


@pytest.mark.parametrize("forward", ["DistributedDataParallel.forward", None])
def test_contract_pauses_are_told_from_slowness(stage, tmp_path, forward):
    """A pause lies in one part of the step, slowness in all. What comes before the first gradients is forward, named or not."""
    write_host_job(tmp_path / "traces", forward)
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [1])] and report["verdicts"][0]["cause"] == "gc", report["verdicts"]


def test_contract_clocks_hours_apart(stage, tmp_path):
    job = slow_job()
    job.clock_ms = {1: 7_200_000, 3: -500}
    job.write(tmp_path / "traces")
    assert named(diagnose(stage, tmp_path / "traces")) == [("rank", [2])]


def test_contract_ranks_profiled_at_other_steps(stage, tmp_path):
    """They are matched by the numbers of their steps, and who has none in common with others cannot be compared."""
    job = slow_job(ranks=2)
    job.first_step = {0: 100, 1: 5000}
    job.write(tmp_path / "traces")
    report = diagnose(stage, tmp_path / "traces")
    assert report["verdicts"] == [] and report["state"] == "unknown"
    assert "nobody can be compared" in notes(report)


def test_contract_several_windows_of_a_rank(stage, tmp_path):
    slow_job(steps=60).write(tmp_path / "traces", "rank{rank}_window1.json")
    job = slow_job(steps=30, seed=2)
    job.extra[2] = (0, 20)
    job.first_step = {rank: 400 for rank in range(4)}
    job.clock_ms = {rank: 60_000 for rank in range(4)}
    job.write(tmp_path / "traces", "rank{rank}_window2.json")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])] and report["steps"]["last"] == 429
    assert all(source["note"] == "" for source in report["sources"])


def test_contract_nanoseconds_where_microseconds_belong(stage, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, trace in slow_job().traces().items():
        trace.pop("baseTimeNanoseconds")
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                event["ts"] = chrome_traces.BASE_NS + round(event["ts"] * 1000)
                event["dur"] = round(event["dur"] * 1000)
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    report = diagnose(stage, folder)
    assert named(report) == [("rank", [2])] and 15 < report["verdicts"][0]["cost_ms_per_step"] < 25


def test_contract_traces_without_steps_say_what_to_add(stage, tmp_path):
    job = slow_job()
    job.annotate = False
    job.write(tmp_path / "traces")
    report = diagnose(stage, tmp_path / "traces")
    assert report["state"] == "unknown" and report["verdicts"] == []
    assert "prof.step()" in notes(report)


# Damage, strangers, limits

def test_cut_file_gives_what_is_before_the_cut(stage, tmp_path):
    paths = slow_job().write(tmp_path / "traces")
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:len(data) * 9 // 10])
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])]
    assert "it is cut at byte" in report["sources"][1]["note"] and report["sources"][1]["records"] > 300
    assert paths[1].name in notes(report)


def test_damaged_gzip_gives_what_is_before_the_damage(stage, tmp_path):
    paths = slow_job().write(tmp_path / "traces", compress=True)
    data = bytearray(paths[3].read_bytes())
    data[len(data) * 9 // 10:len(data) * 9 // 10 + 40] = b"\xff" * 40
    paths[3].write_bytes(data)
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])]
    assert report["sources"][3]["note"] and report["sources"][3]["records"] > 100


def test_gzip_that_grows_without_end_is_bounded(stage, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    with gzip.open(folder / "rank0.json.gz", "wb") as file:
        file.write(b'{"traceEvents": [')
        event = b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1},' * 20_000
        for _ in range(200):
            file.write(event)
    assert (folder / "rank0.json.gz").stat().st_size < 2 << 20
    report = diagnose(stage, folder)
    assert "grows to more than 200 times" in report["sources"][0]["note"]


def test_string_without_end_is_bounded(stage, tmp_path):
    path = tmp_path / "rank0.json"
    with open(path, "wb") as file:
        file.write(b'{"traceEvents": [{"ph": "X", "name": "step 1", "ts": 1, "dur": 1}, {"name": "')
        for _ in range(64):
            file.write(b"x" * (1 << 20))
    report = diagnose(stage, path)
    assert "a string of more than 16 MiB" in report["sources"][0]["note"] and report["sources"][0]["records"] == 1


def test_depth_is_bounded(stage, tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [{"ph": "X", "name": "step 1", "ts": 1, "dur": 1}, {"args": ' + "[" * 100_000)
    assert "damaged" in diagnose(stage, path)["sources"][0]["note"]


def test_traces_of_two_jobs_are_not_mixed(stage, tmp_path):
    slow_job().write(tmp_path / "traces")
    other = GpuJob(ranks=2)
    other.world_size = 2
    other.write(tmp_path / "traces", "other_rank{rank}.json")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])] and report["ranks"] == 4
    assert sum("of a job of 2 ranks" in source["note"] for source in report["sources"]) == 2


def test_same_rank_twice(stage, tmp_path):
    paths = slow_job().write(tmp_path / "traces")
    shutil.copy(paths[0], tmp_path / "traces" / "zz_copy.json")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])]
    assert sum("left out" in source["note"] for source in report["sources"]) == 1


def without_rank(path, target):
    """The same trace, as releases write it that do not say the rank."""
    trace = json.loads(path.read_text())
    del trace["distributedInfo"]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(trace))


MEGATRON = "trace_tp_rank_{tensor}_pp_rank_0_dp_rank_{data}.json"


@pytest.mark.parametrize("name, at", [
    ("node{data}_gpu{tensor}.json", None), (MEGATRON, None),
    ("node{data}/rank{tensor}.json", "{folder}/node0/rank0.json and {folder}/node1/rank0.json would both be of rank 0"),
    ("node{data}/trace_{tensor}.json", "would both be of rank 0")])
def test_names_that_do_not_tell_the_rank_accuse_nobody(stage, tmp_path, name, at):
    for rank, path in enumerate(slow_job().write(tmp_path / "from")):
        without_rank(path, tmp_path / "traces" / name.format(tensor=rank % 2, data=rank // 2))
    errors = diagnose(stage, tmp_path / "traces", code=1)
    assert errors.count("\n") == 1 and "which rank" in errors, errors
    assert at is None or at.format(folder=tmp_path / "traces") in errors


@pytest.mark.parametrize("name", ["trace_tp_rank_{rank}_pp_rank_0.json", "step_200_w{rank}_port{port}.json", "{rank}/trace.json"])
def test_number_that_differs_in_all_names_is_the_rank(stage, tmp_path, name):
    for rank, path in enumerate(slow_job().write(tmp_path / "from")):
        without_rank(path, tmp_path / "traces" / name.format(rank=rank, port=29500 + 7 * rank))
    assert named(diagnose(stage, tmp_path / "traces")) == [("rank", [2])]


def test_single_trace_without_a_rank(stage, tmp_path):
    without_rank(slow_job().write(tmp_path / "from")[0], tmp_path / "traces" / "trace.json")
    report = diagnose(stage, tmp_path / "traces")
    assert (report["state"], report["verdicts"], report["sources"][0]["rank"]) == ("unknown", [], 0)
    assert "is taken as rank 0: there is nothing to compare it with" in notes(report)


def test_missing_rank_is_said(stage, tmp_path):
    job = slow_job()
    job.extra[2] = (30, 40)  # of three ranks it takes more to accuse one
    paths = job.write(tmp_path / "traces")
    paths[3].unlink()
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])]
    assert "of 4 ranks there is no trace of rank 3" in notes(report)


def test_other_things_in_the_folder_are_left_alone(stage, tmp_path):
    slow_job().write(tmp_path / "traces")
    (tmp_path / "traces" / "README.md").write_text("# traces\n")
    (tmp_path / "traces" / "empty.json").write_text("")
    (tmp_path / "traces" / "other.json").write_text('{"loss": [1, 2, 3]}')
    (tmp_path / "traces" / "link.json").symlink_to("/dev/zero")
    report = diagnose(stage, tmp_path / "traces")
    assert named(report) == [("rank", [2])] and len(report["sources"]) == 4


def test_names_are_made_safe(stage, tmp_path):
    job = slow_job()
    job.group = 'a"b\\\u202egp\n\x1b[31m'
    job.description = "\ud800tp\u2066"
    job.more_events = lambda rank: [{"ph": "X", "cat": "user_annotation", "name": 'x"\n\u202e\x1b]0;', "ts": 1, "dur": 1}]
    job.write(tmp_path / "tr\u202eaces\n")
    done = stage.run("diagnose", "--from", str(tmp_path / "tr\u202eaces\n"))
    assert done.returncode == 0 and "rank 2" in done.stdout
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x09\x0b-\x1f]", done.stdout + done.stderr)
    assert named(diagnose(stage, tmp_path / "tr\u202eaces\n")) == [("rank", [2])]


def test_file_that_says_no_rank_is_named(stage, tmp_path):
    trace = slow_job().traces()[0]
    trace.pop("distributedInfo")
    for name in ("some-trace.json", "other-trace.json"):
        (tmp_path / name).write_text(json.dumps(trace))
    errors = diagnose(stage, tmp_path / "some-trace.json", tmp_path / "other-trace.json", code=1)
    assert "other-trace.json" in errors and "which rank" in errors


@pytest.mark.parametrize("name, content, said", [
    ("ras.txt", b"NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n", "is the text of ncclras, which is for people; read is JSON: ncclras -f json"),
    ("profile.db", b"SQLite format 3\0" + bytes(100), "is a database"), ("report.nsys-rep", b"\1\2\3", "is a report of Nsight Systems"),
    ("host.xplane.pb", b"\x0a\x10plane", "is a protobuf"), ("trace.json", b"", "is empty"), ("traces.zip", b"PK\3\4xx", "is a zip archive"),
    ("cluster_step_trace_time.csv", b"Step,Type,Index,Computing,Communication(Not Overlapped)\n1,rank,0,1,2\n", "is what msprof-analyze sums up of all ranks"),
    ("cluster_communication.json", b'{"(0, 1)": {"step1": {"hcom_allReduce__844_0_1": {"0": {"Communication Time Info": {}}}}}}', "is what msprof-analyze sums up"),
    ("trace.json.zst", b"\x28\xb5\x2f\xfdxx", "is packed with zstd"), ("job.log", b"a:1:2 [0] NCCL INFO cudaDriverVersion 12\n", "is a log of NCCL")])
def test_relatives_of_known_formats_are_named(stage, tmp_path, name, content, said):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "aaa.txt").write_text("something")
    (folder / name).write_bytes(content)
    for path in (folder / name, folder):
        errors = diagnose(stage, path, code=2)
        assert f"{folder / name} {said}" in errors and errors.count("\n") == 1, errors


def test_profiles_of_several_ranks_in_one_file(stage, tmp_path):
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": rank, "tid": 1, "ts": 1, "dur": 5} for rank in range(4)]
    (tmp_path / "all.json").write_text(json.dumps({"traceEvents": events}))
    assert "it holds the profiles of several ranks in one" in diagnose(stage, tmp_path / "all.json", code=1)


def test_nothing_known_is_wrong_usage(stage, tmp_path):
    (tmp_path / "loss.json").write_text('{"loss": 1}')
    assert "no known format" in diagnose(stage, tmp_path / "loss.json", code=2)
    assert "No such file" in diagnose(stage, tmp_path / "nothing.json", code=2)


def test_several_paths_and_standard_input(stage, tmp_path):
    paths = slow_job().write(tmp_path / "traces", compress=True)
    slow = diagnose(stage, *paths)
    assert named(slow) == [("rank", [2])]
    one = [flag for path in paths for flag in ("--from", str(path))]
    assert stage.run("diagnose", "--json", *one).stdout == stage.run("diagnose", "--json", "--from", *map(str, paths)).stdout
    with open(paths[2], "rb") as file:
        report = stage.run("diagnose", "--json", "--from", *map(str, paths[:2]), "-", str(paths[3]), stdin=file)
    assert named(json.loads(report.stdout)) == [("rank", [2])], report.stderr
    goodput = json.loads(stage.run("goodput", "--json", "--from", *map(str, paths)).stdout)
    assert goodput["slots"] == 4 and goodput["seconds"]["straggler"] > 0 and goodput["seconds"]["redone"] == 0
    since = slow["verdicts"][0]["since_time"]
    assert [(incident["kind"], incident["time"]) for incident in goodput["incidents"]] == [("straggler", since)]
    with open(paths[2], "rb") as file:  # is there once, and goodput looks twice
        again = stage.run("goodput", "--json", "--from", *map(str, paths[:2]), "-", str(paths[3]), stdin=file)
    assert json.loads(again.stdout)["seconds"] == goodput["seconds"]


def test_a_trace_that_begins_at_0(stage, tmp_path):
    """Ten steps of 0.1 s, two ranks: two rank-seconds, whatever day that is taken for."""
    for rank in range(2):
        steps = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": step * 1e5, "dur": 1e5, "pid": 1, "tid": 1}
                 for step in range(10)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(
            {"traceEvents": steps, "distributedInfo": {"rank": rank, "world_size": 2}}))
    goodput = json.loads(stage.run("goodput", "--json", "--from", str(tmp_path)).stdout)
    assert goodput["rank_s"] == pytest.approx(2, abs=0.01)
    assert goodput["since"] is None and goodput["seconds"]["redone"] == 0
    assert "1.0 s at no known time of day" in stage.run("goodput", "--from", str(tmp_path)).stdout


def test_folders_of_marks_that_nodes_left(stage, tmp_path):
    job = Job(ranks=4, steps=120, ranks_per_node=2)
    job.compute[2] = lambda step: 1.5 if step >= 30 else 1
    job.data_parallel()
    job.write(tmp_path / "job")
    (tmp_path / "node1" / "job").mkdir(parents=True)
    for rank in (2, 3):
        shutil.move(tmp_path / "job" / str(rank), tmp_path / "node1" / "job" / str(rank))
    assert named(diagnose(stage, tmp_path / "job", tmp_path / "node1")) == [("rank", [2])]
    out = tmp_path / "trace.json"
    done = stage.run("trace", "--from", str(tmp_path / "job"), str(tmp_path / "node1"), "-o", str(out))
    assert done.returncode == 0 and "4 ranks" in done.stdout, done.stderr


def test_a_pattern_and_a_report(stage, tmp_path):
    slow_job().write(tmp_path / "traces")
    assert named(diagnose(stage, tmp_path / "traces" / "node-*.json")) == [("rank", [2])]
    page = tmp_path / "report.html"
    done = stage.run("report", "--from", str(tmp_path / "traces"), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "rank 2" in done.stdout and "rank 2" in page.read_text()
