"""deploy/kubernetes: every file follows the Kubernetes API, its numbers agree with each other, and what its pods run does what it should."""
import copy
import glob
import json
import os
import re
import subprocess

import harness
import jsonschema
import pytest
import stubs
import yaml

FOLDER = os.path.join(stubs.REPOSITORY, "deploy", "kubernetes")
FILES = sorted(os.path.basename(path) for path in glob.glob(os.path.join(FOLDER, "*.yaml")))
KINDS = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "manifest_schema.json"), encoding="utf-8") as schema_file:
    SCHEMA = json.load(schema_file)


def documents(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def document(name, kind):
    return next(found for found in documents(name) if found["kind"] == kind)


def pod(job):
    """(pod template, its only container)."""
    template = job["spec"]["tasks"][0]["template"] if "tasks" in job["spec"] else job["spec"]["template"]
    return template, template["spec"]["containers"][0]


def environment(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def validate(found):
    kind = f"{found['apiVersion']}/{found['kind']}"
    assert kind in SCHEMA["$defs"], f"{kind} is not in the schema"
    jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind.replace('/', '~1')}", "$defs": SCHEMA["$defs"]}).validate(found)


def test_there_are_manifests():
    assert FILES == ["datatrace-configmap.yaml", "indexed-job.yaml", "volcano-job.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_schema(name):
    for found in documents(name):
        validate(found)


def test_the_schema_refuses():
    """A schema that takes everything would prove nothing."""
    good = document("volcano-job.yaml", "Job")

    def broken(change):
        job = copy.deepcopy(good)
        change(job, *pod(job))
        with pytest.raises(jsonschema.ValidationError):
            validate(job)
    broken(lambda job, template, container: job["spec"].update(minAvailabel=6))
    broken(lambda job, template, container: job["spec"].update(minAvailable="6"))
    broken(lambda job, template, container: template["spec"].pop("containers"))
    broken(lambda job, template, container: template["spec"].update(restartpolicy="Never"))
    broken(lambda job, template, container: container["env"].append({"name": "A", "value": 1}))
    broken(lambda job, template, container: container["ports"][0].update(containerPort="9601"))
    broken(lambda job, template, container: template["spec"]["volumes"].append({"name": "none"}))
    broken(lambda job, template, container: job["spec"]["policies"][0].update(action="Restart"))


@pytest.mark.parametrize("name", ["volcano-job.yaml", "indexed-job.yaml"])
def test_pods(name):
    template, container = pod(document(name, "Job"))
    assert {"containerPort": 9601, "name": "taskd-port"} in container["ports"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes), "every volume is mounted and every mount has its volume"
    assert volumes[mounts["/user/cluster-info/profiling"]]["hostPath"]["path"] == "/user/cluster-info/profiling"
    # ClusterD looks for exactly this path.
    switch = volumes[mounts["/user/cluster-info/datatrace-config"]]["configMap"]["name"]
    assert switch == document("datatrace-configmap.yaml", "ConfigMap")["metadata"]["name"]
    assert switch == "data-trace-" + document(name, "Job")["metadata"]["name"]
    assert template["spec"]["restartPolicy"] == "Never"
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    # Kubernetes puts in only what stands above.
    for index, entry in enumerate(container["env"]):
        assert set(re.findall(r"\$\((\w+)\)", entry.get("value", ""))) <= set(names[:index])


def test_switch():
    found = document("datatrace-configmap.yaml", "ConfigMap")
    assert found["metadata"]["labels"] == {"reset": "true"}
    switch = json.loads(found["data"]["profilingSwitch"])
    assert sorted(switch) == sorted(KINDS) and set(switch.values()) <= {"on", "off"}


def test_the_program_reads_the_switch(stage):
    path = os.path.join(stage.folder, "profilingSwitch")
    with open(path, "w", encoding="utf-8") as file:
        file.write(document("datatrace-configmap.yaml", "ConfigMap")["data"]["profilingSwitch"])
    manager = stage.manager(flags=["--switch-file", path])
    wanted = {"communication": "off", "step": "on", "save_checkpoint": "on", "fp": "on", "dataloader": "on"}
    harness.wait_until(lambda: manager.get() == (200, wanted), "the manager has the file's switch")


# ---- Volcano

@pytest.fixture
def volcano():
    return document("volcano-job.yaml", "Job")


def test_volcano_numbers(volcano):
    spec = volcano["spec"]
    template, container = pod(volcano)
    values = environment(container)
    assert spec["minAvailable"] == spec["tasks"][0]["replicas"] == int(values["MA_NUM_HOSTS"])
    cards = {key: set(container["resources"][key].values()) for key in ("requests", "limits")}
    assert cards == {"requests": {values["MA_NUM_GPUS"]}, "limits": {values["MA_NUM_GPUS"]}}
    expression = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert expression["labelSelector"]["matchExpressions"][0]["values"] == [volcano["metadata"]["name"]]
    assert spec["plugins"]["configmap1980"] == ["--rank-table-version=v2"]
    assert {"event": "PodFailed", "action": "RestartJob"} in spec["policies"]
    assert {"event": "PodEvicted", "action": "RestartJob"} in spec["policies"]


STUB = """#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS.$1"
[ "$1" = route ] || exit 0
for name in RANK_AFTER_ACC MASTER_INDEX; do
  value="STUB_$name"
  [ -z "${!value}" ] || echo "${!value}" > "$OUT/$name"
done
exit "$STUB_CODE"
"""
TRAIN = """printf '{"rank": "%s", "master": "%s"}' "$RANK_AFTER_ACC" "$MA_MASTER_INDEX" > trained.json
exit 7
"""


class Pod:
    """What a pod of the Volcano job runs, with a taskd that records its calls and a train.sh that records its variables."""

    def __init__(self, folder, job, index):
        self.folder = str(folder)
        self.index = index
        _, container = pod(job)
        assert container["command"][:2] == ["/bin/bash", "-c"] and len(container["command"]) == 3
        self.script = container["command"][2]
        assert self.script.count("/tmp") == 3, "one folder that is written to and read from"
        # /tmp is the pod's own there.
        self.command = ["/bin/bash", "-c", self.script.replace("/tmp", self.folder)]
        self.variables = {"MA_VJ_NAME": "train", "MA_TASK_NAME": "worker", "MA_NUM_HOSTS": "6", "MA_NUM_GPUS": "8", "MINDX_TASK_ID": "train",
                          "MA_CURRENT_HOST_IP": f"10.0.0.{index + 1}", "POD_IP": f"10.1.0.{index + 1}", "VC_TASK_INDEX": str(index),
                          "TASKD_MANAGER": "train-worker-0.train:9601", "TASKD_TOKEN": "secret", "OUT": self.folder,
                          "CALLS": os.path.join(self.folder, "calls"), "PATH": f"{self.folder}:{os.environ['PATH']}"}
        for name, text in (("taskd", STUB), ("train.sh", TRAIN)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        os.chmod(os.path.join(self.folder, "taskd"), 0o755)

    def run(self, code, rank="", master=""):
        """Exit code, what train.sh saw (None: it was not started)."""
        done = subprocess.run(self.command, env=harness.clean_environment(**self.variables, STUB_CODE=code, STUB_RANK_AFTER_ACC=rank,
                                                                          STUB_MASTER_INDEX=master),
                              cwd=self.folder, timeout=30, capture_output=True, text=True, check=False)
        try:
            with open(os.path.join(self.folder, "trained.json"), encoding="utf-8") as file:
                return done.returncode, json.load(file)
        except FileNotFoundError:
            return done.returncode, None

    def calls(self, command):
        try:
            with open(os.path.join(self.folder, f"calls.{command}"), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []


def test_pod_with_a_plan(volcano, tmp_path):
    started = Pod(tmp_path, volcano, 4)
    assert started.run(0, rank=2, master=1) == (7, {"rank": "2", "master": "1"}), "the plan, and train.sh's own exit code"
    assert started.calls("manager") == []
    (line,) = started.calls("route")
    assert "--agree" in line and "--self 10.0.0.5" in line and "--nodes 6 --index 4" in line
    assert "--manager train-worker-0.train:9601" in line
    harness.wait_until(lambda: started.calls("proxy"), "the node's proxy is started")
    assert "--node-rank 2" in started.calls("proxy")[0]


def test_pod_without_a_plan(volcano, tmp_path):
    started = Pod(tmp_path, volcano, 4)
    assert started.run(0) == (7, {"rank": "4", "master": "0"}), "its own index, and pod 0 as master"


@pytest.mark.parametrize("code", [1, 2, 127])
def test_pod_whose_plan_failed_does_not_train(volcano, tmp_path, code):
    started = Pod(tmp_path, volcano, 4)
    assert started.run(code, rank=2, master=1) == (code, None)
    assert started.calls("proxy") == []


def test_first_pod_serves_the_manager(volcano, tmp_path):
    started = Pod(tmp_path, volcano, 0)
    assert started.run(0)[1] == {"rank": "0", "master": "0"}
    harness.wait_until(lambda: started.calls("manager"), "the manager is started")
    assert "--listen 10.1.0.1:9601" in started.calls("manager")[0]
    assert started.script.index("taskd manager") < started.script.index("taskd route")


@pytest.mark.parametrize("command", ["manager", "route", "proxy"])
def test_the_program_has_the_options(volcano, command):
    _, container = pod(volcano)
    (line,) = [line for line in container["command"][2].splitlines() if f"taskd {command}" in line]
    options = re.findall(r" (--[a-z-]+)", line)
    text = subprocess.run([harness.TASKD, command, "--help"], env=harness.clean_environment(), capture_output=True, text=True, timeout=30,
                          check=True).stdout
    missing = [option for option in options if not re.search(rf"{option}\b(?!-)", text)]
    assert options and not missing


# ---- Kubernetes alone

def test_indexed_job_names_its_pods():
    job = document("indexed-job.yaml", "Job")
    service = document("indexed-job.yaml", "Service")
    template, container = pod(job)
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert spec["backoffLimit"] % spec["completions"] == 0
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    cards = container["resources"]["limits"]["nvidia.com/gpu"]
    assert environment(container)["NODE_LIST"].split(",") == [
        f"{job['metadata']['name']}-{i}.{service['metadata']['name']}:{cards}" for i in range(spec["completions"])]


def test_indexed_job_starts_on_every_node():
    """Its command line and variables, given to the real program."""
    _, container = pod(document("indexed-job.yaml", "Job"))
    program, *command = container["command"] + container["args"]
    assert program == "taskd"
    separator = command.index("--")
    nodes = environment(container)["NODE_LIST"]
    for index in range(nodes.count(",") + 1):
        done = subprocess.run([harness.TASKD, *command[:separator], "--dry-run", "--json", *command[separator:]],
                              env=harness.clean_environment(NODE_LIST=nodes, INDEX=index), capture_output=True, text=True, timeout=60,
                              check=False)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        (process,) = plan["processes"]
        assert process["argv"] == command[separator + 1:]
        assert plan["warnings"] == []
        # What the command line reads.
        for name in re.findall(r"\$(\w+)", process["argv"][-1]):
            assert process["env"].get(name), f"{name} is not set"
        assert (process["env"]["RANK"], process["env"]["WORLD_SIZE"]) == (str(index), "4")
