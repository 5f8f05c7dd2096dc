"""Real readers as oracles: Open MPI and MPICH for the hosts that we name to them, ibsim's fabrics and Slurm's for topologies."""
import collections
import json
import os
import pwd
import random
import re
import signal
import socket
import subprocess

import deadlines
import harness
import pytest
from namespaces import make_rig  # noqa: F401

pytestmark = pytest.mark.root("network namespaces, and the tools of who runs a fabric or a scheduler")


# ---- Open MPI and MPICH

# Open MPI puts each ssh into a process group of its own, from both sides; when the child is first, the parent complains.
OPEN_MPI_RACE = re.compile(r"^\[\S+\] plm:rsh: Warning: setpgid\(\d+,\d+\) failed in parent with errno=Permission denied\(13\)\n",
                           re.MULTILINE)
NODES = {"job-worker-0.job": 2, "job-worker-1.job": 1, "job-worker-2.job": 3}


@pytest.fixture
def machines(make_rig):  # noqa: F811
    rig = make_rig(list(NODES))
    rig.start_sshd()
    return rig


def dry_run(rig, environment):
    """The dry run on node 0, where names have addresses."""
    command = [harness.TASKD, "run", "--mode", "mpi", "--dry-run", "--json", "--", "true"]
    done = rig.finish(rig.nodes[0], command, environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ti_one(rig):
    return dry_run(rig, {"NODE_LIST": ",".join(f"{name}:{cards}" for name, cards in NODES.items()), "INDEX": 0})


def check_started(rig, plan, command):
    """`command hostname`, with the variables that the mode gives it, starts as many processes on each node as it has cards."""
    environment = {**plan["processes"][0]["env"], **rig.ssh_environment()}
    for _ in range(3):
        done = rig.finish(rig.nodes[0], [*command, "hostname"], environment, timeout_s=60)
        # MPICH's mpiexec is killed, before it has started anything, where it writes to a helper that ends that moment.
        if done.returncode != -signal.SIGPIPE or done.stdout:
            break
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    assert collections.Counter(done.stdout.split()) == NODES
    assert OPEN_MPI_RACE.sub("", done.stderr) == "", "not a word of complaint about the hosts"


def write_hostfile(rig, content):
    path = os.path.join(rig.folder, "hostfile")
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)
    return path


def test_open_mpi_reads_the_hostfile_of_ti_one(machines):
    """The names have domains, which Open MPI cuts off by default."""
    plan = ti_one(machines)
    files = {file["path"]: file["content"] for file in plan["files"]}
    hostfile = write_hostfile(machines, files["/etc/mpi/hostfile"])
    check_started(machines, plan, ["mpirun.openmpi", "-np", 6, "--hostfile", hostfile])


def test_open_mpi_reads_the_hostfile_of_modelarts(machines, tmp_path):
    plan = dry_run(machines, {"MA_NUM_HOSTS": 3, "MA_NUM_GPUS": 2, "MA_VJ_NAME": "job", "MA_TASK_NAME": "worker", "MA_TASK_INDEX": 0,
                              "MA_HOME": tmp_path})
    content = {file["path"]: file["content"] for file in plan["files"]}[str(tmp_path / "hostfile")]
    hostfile = write_hostfile(machines, content)
    done = machines.finish(machines.nodes[0], ["mpirun.openmpi", "-np", 6, "--hostfile", hostfile, "hostname"],
                           machines.ssh_environment(), timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert collections.Counter(done.stdout.split()) == dict.fromkeys(NODES, 2)


@pytest.mark.parametrize("option", [["mpirun.openmpi", "-np", 6, "-H"], ["mpirun.mpich", "-n", 6, "-hosts"]],
                         ids=["openmpi", "mpich"])
def test_both_read_the_slot_list(machines, option):
    plan = ti_one(machines)
    check_started(machines, plan, [*option, plan["processes"][0]["env"]["NODE_IP_SLOT_LIST"]])


def test_mpich_reads_the_slot_list_as_a_file(machines):
    plan = ti_one(machines)
    hosts = plan["processes"][0]["env"]["NODE_IP_SLOT_LIST"].replace(",", "\n") + "\n"
    check_started(machines, plan, ["mpirun.mpich", "-n", 6, "-f", write_hostfile(machines, hosts)])


# ---- route planning

def rank_table(names):
    """One device each, ranks in this order."""
    return {"version": "1.0", "status": "completed", "server_count": str(len(names)), "server_list": [
        {"server_id": name, "device": [{"device_id": "0", "device_ip": f"192.168.{i >> 8}.{i & 255}", "rank_id": str(i)}]}
        for i, name in enumerate(names)]}


def route(folder, names, topology, topology_format, flags=()):
    """`taskd route` over a job of these nodes: subprocess's result."""
    table = os.path.join(folder, "table.json")
    path = os.path.join(folder, "topology")
    with open(table, "w", encoding="utf-8") as file:
        json.dump(rank_table(names), file)
    with open(path, "w", encoding="utf-8") as file:
        file.write(topology)
    os.makedirs(os.path.join(folder, "out"), exist_ok=True)
    return deadlines.run([harness.TASKD, "route", "--rank-table", table, "--topology", path, "--format", topology_format,
                           "--out", os.path.join(folder, "out"), "--json", *flags],
                         env=harness.clean_environment(), capture_output=True, text=True, timeout_s=60, check=False)


def report(folder, names, topology, topology_format):
    done = route(folder, names, topology, topology_format)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def csv(paths):
    """{node: [leaf switch, ... root]} as our csv."""
    levels = max(map(len, paths.values()))
    header = ",".join(["node", *(f"level{i + 1}" for i in range(levels))])
    return "\n".join([header, *(",".join([node, *path]) for node, path in sorted(paths.items()))]) + "\n"


def shuffled(names):
    names = sorted(names)
    random.Random(7).shuffle(names)
    return names


def check_refused(folder, done, name):
    """Exit 1 or 2, one line on stderr with this name in it, and not a file."""
    assert done.returncode in (1, 2), done
    if done.stdout:
        assert done.returncode == 1 and json.loads(done.stdout)["status"] == "failed"
    assert len(done.stderr.splitlines()) == 1 and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", done.stderr), done.stderr
    assert os.listdir(os.path.join(folder, "out")) == []


SAME = ("status", "digest", "mapping", "moved", "tors", "unknown", "cost")


def check_same_plan(got, wanted):
    assert wanted["status"] == "planned", "the order given must be a bad one, or nothing is proved"
    assert {key: got[key] for key in SAME} == {key: wanted[key] for key in SAME}


# ---- the planned order, as Open MPI takes it

def test_open_mpi_follows_the_plan(make_rig, tmp_path):  # noqa: F811
    """hostfile: accepted, a slot a device. rankfile: the planned ranks, also when another node than the first launches."""
    nodes = ["node0", "node1", "node2", "node3"]
    rig = make_rig(nodes)
    rig.start_sshd()
    topology = csv({"node0": ["even", "root"], "node2": ["even", "root"], "node1": ["odd", "root"], "node3": ["odd", "root"]})
    hostfile, rankfile = str(tmp_path / "hosts"), str(tmp_path / "ranks")
    done = route(str(tmp_path), nodes, topology, "csv", ["--hostfile", hostfile, "--rankfile", rankfile])
    assert done.returncode == 0, done.stderr
    planned = [entry["node"] for entry in json.loads(done.stdout)["mapping"]]
    assert planned == ["node0", "node2", "node1", "node3"]
    show = ["sh", "-c", 'echo "$OMPI_COMM_WORLD_RANK $(hostname)"']
    for launcher, command in ((0, ["--hostfile", hostfile]), (3, ["--hostfile", hostfile, "-rf", rankfile])):
        done = rig.finish(rig.nodes[launcher], ["mpirun.openmpi", "-np", 4, *command, *show], rig.ssh_environment(), timeout_s=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{rank} {node}" for rank, node in enumerate(planned)]


# ---- InfiniBand

def ibsim_network(links, hosts):
    """ibsim's description of a fabric. `links`: [(switch, switch)]; `hosts`: {host: leaf switch}."""
    ends = collections.defaultdict(list)  # node -> [(own port, peer, peer's port)]
    ports = collections.Counter()
    for a, b in [*links, *((leaf, host) for host, leaf in hosts.items())]:
        ports[a] += 1
        ports[b] += 1
        ends[a].append((ports[a], b, ports[b]))
        ends[b].append((ports[b], a, ports[a]))
    blocks = []
    for node in ends:
        kind = 'Hca 1' if node in hosts else f"Switch {max(ports[node], 8)}"
        blocks.append("\n".join([f'{kind} "{node}"', *(f'[{own}] "{peer}"[{port}]' for own, peer, port in ends[node])]))
    return "\n\n".join(blocks) + "\n"


def discover(stage, network, host):
    """What the real ibnetdiscover prints of it."""
    path = os.path.join(stage.folder, "net.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(network)
    simulator = {"IBSIM_SOCKNAME": os.path.basename(stage.folder) + str(os.getpid())}
    # It would exit if the description were broken.
    ibsim = stage._add(harness.Process("ibsim", ["ibsim", "-s", path], harness.clean_environment(**simulator), stage.folder))
    harness.wait_until(lambda: ibsim.require_alive() and "sim>" in ibsim.log(), "ibsim serves")
    listed = subprocess.run(["dpkg", "-L", "libumad2sim0"], capture_output=True, text=True, check=True).stdout
    preload = next(line for line in listed.splitlines() if line.endswith("/libumad2sim.so"))
    found = deadlines.run(["/usr/sbin/ibnetdiscover"], capture_output=True, text=True, check=True,
                          env=harness.clean_environment(LD_PRELOAD=preload, SIM_HOST=host, **simulator))
    assert found.stdout.count("\nCa\t") == network.count("Hca"), "ibnetdiscover did not see every host"
    return found.stdout


TREE_HOSTS = {f"node{i}": f"leaf{i % 4}" for i in range(12)}


def test_ibnetdiscover_of_a_tree(stage):
    above = {"leaf0": "pod0", "leaf1": "pod1", "leaf2": "pod0", "leaf3": "pod1"}
    network = ibsim_network([*above.items(), ("pod0", "core"), ("pod1", "core")], TREE_HOSTS)
    names = shuffled(TREE_HOSTS)
    found = discover(stage, network, "node0")
    wanted = report(stage.folder, names, csv({host: [leaf, above[leaf], "core"] for host, leaf in TREE_HOSTS.items()}), "csv")
    check_same_plan(report(stage.folder, names, found, "ibnetdiscover"), wanted)
    check_same_plan(report(stage.folder, names, found, "auto"), wanted)


def test_ibnetdiscover_of_a_fat_tree(stage):
    """Two spines are no tree: one root stands for what is above the leaves."""
    network = ibsim_network([(f"leaf{i}", spine) for i in range(4) for spine in ("spine0", "spine1")], TREE_HOSTS)
    names = shuffled(TREE_HOSTS)
    wanted = report(stage.folder, names, csv({host: [leaf, "root"] for host, leaf in TREE_HOSTS.items()}), "csv")
    check_same_plan(report(stage.folder, names, discover(stage, network, "node0"), "ibnetdiscover"), wanted)


# ---- Slurm

class Slurm:
    """Slurm's controller for the nodes n0 to n7, without authentication and on loopback only."""

    def __init__(self, stage):
        self.stage = stage
        self.folder = os.path.join(stage.folder, "slurm")
        os.makedirs(os.path.join(self.folder, "state"))
        self.configuration = os.path.join(self.folder, "slurm.conf")
        with open(self.configuration, "w", encoding="utf-8") as file:
            file.write(f"""ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
CommunicationParameters=NoCtldInAddrAny
SlurmctldPort={harness.free_port()}
SlurmdPort=1
SlurmUser={pwd.getpwuid(os.geteuid()).pw_name}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={self.folder}/state
SlurmctldPidFile={self.folder}/pid
ProctrackType=proctrack/linuxproc
SelectType=select/linear
TopologyPlugin=topology/tree
NodeName=n[0-7] NodeAddr=127.0.0.[1-8] CPUs=1
PartitionName=all Nodes=ALL Default=YES
""")
        self.environment = harness.clean_environment(SLURM_CONF=self.configuration)

    def scontrol(self, *arguments):
        return deadlines.run(["scontrol", *arguments], env=self.environment, capture_output=True, text=True, check=False)

    def expand(self, expression):
        """Slurm's list of names, or None where it sees an error."""
        done = self.scontrol("show", "hostnames", expression)
        return done.stdout.split() if done.returncode == 0 and done.stdout and "nvalid" not in done.stderr else None

    def read(self, topology):
        """(text of `scontrol show topology` or None, controller's log) with this topology.conf."""
        with open(os.path.join(self.folder, "topology.conf"), "w", encoding="utf-8") as file:
            file.write(topology)
        controller = self.stage._add(harness.Process(
            "slurmctld", ["/usr/sbin/slurmctld", "-D", "-c", "-f", self.configuration], self.environment, self.folder))
        shown = None

        def answers():
            nonlocal shown
            if "Running as primary" not in controller.log():  # scontrol would try for seconds
                return not controller.alive()
            done = self.scontrol("show", "topology")
            shown = done.stdout if "SwitchName=" in done.stdout else None
            return shown or not controller.alive()
        harness.wait_until(answers, "slurmctld answers or gives up")
        controller.terminate()
        log = controller.log()
        # Only "fatal" means that Slurm refused: a port that was lost to another process would end it too.
        assert shown or "fatal:" in log, log
        return shown, log


@pytest.fixture
def slurm(stage):
    return Slurm(stage)


HOSTLISTS = ["n7", "n[0-7]", "n[01-3]", "n[01-03,7,09]", "n[1,3-5,10]", "a[0-1]b[2-3]", "x,y[1-2],z", "n[8-11]", "n[008-011]",
             "rack1-n[1-2],rack2-n[1-2]", "n[5]", "n[1-1]"]


@pytest.mark.parametrize("expression", HOSTLISTS)
def test_hostlists(slurm, expression):
    names = slurm.expand(expression)
    assert names, "Slurm does not read it: this case proves nothing"
    rest = ["other1", "other2", "other3"]  # fewer than three nodes are not planned
    topology = f"SwitchName=a Nodes={expression}\nSwitchName=b Nodes={','.join(rest)}\nSwitchName=c Switches=a,b\n"
    got = report(slurm.folder, names + rest, topology, "slurm")
    assert got["unknown"] == [], "names that Slurm has and we do not"
    assert got["ignored"] == 0, "names that we have and Slurm does not"


@pytest.mark.parametrize("expression, slurm_too", [
    ("n[3-1]", True), ("n[a-b]", True), ("n[]", True), ("n[1-", False)])
def test_bad_hostlists(slurm, expression, slurm_too):
    if slurm_too:
        assert slurm.expand(expression) is None, "Slurm reads it"
    done = route(slurm.folder, ["n1", "n2", "n3"], f"SwitchName=a Nodes={expression}\nSwitchName=b Nodes=n4,n5\n", "slurm")
    check_refused(slurm.folder, done, expression)


def paths_of(slurm, shown):
    """{node: [leaf, ... root]} from `scontrol show topology`."""
    above, leaf = {}, {}
    for line in shown.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields["Level"] == "0":
            leaf.update(dict.fromkeys(slurm.expand(fields["Nodes"]), fields["SwitchName"]))
        else:
            above.update(dict.fromkeys(slurm.expand(fields["Switches"]), fields["SwitchName"]))
    paths = {}
    for node, switch in leaf.items():
        paths[node] = [switch]
        while paths[node][-1] in above:
            paths[node].append(above[paths[node][-1]])
    return paths


def test_slurm_tree(slurm):
    """Comments, any case, hostlists, children before their parents: the tree that Slurm shows gives the same plan."""
    topology = """# two pods
switchname=core SWITCHES=pod[0-1] LinkSpeed=10
SwitchName=pod0 Switches=leaf[0,2]   # even
SwitchName=pod1 Switches=leaf1,leaf3

SwitchName=leaf0 Nodes=n[0-1]
SwitchName=leaf1 Nodes=n2,n6 LinkSpeed=1
SwitchName=leaf2 Nodes=n[4-5]
SwitchName=leaf3 Nodes=n[3,7]
"""
    shown, log = slurm.read(topology)
    assert shown, log
    paths = paths_of(slurm, shown)
    assert len(paths) == 8 and {len(path) for path in paths.values()} == {3}
    names = shuffled(paths)
    wanted = report(slurm.folder, names, csv(paths), "csv")
    check_same_plan(report(slurm.folder, names, topology, "slurm"), wanted)
    check_same_plan(report(slurm.folder, names, topology, "auto"), wanted)


LEAVES = "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\n"


@pytest.mark.parametrize("topology, name", [
    ("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n[0-7]\n", "a"),
    (LEAVES + "SwitchName=top Switches=a,tor9\n", "tor9"),
    (LEAVES + "SwitchName=a Nodes=n[0-3]\n", "a"),
    (LEAVES + "SwitchName=top Switches=a Nodes=n[4-7]\n", "top"),
], ids=["cycle", "unknown child", "defined twice", "nodes and switches"])
def test_what_slurm_refuses_we_refuse(slurm, topology, name):
    shown, log = slurm.read(topology)
    assert shown is None and "fatal:" in log, "Slurm takes it"
    done = route(slurm.folder, [f"n{i}" for i in range(8)], topology, "slurm")
    check_refused(slurm.folder, done, name)


@pytest.mark.parametrize("topology, unknown, ignored", [
    (LEAVES, [], 0),
    ("SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-6]\nSwitchName=top Switches=a,b\n", ["n7"], 0),
    (LEAVES.replace("n[4-7]", "n[4-9]"), [], 2),
], ids=["forest", "node without switch", "unknown node names"])
def test_what_slurm_only_warns_of(slurm, topology, unknown, ignored):
    shown, log = slurm.read(topology)
    assert shown, log
    got = report(slurm.folder, [f"n{i}" for i in (0, 4, 1, 5, 2, 6, 3, 7)], topology, "slurm")
    assert (got["unknown"], got["ignored"]) == (unknown, ignored)


def test_a_node_on_two_switches(slurm):
    """Slurm warns and goes on with one of them. A plan must not depend on which, so that we refuse it."""
    topology = "SwitchName=a Nodes=n[0-4]\nSwitchName=b Nodes=n[4-7]\nSwitchName=top Switches=a,b\n"
    shown, log = slurm.read(topology)
    assert shown and "Multiple leaf switches contain nodes: n4" in log, log
    done = route(slurm.folder, [f"n{i}" for i in range(8)], topology, "slurm")
    check_refused(slurm.folder, done, "n4")
