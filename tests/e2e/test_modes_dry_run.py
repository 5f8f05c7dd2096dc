"""`taskd run --mode`: what each mode decides, as --dry-run --json prints it, and what it refuses, with and without it.

Nothing here waits for another node: every node is asked alone, with the environment that its platform gives it. What a
plan has to be in each corner is tested beside agent/modes/plans; here it is that the command line shows it.
"""
import json
import os
import socket

import pytest

import deadlines
import harness

# Words and values that a shell would take apart.
HARD = ["python3", "tra in.py", "--name='a b'", '"', "", "$(touch x)", "ü;#"]
MARK = "started"  # what CMD would leave in the current folder


class Node:
    """A node with nothing in its environment but what a test puts there, in a folder of its own."""

    def __init__(self, folder):
        self.folder = str(folder)
        os.makedirs(os.path.join(self.folder, "bin"), exist_ok=True)

    def run(self, mode, environment, *options, command=("touch", MARK), dry=True, timeout_s=60):
        path = os.path.join(self.folder, "bin") + ":/usr/bin:/bin"
        words = [harness.TASKD, "run", *(["--mode", mode] if mode else []), *(["--dry-run", "--json"] if dry else []),
                 *options, *(["--", *command] if command else [])]
        return deadlines.run(words, env={"PATH": path, "TMPDIR": self.folder, **environment}, cwd=self.folder,
                             capture_output=True, timeout_s=timeout_s, check=False)

    def entries(self):
        return sorted(os.path.join(root, name) for root, folders, files in os.walk(self.folder)
                      for name in folders + files)

    def plan(self, mode, environment, *options, **more):
        before = self.entries()
        result = self.run(mode, environment, *options, **more)
        assert result.returncode == 0, result.stderr
        assert self.entries() == before
        plan = json.loads(result.stdout)
        assert set(plan) >= {"mode", "platform", "role", "index", "nodes", "processes", "files", "warnings"}
        assert mode in ("auto", None, plan["mode"])
        return plan

    def refuse(self, words, mode, environment, *options, **more):
        """Exit 2 with one line that has all the words, at once, dry or not; nothing is left behind."""
        before = self.entries()
        for dry in (True, False):
            result = self.run(mode, environment, *options, dry=dry, **more)
            shown = (mode, environment, options, dry, result)
            assert result.returncode == 2, shown
            assert result.stdout == b"", shown
            lines = result.stderr.decode(errors="replace").splitlines()
            assert len(lines) == 1 and lines[0].strip(), shown
            assert len(lines[0]) < 2000, shown
            for word in words:
                assert word in lines[0], (word, shown)
            assert self.entries() == before, shown


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def ti_one(nodes, index, **more):
    return {"NODE_LIST": nodes, "INDEX": str(index), **more}


def model_arts(hosts, index, task="worker", **more):
    return {"MA_NUM_HOSTS": str(hosts), "MA_TASK_INDEX": str(index), "MA_VJ_NAME": "job", "MA_TASK_NAME": task, **more}


def only(plan):
    assert len(plan["processes"]) == 1, plan["processes"]
    return plan["processes"][0]


def has(environment, expected):
    assert {name: environment.get(name) for name in expected} == expected


# ---- torch

@pytest.mark.parametrize("nodes, index, expected", [
    ("10.0.0.1:8", 0, ("10.0.0.1", 1, 8, 8)),
    ("10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", 0, ("10.0.0.1", 3, 6, 1)),
    ("10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", 2, ("10.0.0.1", 3, 6, 3)),
    ("launcher.job.invalid:1,worker.job.invalid:1", 1, ("launcher.job.invalid", 2, 2, 1)),
    ("[fd00::1]:4,[fd00::2]:4", 1, ("fd00::1", 2, 8, 4))])
def test_torch(node, nodes, index, expected):
    plan = node.plan("torch", ti_one(nodes, index), command=HARD)
    address, count, cards, own = expected
    assert (plan["platform"], plan["index"], plan["role"]) == ("ti-one", index, "worker" if index else "master")
    assert [one["cards"] for one in plan["nodes"]] == [int(entry.rsplit(":", 1)[1]) for entry in nodes.split(",")]
    assert [one["name"] for one in plan["nodes"]] == [entry.rsplit(":", 1)[0].strip("[]") for entry in nodes.split(",")]
    assert only(plan)["argv"] == HARD
    has(only(plan)["env"], {"NODE_LIST": nodes, "INDEX": str(index), "MASTER_ADDR": address, "MASTER_PORT": "23456",
                            "WORLD_SIZE": str(count), "RANK": str(index), "GPU_NUM": str(cards),
                            "GPU_NUM_PER_NODE": str(own)})
    assert plan["files"] == []
    assert bool(plan["warnings"]) == (own > 1)


def test_torch_without_a_platform(node):
    plan = node.plan("torch", {})
    assert (plan["platform"], plan["role"], plan["index"], len(plan["nodes"])) == ("none", "master", 0, 1)
    has(only(plan)["env"], {"MASTER_ADDR": "localhost", "MASTER_PORT": "23456", "WORLD_SIZE": "1", "RANK": "0",
                            "GPU_NUM": "1", "GPU_NUM_PER_NODE": "1"})
    tool = os.path.join(node.folder, "bin", "nvidia-smi")
    with open(tool, "w", encoding="utf-8") as script:
        script.write('#!/bin/sh\n[ "$*" = -L ] && printf "GPU 0: x\\nGPU 1: x\\nGPU 2: x\\n"\n')
    os.chmod(tool, 0o755)
    has(only(node.plan("torch", {}))["env"], {"GPU_NUM": "3", "GPU_NUM_PER_NODE": "3"})
    node.refuse(["WORLD_SIZE", "'2'"], "torch", {"WORLD_SIZE": "2"})
    node.refuse(["GPU_NUM", "'8'"], "torch", {"GPU_NUM": "8"})


# ---- mpi, horovod (TI-ONE)

@pytest.mark.parametrize("mode", ["mpi", "horovod"])
@pytest.mark.parametrize("nodes, slots, hostfile", [
    ("10.0.0.2:1,10.0.0.1:2", "10.0.0.2:1,10.0.0.1:2", "10.0.0.2 slots=1\n10.0.0.1 slots=2\n"),
    ("a.invalid:1,b.invalid:2", "a.invalid:1,b.invalid:2", "a.invalid slots=1\nb.invalid slots=2\n"),
    ("10.0.0.9:4", "10.0.0.9:4", "10.0.0.9 slots=4\n")])
def test_mpi(node, mode, nodes, slots, hostfile):
    cards = [int(entry.rsplit(":", 1)[1]) for entry in nodes.split(",")]
    for index, own in enumerate(cards):
        plan = node.plan(mode, ti_one(nodes, index), command=HARD)
        assert (plan["platform"], plan["role"], plan["index"]) == ("ti-one", "worker" if index else "launcher", index)
        assert plan["files"] == [{"path": "/etc/mpi/hostfile", "content": hostfile}]
        if mode == "horovod" and index:
            assert [one["argv"] for one in plan["processes"]] in ([], [["sleep", "infinity"]])
            continue
        assert only(plan)["argv"] == HARD
        has(only(plan)["env"], {"NODE_LIST": nodes, "INDEX": str(index), "GPU_NUM": str(sum(cards)),
                                "GPU_NUM_PER_NODE": str(own), "NODE_IP_SLOT_LIST": slots,
                                "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"})


def test_mpi_keeps_what_agrees(node):
    given = {"OMPI_MCA_orte_default_hostfile": os.path.join(node.folder, "hosts"), "GPU_NUM": "2",
             "NODE_IP_SLOT_LIST": "10.0.0.1:1,10.0.0.2:1"}
    plan = node.plan("mpi", ti_one("10.0.0.1:1,10.0.0.2:1", 0, **given))
    has(only(plan)["env"], given)
    assert [one["path"] for one in plan["files"]] == [given["OMPI_MCA_orte_default_hostfile"]]


# ---- mpi, horovod (ModelArts)

@pytest.mark.parametrize("mode", ["mpi", "horovod"])
def test_modelarts_mpi(node, mode):
    home = os.path.join(node.folder, "home of me")
    rank_variables = {"SHARED_X": "a b;c=d#e", "S3_Y": "'q'\"", "PATH_Z": "p", "VC_WORKER_HOSTS": "h", "SCC_1": "$x",
                      "CREDENTIALS": "ü", "MA_TEXT": "two words"}
    environment = model_arts(2, 0, MA_NUM_GPUS="4", MA_HOME=home, MY_MPI_SLOTS="3", MY_SSHD_PORT="1022",
                             MY_MPI_BTL_TCP_IF="eth7", UNRELATED="1", **rank_variables)
    plan = node.plan(mode, environment, command=HARD)
    assert (plan["platform"], plan["role"], plan["index"]) == ("modelarts", "worker", 0)
    assert plan["nodes"] == [{**plan["nodes"][i], "name": f"job-worker-{i}.job"} for i in (0, 1)]
    argv, passed = only(plan)["argv"], only(plan)["env"]
    assert argv[0].rsplit("/", 1)[-1] == "mpirun" and argv[-len(HARD):] == HARD
    options = argv[1:-len(HARD)]

    def has_words(*words):
        assert any(options[i:i + len(words)] == list(words) for i in range(len(options))), (words, options)
    has_words("-np", "6")
    has_words("-hostfile", home + "/hostfile")
    has_words("-mca", "plm_rsh_args", "-p 1022")
    has_words("-bind-to", "none", "-map-by", "slot")
    for one in ("NCCL_DEBUG=INFO", "NCCL_SOCKET_IFNAME=eth7", "NCCL_SOCKET_FAMILY=AF_INET",
                "HOROVOD_MPI_THREADS_DISABLE=1", "LD_LIBRARY_PATH"):
        has_words("-x", one)
    has_words("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "plm_rsh_no_tree_spawn", "true")
    has(passed, rank_variables)
    for name in rank_variables:
        has_words("-x", name)  # a bare name carries every value
    assert "UNRELATED" not in passed
    files = {one["path"]: one["content"] for one in plan["files"]}
    assert set(files) == {home + "/hostfile", home + "/env_for_user_process"}
    assert files[home + "/hostfile"] == "job-worker-0.job slots=3\njob-worker-1.job slots=3\n"
    tune = files[home + "/env_for_user_process"].splitlines()
    assert all(line.startswith("-x ") for line in tune) and "-x PATH_Z=p" in tune and "-x MA_NUM_HOSTS=2" in tune
    other = node.plan(mode, {**environment, "MA_TASK_INDEX": "1"}, command=HARD)
    assert (other["processes"], other["files"], other["role"], other["index"]) == ([], [], "worker", 1)


def test_modelarts_mpi_defaults(node):
    plan = node.plan("mpi", {"MA_NUM_HOSTS": "2", "VC_TASK_INDEX": "0", "MA_VJ_NAME": "job", "MA_TASK_NAME": "worker",
                             "MA_NUM_GPUS": ""})
    argv = only(plan)["argv"]
    assert argv[argv.index("-np") + 1] == "2" and "-p 36666" in argv and "NCCL_SOCKET_IFNAME=eth0,bond0" in argv
    assert {one["path"] for one in plan["files"]} == {"/home/ma-user/hostfile", "/home/ma-user/env_for_user_process"}


# ---- ps

GOLDEN = ('{"cluster":{"ps":["a:2222","b:2222"],"worker":["c:2222"]},"task":{"type":"ps","index":1},'
          '"environment":"cloud"}')


def test_ps(node):
    for index in range(3):
        plan = node.plan("ps", ti_one("a:0,b:8,c:8", index), "--ps-num", "2", command=HARD)
        assert (plan["platform"], plan["role"], plan["index"]) == ("ti-one", "ps" if index < 2 else "worker", index)
        config = json.loads(only(plan)["env"]["TF_CONFIG"])
        assert config["cluster"] == {"ps": ["a:2222", "b:2222"], "worker": ["c:2222"]}
        assert config["task"] == {"type": plan["role"], "index": index if index < 2 else index - 2}
        assert config["environment"] == "cloud" and list(config) == ["cluster", "task", "environment"]
        assert only(plan)["argv"] == HARD
    plan = node.plan("ps", {"TF_CONFIG": GOLDEN.replace(",", " , ")}, command=HARD)
    assert plan["role"] == "ps" and only(plan)["env"]["TF_CONFIG"] == GOLDEN.replace(",", " , ")
    for kind, index in (("evaluator", 0), ("chief", 0), ("worker", 0)):
        config = json.loads(GOLDEN)
        config["task"] = {"type": kind, "index": index}
        assert node.plan("ps", {"TF_CONFIG": json.dumps(config)})["role"] == kind


# ---- ray

@pytest.mark.parametrize("nodes, head, address", [
    ("10.0.0.1:0,10.0.0.2:1,10.0.0.3:8", "10.0.0.1", "10.0.0.1:6379"),
    ("head-0:0,worker-0:1", "head-0", "head-0:6379"),
    ("[fd00::1]:1,[fd00::2]:1", "fd00::1", "[fd00::1]:6379"),
    ("solo:1", "solo", "solo:6379")])
def test_ray(node, nodes, head, address):
    for index in range(nodes.count(",") + 1):
        plan = node.plan("ray", ti_one(nodes, index), "--num-cpus", "0.7", "--num-gpus=0.2", command=HARD)
        assert (plan["role"], plan["index"], plan["platform"]) == ("worker" if index else "head", index, "ti-one")
        assert len(plan["processes"]) == (1 if index else 2)
        start = plan["processes"][0]
        words = [part for word in start["argv"] for part in (word.split("=", 1) if word.startswith("--") else [word])]
        assert words[:2] == ["ray", "start"]

        def option(name, words=words):
            return words[words.index(name) + 1]
        assert json.loads(option("--resources")) == {f"Rank:{index}": 1}
        assert (option("--num-cpus"), option("--num-gpus")) == ("0", "1")
        if index:
            assert option("--address") == address and "--head" not in words
        else:
            assert "--head" in words and option("--port") == "6379"
            assert plan["processes"][1]["argv"] == HARD
            has(plan["processes"][1]["env"], {"RAY_ADDRESS": address})
        for process in plan["processes"]:
            has(process["env"], {"HEAD_ADDR": head, "HEAD_PORT": "6379", "RANK": str(index), "INDEX": str(index)})
        assert any("0.7" in warning for warning in plan["warnings"])


def test_ray_counts(node):
    plan = node.plan("ray", ti_one("a:1", 0, HEAD_PORT="7000"), "--num-cpus", "2.9", "--num-gpus", "1.5")
    assert [word for word in plan["processes"][0]["argv"] if word.startswith("--num")] == ["--num-cpus=2", "--num-gpus=2"]
    has(plan["processes"][1]["env"], {"HEAD_PORT": "7000", "RAY_ADDRESS": "a:7000"})
    argv = node.plan("ray", ti_one("a:1", 0))["processes"][0]["argv"]
    assert not any(word.startswith("--num") for word in argv)


# ---- ascend

def table_10(servers=2, devices=2):
    return {"version": "1.0", "status": "completed", "server_count": str(servers), "server_list": [
        {"server_id": f"node_{s}", "host_ip": f"172.16.0.{s}", "container_ip": f"10.1.0.{s}", "pod_name": f"pod-{s}",
         "device": [{"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}", "rank_id": str(s * devices + d)}
                    for d in reversed(range(devices))]} for s in range(servers)]}


def put_table(node, table, name="hccl.json"):
    path = os.path.join(node.folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(table, file)
    return path


@pytest.mark.parametrize("own", ["node_1", "172.16.0.1", "10.1.0.1", "pod-1"])
def test_ascend(node, own):
    path = put_table(node, table_10())
    for environment, options in (({}, ["--self", own]), ({"MA_CURRENT_IP": own}, [])):
        plan = node.plan("ascend", {"RANK_TABLE_FILE": path, "MA_NUM_GPUS": "2", **environment}, *options, command=HARD)
        assert (plan["role"], plan["index"], plan["platform"]) == ("worker", 1, "modelarts")
        assert [one["argv"] for one in plan["processes"]] == [HARD] * 2
        for i, process in enumerate(plan["processes"]):
            has(process["env"], {"RANK_TABLE_FILE": path, "ASCEND_DEVICE_ID": str(i), "RANK_ID": str(2 + i),
                                 "RANK_SIZE": "4"})


def test_ascend_versions(node):
    standard = {"status": "completed", "group_count": "1", "group_list": [
        {"group_name": "worker", "device_count": "4", "instance_count": "2", "instance_list": [
            {"pod_name": f"pod-{s}", "server_id": f"10.0.0.{9 - s}", "devices": [
                {"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}"} for d in (6, 4)]} for s in range(2)]}]}
    pods = table_10()
    pods["version"] = "1.2"
    for server in pods["server_list"]:
        for device in server["device"]:
            device["super_device_id"] = device["rank_id"]
    pods["super_pod_list"] = [{"super_pod_id": "0", "server_list": [{"server_id": f"node_{s}"} for s in range(2)]}]
    ranks = {"version": "2.0", "status": "completed", "rank_count": 4, "rank_list": [
        {"rank_id": r, "local_id": r % 2, "device_id": r % 2 * 3, "level_list": []} for r in range(4)]}
    for table, own in ((standard, "pod-1"), (pods, "node_1"), (ranks, "node1")):
        plan = node.plan("ascend", {"RANK_TABLE_FILE": put_table(node, table)}, "--self", own)
        found = [(one["env"]["ASCEND_DEVICE_ID"], one["env"]["RANK_ID"], one["env"]["RANK_SIZE"])
                 for one in plan["processes"]]
        assert found == [("0", "2", "4"), ("1", "3", "4")], table.get("version")


# ---- pytorch-gpu, tensorflow-gpu

def options_of(argv):
    return dict(zip(argv[::2], argv[1::2]))


def test_pytorch_gpu(node):
    one = node.plan("pytorch-gpu", model_arts(1, 0, MASTER_PORT="2345"), command=HARD)
    assert only(one)["argv"] == [*HARD, "--init_method", "tcp://job-worker-0.job:2345"]
    addresses = set()
    for index in range(3):
        plan = node.plan("pytorch-gpu", model_arts(3, index), command=HARD)
        assert (plan["platform"], plan["role"], plan["index"]) == ("modelarts", "worker", index)
        assert only(plan)["argv"][:len(HARD)] == HARD
        added = options_of(only(plan)["argv"][len(HARD):])
        assert set(added) == {"--init_method", "--rank", "--world_size"}
        assert (added["--rank"], added["--world_size"]) == (str(index), "3")
        addresses.add(added["--init_method"])
    assert len(addresses) == 1
    host, port = addresses.pop().removeprefix("tcp://").rsplit(":", 1)
    assert host == "job-worker-0.job" and 1024 <= int(port) <= 65535


@pytest.mark.parametrize("option", ["--rank", "--world_size", "--init_method"])
@pytest.mark.parametrize("form", ["{}", "{}=7"])
def test_pytorch_gpu_keeps_options_of_the_command(node, option, form):
    plan = node.plan("pytorch-gpu", model_arts(2, 1), command=["x", form.format(option), "7"])
    argv = only(plan)["argv"]
    assert argv[:3] == ["x", form.format(option), "7"] and option not in argv[3:] and len(argv) == 7
    assert any(option in warning for warning in plan["warnings"])


def test_tensorflow_gpu(node):
    assert only(node.plan("tensorflow-gpu", model_arts(1, 0), command=HARD))["argv"] == HARD
    lists = set()
    for task in ("ps", "worker"):
        for index in (0, 1):
            plan = node.plan("tensorflow-gpu", model_arts(2, index, task), command=HARD)
            assert (plan["platform"], plan["role"]) == ("modelarts", task)
            assert only(plan)["argv"][:len(HARD)] == HARD
            added = options_of(only(plan)["argv"][len(HARD):])
            assert set(added) == {"--task_index", "--ps_hosts", "--worker_hosts", "--job_name"}
            assert (added["--task_index"], added["--job_name"]) == (str(index), task)
            lists.add((added["--ps_hosts"], added["--worker_hosts"]))
    assert len(lists) == 1
    for role, hosts in zip(("ps", "worker"), lists.pop()):
        names, ports = zip(*(host.rsplit(":", 1) for host in hosts.split(",")))
        assert names == (f"job-{role}-0.job", f"job-{role}-1.job")
        assert len(set(ports)) == 1 and 5000 <= int(ports[0]) <= 10000


@pytest.mark.parametrize("prefix", ["TF_", "VC_"])
def test_tensorflow_gpu_lists(node, prefix):
    environment = model_arts(2, 1, "ps", **{prefix + "PS_HOSTS": "[a:1,b:2]", prefix + "WORKER_HOSTS": "c, d"})
    added = options_of(only(node.plan("tensorflow-gpu", environment, command=["x", "y"]))["argv"][2:])
    assert added["--ps_hosts"] == "a:1,b:2"
    first, second = (host.rsplit(":", 1) for host in added["--worker_hosts"].split(","))
    assert (first[0], second[0]) == ("c", "d") and first[1] == second[1] and 5000 <= int(first[1]) <= 10000


# ---- auto

@pytest.mark.parametrize("environment, command, mode", [
    (ti_one("a:1", 0, NODE_IP_SLOT_LIST="a:1"), "horovodrun", "horovod"), (model_arts(2, 0), "x", "pytorch-gpu"),
    ({"TF_CONFIG": "", "HEAD_ADDR": "", "MA_NUM_HOSTS": ""}, "x", "torch")])
def test_auto(node, environment, command, mode):
    assert node.plan("auto", environment, command=[command])["mode"] == mode


def test_auto_ascend(node):
    environment = {"RANK_TABLE_FILE": put_table(node, table_10()), "MA_CURRENT_IP": "172.16.0.0"}
    assert node.plan("auto", environment)["mode"] == "ascend"


def test_auto_two_signs(node):
    node.refuse(["TF_CONFIG", "HEAD_ADDR"], "auto", ti_one("a:1", 0, TF_CONFIG=GOLDEN, HEAD_ADDR="a"))


# ---- exit 2

LIST = "10.0.0.1:1,10.0.0.2:1"
BAD_LISTS = [("a", "'a'"), ("a:1,b", "'b'"), (":1", "':1'"), ("a:1,:1", "':1'"), ("a:x", "'a:x'"), ("a:-1", "'a:-1'"),
             ("a:", "'a:'"), ("a:1.5", "'a:1.5'"), ("a: 1", "'a: 1'"), ("a:+1", "'a:+1'"), ("a:1,a:1", "'a:1'"),
             ("a:1,b:1,a:2", "'a:2'"), ("fd00::1:1", "fd00::1:1"), ("::1", "::1"), ("a:1,", "entry 2"),
             ("a:1,,b:1", "entry 2"), (",", "entry 1"), ("[::1]", "'[::1]'"), ("[::1]:1,[0::1]:1", "[0::1]:1"),
             ("[x]:1", "'[x]:1'"), ("a:99999999999999999999", "99999999999999999999"), ("a b:1", "'a b:1'"),
             ("-ox:1", "'-ox:1'")]


@pytest.mark.parametrize("mode", ["torch", "mpi", "horovod", "ray", "ps"])
def test_bad_node_list(node, mode):
    options = ["--ps-num", "1"] if mode == "ps" else []
    for text, word in BAD_LISTS:
        node.refuse(["NODE_LIST", word], mode, ti_one(text, 0), *options)
    node.refuse(["NODE_LIST"], mode, ti_one("", 0), *options)
    if mode != "torch":
        node.refuse(["NODE_LIST"], mode, {"INDEX": "0"}, *options)
    if mode in ("torch", "mpi", "horovod"):
        node.refuse(["NODE_LIST", "b:0"], mode, ti_one("a:1,b:0", 0), *options)
        if mode == "torch":
            node.refuse(["MA_NUM_GPUS", "'0'"], mode, model_arts(2, 0, MA_NUM_GPUS="0"))


@pytest.mark.parametrize("mode", ["torch", "mpi", "horovod", "ray", "ps"])
def test_bad_index(node, mode):
    options = ["--ps-num", "1"] if mode == "ps" else []
    for value in ("x", "-1", "2", "1.0", "1 ", "+1", "99999999999999999999"):
        node.refuse(["INDEX", f"'{value}'"], mode, ti_one(LIST, value), *options)
    node.refuse(["INDEX"], mode, ti_one(LIST, ""), *options)
    node.refuse(["INDEX"], mode, {"NODE_LIST": LIST}, *options)


@pytest.mark.parametrize("mode, name, value", [
    ("torch", "WORLD_SIZE", "3"), ("torch", "WORLD_SIZE", "x"), ("torch", "RANK", "1"), ("torch", "RANK", "-0"),
    ("torch", "GPU_NUM", "1"), ("torch", "GPU_NUM_PER_NODE", "2"), ("mpi", "GPU_NUM", "4"), ("horovod", "GPU_NUM", "4"),
    ("mpi", "GPU_NUM_PER_NODE", "0"), ("horovod", "GPU_NUM_PER_NODE", "0"), ("ray", "RANK", "1"),
    *[(mode, name, value) for mode, name in (("torch", "MASTER_PORT"), ("ray", "HEAD_PORT"))
      for value in ("0", "65536", "-1", "x", "80 ", "1.5", "99999999999")],
    ("torch", "MASTER_ADDR", "10.0.0.2"), ("torch", "MASTER_ADDR", "10.9.9.9"), ("ray", "HEAD_ADDR", "10.0.0.2"),
    ("ray", "RAY_ADDRESS", "10.0.0.2:6379"), ("mpi", "NODE_IP_SLOT_LIST", "10.0.0.1:1"),
    ("mpi", "NODE_IP_SLOT_LIST", "10.0.0.1:1,10.0.0.2:9"), ("mpi", "NODE_IP_SLOT_LIST", "10.0.0.2:1,10.0.0.1:1")])
def test_contradictions(node, mode, name, value):
    node.refuse([name, value.strip()], mode, ti_one(LIST, 0, **{name: value}))


@pytest.mark.parametrize("mode", ["mpi", "pytorch-gpu", "tensorflow-gpu", "torch", "ray"])
def test_bad_modelarts(node, mode):
    for value in ("0", "-1", "x", "1.5", " 2"):
        node.refuse(["MA_NUM_HOSTS", f"'{value}'"], mode, model_arts(value, 0))
    for name in ("MA_TASK_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX"):
        for value in ("2", "-1", "x"):
            node.refuse([name, f"'{value}'"], mode, {**model_arts(2, ""), name: value})
    node.refuse(["MA_TASK_INDEX"], mode, model_arts(2, ""))
    node.refuse(["MA_VJ_NAME"], mode, model_arts(2, 0, MA_VJ_NAME=""))
    node.refuse(["MA_NUM_GPUS", "'x'"], mode, model_arts(2, 0, MA_NUM_GPUS="x"))
    if mode == "pytorch-gpu":
        node.refuse(["MASTER_PORT", "'70000'"], mode, model_arts(2, 0, MASTER_PORT="70000"))
    if mode in ("pytorch-gpu", "tensorflow-gpu"):
        node.refuse(["MA_NUM_HOSTS"], mode, {})


@pytest.mark.parametrize("ps, workers", [("a,b", "c"), ("a", "b,c"), ("a,b,c", "d,e"), ("[a,b]", "[c]")])
def test_bad_tensorflow_gpu(node, ps, workers):
    node.refuse(["TF_PS_HOSTS", "TF_WORKER_HOSTS"], "tensorflow-gpu",
                model_arts(2, 0, TF_PS_HOSTS=ps, TF_WORKER_HOSTS=workers))


def bad_tf_configs():
    def config(**changes):
        value = {"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 0}, **changes}
        return json.dumps({name: part for name, part in value.items() if part is not None})

    def cluster(**parts):
        return config(cluster={"ps": ["a:1"], "worker": ["b:1", "c:1"], **parts})
    yield from (("x", "x"), ("[]", "[]"), ("1", "1"), ("{", "{"), ('"a"', "a"), ("null", "null"), ("{}", "cluster"))
    yield from ((config(cluster=None), "cluster"), (config(cluster=[]), "cluster"),
                (config(cluster={"ps": ["b:1"]}), "worker"))
    yield from ((cluster(ps=[]), "ps"), (cluster(worker=[]), "worker"), (cluster(ps="a:1"), "ps"),
                (cluster(worker={}), "worker"), (cluster(chief=[]), "chief"))
    for entry in ("a", "a:", ":1", "a:0", "a:65536", "a:x", "", "a:-1", "::1", "a:1:2"):
        yield cluster(ps=[entry]), entry or "ps"
    yield from ((cluster(ps=[1]), "ps"), (cluster(ps=[None]), "ps"), (cluster(worker=["b:1", "b:1"]), "b:1"),
                (cluster(ps=["b:1"]), "b:1"))
    yield from ((config(task=None), "task"), (config(task=[]), "task"), (config(task={"index": 0}), "type"),
                (config(task={"type": "worker"}), "index"), (config(task={"type": "master", "index": 0}), "master"),
                (config(task={"type": 1, "index": 0}), "type"))
    for index in (2, -1, "2", "-1", "x", 0.0, 1.5, None, True, 99999999999999999999, [0]):
        yield config(task={"type": "worker", "index": index}), "index"
    yield config(task={"type": "ps", "index": 1}), "index"


def test_bad_tf_config(node):
    for text, word in bad_tf_configs():
        node.refuse(["TF_CONFIG", word], "ps", {"TF_CONFIG": text})
        node.refuse(["TF_CONFIG", word], "auto", {"TF_CONFIG": text})
    node.refuse(["NODE_LIST", "TF_CONFIG"], "ps", {"TF_CONFIG": ""})


@pytest.mark.parametrize("value", ["0", "3", "-1", "x", "1.5", ""])
def test_bad_ps_num(node, value):
    node.refuse(["--ps-num", value], "ps", ti_one("a:1,b:1,c:1", 0), "--ps-num", value)
    node.refuse(["--ps-num"], "ps", ti_one("a:1", 0), "--ps-num", "1")


def test_bad_rank_table(node):
    good = put_table(node, table_10())
    node.refuse(["RANK_TABLE_FILE"], "ascend", {"MA_CURRENT_IP": "node_0"})
    node.refuse(["'nobody'"], "ascend", {"RANK_TABLE_FILE": good}, "--self", "nobody")
    node.refuse(["'9.9.9.9'"], "ascend", {"RANK_TABLE_FILE": good, "MA_CURRENT_IP": "9.9.9.9"})
    for count in ("1", "8"):
        node.refuse(["MA_NUM_GPUS", f"'{count}'"], "ascend",
                    {"RANK_TABLE_FILE": good, "MA_CURRENT_IP": "node_0", "MA_NUM_GPUS": count})
    broken = table_10()
    broken["server_list"][1]["device"][0]["rank_id"] = "7"
    node.refuse(["RANK_TABLE_FILE", "rank_id"], "ascend", {"RANK_TABLE_FILE": put_table(node, broken)}, "--self", "node_0")
    node.refuse(["RANK_TABLE_FILE", "version"], "ascend",
                {"RANK_TABLE_FILE": put_table(node, {**table_10(), "version": "1.1", "collective_id": "x", "node_list": [
                    {"node_addr": "a", "ranks": [{"rank_id": "0", "device_id": "0", "rank_ip": "1.1.1.1"}]}]})},
                "--self", "a")
    node.refuse(["RANK_TABLE_FILE", ".json"], "ascend", {"RANK_TABLE_FILE": put_table(node, table_10(), "t.txt")},
                "--self", "node_0")
    # A table that is not there may still come, so only the dry run refuses it at once.
    missing = node.run("ascend", {"RANK_TABLE_FILE": "/nowhere/t.json"}, "--self", "node_0")
    assert (missing.returncode, missing.stdout) == (2, b"") and b"/nowhere/t.json" in missing.stderr


@pytest.mark.parametrize("mode, options, word", [
    ("bogus", [], "bogus"), ("torch", ["--bogus"], "--bogus"), ("torch", ["--wait-s", "x"], "'x'"),
    ("torch", ["--wait-s", "-1"], "-1"), ("torch", ["--wait-s", "nan"], "nan"), ("torch", ["--manager", "a"], "'a'"),
    ("torch", ["--manager", "a:0"], "a:0"), ("torch", ["--rdma", "maybe"], "maybe"), ("ray", ["--num-cpus", "x"], "'x'"),
    ("ray", ["--num-gpus", "-1"], "-1"), ("torch", ["--wait-s"], "--wait-s")])
def test_bad_options(node, mode, options, word):
    node.refuse([word], mode, ti_one("a:1", 0), *options)


def test_no_command(node):
    for mode in ("auto", "torch", "mpi", "horovod", "ray", "ps", "ascend", "pytorch-gpu", "tensorflow-gpu"):
        node.refuse(["CMD"], mode, ti_one("a:1", 0), command=())
        node.refuse(["CMD"], mode, ti_one("a:1", 0), "--", command=())
        shown = node.run(mode, {"NODE_LIST": "broken"}, "--help", command=())
        assert shown.returncode == 0 and b"--ps-num" in shown.stdout and shown.stderr == b""


# ---- size and hostile values

def test_10000_nodes(node):
    names = ",".join(f"n{i:05}:8" for i in range(10_000))  # close to what Linux takes as one variable
    for mode, options in (("torch", []), ("mpi", []), ("horovod", []), ("ray", []), ("ps", ["--ps-num", "5000"])):
        plan = node.plan(mode, ti_one(names, 9_999), *options)
        assert len(plan["nodes"]) == 10_000 and plan["nodes"][9_999]["name"] == "n09999"
        too_long = [one for one in plan["warnings"] if "Linux" in one]
        assert [one.split(":")[0] for one in too_long] == (["TF_CONFIG"] if mode == "ps" else [])
    node.refuse(["NODE_LIST", "entry 10001", "n00000:8"], "torch", ti_one(names + ",n00000:8", 0))
    plan = node.plan("pytorch-gpu", model_arts(10_000, 9_999))
    assert len(plan["nodes"]) == 10_000
    assert node.plan("mpi", model_arts(10_000, 0))["files"][0]["content"].count("\n") == 10_000


@pytest.mark.parametrize("mode, name", [
    ("torch", "NODE_LIST"), ("torch", "INDEX"), ("torch", "WORLD_SIZE"), ("torch", "MASTER_PORT"), ("torch", "MASTER_ADDR"),
    ("mpi", "NODE_IP_SLOT_LIST"), ("ray", "HEAD_PORT"), ("ray", "HEAD_ADDR"), ("ps", "TF_CONFIG"),
    ("pytorch-gpu", "MA_NUM_HOSTS"), ("pytorch-gpu", "MA_VJ_NAME"), ("tensorflow-gpu", "TF_PS_HOSTS"),
    ("ascend", "RANK_TABLE_FILE"), ("mpi", "MY_SSHD_PORT")])
def test_hostile_values(node, mode, name):
    for value in (b"a\nb", b"\n", b"1;2", b"\xff\xfe", b"\x1b[31m", b"x" * 120_000, b"[" * 60_000, b"1\n", b"," * 60_000):
        if name in ("MA_VJ_NAME", "MASTER_ADDR", "HEAD_ADDR") and value == b"\xff\xfe":
            continue  # names are opaque; only the resolver can judge them
        base = model_arts(2, 0) if mode.endswith("-gpu") or name.startswith("MY_") else ti_one(LIST, 0)
        environment = {key.encode(): text.encode() for key, text in base.items()}
        environment.update({b"PATH": b"/usr/bin:/bin", b"TMPDIR": node.folder.encode(), name.encode(): value})
        result = deadlines.run([harness.TASKD, "run", "--mode", mode, "--dry-run", "--json", "--", "touch", MARK],
                               env=environment, cwd=node.folder, capture_output=True, check=False)
        assert result.returncode == 2, (name, value[:20], result.stdout[:200])
        assert result.stdout == b"" and result.stderr.count(b"\n") == 1 and len(result.stderr) < 2000, result.stderr
        assert name.encode() in result.stderr and b"\x1b" not in result.stderr, result.stderr


def test_values_of_the_platform_arrive_as_they_are(node):
    value = "two words;a=b#c'\"$x\nline"
    plan = node.plan("mpi", model_arts(2, 0, MA_VALUE=value))
    assert only(plan)["env"]["MA_VALUE"] == value
    assert any("MA_VALUE" in warning for warning in plan["warnings"])
    for mode in ("pytorch-gpu", "tensorflow-gpu"):
        assert only(node.plan(mode, model_arts(2, 0, MA_VALUE=value)))["env"]["MA_VALUE"] == value


# ---- RDMA

@pytest.mark.parametrize("mode", ["torch", "mpi", "horovod", "ray"])
def test_rdma(node, mode):
    os.makedirs(os.path.join(node.folder, "class", "infiniband", "mlx5_bond_0"))
    base = {"TASKD_SYSFS": node.folder, "NCCL_DEBUG": "WARN"}

    def found(nodes, *options, **more):
        plan = node.plan(mode, ti_one(nodes, 0, **base, **more), *options)
        environments = [process["env"] for process in plan["processes"]]
        names = {name for one in environments for name in one if name.startswith(("NCCL_", "GLOO_", "TCCL_"))}
        assert all(one["NCCL_DEBUG"] == "WARN" and one["NCCL_IB_HCA"] == "mlx5_bond" for one in environments if names)
        return len(names)
    assert found("a:8,b:8") == 17
    assert found("a:8,b:4") == found("a:8") == found("a:8,b:8", "--rdma", "off") == 0
    assert found("a:1", "--rdma", "on") == 17


# ---- what only a real start can find

@pytest.mark.parametrize("mode, name, environment", [
    ("torch", "MASTER_PORT", ti_one("127.0.0.1:1,127.0.0.2:1", 0)), ("ray", "HEAD_PORT", ti_one("127.0.0.1:1,127.0.0.2:1", 0)),
    ("pytorch-gpu", "MASTER_PORT", {"MA_NUM_HOSTS": "1", "MA_TASK_INDEX": "0"})])
def test_a_port_that_somebody_listens_on(node, mode, name, environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        before = node.entries()
        result = node.run(mode, {**environment, name: port}, dry=False)
        assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (2, b"", 1), result
        assert name.encode() in result.stderr and port.encode() in result.stderr and node.entries() == before
        node.plan(mode, {**environment, name: port})


def test_a_rank_table_that_never_comes(node):
    before = node.entries()
    environment = {"RANK_TABLE_FILE": os.path.join(node.folder, "t.json")}
    result = node.run("ascend", environment, "--self", "node_0", "--wait-s", "1", dry=False)
    assert (result.returncode, result.stdout) == (1, b"") and b"t.json" in result.stderr and node.entries() == before
