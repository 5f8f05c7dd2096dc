"""`taskd route`, as a start script calls it: every format, every refusal, waits, files."""
import base64
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess

import deadlines
import harness
import pytest

# Six nodes, every other one below the same ToR: 0, 2, 4 and 1, 3, 5.
TOR_OF = ["a", "b", "a", "b", "a", "b"]
CSV = "node,level1\n" + "".join(f"10.0.0.{i},{tor}\n" for i, tor in enumerate(TOR_OF))
PLANNED = [0, 2, 4, 1, 3, 5]
FILES = {"RANK_AFTER_ACC", "MASTER_INDEX", "jobstart_routeplan.json"}


def table_10(nodes=6, devices=2):
    return {"status": "completed", "version": "1.0", "server_count": str(nodes), "server_list": [
        {"server_id": f"10.0.0.{i}", "pod_name": f"job-worker-{i}", "host_ip": f"172.16.0.{i}",
         "container_ip": f"192.168.0.{i}", "device": [
             {"device_id": str(d), "device_ip": f"11.{d}.0.{i}", "rank_id": str(i * devices + d)} for d in range(devices)]}
        for i in range(nodes)]}


def table_20(tors=TOR_OF):
    return {"version": "2.0", "status": "completed", "rank_count": 2 * len(tors), "rank_list": [
        {"rank_id": 2 * i + d, "local_id": d, "device_id": d, "level_list": [
            {"net_layer": 0, "net_instance_id": tor}, {"net_layer": 1, "net_instance_id": "spine"}]}
        for i, tor in enumerate(tors) for d in range(2)]}


def tor_list(status="completed"):
    return {"status": status, "version": "1.0", "server_count": "6", "server_list": [
        {"server_id": f"10.0.0.{i}", "device": [{"device_id": str(d), "tor_ip": tor, "tor_port": "1"} for d in range(2)]}
        for i, tor in enumerate(TOR_OF)]}


def tor_info():
    return {"version": "1.0", "tor_count": 3, "server_list": [
        {"tor_id": k, "tor_ip": tor, "server": [{"server_ip": f"10.0.0.{i}", "npu_count": 8, "slice_id": i // 2}
                                                for i in range(6) if TOR_OF[i] == tor]} for k, tor in enumerate("ab")]}


IBNET = "".join(
    f'Switch 8 "S-{tor}" # "tor {tor}" base port 0 lid 1 lmc 0\n' + "".join(
        f'[{i + 1}] "H-{i}"[1](1) # "10.0.0.{i} HCA-1" lid 1 4xEDR\n' for i in range(6) if TOR_OF[i] == tor)
    + f'[8] "S-spine"[{1 if tor == "a" else 2}] # "spine" lid 1 4xEDR\n\n' for tor in "ab") + (
    'Switch 8 "S-spine" # "spine" base port 0 lid 1 lmc 0\n[1] "S-a"[8] # "tor a" lid 1 4xEDR\n'
    '[2] "S-b"[8] # "tor b" lid 1 4xEDR\n\n') + "".join(
    f'Ca 1 "H-{i}" # "10.0.0.{i} HCA-1"\n[1](1) "S-{tor}"[{i + 1}] # lid 1 lmc 0 "tor {tor}" lid 1 4xEDR\n\n'
    for i, tor in enumerate(TOR_OF))


def hypernodes():
    def member(kind, name):
        return {"type": kind, "selector": {"exactMatch": {"name": name}}}
    return {"items": [
        {"metadata": {"name": tor}, "spec": {"tier": 1, "members": [
            member("Node", f"10.0.0.{i}") for i in range(6) if TOR_OF[i] == tor]}} for tor in "ab"] + [
        {"metadata": {"name": "top"}, "spec": {"tier": 2, "members": [member("HyperNode", tor) for tor in "ab"]}}]}


SLURM = ("# two racks\nSwitchName=a Nodes=10.0.0.[0,2,4] LinkSpeed=1\nswitchname=b NODES=10.0.0.[1,3,5]\n"
         "SwitchName=top Switches=[a-b]\n")
SLURM = SLURM.replace("[a-b]", "a,b")

FORMATS = {
    "csv": CSV,
    "tor-list": json.dumps(tor_list()),
    "tor-list packed": base64.b64encode(gzip.compress(json.dumps(tor_list()).encode())).decode(),
    "tor-node-cm": json.dumps(tor_info()),
    "tor-node-cm map": json.dumps({"kind": "ConfigMap", "data": {"tor_info": json.dumps(tor_info())}}),
    "slurm": SLURM,
    "ibnetdiscover": IBNET,
    "hypernode": json.dumps(hypernodes()),
    "ranktable2": json.dumps(table_20()),
}


class Stage:
    def __init__(self, folder):
        self.folder = folder
        self.table = folder / "hccl.json"
        self.topology = folder / "topology"
        self.out = folder / "out"
        self.out.mkdir()
        self.table.write_text(json.dumps(table_10()))
        self.topology.write_text(CSV)

    def command(self, *flags):
        flags = [str(flag) for flag in flags]
        line = [harness.TASKD, "route", "--rank-table", str(self.table), "--topology", str(self.topology), "--out",
                str(self.out), *flags]
        return line if "--wait-s" in flags else line + ["--wait-s", "0"]

    def run(self, *flags, **options):
        return deadlines.run(self.command(*flags), capture_output=True, timeout_s=60, env=harness.clean_environment(),
                             **options)

    def plan(self, *flags):
        """The report of a run that has to succeed."""
        result = self.run("--json", *flags)
        assert (result.returncode, result.stderr) == (0, b""), result
        lines = result.stdout.decode().splitlines()
        assert len(lines) == 1
        return json.loads(lines[0])

    def start(self, *flags):
        return subprocess.Popen(self.command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=harness.clean_environment())

    def names(self):
        return {entry.name for entry in self.out.iterdir()}

    def written(self):
        return json.loads((self.out / "jobstart_routeplan.json").read_text())

    def check_failure(self, result, *words):
        """Exit 1: one line, the failure as JSON, and no file."""
        assert result.returncode == 1, result
        lines = result.stderr.decode().splitlines()
        assert len(lines) == 1 and all(word in lines[0] for word in words), (words, lines)
        report = json.loads(result.stdout)
        assert report["status"] == "failed" and all(word in report["reason"] for word in words)
        assert self.names() <= {"kept"}

    def check_usage(self, result, *words):
        """Exit 2: one line, nothing else."""
        assert (result.returncode, result.stdout) == (2, b""), result
        lines = result.stderr.decode().splitlines()
        assert len(lines) == 1 and all(word in lines[0] for word in words), (words, lines)
        assert not (self.out / "jobstart_routeplan.json").exists()


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def order(report):
    return [entry["old_rank"] for entry in report["mapping"]]


def test_plan(stage):
    report = stage.plan()
    assert report["status"] == "planned" and order(report) == PLANNED
    assert {key: report[key] for key in ("nodes", "tors", "moved", "unknown", "ignored", "master_index")} == {
        "nodes": 6, "tors": 2, "moved": 4, "unknown": [], "ignored": 0, "master_index": 0}
    assert report["cost"] == {"before": {"cross_tor_flows": 6, "max_link_flows": 3, "total_hops": 12},
                              "after": {"cross_tor_flows": 2, "max_link_flows": 1, "total_hops": 4},
                              "bound": {"cross_tor_flows": 2, "max_link_flows": 1, "total_hops": 4}}
    names = "".join(f"10.0.0.{i}\n" for i in PLANNED)
    assert report["digest"] == hashlib.sha256(names.encode()).hexdigest()
    assert report["mapping"][1] == {"node": "10.0.0.2", "pod_index": 2, "old_rank": 2, "new_rank": 1}
    assert stage.names() == {"jobstart_routeplan.json"}
    expected = table_10()
    expected["server_list"] = [expected["server_list"][i] for i in PLANNED]
    for rank, server in enumerate(expected["server_list"]):
        for d, device in enumerate(server["device"]):
            device["rank_id"] = str(2 * rank + d)
    assert stage.written() == expected


@pytest.mark.parametrize("name", FORMATS)
def test_formats(stage, name):
    stage.topology.write_text(FORMATS[name])
    told = stage.plan("--format", name.split()[0])
    guessed = stage.plan()
    assert order(told) == PLANNED and told == guessed
    stage.topology.write_text(CSV)
    for field in ("digest", "mapping", "moved"):
        assert stage.plan()[field] == told[field]


def test_rank_table_20(stage):
    stage.table.write_text(json.dumps(table_20()))
    stage.topology.write_text(json.dumps(table_20()))
    report = stage.plan("--self", "node3")
    assert order(report) == PLANNED and report["mapping"][1]["node"] == "node2"
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "4"
    ranks = stage.written()["rank_list"]
    assert [rank["rank_id"] for rank in ranks] == list(range(12))
    assert [rank["level_list"][0]["net_instance_id"] for rank in ranks] == ["a"] * 6 + ["b"] * 6


@pytest.mark.parametrize("name", ["10.0.0.3", "job-worker-3", "172.16.0.3", "192.168.0.3"])
def test_self(stage, name):
    stage.plan("--self", name)
    assert stage.names() == FILES
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "4"
    assert (stage.out / "MASTER_INDEX").read_text().strip() == "0"


@pytest.mark.parametrize("name", ["10.0.0.9", "10.0.0.", ""])
def test_unknown_self(stage, name):
    stage.check_usage(stage.run("--json", "--self", name), "--self", name)
    assert stage.names() == set()


def test_pod_index(stage):
    table = table_10()
    for i, server in enumerate(table["server_list"]):
        server["pod_name"] = f"job-worker-{10 - i}"
    stage.table.write_text(json.dumps(table))
    report = stage.plan("--self", "10.0.0.0", "--rank-mapping")
    assert report["master_index"] == 10 and (stage.out / "MASTER_INDEX").read_text().strip() == "10"
    assert report["rank_mapping"] == "0-10,1-8,2-6,3-9,4-7,5-5"


def test_second_run_changes_nothing(stage):
    first = stage.plan("--self", "10.0.0.3")
    stage.table.write_bytes((stage.out / "jobstart_routeplan.json").read_bytes())
    second = stage.plan("--self", "10.0.0.3")
    assert (second["status"], second["moved"], second["digest"]) == ("identity", 0, first["digest"])
    assert (stage.out / "jobstart_routeplan.json").read_bytes() == stage.table.read_bytes()
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "4"


def test_input_in_place(stage):
    """The table of the last plan as input, in the folder that is written to."""
    stage.plan()
    stage.table = stage.out / "jobstart_routeplan.json"
    assert stage.plan()["status"] == "identity"


def test_order_of_the_input_does_not_matter(stage):
    expected = stage.plan()
    for seed in range(5):
        shuffled = random.Random(seed)
        table = table_10()
        shuffled.shuffle(table["server_list"])
        stage.table.write_text(json.dumps(table))
        lines = CSV.splitlines()[1:]
        shuffled.shuffle(lines)
        stage.topology.write_text("\n".join(["# shuffled", "node,level1", *lines]))
        assert stage.plan() == expected


def test_one_tor_and_optimal_order(stage):
    stage.topology.write_text("node,level1\n" + "".join(f"10.0.0.{i},a\n" for i in range(6)))
    report = stage.plan("--self", "10.0.0.5")
    assert (report["status"], report["moved"]) == ("identity", 0) and order(report) == list(range(6))
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "5"
    # Contiguous around the end: optimal, and so left alone.
    stage.topology.write_text("node,level1\n" + "".join(f"10.0.0.{i},{tor}\n" for i, tor in enumerate("abbbaa")))
    assert stage.plan()["status"] == "identity"


def test_fewer_than_3_nodes(stage):
    stage.table.write_text(json.dumps(table_10(2)))
    report = stage.plan("--self", "10.0.0.1")
    assert report["status"] == "skipped" and "nodes<3" in report["reason"]
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "1" and stage.written() == table_10(2)


def test_unknown_and_ignored_nodes(stage):
    stage.topology.write_text("".join(line + "\n" for line in CSV.splitlines() if "10.0.0.2," not in line) + "x,a\ny,c\n")
    report = stage.plan()
    assert (report["unknown"], report["ignored"], order(report)) == (["10.0.0.2"], 2, [0, 4, 1, 3, 5, 2])
    report = stage.plan("--unknown", "fail", "--self", "10.0.0.2")
    assert report["status"] == "skipped" and "10.0.0.2" in report["reason"] and order(report) == list(range(6))
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "2"
    stage.topology.write_text("".join(line + "\n" for line in CSV.splitlines() if "10.0.0.0," not in line))
    assert order(stage.plan()) == [0, 1, 3, 5, 2, 4]


def test_text(stage):
    result = stage.run()
    text = result.stdout.decode()
    assert result.returncode == 0 and text.startswith("planned: ")
    for words in ("4 moved", "ring", "double binary tree", "halving-doubling"):
        assert words in text, text
    stage.table.write_bytes((stage.out / "jobstart_routeplan.json").read_bytes())
    assert "no gain" in stage.run().stdout.decode()


def test_hostfile_and_rankfile(stage):
    stage.plan("--hostfile", stage.folder / "hosts", "--rankfile", stage.folder / "ranks")
    assert (stage.folder / "hosts").read_text() == "".join(f"job-worker-{i} slots=2\n" for i in PLANNED)
    assert (stage.folder / "ranks").read_text().splitlines()[2] == "rank 2=job-worker-2 slot=0"


def test_unknown_fields_stay_byte_for_byte(stage):
    head = '{ "comment": "größe, \\/ \\t",\t"status":"completed","version":"1.0",  "server_list" : [\n'

    def server(i, rank):
        return (f' {{"x":[1.50e+1, {{"a":"\\u00e9 \\"x\\""}}],"server_id":"10.0.0.{i}",\n  "device": ['
                f'{{"device_id":"1","rank_id" :  "{2 * rank + 1}","device_ip":"11.1.0.{i}"}} ,'
                f'{{"device_ip":"11.0.0.{i}","device_id":"0","rank_id":"{2 * rank}","y": null}}],"z":-0}}')

    def whole(order_of_nodes):
        return head + " ,\n".join(server(i, rank) for rank, i in enumerate(order_of_nodes)) + '\n],"last":{} }\n'
    stage.table.write_text(whole(range(6)))
    stage.plan()
    assert (stage.out / "jobstart_routeplan.json").read_text() == whole(PLANNED)


def test_names_that_need_care(stage):
    names = ['quote"d', "two words", "größe-表", "back\\slash", "comma,", "plain"]
    table = table_10()
    topology = tor_list()
    for server, place, name in zip(table["server_list"], topology["server_list"], names):
        server["server_id"] = place["server_id"] = name
    stage.table.write_text(json.dumps(table, ensure_ascii=False))
    stage.topology.write_text(json.dumps(topology))
    report = stage.plan("--self", names[3])
    assert [entry["node"] for entry in report["mapping"]] == [names[i] for i in PLANNED]
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "4"
    digest = hashlib.sha256("".join(names[i] + "\n" for i in PLANNED).encode()).hexdigest()
    assert report["digest"] == digest
    stage.topology.write_text(CSV)
    assert stage.plan()["unknown"] == names


@pytest.mark.parametrize("content, word", [
    ("node,level1\n10.0.0.0,a\n10.0.0.0,b\n", "10.0.0.0"),
    ("10.0.0.0,a\n10.0.0.1,b\n", ""),
    ("node,level1\n10.0.0.0,a,b\n", "10.0.0.0"),
    ("node,level1,level2\n10.0.0.0,tor7,x\n10.0.0.1,tor7,y\n", "tor7"),
    ("SwitchName=s1 Nodes=n[0-1]\nSwitchName=s1 Nodes=n2\n", "s1"),
    ("SwitchName=s1 Nodes=n0 Switches=s2\nSwitchName=s2 Nodes=n1\n", "s1"),
    ("SwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1\nSwitchName=s3 Nodes=n1\n", "s"),
    ("SwitchName=s1 Switches=s9\nSwitchName=s2 Nodes=n1\n", "s9"),
    ("SwitchName=s1 Switches=s3\nSwitchName=s2 Switches=s3\nSwitchName=s3 Nodes=n1\n", "s3"),
    ("SwitchName=s1 Nodes=n[3-1]\n", "n[3-1]"), ("SwitchName=s1 Nodes=n[1-\n", "n[1-"),
    ("SwitchName=s1 Nodes=n[]\n", "n[]"), ("SwitchName=s1 Nodes=n[a-b]\n", "n[a-b]"),
    ("", ""), ("hello\n", ""), ("{}", ""), ("[", ""), ('{"status":"completed","server_list":[{"serv', ""),
    (FORMATS["tor-list packed"][:60], ""), ("<system/>", "")])
def test_broken_topologies(stage, content, word):
    stage.topology.write_text(content)
    stage.check_failure(stage.run("--json", "--self", "10.0.0.0"), word, str(stage.topology))


def test_node_twice_under_two_names(stage):
    stage.topology.write_text(CSV + "job-worker-3,a\n")
    stage.check_failure(stage.run("--json"), "10.0.0.3")


def test_broken_rank_tables(stage):
    table = table_10()
    table["server_list"][1]["device"][0]["rank_id"] = "0"
    stage.table.write_text(json.dumps(table))
    # A complete but wrong table is reported at once, however long --wait-s is.
    stage.check_failure(stage.run("--json", "--wait-s", "300"), "server_list[1].device[0].rank_id", "hccl.json")
    stage.table.write_text(json.dumps({**table_10(), "status": "initializing"}))
    stage.check_failure(stage.run("--json"), "initializing")
    # Incomplete, and not being written any more.
    stage.table.write_text("{")
    stage.check_failure(stage.run("--json", "--wait-s", "300"), "hccl.json")
    stage.table.write_text(json.dumps({k: v for k, v in table_10().items() if k != "version"} | {
        "group_count": "1", "group_list": [{"group_name": "", "instance_count": "1", "device_count": "1", "instance_list": [
            {"pod_name": "p", "server_id": "10.0.0.0", "devices": [{"device_id": "0", "device_ip": "11.0.0.1"}]}]}]}))
    stage.check_failure(stage.run("--json"), "version")
    stage.table.unlink()
    stage.check_failure(stage.run("--json"), "hccl.json")


def test_broken_topology_that_stays_so_ends_the_wait(stage):
    stage.topology.write_text("hello\n")
    stage.check_failure(stage.run("--json", "--wait-s", "300"), str(stage.topology))


def test_missing_topology(stage):
    stage.topology.unlink()
    report = stage.plan("--self", "10.0.0.4")
    assert report["status"] == "skipped" and str(stage.topology) in report["reason"]
    assert order(report) == list(range(6)) and report["tors"] == 0 and stage.names() == FILES
    assert (stage.out / "RANK_AFTER_ACC").read_text().strip() == "4" and stage.written() == table_10()
    stage.topology.write_text(json.dumps(tor_list("initializing")))
    report = stage.plan("--wait-s", "1")
    assert report["status"] == "skipped" and str(stage.topology) in report["reason"]


def finish(process):
    output, errors = deadlines.communicate(process, timeout_s=60)
    assert (process.returncode, errors) == (0, b""), (process.returncode, errors)
    return json.loads(output)


def sleeping(process):
    """Whether it waits between two looks."""
    with open(f"/proc/{process.pid}/syscall", encoding="ascii") as file:
        number = file.read().split()[0]
    return number in ("230", "35", "115")  # clock_nanosleep and nanosleep of x86-64, clock_nanosleep of arm64


def test_waits_for_what_comes_later(stage):
    table = stage.table.read_text()
    stage.table.write_text(json.dumps({**table_10(), "status": "initializing"}))
    stage.topology.unlink()
    (stage.out / "RANK_AFTER_ACC").write_text("9")
    process = stage.start("--json", "--wait-s", "60")
    harness.wait_until(lambda: sleeping(process) and stage.names() == set(), "it waits")
    os.replace(_file(stage, table), stage.table)
    stage.topology.write_text(json.dumps(tor_list("initializing")))
    harness.wait_until(lambda: sleeping(process), "it waits for the topology")
    os.replace(_file(stage, json.dumps(tor_list())), stage.topology)
    assert order(finish(process)) == PLANNED


def _file(stage, content):
    path = stage.folder / "new"
    path.write_text(content)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_wait(stage, number):
    stage.topology.unlink()
    (stage.out / "MASTER_INDEX").write_text("9")
    process = stage.start("--json", "--self", "10.0.0.0", "--wait-s", "300")
    harness.wait_until(lambda: sleeping(process), "it waits")
    process.send_signal(number)
    output, _ = deadlines.communicate(process)
    assert process.returncode == -number and output == b"" and stage.names() == set()


def test_stale_files(stage):
    def make_stale():
        for name in ("RANK_AFTER_ACC", "MASTER_INDEX", "kept"):
            (stage.out / name).write_text("7")
    make_stale()
    stage.plan()
    assert stage.names() == {"jobstart_routeplan.json", "kept"}
    (stage.out / "jobstart_routeplan.json").unlink()
    make_stale()
    stage.topology.write_text("broken")
    stage.check_failure(stage.run("--json"))
    assert stage.names() == {"kept"}
    # Wrong usage: nothing is touched.
    make_stale()
    stage.check_usage(stage.run("--format", "x"), "--format", "x")
    assert stage.names() == {"kept", "RANK_AFTER_ACC", "MASTER_INDEX"}


def test_files_replace_links(stage):
    """Nobody can make us write elsewhere by a link in a folder that all may write to."""
    target = stage.folder / "target"
    target.write_text("mine")
    for name in FILES:
        (stage.out / name).symlink_to(target)
    stage.plan("--self", "10.0.0.0")
    assert target.read_text() == "mine" and not any((stage.out / name).is_symlink() for name in FILES)


def test_folder_is_made(stage):
    stage.out = stage.folder / "new folder"
    stage.plan("--self", "10.0.0.0")
    assert stage.names() == FILES


def test_unwritable_folder(stage):
    good = stage.out
    for out in (stage.table, stage.folder / "no" / "folder", stage.table / "below"):
        stage.out = out
        result = stage.run("--json", "--self", "10.0.0.0", "--wait-s", "300")
        stage.out = good
        stage.check_failure(result, str(out))
    # A name that is taken by a folder: what could be written before it is not left behind either.
    (good / "jobstart_routeplan.json").mkdir()
    result = stage.run("--json", "--self", "10.0.0.0")
    assert result.returncode == 1 and b"jobstart_routeplan.json" in result.stderr
    assert stage.names() == {"jobstart_routeplan.json"}
    (good / "jobstart_routeplan.json").rmdir()
    stage.check_failure(stage.run("--json", "--self", "10.0.0.0", "--hostfile", stage.folder / "no" / "hosts"), "hosts")


@pytest.mark.root("becomes another user")
def test_folder_of_another_user(stage):
    for path in (stage.folder, *stage.folder.parents):
        if not os.stat(path).st_mode & 0o001:
            path.chmod(0o755) if path.is_relative_to("/tmp/pytest-of-root") else pytest.skip(f"{path} is closed")
    stage.out.chmod(0o755)
    # The tree may lie where nobody else may go, in /root for one.
    program = shutil.copy(harness.TASKD, stage.folder)
    command = [program, *stage.command("--json", "--self", "10.0.0.0")[1:]]
    result = deadlines.run(command, capture_output=True, timeout_s=60, env=harness.clean_environment(), user=65534,
                           group=65534, extra_groups=[])
    stage.check_failure(result, str(stage.out), "Permission denied")


@pytest.mark.parametrize("flags, words", [
    (["--unknown", "first"], ["--unknown", "first"]), (["--format", "xml"], ["--format", "xml"]),
    (["--wait-s", "-1"], ["-1"]), (["--wait-s", "nan"], ["nan"]), (["--wait-s", "soon"], ["soon"]),
    (["--bogus"], ["bogus"]),
    (["--agree"], ["--manager"]), (["extra"], ["extra"])])
def test_wrong_usage(stage, flags, words):
    stage.check_usage(stage.run("--json", *flags), *words)


def test_missing_options(stage):
    for option in ("--rank-table", "--topology", "--out"):
        line = stage.command()
        at = line.index(option)
        result = deadlines.run(line[:at] + line[at + 2:], capture_output=True, timeout_s=60,
                               env=harness.clean_environment())
        stage.check_usage(result, option)
    assert deadlines.run([harness.TASKD, "route", "--help"], capture_output=True, timeout_s=60).returncode == 0
