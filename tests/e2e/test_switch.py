"""The switch, end to end: asked for over gRPC, by `taskd switch` and by file; seen in the ranks' files."""
import json
import os
import threading
import time

import grpc
import harness
import pytest
import stubs
from deadlines import HANG_S
from harness import JOB, KINDS, wait_until

ALL_ON = dict.fromkeys(KINDS, "on")
ALL_OFF = dict.fromkeys(KINDS, "off")


def newest(proxies):
    """{(rank, kind): Unix ns of its newest mark} in the files of these proxies."""
    found = {}
    for proxy in proxies:
        report = proxy.check(keep_marks=True)
        assert report.ok, report.problems[:5]
        for rank, of_rank in report.ranks.items():
            for mark in of_rank.marks:
                if mark.domain:
                    key = rank, harness.check_marks.kind_of(mark.name, mark.domain)
                    found[key] = max(found.get(key, 0), mark.timestamp_ns)
    return found


def write_switch_file(path, **fields):
    content = {"CommunicationOperator": "off", "Step": "off", "SaveCheckpoint": "off", "FP": "off", "DataLoader": "off"}
    content.update(fields)
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.rename(temporary, path)


def train_for_two_seconds(ranks):
    goals = [max(rank.made()) + 100 for rank in ranks]
    for rank, goal in zip(ranks, goals):
        rank.wait_made(goal)


def test_on_and_off_while_two_nodes_train(stage, manager):
    proxies = [stage.proxy(manager, node=node) for node in (0, 1)]
    ranks = [stage.rank(rank, proxies[rank // 2], pattern="training", rate=50) for rank in range(4)]
    manager.wait_attached(range(4))
    for rank in ranks:
        rank.wait_made(10)
    assert all(sum(proxies[r // 2].counts(r).values()) == 0 for r in range(4)), "marks before anybody switched them on"

    asked_ns = time.time_ns()
    manager.all_on()
    manager.wait_applied(ALL_ON, range(4), timeout_s=1)
    for rank in range(4):
        proxy = proxies[rank // 2]
        wait_until(lambda: all(proxy.counts(rank)[kind] > 0 for kind in KINDS), f"rank {rank} has marks of all kinds")
        assert all(m.timestamp_ns > asked_ns - 2_000_000
                   for m in proxy.check(keep_marks=True).ranks[rank].marks), "a mark from before the switch"

    assert manager.modify(communication="off") == 200
    manager.wait_applied({"communication": "off"}, range(4), timeout_s=1)
    deadline_ns = time.time_ns() + 1_000_000_000
    train_for_two_seconds(ranks)  # and the files are not read again and again while they grow
    wait_until(lambda: min(newest(proxies)[rank, "step"] for rank in range(4)) > deadline_ns, "steps go on")
    assert all(newest(proxies)[rank, "communication"] < deadline_ns for rank in range(4))

    manager.all_off()
    manager.wait_applied(ALL_OFF, range(4), timeout_s=1)
    deadline_ns = time.time_ns() + 1_000_000_000
    train_for_two_seconds(ranks)
    for proxy in proxies:
        assert proxy.terminate() == 0
    assert set(found := newest(proxies)) >= {(rank, kind) for rank in range(4) for kind in KINDS} and max(found.values()) < deadline_ns
    for proxy in proxies:
        report = proxy.check()
        assert report.ok, report.problems[:5]


@pytest.mark.parametrize("job,kinds,code", [
    ("default", {"step": "on"}, 300),
    ("/", {"step": "on"}, 300),
    ("a/b/c", {"step": "on"}, 300),
    ("", {"step": "on"}, 300),
    (JOB, {"step": "ON"}, 300),
    (JOB, {"step": "on", "fp": "yes"}, 300),
    (JOB, {}, 300),
    ("default/another", {"step": "on"}, 404),
])
def test_refused_and_nothing_changed(manager, job, kinds, code):
    assert manager.modify(communication="on") == 200
    before = manager.get()
    assert manager.modify(job=job, **kinds) == code
    assert manager.get() == before


def test_request_without_sub_messages(manager):
    messages = stubs.profiling()[0]
    request = messages.DataTypeReq(jobNsName=JOB)
    assert manager.call("ModifyTrainingDataTraceSwitch", request).code == 300
    answer = manager.call("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName="default"))
    assert answer.code == 300
    answer = manager.call("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName="default/another"))
    assert answer.code == 404


def test_default_domain_is_off_only_if_all_five_are_off(stage, manager, proxy):
    stage.rank(0, proxy, pattern="training", rate=50)
    manager.wait_attached([0])
    four_on = {"step": "on", "save_checkpoint": "on", "fp": "on", "dataloader": "on"}
    assert manager.modify(step="on") == 200
    manager.wait_applied({**four_on, "communication": "off"}, [0], 1)
    assert manager.modify(step="off", communication="on") == 200
    manager.wait_applied(ALL_ON, [0], 1)
    assert manager.modify(communication="off") == 200
    manager.wait_applied(ALL_OFF, [0], 1)


def test_taskd_switch_answers_for_every_rank(stage):
    manager = stage.manager(flags=["--nodes", "1", "--procs-per-node", "3"])
    proxy = stage.proxy(manager)
    for rank in (0, 1):
        stage.rank(rank, proxy, pattern="training", rate=50)
    manager.wait_attached([0, 1])
    code, answer = manager.switch("step=on", "communication=off", "--timeout", "20")
    assert code == 1  # rank 2 never came
    assert answer["job"] == JOB and answer["total"] == 3 and answer["applied"] == 2
    assert answer["wanted"] == {**ALL_OFF, "step": "on"}
    assert [(r["rank"], r["state"]) for r in answer["ranks"]] == [(0, "applied"), (1, "applied"), (2, "unreachable")]
    assert all(r["ms"] > 0 and r["node"] == 0 for r in answer["ranks"][:2]) and answer["ranks"][2]["reason"]

    third = stage.rank(2, proxy, pattern="training", rate=50)
    manager.wait_attached([0, 1, 2])
    code, answer = manager.switch("all=on")
    assert code == 0 and answer["applied"] == 3 and answer["wanted"] == ALL_ON
    assert {r["state"] for r in answer["ranks"]} == {"applied"}
    third.kill()
    manager.wait_attached([0, 1])
    code, answer = manager.switch("all=off", "--timeout", "20")
    assert code == 1 and answer["applied"] == 2 and answer["ranks"][2]["state"] == "unreachable"


def test_kinds_are_switched_one_by_one(stage, manager, proxy):
    stage.rank(0, proxy, pattern="training", rate=100)
    manager.wait_attached([0])
    for kind in KINDS:
        code, answer = manager.switch("all=off")
        assert code == 0 and answer["wanted"] == ALL_OFF
        since = proxy.counts(0)
        code, answer = manager.switch(f"{kind}=on")
        assert code == 0 and answer["wanted"] == {**ALL_OFF, kind: "on"}
        wait_until(lambda: proxy.counts(0)[kind] > since[kind] + 3, f"marks of {kind}")


def test_table_for_people(stage, manager, proxy):
    stage.rank(0, proxy, pattern="training", rate=50)
    manager.wait_attached([0])
    done = stage.run("switch", "--manager", manager.address, "--job", JOB, "all=on")
    assert done.returncode == 0 and "applied" in done.stdout
    done = stage.run("status", "--manager", manager.address)
    assert done.returncode == 0 and "step" in done.stdout


def test_subscriber_gets_the_state_and_every_change_in_order(manager):
    messages, services = stubs.profiling()
    assert manager.modify(**ALL_ON) == 200
    seen = []
    arrived = threading.Event()

    with grpc.insecure_channel(manager.address) as channel:
        request = messages.ProfilingClientInfo(jobId=harness.TASK, role="anybody")
        stream = services.TrainingDataTraceStub(channel).SubscribeDataTraceSwitch(request, timeout=HANG_S)

        def read():
            try:
                for message in stream:
                    seen.append((message.code, message.profilingSwitch.CommunicationOperator))
                    arrived.set()
            except grpc.RpcError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        assert arrived.wait(HANG_S), "the present state is not replayed"
        expected = [(200, "on")]
        for number in range(50):
            value = "off" if number % 2 == 0 else "on"
            assert manager.modify(communication=value) == 200
            expected.append((200, value))
        wait_until(lambda: len(seen) >= len(expected), "all changes arrive")
        stream.cancel()
        reader.join()
    assert seen == expected


def test_late_rank_has_the_state_within_a_second_of_init(stage, manager, recording, proxy):
    first = stage.rank(0, proxy, pattern="training", rate=100)
    first.wait_made(1)
    wait_until(lambda: manager.rank_status().get(0, {}).get("applied") == ALL_ON, "state of the late rank", 1.5)
    first.wait_made(50)
    wait_until(lambda: proxy.counts(0)["step"] >= 50, "its steps are in the file")


def test_two_jobs_on_one_machine(stage):
    managers = [stage.manager(name=f"manager{j}", job=f"default/job{j}", task=f"task{j}") for j in range(2)]
    proxies = [stage.proxy(managers[j], name=f"proxy-of-{j}", task=f"task{j}") for j in range(2)]
    for j in range(2):
        stage.rank(0, proxies[j], pattern="training", rate=50, name=f"rank-of-{j}")
    for manager in managers:
        manager.wait_attached([0])
    managers[0].all_on()
    wait_until(lambda: proxies[0].counts(0)["step"] > 10, "marks of the first job")
    assert managers[1].get()[1]["step"] == "off"
    assert sum(proxies[1].counts(0).values()) == 0
    assert managers[0].modify(job="default/job1", step="on") == 404


def test_default_ports_in_use_do_not_stop_a_second_job(stage):
    """Only --listen is a promise; HTTP and the proxy's own port have defaults that another job may hold."""
    base = ["--switch-file", os.path.join(stage.folder, "none")]
    ports = [harness.free_port() for _ in range(2)]
    for number, port in enumerate(ports):
        process = harness.Process(f"manager{number}", [harness.TASKD, "manager", "--job", f"default/j{number}", "--listen",
                                                      f"127.0.0.1:{port}", "--state-dir",
                                                      os.path.join(stage.folder, str(number)), *base],
                                  harness.clean_environment(), stage.folder)
        stage.processes.append(process)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=HANG_S)
        process.require_alive()


def test_file_switches_the_job(stage):
    path = os.path.join(stage.folder, "profilingSwitch")
    manager = stage.manager(flags=["--switch-file", path])
    proxy = stage.proxy(manager)
    stage.rank(0, proxy, pattern="training", rate=50)
    manager.wait_attached([0])
    write_switch_file(path, Step="on")
    manager.wait_applied({"step": "on", "fp": "on", "communication": "off"}, [0], 3)
    write_switch_file(path, Step="on", CommunicationOperator="on")
    manager.wait_applied(ALL_ON, [0], 3)
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"Step":')  # broken: the state stays
    assert manager.modify(communication="off") == 200  # and the newest command wins
    manager.wait_applied({"step": "on", "communication": "off"}, [0], 1)
    os.unlink(path)
    write_switch_file(path)
    manager.wait_applied(ALL_OFF, [0], 3)


def test_node_without_manager_obeys_its_own_file_until_one_comes(stage):
    port = harness.free_port()
    path = os.path.join(stage.folder, "profilingSwitch")
    proxy = stage.proxy(f"127.0.0.1:{port}", flags=["--switch-file", path])
    rank = stage.rank(0, proxy, pattern="training", rate=50)
    rank.wait_made(5)
    assert sum(proxy.counts(0).values()) == 0
    write_switch_file(path, Step="on")
    wait_until(lambda: proxy.counts(0)["step"] > 0, "marks by the node's own file", 10)
    assert proxy.counts(0)["communication"] == 0
    manager = stage.manager(port=port)
    manager.wait_attached([0])
    manager.all_on()
    manager.wait_applied(ALL_ON, [0], 1)
    write_switch_file(path)  # nothing watches it now
    wait_until(lambda: proxy.counts(0)["communication"] > 150, "the manager wins for 3 s and more")


def test_manager_without_proxies(stage, manager):
    assert manager.modify(**ALL_ON) == 200
    assert manager.get() == (200, ALL_ON)
    assert manager.status()["nodes"] == []
    code, answer = manager.switch("all=off")
    assert (code, answer["total"], answer["applied"], answer["ranks"]) == (0, 0, 0, [])


@pytest.mark.parametrize("flags,expected", [([], 0), (["--nodes", "1", "--procs-per-node", "2"], 2)])
def test_switch_before_there_are_ranks_is_kept(stage, flags, expected):
    manager = stage.manager(flags=flags)
    code, answer = manager.switch("step=on")
    assert (code, answer["kept"], answer["total"], answer["applied"]) == (0, True, expected, 0), answer
    told = stage.run("switch", "--manager", manager.address, "step=on")
    assert told.returncode == 0 and "kept: applies to ranks as they come" in told.stdout, told.stdout
    code, answer = manager.switch("step=on", "--wait", "0.5")
    assert (code, answer["kept"]) == (1, True), "it was to be waited for"

    stage.rank(0, stage.proxy(manager), init=True)
    manager.wait_applied({"step": "on"}, [0])
    code, answer = manager.switch("step=on")
    assert (code, answer["kept"]) == (1 if expected else 0, False), "one of them has not come"


def test_wait_until_all_ranks_have_come(stage):
    manager = stage.manager(flags=["--nodes", "1", "--procs-per-node", "2"])
    proxy = stage.proxy(manager)
    switch = stage._add(harness.Process("switch", [harness.TASKD, "switch", "--manager", manager.address, "all=on", "--wait", "60",
                                                   "--json"], harness.clean_environment(), stage.folder))
    stage.rank(0, proxy)
    manager.wait_applied(ALL_ON, [0])
    assert switch.alive(), "rank 1 is not there yet"
    late = manager.switch("step=on", "--wait", "0.5")
    assert late[0] == 1 and [(r["rank"], r["state"], r["reason"]) for r in late[1]["ranks"] if r["state"] != "applied"] == [
        (1, "unreachable", "never attached")]
    stage.rank(1, proxy)
    assert switch.wait() == 0, switch.log()
    answer = json.loads(switch.log())
    assert (answer["total"], answer["applied"], answer["kept"]) == (2, 2, False)
    assert all(rank["ms"] > 0 and rank["reason"] == "" for rank in answer["ranks"])
    refused = stage.run("switch", "--manager", manager.address, "all=on", "--wait", "-1")
    assert refused.returncode == 2 and "--wait" in refused.stderr


def test_rank_that_only_has_the_variable(stage, manager, recording, proxy):
    """No init: the rank comes from RANK at the first mark."""
    rank = stage.rank(5, proxy, pattern="training", rate=100, init=False)
    rank.wait_made(20)
    wait_until(lambda: proxy.counts(5)["step"] >= 20, "its steps are in the file")
