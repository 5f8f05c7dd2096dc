"""Decisions on slow nodes (docs/acting.md): rehearsed, listed, explained, kept over a kill of the manager."""
import json
import urllib.error
import urllib.request

import pytest

from deadlines import HANG_S
from folded_job import FoldedJob, names
from harness import clean_environment, wait_until
from launchers import OWN_PORTS, wait_manager

REHEARSE = ("--on-slow", "rehearse", "--remaining", "12", "--on-slow-when", "open>=10 steps")


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


WRONG = [(("--on-slow", "sometimes"), "--on-slow"), (("--on-slow", "replace"), "not available"),
         (("--on-slow-when", "open>=50"), "steps"), (("--on-slow-when", "cost>=5"), "%"),
         (("--remaining", "-1"), "--remaining"), (("--remaining", "soon"), "--remaining"), (("--evictions", "1"), "--evictions")]


@pytest.mark.parametrize("flags, said", WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_wrong_options_start_nothing(stage, flags, said):
    for words in (("manager", "--listen", "127.0.0.1:0", *flags), ("run", "--standalone", *flags, "--", "true")):
        done = stage.run(*words)
        assert done.returncode == 2 and said in done.stderr, (words, done.stderr)
        assert done.stderr.count("\n") == 1, done.stderr


def test_the_launcher_hands_its_options_to_the_manager(jobs):
    launcher = jobs.launch("launcher", "--standalone", "--nproc-per-node=1", "--on-slow=rehearse", "--remaining=0", "--evictions=2/24",
                           action=("wait",), environment={**OWN_PORTS, "TASKD_MANAGER": "", "TASKD_ON_SLOW_WHEN": "cost>=3%"})
    address = wait_manager(launcher)
    ask = ("act", "list", "--json", "--manager", address)
    wait_until(lambda: jobs.stage.run(*ask).returncode == 0, "the manager answers")
    policy = json.loads(jobs.stage.run(*ask).stdout)["policy"]
    assert (policy["on_slow"], policy["remaining_h"], policy["evictions"], policy["when"]["cost_percent"]) == ("rehearse", 0, "2/24", 3)
    jobs.put("go")
    assert launcher.wait() == 0, launcher.log()[-3000:]
