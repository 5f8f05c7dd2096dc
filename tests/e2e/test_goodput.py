"""The ledger (docs/goodput.md): `taskd goodput`, /api/v1/goodput and the metrics, of real jobs and of what a launcher says."""
import json
import os
import re
import urllib.request

import harness
import pytest
import stubs
from harness import wait_until
from ports import free_port
from test_supervision import Launcher

CATEGORIES = ["queue", "waiting", "launch", "link_up", "warm_up", "productive", "data", "checkpoint", "straggler", "other", "redone",
              "hang", "restart", "suspended", "unmarked", "unknown"]
RANK_SCRIPT = os.path.join(stubs.REPOSITORY, "tests", "lib", "goodput_rank.py")


def check_sum(goodput):
    assert list(goodput["seconds"]) == CATEGORIES
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["rank_s"], rel=1e-3, abs=1e-3)
    assert goodput["rank_s"] == pytest.approx(goodput["slots"] * goodput["wall_s"], rel=1e-3, abs=1e-2)
    for incident in goodput["incidents"]:
        assert sum(incident["seconds"].values()) == pytest.approx(incident["rank_s"], abs=1e-3)
    assert 0 <= goodput["goodput_low"] <= goodput["goodput_high"] <= 1 + 1e-9
    return goodput


def goodput_of(stage, address):
    done = stage.run("goodput", "--manager", address, "--json")
    assert done.returncode == 0, done.stderr
    return check_sum(json.loads(done.stdout))


SIZE = ["--nodes", "2", "--procs-per-node", "2"]


@pytest.fixture
def manager(stage):
    return stage.manager(flags=SIZE)


@pytest.fixture
def launcher(manager):
    launcher = Launcher(manager)
    yield launcher
    launcher.close()


def fetch(manager, path):
    with urllib.request.urlopen(f"http://{manager.http}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_what_a_launcher_says_is_in_it(stage, manager, launcher):
    kinds = launcher.messages.SupervisionEvent
    launcher.report(kinds.STARTED)
    launcher.report(kinds.EXITED, rank=3, node=1, pid=4711, code=139, signal=11)
    launcher.report(kinds.RESTARTING, message="rank 3 on node 1 (b) was killed by SIGSEGV")
    launcher.report(kinds.STARTED, round=1, restart_count=1)
    goodput = goodput_of(stage, manager.address)
    assert [(i["number"], i["kind"], i["ranks"], i["nodes"], i["text"]) for i in goodput["incidents"]] == [
        (1, "rank_exit", [3], [1], "rank 3 on node 1 (b) was killed by SIGSEGV")]
    assert json.loads(fetch(manager, "/api/v1/goodput"))["incidents"][0]["number"] == 1
    metrics = fetch(manager, "/metrics")
    for category in CATEGORIES:
        assert re.search(rf'^taskd_rank_seconds_total{{category="{category}"}} \d', metrics, re.M), category
    assert 'taskd_incidents_total{kind="rank_exit"} 1\n' in metrics
    launcher.report(kinds.ENDED, round=1, restart_count=1, code=0)
    ended = goodput_of(stage, manager.address)
    assert ended["attempts"][0]["outcome"] == "ended"
    assert goodput_of(stage, manager.address)["rank_s"] == ended["rank_s"]  # its time stands still
    text = stage.run("goodput", "--manager", manager.address).stdout
    assert re.search(r"^\d+\.\d % of .* were productive", text) and "#1 " in text and "link_up" in text


def test_wrong_usage(stage, manager):
    for arguments, said in [(("--incidents", "-1"), "--incidents: -1 is below 0"), (("--from", "/nowhere"), "--from: "),
                            (("--from", "/nowhere", "--manager", manager.address), "only one of them")]:
        done = stage.run("goodput", *arguments)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def test_is_kept_over_a_kill_of_the_manager(stage):
    state = os.path.join(stage.folder, "state")
    port = harness.free_port()
    manager = stage.manager(state_dir=state, port=port, flags=SIZE)
    launcher = Launcher(manager)
    kinds = launcher.messages.SupervisionEvent
    launcher.report(kinds.STARTED)
    launcher.report(kinds.EXITED, rank=0, node=0, code=3)
    launcher.close()

    def kept():
        with open(os.path.join(state, "manager.db"), "rb") as file:
            return b"rank 0 ended with code 3" in file.read()
    wait_until(kept, "the incident is kept")
    before = goodput_of(stage, manager.address)
    manager.kill()
    after = goodput_of(stage, stage.manager(name="next", state_dir=state, port=port, flags=SIZE).address)
    assert after["since"][:19] == before["since"][:19] and len(after["attempts"]) == 1
    assert [i["text"] for i in after["incidents"]] == ["rank 0 ended with code 3"]
    assert after["rank_s"] >= before["rank_s"] - 1e-3
    # It is written at each incident and every 5 s: what was not, and while nobody was there, is unknown.
    assert after["seconds"]["restart"] >= before["seconds"]["restart"] - after["slots"] * 5.5


def read_times(folder):
    times = {}
    for name in os.listdir(folder):
        if name.startswith("times."):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file.read().splitlines()]
            times[tuple(map(int, name.split(".")[1:]))] = ({l["what"]: l["time"] for l in lines if "what" in l},
                                                           {l["step"]: (l["begin"], l["end"]) for l in lines if "step" in l})
    return times


def test_a_killed_rank_is_an_incident_whose_hops_add_up(jobs):
    """A true PyTorch job on two nodes; what its ranks wrote down by their own clock is the truth."""
    pytest.importorskip("torch", reason="Debian 12's PyTorch is not installed: apt-get install python3-torch")
    steps, save_every, kill_step = 60, 20, 35
    profiling, switch = os.path.join(jobs.folder, "profiling"), os.path.join(jobs.folder, "switch")
    with open(switch, "w", encoding="utf-8") as file:
        json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)
    port, state = free_port(), os.path.join(jobs.stage.folder, "state")
    environment = {"TASKD_MANAGER": "", "TASKD_PROFILING_DIR": profiling, "MINDX_TASK_ID": "goodput", "TASKD_SWITCH_FILE": switch,
                   "GLOO_SOCKET_IFNAME": "lo", "TASKD_STATE_DIR": state}
    nodes = [jobs.static(node, port, "--max-restarts=1", "-m", "taskd.torch", environment=environment, script=RANK_SCRIPT,
                         script_arguments=[jobs.folder, str(steps), str(save_every), str(kill_step)]) for node in (0, 1)]
    address = "127.0.0.1:" + wait_until(lambda: re.search(r"the manager is at port (\d+)", nodes[0].log()), "it has a manager")[1]
    seen = []

    def all_done():
        done = jobs.stage.run("goodput", "--manager", address, "--json")
        if done.returncode == 0:
            seen.append(check_sum(json.loads(done.stdout)))
        return not nodes[0].alive()
    wait_until(all_done, "the job is over", timeout_s=90, interval_s=0.1)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log()[-3000:]

    manager = jobs.stage.manager(name="reader", job="", task="", state_dir=state)  # the job's last words, from its state
    goodput = goodput_of(jobs.stage, manager.address)
    times, ranks = read_times(jobs.folder), range(4)
    assert goodput["slots"] == 4 and goodput["attempts"][0]["outcome"] == "ended"
    assert [(i["kind"], i["ranks"]) for i in goodput["incidents"]] == [("rank_exit", [1])]
    incident = goodput["incidents"][0]["seconds"]
    assert {"restart", "launch", "link_up", "redone"} <= set(incident)

    def took(attempt, first, last):
        return sum(end - begin for rank in ranks for step, (begin, end) in times[rank, attempt][1].items() if first <= step <= last)
    again = kill_step // save_every * save_every  # the first step of the second life
    truth = {
        "productive": took(0, 1, kill_step - 1) + took(1, kill_step, steps),
        "redone": took(1, again, kill_step - 1),
        "launch and link-up": sum(min(b for b, _ in times[rank, 1][1].values()) - times[rank, 1][0]["began"] for rank in ranks),
    }
    # A busy machine has stragglers, and steps that nothing explains.
    steps_of = ("productive", "data", "checkpoint", "straggler", "unknown")
    found = {"productive": sum(goodput["seconds"][category] for category in steps_of),
             "redone": incident["redone"] + incident.get("warm_up", 0),
             "launch and link-up": incident["launch"] + incident["link_up"]}
    for what, value in truth.items():
        assert found[what] == pytest.approx(value, rel=0.02, abs=0.25 * len(ranks)), (what, truth, found, goodput)
    assert len(seen) > 5
    # The marks alone.
    done = jobs.stage.run("goodput", "--from", os.path.join(profiling, "goodput"), "--json", timeout_s=60)
    assert done.returncode == 0, done.stderr
    from_files = json.loads(done.stdout)
    assert sum(from_files["seconds"].values()) == pytest.approx(from_files["rank_s"], rel=1e-3)
    assert from_files["seconds"]["productive"] == pytest.approx(goodput["seconds"]["productive"], rel=0.02, abs=0.25 * len(ranks))
    assert from_files["seconds"]["launch"] == 0 and from_files["seconds"]["unknown"] > 0
