"""`taskd ranktable check`, `taskd rdma check` and `taskd rdma env`, as a user calls them."""
import copy
import json
import os

import deadlines
import harness
import pytest


def table_10(servers=2, devices=8):
    return {"version": "1.0", "status": "completed", "server_count": str(servers), "server_list": [
        {"server_id": f"node_{s}", "host_ip": f"172.16.0.{100 + s}", "device": [
            {"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}", "rank_id": str(s * devices + d)}
            for d in range(devices)]} for s in range(servers)]}


def table_20(ranks=8):
    return {"version": "2.0", "status": "completed", "rank_count": ranks, "rank_list": [
        {"rank_id": r, "local_id": r % 4, "device_id": r % 4,
         "level_list": [{"net_layer": 0, "net_instance_id": f"L{r // 4}"}]} for r in range(ranks)]}


def taskd(*arguments, stdin=None, environment=None):
    environment = harness.clean_environment(**(environment or {}))
    for name in [name for name in environment if name.startswith(("NCCL_", "GLOO_", "TCCL_"))]:
        del environment[name]
    return deadlines.run([harness.TASKD, *map(str, arguments)], input=stdin, capture_output=True, timeout_s=60,
                         env=environment)


def check_usage_error(result, *words):
    """Exit 2: one line on stderr, nothing on stdout."""
    assert result.returncode == 2, result
    assert result.stdout == b""
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1 and all(word in lines[0] for word in words), lines


@pytest.fixture
def check(tmp_path):
    """check(TABLE, flags): exit code and report."""
    def run(table, *flags):
        path = tmp_path / "hccl.json"
        path.write_text(json.dumps(table))
        result = taskd("ranktable", "check", path, "--json", *flags)
        assert result.stderr == b""
        return result.returncode, json.loads(result.stdout)
    return run


def test_valid_tables(check):
    assert check(table_10()) == (0, {"ok": True, "version": "1.0", "servers": 2, "devices": 16, "errors": []})
    assert check(table_20())[1] == {"ok": True, "version": "2.0", "servers": 2, "devices": 8, "errors": []}


def test_broken_table(check, tmp_path):
    table = table_10()
    table["server_list"][1]["device"][0]["rank_id"] = "3"
    code, report = check(table)
    assert code == 1 and not report["ok"]
    assert [error["path"] for error in report["errors"]] == ["server_list[1].device[0].rank_id"]
    plain = taskd("ranktable", "check", tmp_path / "hccl.json")
    assert plain.returncode == 1 and b"server_list[1].device[0].rank_id" in plain.stdout


def test_chip(check):
    table = copy.deepcopy(table_10(1, 3))
    assert check(table)[0] == 0
    assert check(table, "--chip", "910")[0] == 1
    assert [error["path"] for error in check(table, "--chip", "950")[1]["errors"]] == ["version"]
    assert check(table_20(), "--chip", "950")[0] == 0


def test_not_a_table(tmp_path):
    path = tmp_path / "t.json"
    check_usage_error(taskd("ranktable", "check", path), "t.json")
    for content in (b"", b"{", b"[" * 1_000_000, b'{"a":"\xff"}', b'{"a":1,"a":2}'):
        path.write_bytes(content)
        check_usage_error(taskd("ranktable", "check", path, "--json"), "t.json")
    path.write_text("[]")
    assert taskd("ranktable", "check", path).returncode == 1
    (tmp_path / "t.txt").write_text(json.dumps(table_10()))
    assert taskd("ranktable", "check", tmp_path / "t.txt").returncode == 1


def test_wrong_command_lines(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    check_usage_error(taskd("ranktable", "check", tmp_path / "t.json", "--chip", "911"), "911")
    for arguments in (["ranktable"], ["ranktable", "check"], ["rdma"], ["rdma", "check"], ["rdma", "x"],
                      ["rdma", "env", "--rdma", "x"], ["rdma", "check", tmp_path / "missing"], ["rdma", "check", tmp_path]):
        check_usage_error(taskd(*arguments))
    for arguments in (["ranktable", "--help"], ["ranktable", "check", "--help"], ["rdma", "--help"],
                      ["rdma", "env", "--help"], ["rdma", "check", "--help"]):
        assert taskd(*arguments).returncode == 0


CHANNEL = "[0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via "


@pytest.mark.parametrize("ways, verdict, code", [
    (["NET/IBext/0/GDRDMA", "P2P/IPC"], "gdrdma", 0), (["NET/IB/0/GDRDMA", "NET/IB/1"], "rdma", 0),
    (["NET/Socket/0"], "socket", 1), (["NET/Socket/0", "NET/IB/0/GDRDMA"], "mixed", 1), (["SHM/direct"], "unknown", 1)])
def test_nccl_log(tmp_path, ways, verdict, code):
    log = "".join(CHANNEL + way + "\n" for way in ways)
    (tmp_path / "log").write_text("start\n" + log)
    result = taskd("rdma", "check", tmp_path / "log", "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, report["verdict"]) == (code, verdict)
    offending = [(number, way) for number, way in enumerate(ways, 2) if way.startswith("NET") and "GDRDMA" not in way]
    expected = {"line": offending[0][0], "text": CHANNEL + offending[0][1]} if offending else None
    assert report["first_offending"] == expected
    assert sum(report[kind] for kind in ("gdrdma", "rdma", "socket", "intra")) == len(ways)
    piped = taskd("rdma", "check", "-", stdin=log.encode())
    assert piped.returncode == code and piped.stdout.decode().startswith(verdict)


def test_rdma_environment(tmp_path):
    (tmp_path / "class" / "infiniband" / "mlx5_bond_0").mkdir(parents=True)
    good = {"NODE_LIST": "a:8,[::1]:8", "TASKD_SYSFS": tmp_path}

    def env(*flags, **changes):
        return taskd("rdma", "env", *flags, environment={**good, **changes})
    result = env()
    assert result.returncode == 0
    variables = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert len(variables) == 17 and variables["NCCL_IB_HCA"] == "mlx5_bond" and variables["TCCL_TOPO_AFFINITY"] == "4"
    for changes, word in (({"NODE_LIST": None}, "NODE_LIST"), ({"NODE_LIST": "a:8"}, "1 node"),
                          ({"NODE_LIST": "a:8,b:4"}, "'b'"), ({"TASKD_SYSFS": "/nowhere"}, "mlx5_bond")):
        result = env(**changes)
        assert (result.returncode, result.stdout) == (1, b"") and word in result.stderr.decode(), result
    assert len(env("--rdma", "on", NODE_LIST=None).stdout.splitlines()) == 17
    assert env("--rdma", "off").returncode == 1
    check_usage_error(env(NODE_LIST="a:8,b"), "NODE_LIST", "'b'")


def test_rdma_environment_keeps_what_is_set(tmp_path):
    (tmp_path / "class" / "infiniband" / "mlx5_bond_0").mkdir(parents=True)
    environment = {**os.environ, "NODE_LIST": "a:8,b:8", "TASKD_SYSFS": str(tmp_path), "NCCL_DEBUG": "WARN"}
    result = deadlines.run([harness.TASKD, "rdma", "env"], capture_output=True, timeout_s=60, env=environment)
    assert b"NCCL_DEBUG=WARN\n" in result.stdout
