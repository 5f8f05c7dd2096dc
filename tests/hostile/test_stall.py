"""Storage that hangs: marks wait in the rings and in memory, the other ranks, the switch and the proxy's end do not."""
import os
import signal
import subprocess
import time

import harness
import pytest
from harness import peak_bytes, wait_until

STALL_SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib", "stall.c")
DYNAMIC = os.path.join(harness.BUILD, "tests", "taskd_dynamic")
MIB = 1 << 20
# Marks of 250 bytes, two lines each: 2 MiB of ring hold about 7,000 of them, those of 3.5 s in which the proxy gets no CPU.
RATE, NAME_BYTES, OVERFLOW = 2000, 250, 25_000


class Stall:
    """What lies below `path` hangs from begin() to end(), for proxies with this environment."""

    def __init__(self, folder, library):
        self.control = os.path.join(folder, "stall")
        self.environment = harness.clean_environment(MINDX_TASK_ID=harness.TASK, LD_PRELOAD=library, STALL_SWITCH=self.control)

    def begin(self, path):
        with open(self.control + ".new", "w", encoding="utf-8") as file:
            file.write(path)
        os.rename(self.control + ".new", self.control)

    def end(self):
        os.unlink(self.control)


@pytest.fixture(scope="session")
def stall_library(tmp_path_factory):
    library = str(tmp_path_factory.mktemp("stall") / "stall.so")
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", library, STALL_SOURCE, "-ldl"], check=True)
    return library


@pytest.fixture
def stall(stage, stall_library):
    return Stall(stage.folder, stall_library)


@pytest.fixture
def stalled_proxy(stage, manager, recording, stall, monkeypatch):
    if os.path.exists(DYNAMIC):  # nothing can be preloaded into a static program
        monkeypatch.setattr(harness, "TASKD", DYNAMIC)
    return stage.proxy(manager, environment=stall.environment)


def lost(manager):
    return {rank: status["lost"] for rank, status in manager.rank_status().items()}


def wait_written(proxy, rank, patience_s=60):
    made = max(rank.made())
    wait_until(lambda: proxy.counts(rank.rank)["other"] >= made, f"what rank {rank.rank} made is in its files", patience_s)


def test_a_stall_that_overflows_the_rings_loses_nothing(stage, manager, stalled_proxy, stall):
    proxy = stalled_proxy
    rank = stage.rank(0, proxy, rate=RATE, name_bytes=NAME_BYTES)
    rank.wait_made(1000)
    stall.begin(proxy.profiling_dir)
    rank.wait_made(max(rank.made()) + OVERFLOW, 60)
    wait_until(lambda: "storage does not answer" in proxy.log(), "the proxy says it")
    before = max(rank.made())
    stall.end()
    wait_until(lambda: "storage answers again" in proxy.log(), "the proxy says it")
    rank.wait_made(before + 500)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


def test_one_ranks_folder_that_hangs_holds_nobody_up(stage, manager, stalled_proxy, stall):
    proxy = stalled_proxy
    ranks = [stage.rank(r, proxy, rate=500) for r in range(3)]
    for rank in ranks:
        rank.wait_made(100)
    stall.begin(os.path.join(proxy.task_dir, "1"))
    wait_until(lambda: "storage does not answer" in proxy.log(), "the proxy says it")
    for rank in (ranks[0], ranks[2]):
        made = max(rank.made()) + 100
        rank.wait_made(made)
        wait_until(lambda r=rank, m=made: proxy.counts(r.rank)["other"] >= m, f"rank {rank.rank} is recorded", 10)
    assert manager.modify(communication="off") == 200
    manager.wait_applied({"communication": "off"}, range(3), 2)
    late = stage.rank(3, proxy, rate=500)
    late.wait_made(100)
    wait_until(lambda: proxy.counts(3)["other"] >= 100, "a rank that comes meanwhile is recorded", 10)
    stall.end()
    for rank in (*ranks, late):
        rank.wait_made(max(rank.made()) + 100)
        assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    for rank in (*ranks, late):
        rank.verify(report)


def test_sigterm_while_storage_hangs(stage, manager, stalled_proxy, stall):
    """The proxy leaves in time and logs it; what the rings hold is written by the next one, once."""
    proxy = stalled_proxy
    ranks = [stage.rank(r, proxy, rate=500) for r in range(2)]
    for rank in ranks:
        rank.wait_made(200)
    stall.begin(os.path.join(proxy.task_dir, "1"))
    ranks[1].wait_made(max(ranks[1].made()) + 500)
    assert proxy.terminate(10) == 1
    assert "storage does not answer" in proxy.log() and "ranks were taken out" in proxy.log()
    stall.end()
    proxy = stage.proxy(manager, name="successor", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
    for rank in ranks:
        rank.wait_made(max(rank.made()) + 200)
        assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    for rank in ranks:
        rank.verify(report)


@pytest.mark.parametrize("overflow", [False, True])
def test_kill_while_storage_hangs(stage, manager, stalled_proxy, stall, overflow):
    """Exactly once for what the rings still hold; the rest is counted."""
    proxy = stalled_proxy
    # At a tenth of the rate the ring holds what is marked until the next proxy is there, on a busy machine too.
    rank = stage.rank(0, proxy, rate=RATE if overflow else RATE // 10, name_bytes=NAME_BYTES)
    rank.wait_made(1000)
    stall.begin(proxy.profiling_dir)
    if overflow:
        rank.wait_made(max(rank.made()) + OVERFLOW, 60)
    else:
        rank.wait_made(max(rank.made()) + 1000)
    proxy.kill()
    stall.end()
    proxy = stage.proxy(manager, name="successor", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
    manager.wait_attached([0])
    rank.wait_made(max(rank.made()) + 1000)
    os.kill(rank.pid, signal.SIGSTOP)
    wait_written(proxy, rank) if not overflow else wait_until(
        lambda: manager.rank_status()[0]["lost"] > 0, "what is lost is counted")
    os.kill(rank.pid, signal.SIGCONT)
    if not overflow:
        assert rank.terminate() == 0
        assert proxy.terminate() == 0
        report = proxy.check(keep_marks=True)
        assert report.ok, report.problems[:5]
        rank.verify(report)
        return
    assert rank.terminate() == 0
    made = sum(rank.made())

    def accounted():
        found = sum(1 for m in proxy.check(keep_marks=True).ranks[0].marks if m.pid == rank.pid)
        return found + lost(manager)[0] >= 2 * made - 1
    wait_until(accounted, "every record is in the files or counted")
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    starts = [m.name for m in report.ranks[0].marks if m.name.startswith("seq ")]
    assert len(starts) == len(set(starts)), "written twice"
    assert int(starts[-1].split()[2]) == made - 1


def test_the_backlog_is_bounded(stage, manager, stalled_proxy, stall):
    """Far more than it holds: memory stays within its bound, what is lost is counted, and the proxy goes on."""
    proxy = stalled_proxy
    rank = stage.rank(0, proxy, rate=20_000, name_bytes=NAME_BYTES)
    rank.wait_made(1000)
    stall.begin(proxy.profiling_dir)
    before = peak_bytes(proxy)
    wait_until(lambda: "storage does not answer" in proxy.log(), "the proxy says it")
    rank.wait_made(max(rank.made()) + 300_000, 80)  # some 400 bytes each
    assert harness.sanitized() or 48 * MIB < peak_bytes(proxy) - before < (64 + 32) * MIB
    stall.end()
    wait_until(lambda: "storage answers again" in proxy.log(), "the proxy goes on", 60)
    wait_until(lambda: lost(manager)[0] > 10_000, "what was lost is counted")
    made = max(rank.made())
    rank.wait_made(made + 500)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    found = {int(m.name.split()[2]) for m in proxy.check(keep_marks=True).ranks[0].marks if m.name.startswith("seq ")}
    assert max(found) == max(rank.made()) - 1


def test_a_frozen_file_system(stage, manager, recording, freezing_disk):
    proxy = stage.proxy(manager, profiling_dir=freezing_disk)
    rank = stage.rank(0, proxy, rate=RATE, name_bytes=NAME_BYTES)
    rank.wait_made(1000)
    wait_until(lambda: proxy.counts(0)["other"] > 0, "marks are written")
    subprocess.run(["fsfreeze", "-f", freezing_disk], check=True)
    rank.wait_made(max(rank.made()) + OVERFLOW, 60)
    assert manager.modify(communication="off") == 200
    manager.wait_applied({"communication": "off"}, [0], 2)
    subprocess.run(["fsfreeze", "-u", freezing_disk], check=True)
    rank.wait_made(max(rank.made()) + 500)
    assert rank.terminate() == 0
    # The kernel keeps a process whose write hangs; it is gone for its ranks all the same, and ends as soon as it can.
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


def test_sigterm_on_a_frozen_file_system(stage, manager, recording, freezing_disk):
    proxy = stage.proxy(manager, profiling_dir=freezing_disk)
    rank = stage.rank(0, proxy, rate=500)
    rank.wait_made(200)
    wait_until(lambda: proxy.counts(0)["other"] > 0, "marks are written")
    subprocess.run(["fsfreeze", "-f", freezing_disk], check=True)
    rank.wait_made(max(rank.made()) + 1000)
    proxy.child.send_signal(signal.SIGTERM)
    wait_until(lambda: "ranks were taken out" in proxy.log(), "the proxy leaves", 10)
    subprocess.run(["fsfreeze", "-u", freezing_disk], check=True)
    proxy.wait()
    proxy = stage.proxy(manager, name="successor", profiling_dir=freezing_disk, socket_path=proxy.socket)
    rank.wait_made(max(rank.made()) + 200)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


@pytest.mark.slow
def test_thirty_seconds_at_full_rate(stage, manager, recording, freezing_disk):
    proxy = stage.proxy(manager, profiling_dir=freezing_disk)
    ranks = [stage.rank(r, proxy, rate=5000, name_bytes=30) for r in range(8)]  # a range is two marks
    for rank in ranks:
        rank.wait_made(5000)
    subprocess.run(["fsfreeze", "-f", freezing_disk], check=True)
    until = time.monotonic() + 30
    wait_until(lambda: time.monotonic() >= until, "30 s of stall", 40, 0.5)
    assert peak_bytes(proxy) < (512 + 64) * MIB
    subprocess.run(["fsfreeze", "-u", freezing_disk], check=True)
    for rank in ranks:
        rank.wait_made(max(rank.made()) + 5000)
        assert rank.terminate() == 0
    assert not any(lost(manager).values()), lost(manager)
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    for rank in ranks:
        rank.verify(report)


def test_a_log_file_that_hangs_holds_nobody_up(stage, manager, stall, monkeypatch):
    logs = os.path.join(stage.folder, "logs")
    os.mkdir(logs)
    stall.environment["TASKD_LOG_PATH"] = logs
    stall.begin(logs)
    if os.path.exists(DYNAMIC):
        monkeypatch.setattr(harness, "TASKD", DYNAMIC)
    proxy = stage.proxy(manager, environment=stall.environment)
    stage.rank(0, proxy, rate=100)
    manager.wait_attached([0])
    assert manager.switch("all=on")[0] == 0
    assert "manager" in proxy.log(), "its lines are on stderr all the same"
    assert proxy.terminate() == 0
    assert os.listdir(logs) == []
