"""Many ranks on a node, many threads in a rank."""
from harness import KINDS, wait_until


def test_sixty_four_ranks_on_one_node(stage, manager, recording, proxy):
    ranks = [stage.rank(r, proxy, rate=50) for r in range(64)]
    manager.wait_attached(range(64), 60)
    code, answer = manager.switch("communication=off")
    assert code == 0 and answer["total"] == 64 and answer["applied"] == 64
    assert sorted(r["rank"] for r in answer["ranks"]) == list(range(64))
    for rank in ranks:
        rank.wait_made(50)
    for rank in ranks:
        rank.terminate()
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    for rank in ranks:
        rank.verify(report)


def test_three_hundred_threads_in_one_rank(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, threads=300, rate=20, count=100)
    rank.wait_finished(100, 60)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert rank.verify(report) == 300 * 100


def test_rank_without_a_reader_keeps_the_newest(stage, manager):
    """A flight recorder: the oldest go, what went is counted, and the status shows how many."""
    manager.all_on()
    socket_path = stage.folder + "/later.sock"
    rank = stage.rank(0, socket_path, rate=0, count=200_000)
    rank.wait_finished(200_000)
    proxy = stage.proxy(manager, socket_path=socket_path)
    manager.wait_attached([0])

    def numbers():
        report = proxy.check(keep_marks=True)
        assert report.ok, report.problems[:5]
        return [int(m.name.split()[2]) for r in report.ranks.values() for m in r.marks if m.name]

    wait_until(lambda: numbers()[-1:] == [199_999], "the newest range is in the file")
    found = numbers()
    assert found == list(range(found[0], 200_000)), "the newest are not all there"
    # Two records a range; where the ring was cut a range may have lost its start alone.
    gone = 2 * (200_000 - len(found))
    wait_until(lambda: abs(manager.rank_status()[0]["lost"] - gone) <= 1, f"about {gone} records are counted as lost")


def test_records_of_two_seconds_fit_without_a_reader(stage, manager):
    """A ring holds 2 s at 1,000 records/s with names of 120 bytes, in any thread (marks.md 14)."""
    manager.all_on()
    socket_path = stage.folder + "/later.sock"
    rank = stage.rank(0, socket_path, rate=500, count=1000, threads=8, name_bytes=120)
    rank.wait_finished(1000)
    proxy = stage.proxy(manager, socket_path=socket_path)
    manager.wait_attached([0])
    rank.terminate()
    assert proxy.terminate() == 0
    rank.verify(proxy.check(keep_marks=True))


def test_nothing_is_lost_at_eight_thousand_marks_a_second(stage, manager, recording, proxy):
    """Instant marks would be half the work: these are ranges, 16,000 records/s, names of 250 bytes (marks.md 14)."""
    rank = stage.rank(0, proxy, rate=8000, count=24_000, name_bytes=250)
    rank.wait_finished(24_000, 60)
    assert manager.rank_status()[0]["lost"] == 0
    rank.terminate()
    assert proxy.terminate() == 0
    rank.verify(proxy.check(keep_marks=True))


def test_status_counts_what_the_files_hold(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, pattern="training", rate=100, count=100)
    rank.wait_finished(100)
    expected = {"step": 100, "save_checkpoint": 10, "fp": 100, "dataloader": 100, "communication": 100, "other": 0}
    wait_until(lambda: manager.rank_status().get(0, {}).get("marks") == expected, f"status has {expected}")
    assert proxy.counts(0) == expected
    status = manager.rank_status()[0]
    assert status["step"] == 99 and status["step_ms"] >= 0 and status["lost"] == 0
    assert status["applied"] == dict.fromkeys(KINDS, "on") and status["pid"] == rank.pid
    assert status["overhead_ns_per_mark"] >= 0
