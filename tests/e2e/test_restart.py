"""Restarts of every part, in every order: nothing lost, nothing twice, the wanted state right."""
import os
import random
import signal

import harness
import pytest
from harness import KINDS, wait_until

ALL_ON = dict.fromkeys(KINDS, "on")


def finish(proxy, *ranks):
    """Ends the ranks and the proxy in order and proves that the files hold all that the ranks recorded."""
    for rank in ranks:
        assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    return [rank.verify(report) for rank in ranks]


def test_ranks_that_start_before_the_proxy(stage, manager):
    manager.all_on()
    socket_path = os.path.join(stage.folder, "later.sock")
    rank = stage.rank(0, socket_path, rate=500)
    rank.wait_made(200)
    proxy = stage.proxy(manager, socket_path=socket_path)
    manager.wait_attached([0])
    rank.wait_made(max(rank.made()) + 200)
    finish(proxy, rank)


def test_rank_that_ended_before_the_proxy_came(stage, manager):
    manager.all_on()
    socket_path = os.path.join(stage.folder, "later.sock")
    rank = stage.rank(0, socket_path, count=300, hold=False)
    assert rank.wait() == 0
    proxy = stage.proxy(manager, socket_path=socket_path)
    wait_until(lambda: proxy.counts(0)["other"] == 300, "its marks are written")
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


def test_restarted_rank_replaces_the_old_one(stage, manager, recording, proxy):
    first = stage.rank(3, proxy, rate=500)
    first.wait_made(100)
    manager.wait_attached([3])
    first.kill()
    second = stage.rank(3, proxy, rate=500, name="rank3-again")
    second.wait_made(100)
    wait_until(lambda: manager.rank_status()[3]["pid"] == second.pid and manager.rank_status()[3]["attached"],
               "the new process is rank 3")
    assert manager.rank_status()[3]["applied"] == ALL_ON
    assert second.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    first.verify(report, killed=True)
    second.verify(report)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_proxy_restarts(stage, manager, how):
    manager.all_on()
    proxy = stage.proxy(manager)
    ranks = [stage.rank(r, proxy, rate=500, threads=2) for r in range(2)]
    for rank in ranks:
        rank.wait_made(200)
    for life in range(3):
        getattr(proxy, how)()
        for rank in ranks:
            rank.wait_made(max(rank.made()) + 100)  # recorded without a reader
        proxy = stage.proxy(manager, name=f"proxy0-life{life}", profiling_dir=proxy.profiling_dir,
                            socket_path=proxy.socket)
        manager.wait_attached([0, 1])
    finish(proxy, *ranks)


def test_rank_killed_while_the_proxy_is_dead(stage, manager):
    manager.all_on()
    proxy = stage.proxy(manager)
    rank = stage.rank(0, proxy, rate=1000)
    rank.wait_made(100)
    proxy.kill()
    rank.wait_made(max(rank.made()) + 300)
    rank.kill()
    proxy = stage.proxy(manager, name="proxy0-again", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
    wait_until(lambda: proxy.counts(0)["other"] >= sum(rank.made()), "what the dead rank left is written")
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report, killed=True)


def test_segments_are_removed_when_they_are_drained(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, rate=500)
    rank.wait_made(100)
    mine = {name for name in os.listdir("/dev/shm") if name.startswith("taskd-") and f"-{rank.pid}-" in name}
    assert mine, "the rank has no segment in /dev/shm"
    rank.kill()
    wait_until(lambda: not mine & set(os.listdir("/dev/shm")), "the dead rank's segment is gone")


def test_terminate_writes_everything_within_five_seconds(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, rate=4000, threads=2)
    rank.wait_made(8000)
    finish(proxy, rank)


def test_proxy_that_ends_while_ranks_go_on(stage, manager, recording, proxy):
    """What was recorded before SIGTERM is in the files, though the rank still runs."""
    rank = stage.rank(0, proxy, count=2000, rate=2000)
    rank.wait_finished(2000)
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_manager_restart_keeps_the_wanted_state(stage, how):
    manager = stage.manager()
    proxy = stage.proxy(manager)
    rank = stage.rank(0, proxy, rate=500)
    manager.wait_attached([0])
    assert manager.modify(step="on", communication="on") == 200
    manager.wait_applied(ALL_ON, [0], 1)
    wanted = manager.get()
    getattr(manager, how)()
    rank.wait_made(max(rank.made()) + 100)
    again = stage.manager(name="manager-again", port=manager.port, state_dir=manager.state_dir)
    assert again.get() == wanted
    wait_until(lambda: (again.rank_status().get(0) or {}).get("applied") == ALL_ON, "the rank has the state", 2)
    assert again.modify(communication="off") == 200
    again.wait_applied({"communication": "off", "step": "on"}, [0], 1)


def test_manager_that_lost_its_proxies_switches_them_when_they_return(stage, manager):
    proxy = stage.proxy(manager)
    rank = stage.rank(0, proxy, rate=500)
    manager.wait_attached([0])
    proxy.kill()
    manager.all_on()
    proxy = stage.proxy(manager, name="proxy0-again", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
    wait_until(lambda: (manager.rank_status().get(0) or {}).get("applied") == ALL_ON, "the change that it missed", 2)
    since = max(rank.made())
    rank.wait_made(since + 100)
    wait_until(lambda: proxy.counts(0)["other"] >= 100, "marks are written")


def test_proxy_that_was_stopped_for_a_while(stage, manager, proxy):
    """SIGSTOP looks like a network that is gone: the change arrives when it goes on."""
    rank = stage.rank(0, proxy, rate=500)
    manager.wait_attached([0])
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        code, answer = manager.switch("all=on", "--timeout", "1")
        assert code == 1 and answer["ranks"][0]["state"] != "applied"
        rank.wait_made(max(rank.made()) + 200)  # training does not notice
    finally:
        os.kill(proxy.pid, signal.SIGCONT)
    manager.wait_applied(ALL_ON, [0], 2)


def test_proxy_keeps_the_last_state_without_the_manager(stage):
    manager = stage.manager()
    proxy = stage.proxy(manager)
    rank = stage.rank(0, proxy, rate=500)
    manager.wait_attached([0])
    manager.all_on()
    manager.wait_applied(ALL_ON, [0], 1)
    manager.kill()
    since = proxy.counts(0)["other"]
    rank.wait_made(max(rank.made()) + 500)
    wait_until(lambda: proxy.counts(0)["other"] > since + 400, "recording goes on")


def test_training_does_not_need_taskd(stage):
    """No proxy at all, ever: the rank runs, and ends as it would."""
    rank = stage.rank(0, os.path.join(stage.folder, "nobody.sock"), rate=0, count=100_000, hold=False)
    assert rank.wait() == 0
    assert rank.made() == [100_000]


def test_random_order_of_starts(stage):
    random.seed(2)
    port = harness.free_port()
    socket_path = os.path.join(stage.folder, "node.sock")
    profiling = os.path.join(stage.folder, "profiling")
    os.mkdir(profiling)
    started = {}

    def start_manager():
        started["manager"] = stage.manager(port=port)
        started["manager"].all_on()

    starters = [start_manager,
                lambda: started.update(proxy=stage.proxy(f"127.0.0.1:{port}", socket_path=socket_path,
                                                         profiling_dir=profiling)),
                *(lambda r=r: started.update({r: stage.rank(r, socket_path, pattern="training", rate=100)})
                  for r in range(3))]
    random.shuffle(starters)
    for start in starters:
        start()
    started["manager"].wait_applied(ALL_ON, range(3))
    wait_until(lambda: all(started["proxy"].counts(r)["step"] > 10 for r in range(3)), "all three record")
