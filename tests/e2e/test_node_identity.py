"""How nodes are called: by the variables of pods and of Slurm, and by nothing that is not certain."""
import json

import harness
from harness import clean_environment, wait_until

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def nodes_of(stage, manager):
    done = stage.run("status", "--manager", manager.address, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["nodes"]


def proxies(stage, manager, *environments):
    for node, environment in enumerate(environments):
        stage.proxy(manager, node=node, environment=clean_environment(MINDX_TASK_ID=harness.TASK, **environment))
    wait_until(lambda: len(nodes_of(stage, manager)) == len(environments), "all proxies are connected")
    return nodes_of(stage, manager)


def test_a_pod_is_named_by_its_variable(stage):
    """contract: TASKD_NODE_NAME, as the manifests set it from spec.nodeName, is the node's name; two pods may share a node."""
    manager = stage.manager()
    named = {**POD, "TASKD_NODE_NAME": "worker-7"}
    first, second = proxies(stage, manager, {**named, "POD_NAME": "train-0-x7k2p"}, {**named, "POD_NAME": "train-1-9qq1z"})
    assert (first["node_name"], first["pod"]) == ("worker-7", "train-0-x7k2p")
    assert (second["node_name"], second["pod"]) == ("worker-7", "train-1-9qq1z")
    assert first["host"] and "node_name_refusal" not in first
    assert "no node name" not in stage.run("status", "--manager", manager.address).stdout


def test_a_pod_without_the_variable_has_no_name(stage):
    manager = stage.manager()
    (node,) = proxies(stage, manager, POD)
    assert node["node_name"] == "" and node["pod"] == node["host"]
    assert "TASKD_NODE_NAME" in node["node_name_refusal"]
    assert "no node name: nodes 0: " in stage.run("status", "--manager", manager.address).stdout


def test_two_names_for_one_host(stage):
    manager = stage.manager()
    for node in proxies(stage, manager, {"TASKD_NODE_NAME": "n1"}, {"TASKD_NODE_NAME": "n2"}):
        assert node["node_name"] == "" and "two node names: 'n1' and 'n2'" in node["node_name_refusal"]
    assert "two node names" in manager.log()


def test_a_name_that_is_not_in_slurms_list(stage):
    manager = stage.manager(environment=clean_environment(SLURM_JOB_NODELIST="n[1-2]"))
    (node,) = proxies(stage, manager, {"SLURMD_NODENAME": "n3"})
    assert node["node_name"] == "" and "not in the job's list" in node["node_name_refusal"]


def test_slurms_name_counts_not_the_hosts(stage):
    manager = stage.manager(environment=clean_environment(SLURM_JOB_NODELIST="n[1-2]"))
    (node,) = proxies(stage, manager, {"SLURMD_NODENAME": "n2"})
    assert node["node_name"] == "n2" != node["host"]
