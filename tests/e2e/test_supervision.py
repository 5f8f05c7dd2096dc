"""Launchers' reports to the manager, and hangs: in the answers of `taskd status`, in /metrics, and sent to watchers."""
import json
import os
import queue
import re
import signal
import threading
import time
import urllib.request

import grpc
import pytest

import deadlines
import harness
import stubs

# Steps until a file says to stop; then it waits for a lock, as a rank waits for a peer that does not come: in the data loader
# where `loads` names the rank, else in a communication. Where `writes` names it, it writes meanwhile.
RANK = r"""
import os, sys, threading, time
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
from taskd import mstx
rank, folder = int(sys.argv[1]), sys.argv[2]
assert init_taskd_worker(rank, 5000) and start_taskd_worker()
step = 0
while True:
    mark = mstx.range_start(f"step {step}")
    within = None
    while os.path.exists(os.path.join(folder, "hang")) or os.path.exists(os.path.join(folder, f"hang{rank}")):
        if within is None and os.path.exists(os.path.join(folder, f"loads{rank}")):
            within = mstx.range_start("dataloader")
        elif within is None:
            within = mstx.range_start('{"count": "1","streamId": "0","dataType": "fp32","groupName": "g","opName": "HcclBarrier"}',
                                      domain="communication")
        time.sleep(0.01)
        if os.path.exists(os.path.join(folder, f"writes{rank}")):
            with open(os.path.join(folder, f"model{rank}"), "wb") as file:
                file.write(bytes(4096))
    if within is not None:
        mstx.range_end(within)
    time.sleep(0.02)
    mstx.range_end(mark)
    step += 1
"""


class Launcher:
    """The launcher's side, from the stubs: reports events, receives hangs."""

    def __init__(self, manager, channel=None):
        self.messages, services = stubs.supervision()
        self.channel = channel or manager.secure_channel()
        self.stub = services.SupervisionStub(self.channel)
        self.notices = queue.Queue()
        self.stream = None

    def report(self, kind, **fields):
        event = self.messages.SupervisionEvent(kind=kind, **{"rank": -1, "node": -1, **fields})
        self.stub.Report(self.messages.ReportEventsRequest(events=[event]), timeout=deadlines.HANG_S)

    def watch(self, **settings):
        self.stream = self.stub.Watch(self.messages.WatchRequest(**settings))
        self.stream.initial_metadata()  # from here on the manager has received it

        def read():
            try:
                for notice in self.stream:
                    self.notices.put(notice)
            except grpc.RpcError:
                pass
        threading.Thread(target=read, daemon=True).start()

    def close(self):
        if self.stream is not None:
            self.stream.cancel()
        self.channel.close()


@pytest.fixture
def launcher(manager):
    launcher = Launcher(manager)
    yield launcher
    launcher.close()


def supervision(manager):
    return manager.status()["supervision"]


def metric(url, name):
    with urllib.request.urlopen(url, timeout=deadlines.HANG_S) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M)
    assert found, f"no metric {name}"
    return float(found[1])


def status_text(manager):
    done = deadlines.run([harness.TASKD, "status", "--manager", manager.address], env=harness.clean_environment(),
                         capture_output=True, text=True, check=True)
    return done.stdout


def test_events_are_shown(stage, launcher, manager):
    kinds = launcher.messages.SupervisionEvent
    assert supervision(manager) == {"state": "unknown", "restarts": 0, "rank_exits": 0, "hung_ranks": 0, "events": [],
                                   "waits_for": "", "waits_s": 0}
    assert "job is" not in status_text(manager)
    launcher.report(kinds.STARTED)
    assert supervision(manager)["state"] == "running"
    launcher.report(kinds.EXITED, rank=3, node=1, pid=4711, code=139, signal=11, message="Segmentation fault",
                    time_ns=1_700_000_000_000_000_000)
    launcher.report(kinds.RESTARTING, round=0, message="rank 3 failed")
    assert supervision(manager)["state"] == "restarting"
    launcher.report(kinds.STARTED, round=1, restart_count=1)
    launcher.report(kinds.STACKS, round=1, restart_count=1, message="stacks of 8 ranks in 2 groups\nmany lines")
    launcher.report(kinds.ENDED, round=1, restart_count=1, code=0)
    status = supervision(manager)
    assert (status["state"], status["restarts"], status["rank_exits"]) == ("ended", 1, 1)
    assert [event["kind"] for event in status["events"]] == ["started", "exited", "restarting", "started", "stacks", "ended"]
    assert status["events"][1] == {
        "kind": "exited", "time": "2023-11-14T22:13:20+00:00", "round": 0, "restart_count": 0, "rank": 3, "node": 1,
        "pid": 4711, "code": 139, "signal": 11, "message": "Segmentation fault"}
    text = status_text(manager)
    assert "job is ended  restarts: 1  ranks ended: 1" in text
    assert "exited rank 3 node 1 signal 11: Segmentation fault" in text
    assert "stacks of 8 ranks in 2 groups\n" in text and "many lines" not in text
    assert "Segmentation fault" in manager.log()


def test_what_makes_no_sense_is_refused(launcher, manager):
    kinds = launcher.messages.SupervisionEvent
    for kind, fields in [(kinds.UNKNOWN, {}), (kinds.HANG, {}), (kinds.RESUMED, {}), (77, {}),
                         (kinds.EXITED, {"rank": -2}), (kinds.EXITED, {"pid": -1}), (kinds.STARTED, {"round": -1})]:
        with pytest.raises(grpc.RpcError) as refused:
            launcher.report(kind, **fields)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    request = launcher.messages.ReportEventsRequest(job="default/other")
    with pytest.raises(grpc.RpcError) as refused:
        launcher.stub.Report(request, timeout=deadlines.HANG_S)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert supervision(manager)["events"] == []


def test_the_secret_protects_it(stage):
    manager = stage.manager(environment=harness.clean_environment(TASKD_TOKEN="secret"), wait=False)
    harness.wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    for channel, code in ((grpc.insecure_channel(manager.address), grpc.StatusCode.UNAVAILABLE),
                          (harness.secure_channel(manager.address, "another"), grpc.StatusCode.UNAVAILABLE)):
        stranger = Launcher(manager, channel)
        with pytest.raises(grpc.RpcError) as refused:
            stranger.report(stranger.messages.SupervisionEvent.STARTED)
        assert refused.value.code() == code
        with pytest.raises(grpc.RpcError) as refused:
            next(stranger.stub.Watch(stranger.messages.WatchRequest(), timeout=deadlines.HANG_S))
        assert refused.value.code() == code
        stranger.close()
    friend = Launcher(manager)
    friend.report(friend.messages.SupervisionEvent.STARTED)
    friend.close()


def start_ranks(stage, manager, proxy, ranks):
    folder = os.path.join(stage.folder, "signs")
    os.makedirs(folder, exist_ok=True)
    for rank in range(ranks):
        stage.python(f"rank{rank}", RANK, {"TASKD_SOCKET": proxy.socket, "RANK": rank}, str(rank), folder)
    manager.wait_attached(range(ranks))
    return folder


def wait_stepping(manager, ranks, beyond):
    def stepping():
        status = manager.rank_status()
        return len(status) == ranks and all(rank["step"] > beyond for rank in status.values())
    harness.wait_until(stepping, f"{ranks} ranks are beyond step {beyond}", interval_s=0.2)


def sign(folder, name):
    open(os.path.join(folder, name), "w", encoding="utf-8").close()


def start_watched(stage, hang_floor_s=5):
    """Three ranks that step, and a launcher that is told of hangs."""
    manager = stage.manager()
    manager.all_on()
    proxy = stage.proxy(manager)
    launcher = Launcher(manager)
    launcher.report(launcher.messages.SupervisionEvent.STARTED)
    launcher.watch(hang_factor=10, hang_floor_s=hang_floor_s)
    folder = start_ranks(stage, manager, proxy, 3)
    wait_stepping(manager, 3, 150)  # some seconds: the manager looks once a second
    return manager, launcher, folder


def test_hang_is_noticed_and_its_end(stage):
    manager, launcher, folder = start_watched(stage)
    url = f"http://{manager.http}/metrics"
    assert launcher.notices.empty() and supervision(manager)["state"] == "running"
    assert metric(url, "taskd_hung_ranks") == 0

    sign(folder, "hang1")  # rank 1 stops first
    step = manager.rank_status()[1]["step"]
    harness.wait_until(lambda: manager.rank_status()[0]["step"] > step + 10, "the others go on for a while")
    sign(folder, "hang")
    notice = launcher.notices.get(timeout=deadlines.HANG_S)
    assert notice.hung and list(notice.behind) == [1] and notice.ranks == 3
    assert notice.idle_s >= 5 and "rank 1" in notice.text
    status = supervision(manager)
    assert status["state"] == "hung" and status["hung_ranks"] == 3
    assert status["events"][-1]["kind"] == "hang" and status["events"][-1]["rank"] == 1
    assert metric(url, "taskd_hung_ranks") == 3
    assert "job is hung" in status_text(manager)

    late = Launcher(manager)  # one that connects again
    late.watch(hang_factor=10, hang_floor_s=5)
    assert late.notices.get(timeout=deadlines.HANG_S).hung
    late.close()

    for name in ("hang", "hang1"):
        os.remove(os.path.join(folder, name))
    over = launcher.notices.get(timeout=deadlines.HANG_S)
    assert not over.hung and over.number == notice.number
    assert supervision(manager)["state"] == "running"
    assert launcher.notices.empty(), "one notice a hang, one at its end"

    launcher.report(launcher.messages.SupervisionEvent.EXITED, rank=2, code=1)
    launcher.report(launcher.messages.SupervisionEvent.RESTARTING)
    assert (metric(url, "taskd_rank_exits_total"), metric(url, "taskd_restarts_total")) == (1, 1)
    launcher.close()


def test_who_writes_is_busy_and_who_loads_is_named(stage):
    manager, launcher, folder = start_watched(stage, hang_floor_s=15)
    for name in ("loads2", "writes0"):
        sign(folder, name)
    sign(folder, "hang")
    time.sleep(30)  # twice the floor: a hang would have been reported
    assert launcher.notices.empty() and supervision(manager)["state"] == "running"
    os.remove(os.path.join(folder, "writes0"))
    notice = launcher.notices.get(timeout=deadlines.HANG_S)
    assert notice.hung and list(notice.origins) == [2]
    assert "rank 2 is in its data loader, in step" in notice.text and "2 ranks wait in barrier" in notice.text
    hang = json.loads(stage.run("diagnose", "--manager", manager.address, "--json").stdout)["hang"]
    assert (hang["origins"], hang["kind"], hang["operation"], hang["waiting"]) == ([2], "missing", "barrier", "0, 1")
    assert hang["since_time"]

    def confirm():
        request = launcher.messages.ConfirmActionRequest(number=notice.number)
        return launcher.stub.ConfirmAction(request, timeout=deadlines.HANG_S)
    answers = launcher.messages.ConfirmActionReply
    assert confirm().answer == answers.ACT
    sign(folder, "writes1")
    harness.wait_until(lambda: confirm().answer == answers.WAIT, "the action waits")
    assert confirm().reason == "still at work: rank 1"
    os.remove(os.path.join(folder, "hang"))
    assert not launcher.notices.get(timeout=deadlines.HANG_S).hung
    assert confirm().answer == answers.OVER
    launcher.close()


def test_ranks_that_are_stopped_do_not_hang(stage):
    """A job that somebody has suspended: the ledger says so, and no hang is notified that a launcher would restart it for."""
    manager, launcher, folder = start_watched(stage)
    pids = [rank["pid"] for rank in manager.rank_status().values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(15)  # what is put in
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    wait_stepping(manager, 3, manager.rank_status()[0]["step"] + 10)
    assert launcher.notices.empty()
    seconds = json.loads(stage.run("goodput", "--manager", manager.address, "--json").stdout)["seconds"]
    assert seconds["suspended"] > 3 * 10 and seconds["hang"] == 0, seconds
    sign(folder, "hang")
    assert launcher.notices.get(timeout=deadlines.HANG_S).hung
    launcher.close()
