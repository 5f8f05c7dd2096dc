"""TF_CONFIG against TensorFlow's documented rules, without TensorFlow.

An independent checker reads what `taskd run --mode ps` hands to the command; stand-ins for ps and worker listen on the
endpoints that it names and talk to each other over them. Nothing here shows how TensorFlow itself behaves.
"""
import json
import os

import pytest

import deadlines
import harness
from harness import PYTHON, wait_until
from modes import ModeJob

SEED = """{"cluster":{"ps":["job-ps-0.train-100031385875.svc:2222","job-ps-1.train-100031385875.svc:2222"],
 "worker":["job-worker-0.train-100031385875.svc:2222","job-worker-1.train-100031385875.svc:2222"]},
 "task":{"type":"ps","index":0},"environment":"cloud"}"""


def faults(text):
    """What is wrong with a TF_CONFIG: written from the rules, not from the program."""
    try:
        config = json.loads(text)
    except ValueError:
        return ["not JSON"]
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict) or not config["cluster"]:
        return ["no cluster"]
    found, seen = [], set()
    for kind, endpoints in config["cluster"].items():
        if not isinstance(endpoints, list) or not endpoints:
            found.append(f"{kind} is empty")
            continue
        for endpoint in endpoints:
            host, colon, port = endpoint.rpartition(":") if isinstance(endpoint, str) else ("", "", "")
            if not host or not colon or not port.isdecimal() or not 1 <= int(port) <= 65535:
                found.append(f"{endpoint} is not host:port")
            elif ":" in host and not (host.startswith("[") and host.endswith("]")):
                found.append(f"{endpoint}: IPv6 without brackets")
            if endpoint in seen:
                found.append(f"{endpoint} twice")
            seen.add(endpoint)
    task = config.get("task")
    if not isinstance(task, dict):
        return [*found, "no task"]
    kind, index = task.get("type"), task.get("index")
    if kind not in config["cluster"] and kind != "evaluator":
        found.append("task.type")
    if type(index) is not int or index < 0 or kind in config["cluster"] and index >= len(config["cluster"][kind]):
        found.append("task.index")
    return found


def tf_config(environment, *options):
    result = deadlines.run([harness.TASKD, "run", "--mode", "ps", "--dry-run", "--json", *options, "--", "x"],
                           env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, check=True)
    [process] = json.loads(result.stdout)["processes"]
    return process["env"]["TF_CONFIG"]


def test_the_checker_can_fail():
    assert faults(SEED) == []
    for change in (("2222", "0"), ("ps-1", "ps-0"), ('"index":0', '"index":"0"'), ('"index":0', '"index":2'),
                   ('"index":0', '"index":0.0'), ('"type":"ps"', '"type":"master"'), (":2222", ""), ('"task"', '"t"'),
                   ('"cluster"', '"c"'), ("{", "")):
        assert faults(SEED.replace(*change)) != [], change


@pytest.mark.parametrize("count", [2, 3, 5, 16, 64])
def test_contract_tf_config_of_any_size(count):
    """contract: cluster maps a type to a non-empty list of host:port, none twice; task.type is in it and task.index is
    an integer below its length (the rules that TensorFlow documents for TF_CONFIG)."""
    nodes = [f"job-{i}.train.svc" if i % 3 else f"[fd00::{i + 1:x}]" for i in range(count)]
    for ps_count in sorted({1, count // 2, count - 1}):
        clusters, tasks = set(), set()
        for index in sorted({0, ps_count - 1, ps_count, count - 1}):
            text = tf_config({"NODE_LIST": ",".join(f"{node}:1" for node in nodes), "INDEX": str(index)},
                             "--ps-num", str(ps_count))
            assert faults(text) == []
            config = json.loads(text)
            endpoint = config["cluster"][config["task"]["type"]][config["task"]["index"]]
            assert endpoint == f"{nodes[index]}:2222"  # every node finds itself
            clusters.add(json.dumps(config["cluster"]))
            tasks.add(json.dumps(config["task"]))
        assert len(clusters) == 1 and len(tasks) == len({0, ps_count - 1, ps_count, count - 1})


def test_contract_one_node_is_no_ps_job():
    """contract: ps and worker are both needed, so one node cannot be such a job."""
    result = deadlines.run([harness.TASKD, "run", "--mode", "ps", "--dry-run", "--ps-num", "1", "--", "x"],
                           env={"PATH": "/usr/bin:/bin", "NODE_LIST": "a:1", "INDEX": "0"}, capture_output=True,
                           check=False)
    assert (result.returncode, result.stdout) == (2, b"")


def test_contract_tf_config_is_the_platform_s_text():
    """contract: the text that TI-ONE documents, byte for byte once both are written without blanks; what came in from
    the platform is handed on as it is."""
    nodes = ["job-ps-0", "job-ps-1", "job-worker-0", "job-worker-1"]
    made = tf_config({"NODE_LIST": ",".join(f"{node}.train-100031385875.svc:1" for node in nodes), "INDEX": "0"},
                     "--ps-num", "2")
    assert made == json.dumps(json.loads(SEED), separators=(",", ":"))
    assert tf_config({"TF_CONFIG": SEED}) == SEED


# A ps listens on its endpoint and answers until it is ended, as TensorFlow's server.join() does; a worker asks every
# endpoint of the cluster, and then ends.
TASK = r"""
import json, os, socket, sys, threading, time
folder = sys.argv[1]
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]

def address(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return host.strip("[]"), int(port)

server = socket.create_server(address(config["cluster"][kind][index]))
put = os.path.join(folder, f"{kind}.{index}")

def serve():
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(f"{kind} {index}".encode())

if kind == "ps":
    open(put, "w").close()
    serve()
threading.Thread(target=serve, daemon=True).start()
found = []
for other, endpoints in sorted(config["cluster"].items()):
    for i, endpoint in enumerate(endpoints):
        while True:
            try:
                with socket.create_connection(address(endpoint)) as connection:
                    found.append([other, i, connection.recv(100).decode()])
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
with open(put + "~", "w") as file:
    json.dump(found, file)
os.rename(put + "~", put)
workers = len(config["cluster"]["worker"])
while sum(name.startswith("worker") and not name.endswith("~") for name in os.listdir(folder)) < workers:
    time.sleep(0.02)  # its own endpoint is asked by the others
"""


def test_contract_ps_and_workers_meet(stage):
    """contract: each task listens on its own entry of the cluster and every worker reaches all others there; a ps never
    ends by itself, so it is ended when the workers have succeeded (classic TensorFlow's server.join())."""
    job = ModeJob(stage, nodes=4)
    folder = os.path.join(stage.folder, "tasks")
    os.makedirs(folder)
    script = os.path.join(stage.folder, "task.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(TASK)
    nodes = [job.run(index, "ps", [PYTHON, script, folder], "--ps-num", "2") for index in range(4)]
    wait_until(lambda: all(not node.alive() for node in nodes), "the job ends", 60)
    assert [node.child.returncode for node in nodes] == [0] * 4, nodes[0].log()
    everybody = [[kind, i, f"{kind} {i}"] for kind in ("ps", "worker") for i in range(2)]
    for index in range(2):
        with open(os.path.join(folder, f"worker.{index}"), encoding="utf-8") as file:
            assert json.load(file) == everybody
        assert os.path.exists(os.path.join(folder, f"ps.{index}"))
