"""`taskd diagnose --from` answers of NCCL's RAS: who holds a hung job up, as far as counts prove it. The answers are written by
a writer of our own after the public description of the format."""
import pytest
from flight_dumps import WORLD, HungJob
from from_files import diagnose, notes
from ras_answers import RasJob

LATER = "2026-06-19 06:52:56"
DEAD = {"unresponsive": True, "considered_dead": True}


def behind():
    """Rank 3 has not launched the all-reduce in which the others wait."""
    job = RasJob(8)
    for rank in set(range(8)) - {3}:
        job.counts["0x5111", rank] = {"AllReduce": 8, "AllGather": 3}
    return job


@pytest.mark.parametrize("how", ["one file", "with lines between", "two files"])
def test_contract_counts_that_stand_still(stage, tmp_path, how):
    folder = tmp_path / "ras"
    folder.mkdir()
    first, second = behind().answer(), behind().answer(LATER)
    if how == "two files":
        (folder / "b.json").write_text(first)
        (folder / "a.json").write_text(second)
    else:
        line = "Fri Jun 19 06:51:56 UTC 2026\n" if how == "with lines between" else ""
        (folder / "ras.json").write_text(line + first + line + second)
    report = diagnose(stage, folder)
    found = report["hang"]
    assert report["state"] == "hung"
    assert (found["origins"], found["kind"], found["waiting"]) == ([3], "missing", "0-2, 4-7")
    assert found["operation"] == "AllReduce" and found["group"] == "communicator 0x5111:0x2cd6:0xe685"
    assert "2 answers from 2026-06-19 06:51:56 to 2026-06-19 06:52:56 say the same" in found["text"]
    assert {source["format"] for source in report["sources"]} == {"nccl_ras"}
    assert sum(source["records"] for source in report["sources"]) == 2


def test_contract_one_answer_accuses_nobody(stage, tmp_path):
    """A job that runs has such counts at every moment."""
    (tmp_path / "ras.json").write_text(behind().answer())
    report = diagnose(stage, tmp_path / "ras.json")
    assert report["state"] == "unknown" and "hang" not in report
    assert "give a second one" in notes(report) and "rank 3 never entered AllReduce" in notes(report)


def test_contract_same_answer_twice_is_one(stage, tmp_path):
    (tmp_path / "ras.json").write_text(behind().answer() * 2)
    assert "hang" not in diagnose(stage, tmp_path / "ras.json")


def test_contract_job_that_goes_on(stage, tmp_path):
    job = behind()
    first = job.answer()
    for counts in job.counts.values():
        counts["AllReduce"] += 5
    (tmp_path / "ras.json").write_text(first + job.answer(LATER))
    report = diagnose(stage, tmp_path / "ras.json")
    assert "hang" not in report and "went on" in notes(report)


def test_contract_origin_is_not_who_waits_in_another_communicator(stage, tmp_path):
    """Rank 5 has not come to the pair's operation, 4 waits for it there, and 0, 2 and 6 for 4."""
    job = RasJob(8, {"0xaa": [4, 5], "0xbb": [0, 2, 4, 6]})
    job.counts["0xaa", 4]["AllReduce"] += 1
    for rank in (0, 2, 6):
        job.counts["0xbb", rank]["ReduceScatter"] = 1
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["waiting"]) == ([5], "0, 2, 4, 6")
    assert found["group"].startswith("communicator 0xaa")


def test_contract_another_operation(stage, tmp_path):
    job = behind()
    job.counts["0x5111", 3] = {"AllReduce": 7, "AllGather": 4}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["kind"], found["operation"]) == ([3], "order", "AllReduce")


def test_contract_another_operation_and_fewer(stage, tmp_path):
    """As NCCL 2.28.9 answered where one rank broadcast, and the others had two operations queued."""
    job = RasJob(4)
    for rank in range(4):
        job.counts["0x5111", rank] = {"AllReduce": 13, "AllGather": 13}
    job.counts["0x5111", 2] = {"AllReduce": 12, "AllGather": 12, "Broadcast": 1}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["kind"], found["waiting"]) == ([2], "order", "0, 1, 3")
    assert "collective 25" in found["text"] and "rank 2 Broadcast, the others" in found["text"]


def test_contract_which_of_two_is_not_known(stage, tmp_path):
    job = behind()
    for rank in set(range(8)) - {3}:
        job.counts["0x5111", rank] = {"AllReduce": 8, "AllGather": 4}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["kind"]) == ([3], "missing")
    assert set(found["operation"].split(" or ")) == {"AllReduce", "AllGather"}


def test_contract_ranks_that_ran_ahead(stage, tmp_path):
    """Launching does not wait: those who have launched more, and of another kind, stand in the same operation."""
    job = behind()
    job.counts["0x5111", 0] = {"AllReduce": 9, "AllGather": 5}
    job.counts["0x5111", 1] = {"AllReduce": 8, "AllGather": 4}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["kind"], found["operation"]) == ([3], "missing", "AllReduce")


def test_contract_who_may_wait_for_a_message_is_not_accused(stage, tmp_path):
    """Communicators without collectives are those of pipelines. Whoever has none of them is still named."""
    job = behind()
    job.communicators["0xcc"] = [3, 7]
    job.counts |= {("0xcc", rank): {} for rank in (3, 7)}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["kind"], found["waiting"]) == ([], "unknown", "0-2, 4-7")
    assert "rank 3 never entered" in found["text"] and "cannot say whether it waits for a message" in found["text"]


def test_contract_equal_counts_cannot_say(stage, tmp_path):
    job = RasJob(4)
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    report = diagnose(stage, tmp_path / "ras.json")
    assert "hang" not in report and "cannot say" in notes(report)


def test_contract_process_that_is_dead(stage, tmp_path):
    job = RasJob(4, {"0xaa": [2, 3]})
    job.missing = {2: DEAD}
    job.counts["0x5111", 1] = {"AllReduce": 7, "AllGather": 4}
    (tmp_path / "ras.json").write_text(job.answer())
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert (found["origins"], found["waiting"]) == ([2], "0, 1, 3")
    assert "rank 2 does not answer" in found["text"]


def test_contract_rank_that_is_missing_and_alive_is_not_accused(stage, tmp_path):
    job = behind()
    job.missing = {3: {"unresponsive": False, "considered_dead": False}}
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    assert "hang" not in diagnose(stage, tmp_path / "ras.json")


def test_contract_errors_are_said(stage, tmp_path):
    job = RasJob(4)
    job.errors = {1: 6}
    (tmp_path / "ras.json").write_text(job.answer())
    assert "asynchronous error on rank 1" in notes(diagnose(stage, tmp_path / "ras.json"))


def test_contract_no_communicator_has_all(stage, tmp_path):
    """Then the communicators' own ranks are no global ones, and processes are named."""
    job = RasJob(4, {"0xaa": [0, 1], "0xbb": [2, 3]})
    del job.communicators["0x5111"]
    job.counts["0xbb", 2]["AllReduce"] += 1
    (tmp_path / "ras.json").write_text(job.answer() + job.answer(LATER))
    found = diagnose(stage, tmp_path / "ras.json")["hang"]
    assert found["origins"] == [] and "process 4003 on 10.0.0.1, GPU 3" in found["text"]


def test_contract_missing_commas(stage, tmp_path):
    """NCCL 2.28.9 forgets one in its list of missing ranks."""
    job = RasJob(4)
    job.missing = {2: DEAD}
    text = job.answer()
    broken = text.replace('"nvml_dev": 2,\n', '"nvml_dev": 2\n')
    assert broken != text
    (tmp_path / "ras.json").write_text(broken)
    report = diagnose(stage, tmp_path / "ras.json")
    assert report["hang"]["origins"] == [2] and report["sources"][0]["note"] == ""


def test_contract_beside_dumps_of_flight_recorders(stage, tmp_path):
    """The dumps say more; the answers are a note."""
    dumps = HungJob(8)
    dumps.all_do(*[(WORLD, "all_reduce", (8,))] * 3)
    dumps.programs[3].pop()
    dumps.write(tmp_path / "all")
    (tmp_path / "all" / "ras.json").write_text(behind().answer() + behind().answer(LATER))
    report = diagnose(stage, tmp_path / "all")
    assert report["hang"]["origins"] == [3] and report["hang"]["group"] == "default_pg,0"
    assert "rank 3 never entered AllReduce" in notes(report)


def test_cut_answer_is_left_out(stage, tmp_path):
    text = behind().answer() + behind().answer(LATER)
    (tmp_path / "ras.json").write_text(text[:-300])
    report = diagnose(stage, tmp_path / "ras.json")
    assert "hang" not in report and report["sources"][0]["records"] == 1
    assert "it is cut at byte" in report["sources"][0]["note"]
    (tmp_path / "ras.json").write_text(behind().answer()[:-300])
    assert "it is cut at byte" in diagnose(stage, tmp_path / "ras.json", code=1)
