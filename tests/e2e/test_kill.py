"""kill -9 of manager, proxy and ranks at random moments: the wanted state is right within 2 s, and no mark is lost or doubled."""
import random

import pytest
from harness import KINDS, wait_until

RANKS = 4
HANDOVERS = 10_000  # a ring holds them all


class Job:
    """A job of one node whose parts are killed and started again."""

    def __init__(self, stage):
        self.stage = stage
        self.manager = stage.manager()
        self.manager.all_on()
        self.proxy = stage.proxy(self.manager)
        self.live = {r: self.start_rank(r) for r in range(RANKS)}
        self.dead = []
        self.lives = 0
        self.manager.wait_attached(range(RANKS))

    def start_rank(self, number):
        return self.stage.rank(number, self.proxy, rate=400, threads=2)

    def kill_manager(self):
        self.manager.kill()
        self.lives += 1
        self.manager = self.stage.manager(name=f"manager-{self.lives}", port=self.manager.port,
                                          state_dir=self.manager.state_dir)

    def kill_proxy(self):
        self.proxy.kill()
        if self.lives % 3 == 0:
            self.kill_rank()  # a rank that dies while its proxy is dead
        self.lives += 1
        self.proxy = self.stage.proxy(self.manager, name=f"proxy0-{self.lives}", profiling_dir=self.proxy.profiling_dir,
                                      socket_path=self.proxy.socket)

    def kill_rank(self):
        number = random.choice(list(self.live))
        self.live[number].kill()
        self.dead.append(self.live[number])
        self.live[number] = self.start_rank(number)


def run(stage, kills):
    random.seed(kills)
    job = Job(stage)
    wanted = "on"
    for _ in range(kills):
        victim = random.choice([job.kill_manager, job.kill_proxy, job.kill_proxy, job.kill_rank])
        # A moment later each time: kills hit writes, hellos and switches under way.
        busy = random.choice(list(job.live.values()))
        busy.wait_made(max(busy.made(), default=0) + random.randrange(1, 150))
        victim()
        # communication alone moves, so that what the ranks mark ("other") is always recorded
        wanted = "off" if wanted == "on" else "on"
        assert job.manager.modify(communication=wanted) == 200
        right = {**dict.fromkeys(KINDS, "on"), "communication": wanted}

        def settled():
            status = job.manager.rank_status()
            return all(status.get(r, {}).get("pid") == job.live[r].pid and status[r]["applied"] == right for r in job.live)

        wait_until(settled, f"all ranks have {right} after {victim.__name__}", 2.0)
    for rank in job.live.values():
        assert rank.terminate() == 0
    assert job.proxy.terminate() == 0
    report = job.proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    marks = sum(rank.verify(report) for rank in job.live.values())
    marks += sum(rank.verify(report, killed=True) for rank in job.dead if max(rank.made(), default=0) > 0)
    print(f"{kills} kills, {marks} ranges, none lost, none twice")
    assert not [path for rank in job.dead for path in rank.segments()]


def test_twelve_kills(stage):
    run(stage, 12)


def test_ends_of_another_thread_over_the_proxys_kills(stage):
    """Ranges that one thread starts and another ends at once, at full speed, while the proxy dies: each has its end."""
    manager = stage.manager()
    manager.all_on()
    proxy = stage.proxy(manager)
    ranks = []
    for life in range(6):
        live = [stage.rank(r, proxy, threads=2, rate=0, count=HANDOVERS, pattern="handover", hold=False, name=f"rank{r}-{life}")
                for r in range(RANKS)]
        ranks += live
        wait_until(lambda rank=live[-1]: max(rank.made(), default=0) > 0, "ranges are ended")
        proxy.kill()
        proxy = stage.proxy(manager, name=f"proxy0-{life}", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
        for rank in live:
            assert rank.wait(timeout_s=60) == 0, rank.log()
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert sum(rank.verify(report) for rank in ranks) == len(ranks) * HANDOVERS
    assert {r: found.open_ranges for r, found in report.ranks.items()} == dict.fromkeys(range(RANKS), 0), "ends are missing"


@pytest.mark.slow
def test_hundred_kills(stage):
    run(stage, 100)
