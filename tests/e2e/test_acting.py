"""Decisions on slow nodes (docs/acting.md): rehearsed, listed, explained, carried out as orders, kept over kills of the manager."""
import concurrent.futures
import json
import os
import urllib.error
import urllib.request

import grpc
import pytest
from google.protobuf import empty_pb2

import stubs
from deadlines import HANG_S
from folded_job import FoldedJob, names
from harness import clean_environment, wait_until
from launchers import OWN_PORTS, wait_manager
from test_files import remount, small_disk  # noqa: F401
from test_live_diagnosis import FakeClusterd

WHEN = ("--remaining", "12", "--on-slow-when", "open>=10 steps")
REHEARSE = ("--on-slow", "rehearse", *WHEN)


def act(stage, manager, *words):
    return stage.run("act", *words, "--manager", manager.address)


def listed(stage, manager):
    done = act(stage, manager, "list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fetch(manager, path, token=""):
    request = urllib.request.Request(f"http://{manager.http}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return answer.read().decode()


def slow_rank(manager, **arguments):
    """A job of two nodes, of which rank 6 on node 1 is slow."""
    job = FoldedJob(**arguments)
    job.connect(manager)
    job.run(80)
    job.slow = {6: 1.5}
    job.run(80)
    wait_until(lambda: names(manager, 6), "rank 6 is named")
    return job


def test_rehearsal_names_the_node_and_its_price(stage):
    manager = stage.manager(flags=REHEARSE)
    job = slow_rank(manager)
    wait_until(lambda: listed(stage, manager)["actions"], "a decision is listed")
    answer = listed(stage, manager)
    (action,) = answer["actions"]
    assert answer["policy"]["on_slow"] == "rehearse" and not answer["paused"] and answer["policy"]["remaining_h"] == pytest.approx(12, abs=0.2)
    assert (action["decision"], action["refused_by"], action["state"]) == ("rehearse", None, "decided")
    assert (action["node"], action["node_name"], action["ranks"], action["trigger"]) == (1, "worker-1", [4, 7], "verdict")
    assert action["promised"]["saves_rank_s"] > action["promised"]["price_rank_s"] > 0 and action["orders"] == []
    assert answer["summary"].startswith("1 decision, 1 would have paid ")
    assert json.loads(fetch(manager, "/api/v1/actions"))["actions"] == answer["actions"]
    assert answer["summary"] in act(stage, manager, "list").stdout

    assert "rehearse" in act(stage, manager, "why", "1").stdout
    assert act(stage, manager, "why", "0").stdout == "node 0 (worker-0): nothing: no open verdict accuses it\n"
    assert act(stage, manager, "why", "9").returncode == 1
    evicted = act(stage, manager, "evict", "1")
    assert evicted.returncode == 1 and "no receiver" in evicted.stderr, evicted.stderr

    metrics = fetch(manager, "/metrics")
    assert 'taskd_actions_total{decision="rehearse"} 1\n' in metrics and 'taskd_actions_refused_total{refused_by="cost"} 0\n' in metrics
    events = json.loads(fetch(manager, "/api/v1/live"))["events"]
    assert [event["kind"] for event in events if event["kind"].startswith("action_")] == ["action_decided"]

    manager.kill()
    job.close()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=REHEARSE)
    assert listed(stage, manager)["actions"] == answer["actions"], "known before any proxy has come back"
    assert act(stage, manager, "cancel", action["id"]).returncode == 0
    assert act(stage, manager, "cancel", action["id"]).returncode == 1
    assert listed(stage, manager)["actions"][0]["state"] == "called_off"


def test_a_pause_and_a_missing_name_are_refusals(stage):
    manager = stage.manager(flags=REHEARSE)
    assert act(stage, manager, "pause").returncode == 0 and listed(stage, manager)["paused"]
    job = slow_rank(manager)
    wait_until(lambda: listed(stage, manager)["actions"], "a decision is listed")
    assert listed(stage, manager)["actions"][0]["refused_by"] == "paused"
    assert act(stage, manager, "allow").returncode == 0
    wait_until(lambda: listed(stage, manager)["actions"][0]["decision"] == "rehearse", "it is decided")
    job.close()

    manager = stage.manager(name="nameless", flags=REHEARSE)
    job = slow_rank(manager, node_names=("worker-0", ""))
    wait_until(lambda: listed(stage, manager)["actions"], "a decision is listed")
    answer = listed(stage, manager)
    assert answer["actions"][0]["refused_by"] == "no_node_name" and answer["no_node_name"].startswith("node 1 (pod-1): ")
    job.close()


def order_to(*receivers):
    return ("--on-slow", "order", *WHEN, "--order-to", ",".join(receivers))


def command(stage, lines, name="drain"):
    """A command whose shell lines run in the stage's folder; each run appends its action's id to NAME.ids."""
    path = os.path.join(stage.folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncd {stage.folder}\necho $TASKD_ACTION_ID >> {name}.ids\n{lines}\n")
    os.chmod(path, 0o700)
    return f"command:{path}"


def read(stage, name):
    try:
        with open(os.path.join(stage.folder, name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def orders(stage, manager):
    """Receiver -> outcome, of the newest action."""
    actions = listed(stage, manager)["actions"]
    return {order["to"]: order["outcome"] for order in actions[0]["orders"]} if actions else {}


def test_an_order_is_sent_once_and_withdrawn(stage):
    clusterd = FakeClusterd()
    clusterd.start()
    environment = clean_environment(SLURM_JOB_ID="77")
    flags = (*order_to(command(stage, "cat > drain.in; echo $TASKD_NODE_NAME is drained"), f"nvrx:{stage.folder}", "clusterd"),
             "--clusterd", clusterd.address)
    manager = stage.manager(flags=flags, environment=environment)
    job = slow_rank(manager)
    taken = {"command": "taken", "nvrx": "taken", "clusterd": "taken"}
    wait_until(lambda: orders(stage, manager) == taken, "all receivers have taken the order")
    (action,) = listed(stage, manager)["actions"]
    assert (action["decision"], action["state"], action["node_name"]) == ("order", "done", "worker-1")
    said = {order["to"]: order["text"] for order in action["orders"]}
    assert said["command"] == "worker-1 is drained"
    assert json.loads(read(stage, "drain.in"))["id"] == action["id"] and read(stage, "drain.ids") == action["id"] + "\n"
    assert action["id"] in read(stage, "segment_health_check.77.77")
    assert clusterd.codes() == ["110001010"] and not clusterd.refused
    assert clusterd.taken[0][1].faults[0].influence[0].nodeName == "worker-1"
    assert "command: taken, worker-1 is drained" in act(stage, manager, "list").stdout
    assert "command: taken, worker-1 is drained" in act(stage, manager, "why", "1").stdout
    events = json.loads(fetch(manager, "/api/v1/live"))["events"]
    assert [event["kind"] for event in events if event["kind"].startswith("action_")] == ["action_decided", "action_done"]
    assert 'taskd_orders_total{outcome="taken"} 3\n' in fetch(manager, "/metrics")

    manager.kill()
    job.close()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=flags, environment=environment)
    job.connect(manager)
    job.slow = {}
    # Time for a second order, too.
    wait_until(lambda: job.run(50) or listed(stage, manager)["actions"][0]["state"] == "called_off", "the verdict clears")
    wait_until(lambda: not read(stage, "segment_health_check.77.77"), "NVRx's file is gone")
    wait_until(lambda: len(clusterd.codes()) == 2, "ClusterD knows it")
    assert clusterd.codes() == ["110001010", "100001011"]
    assert read(stage, "drain.ids") == action["id"] + "\n", "a command runs once"
    job.close()
    clusterd.stop()


def test_kills_before_and_during_a_send_have_one_effect(stage):
    flags = order_to(command(stage, "[ -e ready ] || exit 75\ntouch began\nwhile [ ! -e go ]; do sleep 0.05; done"))
    manager = stage.manager(flags=flags)
    job = slow_rank(manager)
    wait_until(lambda: read(stage, "drain.ids"), "the command asks for another time")
    assert orders(stage, manager) == {"command": "sent"}
    manager.kill()
    job.close()
    open(os.path.join(stage.folder, "ready"), "w", encoding="utf-8").close()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=flags)
    wait_until(lambda: os.path.exists(os.path.join(stage.folder, "began")), "the command runs")
    manager.kill()
    open(os.path.join(stage.folder, "go"), "w", encoding="utf-8").close()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=flags)
    wait_until(lambda: orders(stage, manager) == {"command": "taken"}, "it is taken")
    sent = read(stage, "drain.ids")
    assert len(set(sent.split())) == 1, "always the same id"
    manager.kill()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=flags)
    assert orders(stage, manager) == {"command": "taken"}
    assert act(stage, manager, "why", "1").returncode == 1, "no node is connected"
    assert read(stage, "drain.ids") == sent


def test_a_person_orders_and_a_failure_is_said(stage):
    flags = (*REHEARSE, "--order-to", command(stage, "echo no such node; exit 3"))
    manager = stage.manager(flags=flags)
    job = FoldedJob()
    job.connect(manager)
    job.run(16)
    evicted = act(stage, manager, "evict", "1")
    assert evicted.returncode == 0 and "order, decided" in evicted.stdout, evicted.stderr
    wait_until(lambda: orders(stage, manager) == {"command": "failed"}, "the command has failed")
    (action,) = listed(stage, manager)["actions"]
    assert (action["trigger"], action["state"]) == ("person", "failed")
    assert action["orders"][0]["text"] == "exit code 3: no such node"
    assert 'taskd_orders_total{outcome="failed"} 1\n' in fetch(manager, "/metrics")
    assert act(stage, manager, "evict", "1").returncode == 0, "nobody has taken it, so it may be asked for again"
    job.close()


class Nvsentinel:
    """NVSentinel's platform connector of one node, written from its interface."""

    def __init__(self, path):
        messages, services = stubs.nvsentinel()
        self.events = []
        outer = self

        class Service(services.PlatformConnectorServicer):
            def HealthEventOccurredV1(self, request, context):
                outer.events += request.events
                return empty_pb2.Empty()

        self.messages = messages
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        services.add_PlatformConnectorServicer_to_server(Service(), self.server)
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()


@pytest.mark.parametrize("suffix, strategy", [("", "STORE_ONLY"), ("+execute", "EXECUTE_REMEDIATION")])
def test_nvsentinel_hears_of_it_from_the_nodes_own_proxy(stage, suffix, strategy):
    path = os.path.join(stage.folder, "nvsentinel.sock")
    manager = stage.manager(flags=(*REHEARSE, "--order-to", f"nvsentinel:{path}{suffix}"))
    stage.proxy(manager, environment=clean_environment(TASKD_NODE_NAME="worker-0"))
    wait_until(lambda: manager.status()["nodes"], "the node is there")
    assert act(stage, manager, "evict", "0").returncode == 0
    wait_until(lambda: orders(stage, manager) == {"nvsentinel": "sent"}, "nobody listens yet")
    nvsentinel = Nvsentinel(path)
    wait_until(lambda: orders(stage, manager) == {"nvsentinel": "taken"}, "NVSentinel has taken it")
    (action,) = listed(stage, manager)["actions"]
    assert act(stage, manager, "cancel", action["id"]).returncode == 0
    wait_until(lambda: len(nvsentinel.events) >= 2, "NVSentinel knows that it is over")
    slow, over = nvsentinel.events
    assert (slow.nodeName, slow.agent, slow.isHealthy, slow.isFatal) == ("worker-0", "taskd", False, True)
    assert (over.nodeName, over.agent, over.isHealthy, over.isFatal) == ("worker-0", "taskd", True, False)
    assert slow.checkName == over.checkName and slow.metadata["taskd_action_id"] == action["id"]
    assert slow.processingStrategy == over.processingStrategy == nvsentinel.messages.ProcessingStrategy.Value(strategy)
    nvsentinel.server.stop(0).wait()


def test_a_command_that_others_can_write_to_is_refused(stage):
    receiver = command(stage, "true")
    os.chmod(receiver.split(":")[1], 0o722)
    for words in (("manager", "--listen", "127.0.0.1:0"), ("run", "--standalone")):
        done = stage.run(*words, "--order-to", receiver, *(("--", "true") if words[0] == "run" else ()))
        assert done.returncode == 2 and "others can write to it" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def fill(folder):
    try:
        with open(os.path.join(folder, "filler"), "ab", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)
    except OSError:
        pass


@pytest.mark.root("mounts a file system")
def test_a_full_disk_sends_no_order_and_repeats_none(stage, small_disk):  # noqa: F811
    remount(small_disk, "size=10m")
    manager = stage.manager(flags=order_to(command(stage, "true")), state_dir=os.path.join(small_disk, "state"))
    fill(small_disk)
    job = slow_rank(manager)  # the diagnosis goes on
    wait_until(lambda: "decisions on slow nodes are not kept" in manager.log(), "the log says what is not kept")
    assert listed(stage, manager)["actions"][0]["decision"] == "order" and read(stage, "drain.ids") == ""
    remount(small_disk, "size=100m")
    wait_until(lambda: orders(stage, manager) == {"command": "taken"}, "it is sent as soon as it can be kept")
    fill(small_disk)
    job.run(60)
    job.close()
    manager.kill()
    manager = stage.manager(port=manager.port, state_dir=manager.state_dir, flags=order_to(command(stage, "true")))
    assert orders(stage, manager) == {"command": "taken"}
    assert len(read(stage, "drain.ids").split()) == 1


def test_by_default_nothing_is_decided(stage):
    manager = stage.manager()
    job = slow_rank(manager)
    answer = listed(stage, manager)
    assert answer["policy"]["on_slow"] == "report" and answer["actions"] == []
    assert "--on-slow report" in act(stage, manager, "why", "1").stdout
    job.close()


def test_the_viewing_token_may_list_only(stage):
    token = "s" * 32
    environment = clean_environment(TASKD_TOKEN=token)
    manager = stage.manager(flags=REHEARSE, environment=environment, wait=False)
    ask = ("act", "list", "--manager", manager.address)
    wait_until(lambda: stage.run(*ask, environment=environment).returncode == 0, "the manager answers")
    viewing = stage.run("token", environment=environment).stdout.strip()
    assert json.loads(fetch(manager, "/api/v1/actions", viewing))["actions"] == []
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(manager, "/api/v1/actions")
    assert refused.value.code == 401
    with_viewing = stage.run("act", "pause", "--manager", manager.address, environment=clean_environment(TASKD_TOKEN=viewing))
    assert with_viewing.returncode == 1, with_viewing.stdout
    paused = stage.run("act", "pause", "--manager", manager.address, environment=environment)
    assert paused.returncode == 0, paused.stderr
    wait_until(lambda: json.loads(fetch(manager, "/api/v1/actions", viewing))["paused"], "the list shows the pause")


WRONG = [(("--on-slow", "sometimes"), "--on-slow"), (("--on-slow", "replace"), "not available"), (("--on-slow", "order"), "--order-to"),
         (("--order-to", "mail:me"), "not a receiver"), (("--order-to", "command:/none/drain"), "/none"),
         (("--order-to", "command:/etc/passwd"), "cannot be executed"), (("--order-to", "nvrx:/none"), "/none"),
         (("--order-to", "clusterd"), "--clusterd"),
         (("--on-slow-when", "open>=50"), "steps"), (("--on-slow-when", "cost>=5"), "%"),
         (("--remaining", "-1"), "--remaining"), (("--remaining", "soon"), "--remaining"), (("--evictions", "1"), "--evictions")]


@pytest.mark.parametrize("flags, said", WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_wrong_options_start_nothing(stage, flags, said):
    for words in (("manager", "--listen", "127.0.0.1:0", *flags), ("run", "--standalone", *flags, "--", "true")):
        done = stage.run(*words)
        assert done.returncode == 2 and said in done.stderr, (words, done.stderr)
        assert done.stderr.count("\n") == 1, done.stderr


def test_the_launcher_hands_its_options_to_the_manager(jobs):
    receiver = command(jobs.stage, "env > drain.env")
    launcher = jobs.launch("launcher", "--standalone", "--nproc-per-node=1", "--on-slow=rehearse", "--remaining=0", "--evictions=2/24",
                           "--order-to", receiver, action=("wait",), environment={**OWN_PORTS, "TASKD_MANAGER": "", "TASKD_ON_SLOW_WHEN": "cost>=3%"})
    address = wait_manager(launcher)
    ask = ("act", "list", "--json", "--manager", address)
    wait_until(lambda: jobs.stage.run(*ask).returncode == 0, "the manager answers")
    policy = json.loads(jobs.stage.run(*ask).stdout)["policy"]
    assert (policy["on_slow"], policy["remaining_h"], policy["evictions"], policy["when"]["cost_percent"]) == ("rehearse", 0, "2/24", 3)
    wait_until(lambda: jobs.stage.run("act", "evict", "0", "--manager", address).returncode == 0, "the node is there")
    wait_until(lambda: read(jobs.stage, "drain.env"), "the command runs on the launcher's node")
    given = dict(line.split("=", 1) for line in read(jobs.stage, "drain.env").splitlines() if "=" in line)
    assert given["TASKD_NODE_NAME"] and not {"TASKD_SECRET", "TASKD_TOKEN"} & set(given), "the job's secret is not the command's"
    jobs.put("go")
    assert launcher.wait() == 0, launcher.log()[-3000:]
