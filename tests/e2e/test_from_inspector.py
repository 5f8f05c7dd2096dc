"""`taskd diagnose --from` what NCCL's Inspector plugin writes (tests named contract: by a writer of our own)."""
import pytest
from from_files import diagnose, named, notes
from inspector_logs import InspectedJob

CROSSING = [[rank, rank + 2, rank + 4, rank + 6] for rank in (0, 1)] + [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_contract_slow_group(stage, tmp_path, version):
    job = InspectedJob(version=version)
    job.add_groups([list(range(8))])
    job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=2)
    job.write(tmp_path / "logs")
    report = diagnose(stage, tmp_path / "logs")
    assert report["state"] == "slow", report
    assert named(report) == [("link", [[4, 6]])] or named(report) == [("group", [4, 6])], named(report)
    assert report["verdicts"][0]["cause"] in ("network", "pp_link")
    assert 95 <= report["verdicts"][0]["since_step"] <= 110
    assert "only transfers are judged" in notes(report) and "numbered by host" not in notes(report)
    assert [(s["format"], s["rank"], s["note"]) for s in report["sources"]] == [("nccl_inspector", rank, "") for rank in range(8)]


@pytest.mark.parametrize("collectives", [True, False])
def test_contract_slow_pair(stage, tmp_path, collectives):
    job = InspectedJob()
    job.collectives = collectives
    job.add_groups([list(range(8))])
    job.pairs = [(sender, sender + 2, 100, 3.0 if sender == 3 else 1.0) for sender in range(6)]
    job.write(tmp_path / "logs")
    report = diagnose(stage, tmp_path / "logs")
    assert named(report) == [("link", [[3, 5]])]


def test_contract_healthy_job_names_nobody(stage, tmp_path):
    job = InspectedJob(operations=400)
    job.add_groups([list(range(8))])
    job.add_groups(CROSSING)
    job.pairs = [(sender, sender + 2, 0, 1.0) for sender in range(6)]
    job.write(tmp_path / "logs")
    assert diagnose(stage, tmp_path / "logs")["verdicts"] == []


def test_contract_a_late_rank_is_no_slow_link(stage, tmp_path):
    """Everybody waits for it in the operation, and its own time in it is the transfer's."""
    job = InspectedJob()
    job.add_groups([list(range(8))])
    job.random.choice = lambda ranks: ranks[3]
    job.write(tmp_path / "logs")
    assert diagnose(stage, tmp_path / "logs")["verdicts"] == []


def test_contract_without_a_communicator_of_all_ranks(stage, tmp_path):
    job = InspectedJob()
    job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=1)
    job.write(tmp_path / "logs")
    report = diagnose(stage, tmp_path / "logs")
    assert "numbered by host and process" in notes(report)
    assert [sorted(ids[0] if scope == "link" else ids) for scope, ids in named(report)] == [[1, 3]]  # as the writer numbers them


def test_contract_many_operations_are_bounded(stage, tmp_path):
    job = InspectedJob(ranks=4, operations=3000)
    job.add_groups([[0, 1, 2, 3]])
    job.add_groups([[0, 2], [1, 3]], slow=0, since=1500)
    job.write(tmp_path / "logs")
    report = diagnose(stage, tmp_path / "logs")
    assert report["steps"]["last"] < 256 and report["state"] == "slow"


def test_missing_process_is_said(stage, tmp_path):
    job = InspectedJob()
    job.add_groups([list(range(8))], slow=0)
    job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=3)
    paths = job.write(tmp_path / "logs")
    paths[5].unlink()
    report = diagnose(stage, tmp_path / "logs")
    assert report["verdicts"] == []  # whoever came last may be the one that is missing
    assert "of 8 ranks there is no trace of rank 5" in notes(report)


def test_cut_line_gives_what_is_before_it(stage, tmp_path):
    job = InspectedJob()
    job.add_groups([list(range(8))])
    job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=2)
    paths = job.write(tmp_path / "logs")
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    report = diagnose(stage, tmp_path / "logs")
    assert report["state"] == "slow" and "it is cut at byte" in report["sources"][0]["note"]


def test_files_put_together_are_refused(stage, tmp_path):
    job = InspectedJob(ranks=2)
    job.add_groups([[0, 1]])
    paths = job.write(tmp_path / "logs")
    (tmp_path / "all.log").write_bytes(b"".join(path.read_bytes() for path in paths))
    report = diagnose(stage, tmp_path / "all.log")
    assert "several processes" in report["sources"][0]["note"]
