"""deploy/kubernetes: every file follows the Kubernetes API, its numbers agree with each other, and what its pods run does what it should."""
import copy
import glob
import importlib.util
import json
import os
import re
import shutil

import deadlines
import harness
import jsonschema
import pytest
import stubs
import yaml
from namespaces import make_rig  # noqa: F401

FOLDER = os.path.join(stubs.REPOSITORY, "deploy", "kubernetes")
FILES = sorted({os.path.basename(path) for path in glob.glob(os.path.join(FOLDER, "*.yaml"))} - {"kustomization.yaml"})
KINDS = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "manifest_schema.json"), encoding="utf-8") as schema_file:
    SCHEMA = json.load(schema_file)


def documents(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def document(name, kind):
    return next(found for found in documents(name) if found["kind"] == kind)


JOBS = {"indexed-job.yaml": "Job", "jobset.yaml": "JobSet", "leaderworkerset.yaml": "LeaderWorkerSet", "pytorchjob.yaml": "PyTorchJob",
        "trainjob.yaml": "TrainingRuntime", "volcano-job.yaml": "Job", "volcano.yaml": "Job"}


def pod(job):
    """(pod template, its only container)."""
    spec = job["spec"]
    if job["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    elif "pytorchReplicaSpecs" in spec:
        spec = spec["pytorchReplicaSpecs"]["Master"]
    elif "leaderWorkerTemplate" in spec:
        spec = {"template": spec["leaderWorkerTemplate"]["workerTemplate"]}
    template = spec["tasks"][0]["template"] if "tasks" in spec else spec["template"]
    (container,) = template["spec"]["containers"]
    return template, container


def environment(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@pytest.mark.parametrize("name", JOBS)
def test_pods_know_their_node(name):
    _, container = pod(document(name, JOBS[name]))
    (entry,) = [entry for entry in container["env"] if entry["name"] == "TASKD_NODE_NAME"]
    assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def validate(found):
    kind = f"{found['apiVersion']}/{found['kind']}"
    assert kind in SCHEMA["$defs"], f"{kind} is not in the schema"
    jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind.replace('/', '~1')}", "$defs": SCHEMA["$defs"]}).validate(found)


def test_there_are_manifests():
    assert FILES == sorted(["datatrace-configmap.yaml", "networkpolicy.yaml", "podmonitor.yaml", *JOBS])


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


def test_the_schema_refuses_in_each_kind():
    for name, kind in JOBS.items():
        for broken in (lambda template, container: template["spec"].update(restartPolicy="Sometimes"),
                       lambda template, container: container["securityContext"].update(readonlyRootFilesystem=True),
                       lambda template, container: container["readinessProbe"].update(exec={}),
                       lambda template, container: template["spec"].update(terminationGracePeriodSeconds="60")):
            job = copy.deepcopy(document(name, kind))
            broken(*pod(job))
            with pytest.raises(jsonschema.ValidationError):
                validate(job)


@pytest.mark.parametrize("name", JOBS)
def test_pods(name):
    template, container = pod(document(name, JOBS[name]))
    assert {"containerPort": 9601, "name": "taskd-port"} in container["ports"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes), "every volume is mounted and every mount has its volume"
    # A user who is not root may write them: a hostPath would be root's.
    for path in ("/user/cluster-info/profiling", "/tmp", "/dev/shm"):
        assert "emptyDir" in volumes[mounts[path]]
    # ClusterD looks for exactly this path.
    switch = volumes[mounts["/user/cluster-info/datatrace-config"]]["configMap"]["name"]
    assert switch == document("datatrace-configmap.yaml", "ConfigMap")["metadata"]["name"]
    named = documents(name)[-1]
    assert switch == "data-trace-" + named["metadata"]["name"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    # Kubernetes puts in only what stands above.
    for index, entry in enumerate(container["env"]):
        assert set(re.findall(r"\$\((\w+)\)", entry.get("value", ""))) <= set(names[:index])


@pytest.mark.parametrize("name", JOBS)
def test_pods_can_be_selected(name):
    template, container = pod(document(name, JOBS[name]))
    policy, monitor = document("networkpolicy.yaml", "NetworkPolicy")["spec"], document("podmonitor.yaml", "PodMonitor")["spec"]
    own = {"taskd-job": documents(name)[-1]["metadata"]["name"]}
    assert template["metadata"]["labels"].items() >= own.items()
    assert policy["podSelector"]["matchLabels"] == monitor["selector"]["matchLabels"] == own
    assert policy["ingress"][0] == {"from": [{"podSelector": {"matchLabels": own}}]}
    if name != "volcano-job.yaml":
        (scraped,) = [port for port in container["ports"] if port["name"] == monitor["podMetricsEndpoints"][0]["port"]]
        assert policy["ingress"][1]["ports"] == [{"port": scraped["containerPort"]}]


def test_the_base_of_kustomize():
    with open(os.path.join(FOLDER, "kustomization.yaml"), encoding="utf-8") as file:
        base = yaml.safe_load(file)
    assert base == {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": base["resources"]}
    assert set(base["resources"]) <= set(FILES)


# ---- The chart, whose templates have nothing but what render() knows

CHART = os.path.join(stubs.REPOSITORY, "deploy", "helm", "taskd")


def chart_file(*path):
    with open(os.path.join(CHART, *path), encoding="utf-8") as file:
        return file.read()


def render(template, values, name="train", namespace="default"):
    """The documents that Helm would make of a template."""
    everything = {"Values": values, "Release": {"Name": name, "Namespace": namespace}}

    def value(path):
        found = everything
        for word in path.strip(".").split("."):
            found = found[word]
        return found
    condition = re.match(r"\{\{- if (?:eq (\S+) \"(.*?)\"|(\S+)) \}\}\n((?:.*\n)*)\{\{- end \}\}\n\Z", template)
    if condition:
        known, wanted, switch, template = condition.groups()
        if (value(known) != wanted) if known else not value(switch):
            return []
    text = re.sub(r"\{\{ toJson (\.[\w.]+) \}\}", lambda found: json.dumps(value(found[1])), template)
    text = re.sub(r"\{\{ (\.[\w.]+) \}\}", lambda found: str(value(found[1])), text)
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


def rendered(**given):
    values = {**yaml.safe_load(chart_file("values.yaml")), **given}
    jsonschema.validate(values, json.loads(chart_file("values.schema.json")))
    return {template: found for template in sorted(os.listdir(os.path.join(CHART, "templates")))
            if (found := render(chart_file("templates", template), values))}


def with_its_words(found):
    """The job with the script's words where a manifest has them: in the command."""
    for container in [pod(found)[1]] if found["kind"] in JOBS.values() else []:
        words = container.pop("args", [])
        if found["kind"] == "LeaderWorkerSet":
            shell, option, script, _ = container["command"]
            container["command"] = [shell, option, script.replace('"$@"', " ".join(words))]
        else:
            container["command"] += words
    return found


@pytest.mark.parametrize("name", JOBS)
def test_the_chart_is_the_manifest(name):
    files = rendered(kind=name.removesuffix(".yaml"), podMonitor=True, **({"nodes": 6} if name == "volcano-job.yaml" else {}))
    assert sorted(files) == sorted([name, "datatrace-configmap.yaml", "networkpolicy.yaml", "podmonitor.yaml"])
    for file, found in files.items():
        assert [with_its_words(one) for one in found] == documents(file)


@pytest.mark.parametrize("name", JOBS)
def test_the_chart_with_other_values(name):
    files = rendered(kind=name.removesuffix(".yaml"), image="own/image:3", nodes=2, cards=16, cardResource="amd.com/gpu", networkPolicy=False,
                     train=["-m", "own.train", "--name", "with \"words\""], tokenSecret="own-token")
    assert sorted(files) == sorted([name, "datatrace-configmap.yaml"])
    for found in [one for file in files.values() for one in file]:
        validate(found)
    for found in files[name]:
        if found["kind"] in JOBS.values():
            _, container = pod(found)
            assert container["image"] == "own/image:3" and "16" in container["resources"]["limits"].values()
            if name != "volcano-job.yaml":
                assert container["args"] == ["-m", "own.train", "--name", "with \"words\""]


@pytest.mark.parametrize("values", [{"kind": "job"}, {"nodes": "four"}, {"image": ""}, {"images": "a"}])
def test_the_chart_refuses(values):
    with pytest.raises(jsonschema.ValidationError):
        rendered(**values)


@pytest.mark.parametrize("name", JOBS)
def test_pods_need_no_privilege(name):
    template, container = pod(document(name, JOBS[name]))
    of_pod, of_container = template["spec"]["securityContext"], container["securityContext"]
    assert of_pod["runAsNonRoot"] is True and of_pod["runAsUser"] > 0 and of_pod["fsGroup"] == of_pod["runAsGroup"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", JOBS)
def test_pods_end_in_time(name):
    template, container = pod(document(name, JOBS[name]))
    assert template["spec"]["terminationGracePeriodSeconds"] == 60
    if "route" not in container["command"][-1]:
        assert float(environment(container)["TASKD_SHUTDOWN_TIMEOUT"]) <= 50
    # Training goes on without TaskD.
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz" and "livenessProbe" not in container


@pytest.mark.parametrize("name", JOBS)
def test_pods_ask_for_what_they_use(name):
    job = document(name, JOBS[name])
    _, container = pod(job)
    (cards,) = [value for key, value in container["resources"]["limits"].items() if "/" in key]
    assert cards in {value for key, value in container["resources"]["requests"].items() if "/" in key}
    asked = re.search(r"--nproc-per-node=(\d+)", " ".join(container["command"]))
    if asked:
        assert cards == asked[1]
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        assert len(re.findall(r"^# Tested, not on a cluster", file.read(), re.MULTILINE)) == 1


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
        done = deadlines.run(self.command, env=harness.clean_environment(**self.variables, STUB_CODE=code, STUB_RANK_AFTER_ACC=rank,
                                                                          STUB_MASTER_INDEX=master),
                             cwd=self.folder, capture_output=True, text=True, check=False)
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
    text = deadlines.run([harness.TASKD, command, "--help"], env=harness.clean_environment(), capture_output=True, text=True,
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
    assert f"--nnodes={spec['completions']}" in container["command"]


# What a controller sets in the pod of each node: (host name, other names, variables, fields). "train" is the job's name.

def indexed_job():
    return [(f"train-{i}", [f"train-{i}.train.default.svc.cluster.local", f"train-{i}.train"], {"JOB_COMPLETION_INDEX": i}, {})
            for i in range(document("indexed-job.yaml", "Job")["spec"]["completions"])]


def job_set():
    replicated = document("jobset.yaml", "JobSet")["spec"]["replicatedJobs"][0]
    pods = []
    for job in range(replicated["replicas"]):
        for index in range(replicated["template"]["spec"]["completions"]):
            host = f"train-{replicated['name']}-{job}-{index}"
            labels = {"jobset-name": "train", "replicatedjob-name": replicated["name"], "replicatedjob-replicas": replicated["replicas"],
                      "job-index": job, "job-global-index": job, "restart-attempt": 0}
            pods.append((host, [f"{host}.train.default.svc.cluster.local", f"{host}.train"], {"JOB_COMPLETION_INDEX": index},
                         {f"metadata.labels['jobset.sigs.k8s.io/{key}']": value for key, value in labels.items()}))
    return pods


def train_job():
    trainer = document("trainjob.yaml", "TrainJob")["spec"]["trainer"]
    return [(f"train-node-0-{i}", [f"train-node-0-{i}.train.default.svc.cluster.local", f"train-node-0-{i}.train"],
             {"JOB_COMPLETION_INDEX": i, "PET_NNODES": trainer["numNodes"], "PET_NPROC_PER_NODE": trainer["numProcPerNode"], "PET_NODE_RANK": i,
              "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": 29400}, {}) for i in range(trainer["numNodes"])]


def pytorch_job():
    spec = document("pytorchjob.yaml", "PyTorchJob")["spec"]
    workers = spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
    common = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": 23456, "WORLD_SIZE": (workers + 1) * int(spec["nprocPerNode"]),
              "PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": 23456, "PET_NNODES": workers + 1,
              "PET_NPROC_PER_NODE": spec["nprocPerNode"]}
    return [(host, [], {**common, "RANK": rank, "PET_NODE_RANK": rank}, {})
            for rank, host in enumerate(["train-master-0", *(f"train-worker-{i}" for i in range(workers))])]


def leader_worker_set():
    size = document("leaderworkerset.yaml", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["size"]
    return [(host, [f"{host}.train.default.svc.cluster.local", f"{host}.train.default"],
             {"LWS_LEADER_ADDRESS": "train-0.train.default", "LWS_GROUP_SIZE": size, "LWS_WORKER_INDEX": i}, {})
            for i, host in enumerate(["train-0", *(f"train-0-{i}" for i in range(1, size))])]


def volcano_job():
    replicas = document("volcano.yaml", "Job")["spec"]["tasks"][0]["replicas"]
    hosts = [f"train-worker-{i}" for i in range(replicas)]
    return [(host, [f"{host}.train.default.svc.cluster.local", f"{host}.train"],
             {"VC_TASK_INDEX": i, "VK_TASK_INDEX": i, "VC_WORKER_HOSTS": ",".join(f"{one}.train" for one in hosts), "VC_WORKER_NUM": replicas}, {})
            for i, host in enumerate(hosts)]


def volcano_job_with_plan():
    replicas = document("volcano-job.yaml", "Job")["spec"]["tasks"][0]["replicas"]
    hosts = [f"train-worker-{i}" for i in range(replicas)]
    return [(host, [f"{host}.train.default.svc.cluster.local", f"{host}.train"], {"VC_TASK_INDEX": i, "VK_TASK_INDEX": i},
             {"metadata.annotations['volcano.sh/job-name']": "train", "metadata.annotations['volcano.sh/task-spec']": "worker",
              "status.hostIP": f"10.0.0.{i}"}) for i, host in enumerate(hosts)]


# A job that is as small as one can be: all ranks meet in the store, and each writes where it may.
MEET = """
import json, os, sys, time
sys.path.insert(0, "/workspace/lib")
import tcpstore
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = tcpstore.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ.get("STORE", "2.x"))
store.set(f"rank/{rank}", b"here")
store.wait([f"rank/{other}" for other in range(world)], 240)
written = []
for folder in ("/tmp", "/dev/shm", "/user/cluster-info/profiling", "/", "/workspace"):
    try:
        with open(os.path.join(folder, f"of-rank-{rank}"), "w"):
            written.append(folder)
    except OSError:
        pass
with open(f"/tmp/rank.{rank}~", "w") as file:
    json.dump({"world": world, "group": int(os.environ["GROUP_RANK"]), "user": os.getuid(), "written": written}, file)
os.rename(f"/tmp/rank.{rank}~", f"/tmp/rank.{rank}")
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
"""
PROBE = f"""
import sys, urllib.request
print(urllib.request.urlopen("http://" + sys.argv[1] + ":9603/healthz", timeout={deadlines.HANG_S}).status)
"""
# As the container's securityContext has it: another user, no capability, and a root that cannot be written.
CONFINED = ("mount -o bind,remount,ro /; cd /workspace; exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all "
            '--bounding-set=-all -- "$@"')
WRITABLE = ["/dev/shm", "/user/cluster-info/profiling", "/tmp"]


def pod_environment(container, fields):
    """Of the container: literal values with the variables above them, the secret, and fields by downward API."""
    result = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            result[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            result[entry["name"]] = "of the secret"
        else:
            result[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: str(result[name[1]]), entry["value"])
    return result


def lay_out_image(folder, first):
    """What a pod needs, where its user can read it: the clone may be closed to others. `first`: the folder of the first pod."""
    files = [("taskd", harness.TASKD), ("taskd", harness.LIBRARY),
             *(("lib", os.path.join(stubs.REPOSITORY, "tests", "lib", name)) for name in ("tcpstore.py", "deadlines.py"))]
    for below, source in files:
        target = os.path.join(folder, below, os.path.basename(source))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if folder == first:
            shutil.copy(source, target)
        else:
            os.link(os.path.join(first, below, os.path.basename(source)), target)
    with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
        file.write(MEET)


def make_pods(make_rig, of_nodes, private=()):  # noqa: F811
    """A rig whose nodes are pods with the image and their volumes, those of `private` too."""
    rig = make_rig([host for host, *_ in of_nodes], aliases={host: names for host, names, *_ in of_nodes},
                   private=["/workspace", *private, *WRITABLE])  # /tmp hides the others' folders
    for node in rig.nodes:
        lay_out_image(node.private["/workspace"], rig.nodes[0].private["/workspace"])
        for path in WRITABLE:  # fsGroup
            os.chown(node.private[path], 1000, 1000)
    return rig


def start_pods(rig, of_nodes, container, command=None, **more):
    """The container's command in each pod, or another one, with the variables of the manifest, of the controller and `more`."""
    started = []
    for node, (_, _, variables, fields) in zip(rig.nodes, of_nodes):
        known = {"status.podIP": node.address, "spec.nodeName": f"worker-{node.address}", **fields}
        given = {"PATH": "/workspace/taskd:/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": "/",
                 "PYTHONDONTWRITEBYTECODE": 1, **pod_environment(container, known), **variables, **more}
        started.append(rig.run(node, ["sh", "-ec", CONFINED, "sh", *(command or container["command"])], given))
    return started


def require_one_world(rig, started, nodes_by_rank, size):
    """Waits until all ranks have met, `nodes_by_rank[group]` being the index of the node that is to have those."""
    ranks = {}

    def all_met():
        for process in started:
            process.require_alive()
        for node in rig.nodes:
            for path in glob.glob(os.path.join(node.private["/tmp"], "rank.*[0-9]")):
                with open(path, encoding="utf-8") as file:
                    ranks[int(path.rpartition(".")[2])] = (node.index, json.load(file))
        return len(ranks) == size
    harness.wait_until(all_met, f"{size} ranks have met", timeout_s=240)
    assert sorted(ranks) == list(range(size))
    for rank, (node, told) in ranks.items():
        group = rank * len(rig.nodes) // size
        assert told == {"world": size, "group": group, "user": 1000, "written": ["/tmp", "/dev/shm", "/user/cluster-info/profiling"]}
        assert node == nodes_by_rank[group]


def go_on(rig):
    for node in rig.nodes:
        with open(os.path.join(node.private["/tmp"], "go"), "w", encoding="utf-8"):
            pass


def wait_healthy(rig, node):
    """The kubelet's probe, from the pod's own address."""
    harness.wait_until(lambda: rig.finish(node, [harness.PYTHON, "-c", PROBE, node.address]).stdout == "200\n",
                       f"{node.name} answers at /healthz")


@pytest.mark.root("network namespaces")
@pytest.mark.parametrize("name, pods, where", [
    ("indexed-job.yaml", indexed_job, "under Kubernetes Indexed Job default/train: 4 nodes, node rank by JOB_COMPLETION_INDEX, master train-0.train:29500"),
    ("jobset.yaml", job_set, "under Kubernetes JobSet default/train: 4 nodes, node rank by JOBSET_JOB_GLOBAL_INDEX, master train-node-0-0.train:29500"),
    ("trainjob.yaml", train_job, None),
    ("pytorchjob.yaml", pytorch_job, None),
    ("leaderworkerset.yaml", leader_worker_set,
     "under LeaderWorkerSet group default/train-0: 4 nodes, node rank by LWS_WORKER_INDEX, master train-0.train.default:29500"),
    ("volcano.yaml", volcano_job, "under Volcano job default/train: 4 nodes, node rank by VC_TASK_INDEX, master train-worker-0.train:29500")])
def test_the_command_trains_one_world(make_rig, name, pods, where):  # noqa: F811
    _, container = pod(document(name, JOBS[name]))
    of_nodes = pods()
    rig = make_pods(make_rig, of_nodes)
    started = start_pods(rig, of_nodes, container)
    require_one_world(rig, started, range(4), 32)
    for node in rig.nodes:
        wait_healthy(rig, node)
    if where:
        assert where in started[0].log()
    for process in started:  # node 0 has manager and proxy, and one of them has the address
        assert "has ended" not in process.log()
    go_on(rig)
    if "sleep infinity" in container["command"][-1]:
        harness.wait_until(lambda: all(b"infinity" in command_line(process.pid) for process in started), "every pod waits")
    else:
        assert [process.wait() for process in started] == [0] * len(started)


NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no PyTorch")
NO_REDIRECTS = ["-r", "9:1", "-t", "9:1"]  # without them PyTorch 1.13 fails in Python 3.11

# What volcano-job.yaml leaves to the user, as it says what it has to take.
TRAIN_IN_ORDER = """
exec /usr/bin/python3 -m torch.distributed.launch --use_env -r 9:1 -t 9:1 --nnodes "$MA_NUM_HOSTS" --nproc_per_node "$MA_NUM_GPUS" \\
  --node_rank "$RANK_AFTER_ACC" --master_addr "${MA_VJ_NAME}-${MA_TASK_NAME}-${MA_MASTER_INDEX}.${MA_VJ_NAME}" --master_port 29500 train.py
"""


@NEEDS_TORCH
@pytest.mark.timeout(400)  # PyTorch is imported in every pod, on few CPUs
@pytest.mark.root("network namespaces")
def test_the_command_trains_one_world_in_the_planned_order(make_rig, volcano):  # noqa: F811
    _, container = pod(volcano)
    of_nodes = volcano_job_with_plan()
    rig = make_pods(make_rig, of_nodes, ["/user/config"])
    table = {"status": "completed", "version": "1.0", "server_count": "6", "server_list": [
        {"server_id": f"10.0.0.{i}", "device": [{"device_id": str(d), "device_ip": f"11.{d}.0.{i}", "rank_id": str(8 * i + d)}
                                                for d in range(8)]} for i in range(6)]}
    # Every other node is below the same switch.
    tors = {"version": "1.0", "tor_count": 2, "server_list": [
        {"tor_id": tor, "tor_ip": f"10.9.0.{tor}", "server": [{"server_ip": f"10.0.0.{i}", "npu_count": 8, "slice_id": i // 2}
                                                             for i in range(6) if i % 2 == tor]} for tor in (0, 1)]}
    for node in rig.nodes:
        for file_name, content in (("jobstart_hccl.json", table), ("ranktable_tor.json", tors)):
            with open(os.path.join(node.private["/user/config"], file_name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        with open(os.path.join(node.private["/workspace"], "train.sh"), "w", encoding="utf-8") as file:
            file.write(TRAIN_IN_ORDER)
    started = start_pods(rig, of_nodes, container, STORE="1.x", GLOO_SOCKET_IFNAME="eth0")
    require_one_world(rig, started, [0, 2, 4, 1, 3, 5], 48)
    wait_healthy(rig, rig.nodes[0])

    def proxies():
        status = rig.finish(rig.nodes[3], [harness.TASKD, "status", "--json", "--manager", "train-worker-0.train:9601"],
                            {"TASKD_TOKEN": "of the secret"})
        assert status.returncode == 0, status.stderr
        return sorted(node["node"] for node in json.loads(status.stdout)["nodes"])
    harness.wait_until(lambda: proxies() == list(range(6)), "each pod's proxy is there")
    go_on(rig)
    assert [process.wait(timeout_s=120) for process in started] == [0] * len(started), started[0].log()


@NEEDS_TORCH
@pytest.mark.timeout(400)  # PyTorch is imported in every pod, on few CPUs
@pytest.mark.root("network namespaces")
@pytest.mark.parametrize("name, pods, launcher", [
    ("trainjob.yaml", train_job, ["-m", "torch.distributed.run"]),
    # With MindCluster's line in torch's run.py.
    ("pytorchjob.yaml", pytorch_job, ["-c", "import taskd.python.adaptor.patch, torch.distributed.run as run; run.main()"])])
def test_torchrun_itself_trains_one_world(make_rig, name, pods, launcher):  # noqa: F811
    _, container = pod(document(name, JOBS[name]))
    of_nodes = pods()
    rig = make_pods(make_rig, of_nodes)
    for node in rig.nodes:
        shutil.copytree(harness.PYTHON_PACKAGE, os.path.join(node.private["/workspace"], "packages"))
    started = start_pods(rig, of_nodes, container, [harness.PYTHON, *launcher, *NO_REDIRECTS, "train.py"], STORE="1.x",
                         PYTHONPATH="/workspace/packages")
    require_one_world(rig, started, range(4), 32)
    for node in rig.nodes:
        assert bool(glob.glob(os.path.join(node.private["/tmp"], "taskd-1000", "*", "proxy.sock"))) == ("patch" in launcher[1])
    go_on(rig)
    assert [process.wait(timeout_s=120) for process in started] == [0] * len(started), started[0].log()


def command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
