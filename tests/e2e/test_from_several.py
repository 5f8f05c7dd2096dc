"""`--from` files of several formats of one job: each adds what it proves, and the answer says which of them proved what."""
import json
import pickle

from chrome_traces import slow_job
from flight_dumps import WORLD, HungJob
from from_files import diagnose, named, notes
from inspector_logs import InspectedJob
from ras_answers import RasJob
from synthetic_job import Job
from test_command_line import usage_error
from test_from_nccl_ras import LATER, behind


def write_marks(folder, ranks=8, slow=5, steps=120):
    job = Job(ranks=ranks, steps=steps)
    if slow is not None:
        job.compute[slow] = lambda step: 1.5 if step >= 30 else 1
    job.data_parallel()
    job.write(folder)
    return folder


def write_dumps(folder, ranks=8, missing=3):
    job = HungJob(ranks)
    job.all_do(*[(WORLD, "all_reduce", (1024, 16))] * 5)
    job.programs[missing].pop()
    job.write(folder)
    return folder


def proved(report):
    return [(verdict["ids"], verdict["proved_by"]) for verdict in report["verdicts"]]


def formats(report):
    return [(source["format"], source["rank"]) for source in report["sources"]]


def test_marks_say_who_is_slow_and_dumps_who_hangs(stage, tmp_path):
    marks, dumps = write_marks(tmp_path / "job"), write_dumps(tmp_path / "dumps")
    report = diagnose(stage, marks, dumps)
    assert report["state"] == "hung" and report["hang"]["origins"] == [3]
    assert report["hang"]["proved_by"] == ["flight_recorder"]
    assert proved(report) == [([5], ["marks"])]
    assert formats(report) == [("marks", rank) for rank in range(8)] + [("flight_recorder", rank) for rank in range(8)]
    assert all(source["records"] >= 100 for source in report["sources"][:8])
    alone = diagnose(stage, marks)
    assert "proved_by" not in alone["verdicts"][0] and "sources" not in alone
    assert report["verdicts"][0]["cost_ms_per_step"] == alone["verdicts"][0]["cost_ms_per_step"]
    text = " ".join(stage.run("diagnose", "--from", str(marks), str(dumps)).stdout.split())
    assert text.startswith("hung: rank 3 never entered all_reduce") and "(flight recorder dumps)" in text
    assert "rank 5" in text and "(TaskD's marks)" in text
    assert f"TaskD's marks: {marks}/0 and 7 more flight recorder dumps: {dumps}/nccl_trace_rank_0 and 7 more" in text


def test_marks_and_answers_of_ras(stage, tmp_path):
    marks = write_marks(tmp_path / "job")
    (tmp_path / "ras.json").write_text(behind().answer() + behind().answer(LATER))
    report = diagnose(stage, marks, tmp_path / "ras.json")
    assert report["hang"]["origins"] == [3] and report["hang"]["proved_by"] == ["nccl_ras"]
    assert proved(report) == [([5], ["marks"])]


def test_one_answer_of_ras_leaves_the_marks_their_say(stage, tmp_path):
    marks = write_marks(tmp_path / "job", slow=None)
    (tmp_path / "ras.json").write_text(RasJob(8).answer())
    report = diagnose(stage, marks, tmp_path / "ras.json")
    assert report["state"] == "ok" and "hang" not in report


def test_marks_and_traces_that_agree_are_one_verdict(stage, tmp_path):
    marks = write_marks(tmp_path / "job", ranks=4, slow=2)
    slow_job().write(tmp_path / "traces")
    report = diagnose(stage, marks, tmp_path / "traces")
    assert report["state"] == "slow" and proved(report) == [([2], ["marks", "kineto"])]
    verdict = report["verdicts"][0]
    assert "(TaskD's marks); " in verdict["text"] and verdict["text"].endswith("(PyTorch profiler traces)")
    assert any(evidence["feature"] == "kernel ampere_bf16_s16816gemm" for evidence in verdict["evidence"])
    assert verdict["cost_ms_per_step"] == diagnose(stage, marks)["verdicts"][0]["cost_ms_per_step"]
    assert verdict["since_step"] < 100, "as the marks number them"


def test_marks_and_traces_that_differ_are_two(stage, tmp_path):
    marks = write_marks(tmp_path / "job", ranks=4, slow=1)
    slow_job().write(tmp_path / "traces")
    assert sorted(proved(diagnose(stage, marks, tmp_path / "traces"))) == [([1], ["marks"]), ([2], ["kineto"])]


def test_traces_and_dumps(stage, tmp_path):
    slow_job().write(tmp_path / "all")
    write_dumps(tmp_path / "all", ranks=4, missing=1)
    report = diagnose(stage, tmp_path / "all")
    assert report["hang"]["origins"] == [1] and report["hang"]["proved_by"] == ["flight_recorder"]
    assert proved(report) == [([2], ["kineto"])]


def test_steps_of_traces_and_stretches_of_nccl_inspector_are_not_mixed(stage, tmp_path):
    slow_job(ranks=8).write(tmp_path / "traces")
    job = InspectedJob()
    job.add_groups([list(range(8))])
    job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=2)
    job.write(tmp_path / "logs")
    report = diagnose(stage, tmp_path / "traces", tmp_path / "logs")
    found = {verdict["proved_by"][0]: verdict["ids"] for verdict in report["verdicts"]}
    assert found["kineto"] == [2] and found["nccl_inspector"] in ([4, 6], [[4, 6]]), report["verdicts"]
    assert all(source["note"] == "" for source in report["sources"])
    assert report["steps"] == diagnose(stage, tmp_path / "traces")["steps"]


def test_dumps_in_the_folder_of_marks(stage, tmp_path):
    marks = write_marks(tmp_path / "job")
    (marks / "model.pkl").write_bytes(pickle.dumps({"weights": {1, 2}}, protocol=2))
    before = diagnose(stage, marks)
    assert "sources" not in before
    timeline = marks / "timeline.json"
    assert stage.run("trace", "--from", str(marks), "-o", str(timeline)).returncode == 0
    assert diagnose(stage, marks) == before, "what taskd trace has written adds nothing"
    write_dumps(marks / "dumps")
    report = diagnose(stage, marks)
    assert report["hang"]["origins"] == [3] and proved(report) == [([5], ["marks"])]
    assert {source["note"] for source in report["sources"]} == {""}


def test_what_is_named_beside_marks_has_to_be_something(stage, tmp_path):
    marks = write_marks(tmp_path / "job")
    (tmp_path / "loss.json").write_text('{"loss": 1}')
    (tmp_path / "empty").mkdir()
    assert "no known format" in diagnose(stage, marks, tmp_path / "loss.json", code=2)
    assert f"{tmp_path}/empty holds no marks" in diagnose(stage, marks, tmp_path / "empty", code=2)
    assert "No such file" in diagnose(stage, marks, tmp_path / "nothing", code=2)


def test_broken_marks_leave_the_dumps_their_say(stage, tmp_path):
    folder = tmp_path / "job" / "0"
    folder.mkdir(parents=True)
    (folder / "1767225600").write_text("no mark\n")
    assert "holds no marks" in diagnose(stage, tmp_path / "job", code=2)
    report = diagnose(stage, tmp_path / "job", write_dumps(tmp_path / "dumps"))
    assert report["hang"]["origins"] == [3] and "holds no marks" in notes(report)


def test_marks_of_a_larger_job_are_said(stage, tmp_path):
    report = diagnose(stage, write_marks(tmp_path / "job"), write_dumps(tmp_path / "dumps", ranks=4, missing=1))
    assert "marks of rank 7, and other files of a job of 4 ranks" in notes(report)


def test_goodput_is_that_of_the_marks(stage, tmp_path):
    marks, dumps = write_marks(tmp_path / "job", ranks=4, slow=2), write_dumps(tmp_path / "dumps", ranks=4, missing=1)
    slow_job().write(tmp_path / "traces")
    alone, together = (json.loads(stage.run("goodput", "--json", "--from", *map(str, paths)).stdout)
                       for paths in ([marks], [marks, dumps, tmp_path / "traces"]))
    assert together["seconds"] == alone["seconds"] and together["seconds"]["straggler"] > 0


def test_report_has_both(stage, tmp_path):
    page = tmp_path / "report.html"
    done = stage.run("report", "--from", str(write_marks(tmp_path / "job")), str(write_dumps(tmp_path / "dumps")), "-o", str(page))
    assert done.returncode == 0 and "hung: rank 3 never entered all_reduce" in done.stdout, done.stderr
    html = page.read_text()
    assert "rank 3 never entered" in html and "rank 5" in html and "flight recorder dumps" in html


def test_rank_twice_in_marks_is_refused(stage, tmp_path):
    one, two = write_marks(tmp_path / "a"), write_marks(tmp_path / "b")
    dumps = write_dumps(tmp_path / "dumps")
    usage_error(stage.run("diagnose", "--from", str(one), str(two), str(dumps)), "rank 0 is in")


def test_agreeing_on_nobody(stage, tmp_path):
    marks = write_marks(tmp_path / "job", ranks=4, slow=None)
    job = slow_job()
    job.extra.clear()
    job.write(tmp_path / "traces")
    report = diagnose(stage, marks, tmp_path / "traces")
    assert report["state"] == "ok" and named(report) == []
