"""`taskd diagnose --from` dumps of PyTorch's flight recorder: who holds a hung job up. The dumps are written by a writer of
our own after the public description of the format."""
import json
import pickle
import random
import subprocess
import sys

import harness
import pytest
from flight_dumps import VERSIONS, WORLD, HungJob, parallel_job


def diagnose(stage, path, code=0):
    done = stage.run("diagnose", "--json", "--from", str(path))
    assert done.returncode == code, (done.returncode, done.stderr)
    return json.loads(done.stdout) if code == 0 else done.stderr


def hang(stage, path):
    report = diagnose(stage, path)
    assert report["state"] == "hung", report
    return report["hang"]


def missing_rank(ranks=8, missing=(3,)):
    job = HungJob(ranks)
    job.all_do(*[(WORLD, "all_reduce", (1024, 16))] * 5)
    for rank in missing:
        job.programs[rank].pop()
    return job


@pytest.mark.parametrize("form", ["pickle0", "pickle1", "pickle2", "pickle4", "pickle5", "json"])
@pytest.mark.parametrize("version", VERSIONS)
def test_contract_missing_rank(stage, tmp_path, version, form):
    missing_rank().write(tmp_path / "dumps", version, form)
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["operation"]) == ([3], "missing", "all_reduce")
    assert found["group"] == "default_pg,0" and found["waiting"] == "0-2, 4-7"
    assert found["since_time"] == "2026-01-01T00:00:04.000Z"
    # Where it was last seen. The recorder's JSON has no frames.
    frames = ["train_step (/job/train.py:43)", "<module> (/job/train.py:9)"]
    assert found["frames"] == ([] if form == "json" else frames)
    assert set(found) == {"origins", "kind", "group", "operation", "since_time", "waiting", "frames", "text"}
    assert found["text"].startswith("rank 3 never entered all_reduce 5 of default_pg,0; 7 ranks wait for it")


def test_contract_people_read_it_first(stage, tmp_path):
    missing_rank(missing=(2, 3)).write(tmp_path / "dumps")
    done = stage.run("diagnose", "--from", str(tmp_path / "dumps"))
    assert done.returncode == 0
    assert done.stdout.startswith("hung: ranks 2, 3 never entered all_reduce 5 of default_pg,0; 6 ranks wait for them")
    assert "train_step (/job/train.py:43)" in done.stdout


def test_contract_sources_are_named(stage, tmp_path):
    missing_rank(4).write(tmp_path / "dumps")
    sources = diagnose(stage, tmp_path / "dumps")["sources"]
    assert [(source["format"], source["rank"], source["note"]) for source in sources] == [
        ("flight_recorder", rank, "") for rank in range(4)]
    assert [source["records"] for source in sources] == [5, 5, 5, 4]


@pytest.mark.parametrize("ahead", [0, 3])
def test_contract_origin_is_not_who_waits_for_it_in_another_group(stage, tmp_path, ahead):
    """Tensor groups of two, data groups across: rank 5 does not come, 4 waits for it, and 0 and 2 for 4."""
    groups = {str(1 + i): ("TENSOR_MODEL_PARALLEL_GROUP", [2 * i, 2 * i + 1]) for i in range(4)}
    groups |= {str(5 + i): ("DATA_PARALLEL_GROUP", [i, 2 + i, 4 + i, 6 + i]) for i in range(2)}
    job = HungJob(8, groups)
    job.ahead = ahead
    for _ in range(3):
        job.all_do(*[(name, "all_reduce", (64,)) for name in groups])
    job.programs[5] = job.programs[5][:4]
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([5], "missing")
    assert found["group"] == "TENSOR_MODEL_PARALLEL_GROUP,3" and found["waiting"] == "0-4, 6, 7"


def test_contract_pipeline(stage, tmp_path):
    """Rank 1 never sends on: 2 waits for it, 3 for 2, and 0 for what comes back."""
    job = HungJob(4)
    for _ in range(2):
        for rank in range(4):
            if rank > 0:
                job.programs[rank].append((WORLD, "recv", (8,), rank - 1))
            if rank < 3:
                job.programs[rank].append((WORLD, "send", (8,), rank + 1))
        for rank in reversed(range(4)):
            if rank < 3:
                job.programs[rank].append((WORLD, "recv", (8,), rank + 1))
            if rank > 0:
                job.programs[rank].append((WORLD, "send", (8,), rank - 1))
    job.programs[1] = job.programs[1][:5]
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["waiting"]) == ([1], "missing", "0, 2, 3")


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("form", ["pickle2", "json"])
def test_contract_batched_pipeline(stage, tmp_path, timed, form):
    """Nobody follows the states of messages that are issued as one: those of earlier steps are "scheduled" for ever."""
    job = HungJob(4)
    job.timed = timed
    for _ in range(5):
        for rank in range(4):
            ends = [(kind, rank + way) for way in (-1, 1) if 0 <= rank + way < 4 for kind in ("send", "recv")]
            job.programs[rank].append((WORLD, "batch", (8,), tuple(ends)))
        job.all_do((WORLD, "all_reduce", (4,)))
    job.programs[2] = job.programs[2][:8]
    job.write(tmp_path / "dumps", form=form)
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["waiting"]) == ([2], "missing", "0, 1, 3")
    assert found["operation"] in ("send", "recv")
    assert found["since_time"] == "2026-01-01T00:00:08.000Z"


@pytest.mark.parametrize("ahead", [0, 2])
def test_contract_recorder_that_does_not_time(stage, tmp_path, ahead):
    """Without timing nothing is ever "started"."""
    job = missing_rank(missing=(6, 7))
    job.timed, job.ahead = False, ahead
    for rank in range(8):
        job.programs[rank].append((WORLD, "broadcast", (8,)))
    job.programs[6], job.programs[7] = job.programs[6][:2], job.programs[7][:2]
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([6, 7], "missing")
    assert "all_reduce 3 of default_pg,0" in found["text"]


@pytest.mark.parametrize("entered", [0, 3])
def test_contract_recorder_that_follows_no_states(stage, tmp_path, entered):
    """What is retired has ended; and in the group of all is also who has never used it."""
    job = missing_rank(4, missing=())
    job.gloo = True
    job.programs[3] = job.programs[3][:entered]
    job.write(tmp_path / "dumps", "2.10")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["waiting"]) == ([3], "missing", "0-2")
    assert found["text"].startswith(f"rank 3 never entered all_reduce {entered + 1} of default_pg,0")


def test_contract_only_what_is_active(stage, tmp_path):
    """TORCH_INCLUDE_ONLY_ACTIVE: who is not there has nothing, and what it had entered only the status says."""
    job = missing_rank()
    job.only_active = True
    job.write(tmp_path / "dumps", form="json")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["waiting"]) == ([3], "missing", "0-2, 4-7")
    assert "rank 3 never entered all_reduce 5 of default_pg,0" in found["text"]
    (tmp_path / "others").mkdir()
    for rank, dump in job.dumps().items():  # a status of groups that the dump does not know
        dump["pg_status"] = {"7": status for status in dump["pg_status"].values()}
        (tmp_path / "others" / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    found = hang(stage, tmp_path / "others")
    assert (found["origins"], found["kind"], found["waiting"]) == ([], "unknown", "0-2, 4-7")
    assert "what is known of rank 3 does not reach" in found["text"]


def expert_job(faults, tensor, expert, stage_ranks):
    """16 ranks, a pipeline of stages with experts, groups named in their order as Megatron's are. `faults`: for each rank, counted
    back from the end of the last step: the call from which on its device does nothing, the one from which on it sees none
    end, and how many calls its process has made."""
    groups = {}
    for description, size in (("TENSOR_MODEL_PARALLEL_GROUP", tensor), ("EXPERT_MODEL_PARALLEL_GROUP", expert)):
        for first in range(0, 16, size):
            groups[str(10 + len(groups))] = (description, list(range(first, first + size)))
    for first in range(stage_ranks):
        groups[str(10 + len(groups))] = ("PIPELINE_MODEL_PARALLEL_GROUP", list(range(first, 16, stage_ranks)))
    job = HungJob(16, groups)

    def group_of(description, rank):
        return next(name for name, group in groups.items() if group[0].startswith(description) and rank in group[1])
    for _ in range(3):
        for rank in range(16):
            layer = [(group_of("TENSOR", rank), "_all_gather_base", (4096, 5120)), (group_of("EXPERT", rank), "all_to_all", (4096, 5120)),
                     (group_of("TENSOR", rank), "_reduce_scatter_base", (4096, 5120))]
            pipeline = group_of("PIPELINE", rank)
            before = [(pipeline, "recv", (8,), rank - stage_ranks)] if rank >= stage_ranks else []
            behind = [(pipeline, "send", (8,), rank + stage_ranks)] if rank + stage_ranks < 16 else []
            job.programs[rank] += [*before, *layer * 2, *behind]
    for rank, (dead, unseen, made) in faults.items():
        length = len(job.programs[rank])
        job.dead[rank], job.unseen[rank], job.made[rank] = length - dead, length - unseen, length - made
    job.ahead = 5
    return job


STOPPED = (6, 6, 6)  # a process: its device has done what it was told
BROKEN = (6, 8, 3)  # a device: what it did last never ended for its process


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("only_active", [False, True])
@pytest.mark.parametrize("faults, sizes", [
    ({12: STOPPED, 14: BROKEN}, (2, 4, 4)), ({12: BROKEN, 14: BROKEN}, (2, 4, 4)), ({9: STOPPED, 14: STOPPED}, (4, 8, 8)),
    ({9: BROKEN, 14: STOPPED}, (4, 8, 8)), ({10: STOPPED, 15: (5, 5, 5)}, (2, 4, 8))])
def test_all_origins_are_named(stage, tmp_path, faults, sizes, only_active, timed):
    """Two of sixteen ranks are at fault, each in a group of its own, and where there is one a group of both waits, too."""
    job = expert_job(faults, *sizes)
    job.only_active, job.timed = only_active, timed
    job.write(tmp_path / "dumps", name="_dump_{rank}")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == (sorted(faults), "missing"), found


def test_device_that_has_not_begun_what_others_devices_have(stage, tmp_path):
    """Only a recorder that times operations can tell."""
    job = missing_rank(4, missing=())
    job.dead[2], job.made[2] = 4, 5
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["waiting"]) == ([2], "missing", "0, 1, 3")
    job.timed = False
    job.write(tmp_path / "dumps")
    assert hang(stage, tmp_path / "dumps")["origins"] == []


def test_contract_sparse_dumps(stage, tmp_path):
    """As others' tools and tests write them: numbers as texts, types as one text, no record numbers, no times."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(3):
        entries = [{"profiling_name": "nccl:all_reduce", "state": "scheduled" if number == 2 else "completed",
                    "process_group": ("0", "default"), "input_sizes": [[4, 4]], "output_sizes": [[4, 4]],
                    "input_dtypes": "float32", "output_dtypes": "float32", "collective_seq_id": str(number),
                    "p2p_seq_id": "0"} for number in range(1, 2 if rank == 1 else 3)]
        dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default", "ranks": [0, 1, 2]}},
                "pg_status": {"0": {"last_enqueued_collective": 2}}, "entries": entries}
        (folder / f"trace_rank{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    found = hang(stage, folder)
    assert (found["origins"], found["group"], found["since_time"]) == ([1], "default,0", None)


def test_contract_states_that_nobody_followed(stage, tmp_path):
    """Of what was issued as one some recorders say "scheduled" for ever; what comes behind it in its group has ended."""
    job = missing_rank(4)
    dumps = job.dumps()
    for dump in dumps.values():
        dump["entries"][1]["state"] = "scheduled"
    (tmp_path / "dumps").mkdir()
    for rank, dump in dumps.items():
        (tmp_path / "dumps" / f"rank{rank}.pkl").write_bytes(pickle.dumps(dump, protocol=2))
    found = hang(stage, tmp_path / "dumps")
    assert found["origins"] == [3] and "all_reduce 5" in found["text"]


def test_contract_all_have_come_and_nobody_is_named(stage, tmp_path):
    job = HungJob(4, {"1": ("TP", [0, 1])})
    job.all_do((WORLD, "all_reduce", (8,)), ("1", "all_reduce", (8,)))
    job.all_do((WORLD, "barrier", (1,)))
    dumps = job.dumps()
    for rank in (0, 1):  # stand in the group's operation that both have entered; the others wait for them
        dumps[rank]["entries"][1]["state"] = "started"
        dumps[rank]["entries"].pop()
    for rank in (2, 3):
        dumps[rank]["entries"][-1]["state"] = "started"
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank, dump in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    found = hang(stage, folder)
    assert (found["origins"], found["kind"], found["group"]) == ([], "unknown", "TP,1")
    assert "cannot say" in found["text"]


def test_contract_sizes_that_may_differ(stage, tmp_path):
    """Each rank brings its own to an all_to_all, so who never came is the reason."""
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)))
    for rank in range(3):
        job.programs[rank].append((WORLD, "all_to_all", (8 + rank,)))
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["operation"]) == ([3], "missing", "all_to_all")


def test_contract_same_amount_in_another_shape_is_no_mismatch(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)))
    job.programs[0][0] = (WORLD, "all_reduce", (2, 4))
    job.write(tmp_path / "dumps")
    assert hang(stage, tmp_path / "dumps")["kind"] == "unknown"


def test_contract_newest_dump_of_a_rank_counts(stage, tmp_path):
    before = missing_rank(4, missing=(1,))
    before.start_ns -= 3_600_000_000_000
    before.write(tmp_path / "dumps", name="before_rank{rank}")
    missing_rank(4).write(tmp_path / "dumps", name="now_rank{rank}")
    report = diagnose(stage, tmp_path / "dumps")
    assert report["hang"]["origins"] == [3] and report["hang"]["since_time"].startswith("2026-01-01T00")
    assert ["left out" in source["note"] for source in report["sources"]] == [True] * 4 + [False] * 4


def test_names_that_do_not_tell_the_rank_accuse_nobody(stage, tmp_path):
    """Each node has numbered its own ranks."""
    job = missing_rank(4, missing=(1,))
    for rank, dump in job.dumps().items():
        for entry in dump["entries"]:
            entry["time_created_ns"] += rank  # of no two processes the same
        folder = tmp_path / "dumps" / f"node{rank // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"dump_rank_{rank % 2}").write_bytes(pickle.dumps(dump, protocol=2))
    errors = diagnose(stage, tmp_path / "dumps", code=1)
    assert "would both be of rank 0" in errors and errors.count("\n") == 1


def test_contract_dumps_of_two_jobs_are_not_mixed(stage, tmp_path):
    missing_rank(8).write(tmp_path / "dumps")
    other = missing_rank(4, missing=(0,))
    other.write(tmp_path / "dumps", name="other_rank{rank}", leave_out=[3])
    report = diagnose(stage, tmp_path / "dumps")
    assert report["hang"]["origins"] == [3]
    assert sum("it is of a job of 4 ranks" in source["note"] for source in report["sources"]) == 3
    missing_rank(16).write(tmp_path / "dumps", name="larger_rank{rank}", leave_out=range(2, 16))
    report = diagnose(stage, tmp_path / "dumps")
    assert report["hang"]["origins"] == [3] and report["ranks"] == 8
    assert not any("there is no dump" in note["text"] for note in report["notes"])


def test_contract_report_says_it(stage, tmp_path):
    missing_rank().write(tmp_path / "dumps")
    page = tmp_path / "report.html"
    done = stage.run("report", "--from", str(tmp_path / "dumps"), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "hung: rank 3 never entered all_reduce 5" in done.stdout
    text = page.read_text()
    assert "rank 3 never entered all_reduce 5" in text and "train_step (/job/train.py:43)" in text


@pytest.mark.parametrize("seed", range(40))
def test_contract_parallel_job_with_a_fault_somewhere(stage, tmp_path, seed):
    """Only who did something else is named; and it is, where the dumps are all there and no group is of two."""
    chance = random.Random(seed)
    tensor, data, stages = chance.choice([(2, 2, 2), (4, 2, 2), (2, 4, 1), (1, 8, 1), (3, 1, 4)])
    job = parallel_job(tensor, data, stages, steps=chance.randint(2, 5), batched=chance.random() < 0.5)
    rank = chance.randrange(job.ranks)
    program = job.programs[rank]
    kind = chance.choice(["missing", "order", "size"])
    at = chance.choice([i for i, call in enumerate(program) if call[1] in ("all_reduce", "reduce_scatter") and
                        len(job.groups[call[0]][1]) > 2])
    group, operation, sizes = program[at]
    if kind == "missing":
        del program[at:]
    else:
        program[at] = (group, operation, (sizes[0] + 1,)) if kind == "size" else (group, "broadcast", sizes)
    job.ahead, job.timed, job.buffer = chance.choice([0, 1, 3]), chance.random() < 0.5, chance.choice([2000, 2000, 8])
    leave_out = [chance.randrange(job.ranks)] if chance.random() < 0.3 else []
    job.write(tmp_path / "dumps", chance.choice(VERSIONS), chance.choice(["pickle", "json"]), leave_out=leave_out)
    found = hang(stage, tmp_path / "dumps")
    assert found["origins"] in ([], [rank]), found
    if not leave_out and job.buffer == 2000:
        assert (found["origins"], found["kind"]) == ([rank], kind), found


def test_contract_wrong_order_within_a_group(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)), (WORLD, "all_reduce", (8,)), (WORLD, "broadcast", (8,)))
    job.programs[2][1:] = job.programs[2][:0:-1]
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"], found["operation"]) == ([2], "order", "all_reduce")
    assert "rank 2 broadcast" in found["text"]


def test_contract_wrong_order_of_groups(stage, tmp_path):
    job = HungJob(4, {"1": ("A", [0, 1, 2, 3]), "2": ("B", [0, 1, 2, 3])})
    job.all_do(("1", "all_reduce", (8,)), ("2", "all_reduce", (8,)))
    job.programs[3].reverse()
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([3], "order")


def test_contract_wrong_size(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)), (WORLD, "all_reduce", (1024, 16)))
    job.programs[1][1] = (WORLD, "all_reduce", (1024, 17))
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([1], "size")
    assert "1024x17" in found["text"] and "1024x16" in found["text"]


def test_contract_wrong_type(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)), (WORLD, "all_reduce", (8,)))
    job.dtype[0, 1] = "BFloat16"
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([0], "type") and "BFloat16" in found["text"]


def test_contract_missing_dump_is_said_and_nobody_accused(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)))
    job.programs[2] = []
    job.write(tmp_path / "dumps", leave_out=[2])
    report = diagnose(stage, tmp_path / "dumps")
    assert report["hang"]["origins"] == [] and report["hang"]["waiting"] == "0, 1, 3"
    assert "cannot say" in report["hang"]["text"] and "nothing is known of rank 2" in report["hang"]["text"]
    assert "of 4 ranks there is no dump of rank 2" in " ".join(note["text"] for note in report["notes"])


def test_contract_dump_that_does_not_reach_back(stage, tmp_path):
    """Rank 1's newest entries are all of another group: whether it entered the world's last one is not in its dump."""
    job = HungJob(4, {"1": ("SELF", [1])})
    job.all_do((WORLD, "all_reduce", (8,)), (WORLD, "all_reduce", (8,)))
    job.programs[1] = job.programs[1][:1] + [("1", "all_reduce", (8,))] * 10
    job.buffer = 4
    job.write(tmp_path / "dumps", "2.2")
    found = hang(stage, tmp_path / "dumps")
    assert found["origins"] == [] and "cannot say" in found["text"]
    assert "what is known of rank 1 does not reach" in found["text"]
    job.write(tmp_path / "dumps", "2.3")  # which has a status of each group
    assert hang(stage, tmp_path / "dumps")["origins"] == [1]


def test_contract_two_ranks_that_differ(stage, tmp_path):
    job = HungJob(2)
    job.all_do((WORLD, "all_reduce", (8,)))
    job.programs[1][0] = (WORLD, "all_reduce", (9,))
    job.write(tmp_path / "dumps")
    found = hang(stage, tmp_path / "dumps")
    assert (found["origins"], found["kind"]) == ([], "size")


def test_contract_no_hang(stage, tmp_path):
    job = HungJob(4)
    job.all_do((WORLD, "all_reduce", (8,)))
    job.write(tmp_path / "dumps")
    report = diagnose(stage, tmp_path / "dumps")
    assert report["state"] == "unknown" and "hang" not in report
    assert "no operation that waits" in " ".join(note["text"] for note in report["notes"])


# Damage and malice

def test_cut_dump(stage, tmp_path):
    missing_rank().write(tmp_path / "dumps")
    path = tmp_path / "dumps" / "nccl_trace_rank_6"
    path.write_bytes(path.read_bytes()[:-200])
    report = diagnose(stage, tmp_path / "dumps")
    assert report["hang"]["origins"] == [3]
    assert "it is cut at byte" in report["sources"][6]["note"]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_cut_dump_accuses_nobody(stage, tmp_path, form):
    """What is cut off are the newest operations: its rank may have entered what the others wait in."""
    job = missing_rank(missing=())
    job.programs[5].append((WORLD, "broadcast", (8,)))
    job.programs[5].remove((WORLD, "all_reduce", (1024, 16)))
    job.write(tmp_path / "dumps", form=form, leave_out=[5])
    whole = HungJob(8)
    whole.all_do(*[(WORLD, "all_reduce", (1024, 16))] * 5)
    whole.write(tmp_path / "whole", form=form)
    path = tmp_path / "whole" / "nccl_trace_rank_5"
    for length in range(path.stat().st_size - 1, 400, -97):
        (tmp_path / "dumps" / "nccl_trace_rank_5").write_bytes(path.read_bytes()[:length])
        report = diagnose(stage, tmp_path / "dumps")
        assert report["hang"]["origins"] == [], length
        assert "it is cut" in report["sources"][5]["note"]


class Call:
    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_pickle_with_a_call_is_refused(stage, tmp_path, protocol):
    missing_rank(4).write(tmp_path / "dumps")
    content = {"version": "2.4", "pg_config": {}, "entries": [], "more": Call()}
    (tmp_path / "dumps" / "nccl_trace_rank_2").write_bytes(pickle.dumps(content, protocol=protocol))
    done = stage.run("diagnose", "--json", "--from", str(tmp_path / "dumps"))
    assert done.returncode == 0 and "called" not in done.stdout + done.stderr
    note = json.loads(done.stdout)["sources"][2]["note"]
    opcode = "0x63" if protocol <= 2 else "0x93"
    assert f"opcode {opcode} is not one of plain data at byte" in note
    errors = diagnose(stage, tmp_path / "dumps" / "nccl_trace_rank_2", code=1)
    assert "nccl_trace_rank_2" in errors and f"opcode {opcode}" in errors
    # A pickle that is no dump at all.
    (tmp_path / "other.pkl").write_bytes(pickle.dumps(Call(), protocol=protocol))
    errors = diagnose(stage, tmp_path / "other.pkl", code=1)
    assert f"a pickle of more than plain data: opcode {opcode}" in errors and "called" not in errors


def test_pickle_that_grows_without_end_is_bounded(stage, tmp_path):
    """Lists of lists of the same list: a thousand million values in some hundred bytes."""
    value = ["pg_config", "entries"]
    for _ in range(30):
        value = [value] * 8
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": value, "pg_config": {}}, protocol=2))
    report = diagnose(stage, tmp_path / "nccl_trace_rank_0")
    assert report["state"] == "unknown" and report["sources"][0]["records"] == 0


# From a process that is small itself: a child's peak begins with that of who has started it.
MEASURE = """import os, sys
pid = os.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def diagnose_with_peak(folder):
    """The report, and how many KiB it took, with 1,024 descriptors."""
    done = subprocess.run([sys.executable, "-c", MEASURE, "prlimit", "--nofile=1024", harness.TASKD, "diagnose", "--json", "--from", str(folder)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), int(done.stderr)


def test_more_dumps_than_descriptors(stage, tmp_path):
    """What they have in common, the list of all ranks above all, is kept once."""
    dump = missing_rank(4).dumps()[0]
    dump["pg_config"]["0"]["ranks"] = str(list(range(16384)))
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(1100):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    report, peak_kib = diagnose_with_peak(folder)
    assert report["hang"]["origins"] == [] and report["hang"]["waiting"] == "0-1099"
    assert "nothing is known of ranks 1100-16383" in report["hang"]["text"]
    if not harness.sanitized():
        assert peak_kib < 64 << 10


def test_names_are_made_safe(stage, tmp_path):
    job = HungJob(4, {"1": ('a"b\u202e\n\x1b[31m', [0, 1, 2, 3])})
    job.all_do(("1", "all_reduce", (8,)))
    job.programs[2] = []
    job.write(tmp_path / "dumps")
    done = stage.run("diagnose", "--from", str(tmp_path / "dumps"))
    assert done.returncode == 0 and "rank 2 never entered" in done.stdout
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
