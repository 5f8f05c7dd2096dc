"""Rank tables as HCCL documents them, without HCCL: a valid table of each version, and each rule broken one at a time.

The tables are written from the documents, not from the program. Each mutation names the field that an error has to be
about; errors about any other field are follow-up errors, which are not wanted. Nothing here shows what HCCL itself does.
"""
import copy
import json
import re

import pytest

import deadlines
import harness


def standard():
    return {"status": "completed", "group_count": "1", "group_list": [
        {"group_name": "worker", "device_count": "4", "instance_count": "2", "instance_list": [
            {"pod_name": f"job-worker-{s}", "server_id": f"10.0.0.{s}", "devices": [
                {"device_id": str(d), "device_ip": f"192.168.10{d}.{s}"} for d in range(2)]} for s in (1, 2)]}]}


def table_10(servers=2, devices=4):
    return {"version": "1.0", "status": "completed", "server_count": str(servers), "server_list": [
        {"server_id": f"node_{s}", "host_ip": f"172.16.0.{s}", "device": [
            {"device_id": str(d), "device_ip": f"192.168.{s}.{d + 1}", "rank_id": str(s * devices + d)}
            for d in range(devices)]} for s in range(servers)]}


def table_11():
    return {"version": "1.1", "status": "completed", "collective_id": "192.168.3.3-9527-0001", "node_list": [
        {"node_addr": f"192.168.1.{s}", "ranks": [{"rank_id": str(s * 2 + d), "device_id": str(d), "port": "9527",
                                                   "rank_ip": f"192.168.2.{s}"} for d in range(2)]} for s in range(2)]}


def table_12():
    table = table_10(4, 2)
    table["version"] = "1.2"
    for server in table["server_list"]:
        for device in server["device"]:
            device["super_device_id"] = str(int(device["rank_id"]) % 4)
    table["super_pod_list"] = [{"super_pod_id": str(p), "server_list": [{"server_id": f"node_{s}"} for s in (2 * p, 2 * p + 1)]}
                               for p in range(2)]
    return table


def table_20():
    return {"version": "2.0", "status": "completed", "rank_count": 4, "rank_list": [
        {"rank_id": r, "local_id": r % 2, "device_id": r % 2, "level_list": [
            {"net_layer": 0, "net_instance_id": f"L{r // 2}", "net_type": "TOPO_FILE_DESC", "net_attr": "",
             "rank_addr_list": [{"addr_type": "EID", "addr": "000000000000002000100000dfdf000b", "ports": ["1/1"],
                                 "plane_id": "0"}]},
            {"net_layer": 1, "net_instance_id": "top", "net_type": "CLOS", "net_attr": "", "rank_addr_list": [
                {"addr_type": "IPV4", "addr": f"10.0.0.{r}", "ports": ["1/2"], "plane_id": "1"}]}]} for r in range(4)]}


VALID = {"Standard": (standard, 2, 4), "1.0": (table_10, 2, 8), "1.1": (table_11, 2, 4), "1.2": (table_12, 4, 8),
         "2.0": (table_20, 2, 4)}


def run(path, *flags):
    return deadlines.run([harness.TASKD, "ranktable", "check", str(path), "--json", *flags], capture_output=True,
                         env={"PATH": "/usr/bin:/bin"}, check=False)


@pytest.fixture
def check(tmp_path):
    def run_it(table, *flags):
        path = tmp_path / "hccl.json"
        path.write_text(table if isinstance(table, str) else json.dumps(table))
        result = run(path, *flags)
        assert result.stderr == b"", result.stderr
        report = json.loads(result.stdout)
        assert report["ok"] == (result.returncode == 0) == (report["errors"] == [])
        return result.returncode, report
    return run_it


@pytest.mark.parametrize("version", VALID)
def test_contract_valid(check, version):
    """contract: HCCL's documented shape of each version."""
    make, servers, devices = VALID[version]
    assert check(make()) == (0, {"ok": True, "version": version, "servers": servers, "devices": devices, "errors": []})


REMOVE = object()


def at(table, path):
    """(container, key) of "server_list[1].device[0].rank_id"."""
    keys = [int(key) if key.isdigit() else key for key in re.findall(r"[^.\[\]]+", path)]
    for key in keys[:-1]:
        table = table[key]
    return table, keys[-1]


def mutate(make, changes):
    table = make()
    for path, value in changes.items():
        container, key = at(table, path)
        if value is REMOVE:
            del container[key]
        else:
            container[key] = copy.deepcopy(value)
    return table


def field_of(path):
    return re.sub(r"\[\d+\]$", "", path).rsplit(".", 1)[-1]


DEVICE = "server_list[1].device[1]"
BAD_NUMBERS = ["", "x", "-1", " 1", "1.0", "99999999999999999999"]
# (version, {path: value}, fields that an error may be about)
MUTATIONS = [
    # every version
    *[(version, {"status": status}, {"status"}) for version in VALID for status in ("initializing", "", "Completed", 1, None, REMOVE)],
    *[(version, {"version": value}, {"version"}) for version in VALID if version != "Standard"
      for value in ("1.3", "1.4", "3.0", "", 1.0, "v1", None)],
    # scalars before 2.0 are strings
    *[("1.0", {path: value}, {field_of(path)}) for path, value in (
        ("server_count", 2), (DEVICE + ".device_id", 1), (DEVICE + ".rank_id", 5), (DEVICE + ".device_ip", 5),
        ("server_list[1].server_id", 1), ("server_list[1].host_ip", 1))],
    *[("1.2", {path: value}, {field_of(path)}) for path, value in (
        (DEVICE + ".super_device_id", 3), ("super_pod_list[1].super_pod_id", 1))],
    *[("1.1", {path: value}, {field_of(path)}) for path, value in (
        ("collective_id", 1), ("node_list[1].node_addr", 1), ("node_list[1].ranks[1].rank_id", 3),
        ("node_list[1].ranks[1].port", 9527))],
    *[("Standard", {path: value}, {field_of(path)}) for path, value in (
        ("group_count", 1), ("group_list[0].device_count", 4), ("group_list[0].instance_count", 2),
        ("group_list[0].instance_list[1].devices[1].device_id", 1))],
    # counts
    *[("1.0", {"server_count": value}, {"server_count"}) for value in ("0", "1", "3", *BAD_NUMBERS)],
    *[("Standard", {"group_count": value}, {"group_count"}) for value in ("2", "0", *BAD_NUMBERS)],
    *[("Standard", {"group_list[0].instance_count": value}, {"instance_count"}) for value in ("1", "3", *BAD_NUMBERS)],
    *[("Standard", {"group_list[0].device_count": value}, {"device_count"}) for value in ("3", "8", *BAD_NUMBERS)],
    *[("2.0", {"rank_count": value}, {"rank_count"}) for value in (3, 5, 0, -1, "4", 4.0, None, REMOVE)],
    # lists
    *[("1.0", {"server_list": value}, {"server_list"}) for value in ([], {}, "x", None, REMOVE)],
    *[("1.0", {"server_list[1].device": value}, {"device"}) for value in ([], {}, "x", REMOVE)],
    *[("1.1", {"node_list": value}, {"node_list"}) for value in ([], {}, REMOVE)],
    *[("1.1", {"node_list[0].ranks": value}, {"ranks"}) for value in ([], {}, REMOVE)],
    *[("Standard", {"group_list": value}, {"group_list"}) for value in ([], {}, REMOVE)],
    *[("Standard", {"group_list[0].instance_list": value}, {"instance_list"}) for value in ([], {}, REMOVE)],
    *[("Standard", {"group_list[0].instance_list[0].devices": value}, {"devices"}) for value in ([], {}, REMOVE)],
    *[("2.0", {"rank_list": value}, {"rank_list"}) for value in ([], {}, REMOVE)],
    *[("1.2", {"super_pod_list": value}, {"super_pod_list"}) for value in ([], {}, REMOVE)],
    # servers
    *[(version, {"server_list[1].server_id": value}, {"server_id"}) for version in ("1.0", "1.2")
      for value in ("", "node_0", "n" * 65, None, REMOVE)],
    *[("Standard", {"group_list[0].instance_list[1].server_id": value}, {"server_id"})
      for value in ("", "10.0.0.1", "n" * 65, REMOVE)],
    ("1.0", {"server_list[1].host_ip": REMOVE}, {"host_ip"}),
    # devices
    *[("1.0", {DEVICE + ".device_id": value}, {"device_id"}) for value in ("0", "16", REMOVE, *BAD_NUMBERS)],
    *[("Standard", {"group_list[0].instance_list[1].devices[1].device_id": value}, {"device_id"})
      for value in ("0", "16", REMOVE, *BAD_NUMBERS)],
    *[("2.0", {"rank_list[1].device_id": value}, {"device_id"}) for value in (0, 16, -1, "1", 1.5, None, REMOVE)],
    *[("1.0", {DEVICE + ".rank_id": value}, {"rank_id"}) for value in ("0", "8", "100", REMOVE, *BAD_NUMBERS)],
    *[("1.1", {"node_list[1].ranks[0].rank_id": value}, {"rank_id"}) for value in ("0", "4", REMOVE, *BAD_NUMBERS)],
    *[("2.0", {"rank_list[1].rank_id": value}, {"rank_id"}) for value in (0, 4, -1, "1", 1.5, None, REMOVE)],
    *[("2.0", {"rank_list[1].local_id": value}, {"local_id"}) for value in (-1, "1", 1.5, None, REMOVE)],
    *[("1.0", {DEVICE + ".device_ip": value}, {"device_ip"}) for value in (
        "", "x", "1.2.3", "1.2.3.256", "::g", "192.168.1.1", "fd00::1", "192.168.9.1,192.168.9.2", "192.168.9.1,", ",",
        "192.168.9.1 ", REMOVE)],
    *[("Standard", {"group_list[0].instance_list[1].devices[1].device_ip": value}, {"device_ip"})
      for value in ("x", "192.168.100.1", REMOVE)],
    # ports
    *[("1.0", {DEVICE + ".device_port": value}, {"device_port"}) for value in ("0", "65536", *BAD_NUMBERS)],
    *[("1.0", {"server_list[0].host_port": value}, {"host_port"}) for value in ("0", "65536", *BAD_NUMBERS)],
    *[("1.1", {"node_list[1].ranks[1].port": value}, {"port"}) for value in ("0", "65536", *BAD_NUMBERS)],
    *[("2.0", {"rank_list[1].device_port": value}, {"device_port"}) for value in (0, 65536, "1")],
    # 1.1
    *[("1.1", {"collective_id": value}, {"collective_id"}) for value in ("", "c" * 128, REMOVE)],
    *[("1.1", {"node_list[1].node_addr": value}, {"node_addr"}) for value in ("", REMOVE)],
    *[("1.1", {"node_list[1].ranks[1].rank_ip": value}, {"rank_ip"}) for value in ("", REMOVE)],
    *[("1.1", {"mode": value}, {"mode"}) for value in ("", "udp", "TCP", 1)],
    # 1.2
    *[("1.2", {DEVICE + ".super_device_id": value}, {"super_device_id"}) for value in ("0", REMOVE, *BAD_NUMBERS)],
    *[("1.2", {"super_pod_list[1].super_pod_id": value}, {"super_pod_id"}) for value in ("", "0", REMOVE)],
    *[("1.2", {"super_pod_list[1].server_list": value}, {"server_list", "super_pod_list"}) for value in ([], REMOVE)],
    ("1.2", {"super_pod_list[1].server_list[1].server_id": "node_9"}, {"server_id"}),
    ("1.2", {"super_pod_list[1].server_list[1].server_id": "node_0"}, {"server_id"}),
    ("1.2", {"super_pod_list[1].server_list": [{"server_id": "node_3"}]}, {"server_id", "server_list"}),
    ("1.2", {"super_pod_list[0].server_list": [{"server_id": f"node_{s}"} for s in range(3)],
             "super_pod_list[1].server_list": [{"server_id": "node_3"}],
             "server_list[2].device[0].super_device_id": "8", "server_list[2].device[1].super_device_id": "9"},
     {"server_list"}),
    # 2.0
    ("2.0", {"rank_list[1].level_list": [{"net_layer": i, "net_instance_id": "x"} for i in range(9)]}, {"level_list"}),
    ("2.0", {"rank_list[1].level_list": {}}, {"level_list"}),
]


@pytest.mark.parametrize("version", VALID)
def test_contract_each_rule_broken_alone(check, version):
    """contract: HCCL refuses the table; the report is about the broken field and about no other."""
    wrong, done = [], 0
    for of_version, changes, fields in MUTATIONS:
        if of_version != version:
            continue
        done += 1
        code, report = check(mutate(VALID[version][0], changes))
        about = {field_of(error["path"]) for error in report["errors"]}
        named = all(any(field in error["path"] or field in error["text"] for field in fields) for error in report["errors"])
        shown = {path: "removed" if value is REMOVE else value for path, value in changes.items()}
        if code != 1 or not report["errors"] or not named or len(report["errors"]) > 1:
            wrong.append((shown, fields, code, about, report["errors"][:3]))
    assert done > 20 and wrong == [], json.dumps(wrong, indent=1)


def test_contract_ranks_of_all_servers(check):
    """contract: sorted, the ranks are 0 to N-1; the order in the file is free."""
    table = table_10()
    table["server_list"].reverse()
    assert check(table)[0] == 0
    for server in table["server_list"]:
        for device in server["device"]:
            device["rank_id"] = str(int(device["rank_id"]) + 1)
    code, report = check(table)
    assert code == 1 and all("rank_id" in error["path"] for error in report["errors"])


@pytest.mark.parametrize("make, changes", [
    (table_10, {"server_count": REMOVE}), (table_10, {"server_list[0].host_ip": REMOVE, "server_list[1].host_ip": REMOVE}),
    (lambda: table_10(1), {f"server_list[0].device[{d}].device_ip": REMOVE for d in range(4)}),
    (table_10, {"server_list[0].unknown": {"x": [1, None]}, "more": 1.5}),
    (table_10, {"server_list[0].hardware_type": "800I-A2-32G", "server_list[0].container_ip": "10.1.1.1"}),
    (table_10, {"server_list[0].device[0].device_port": "16666", "server_list[0].host_port": "60001"}),
    (table_10, {f"server_list[{s}].device[{d}].device_ip": f"fd00::{s}:{d + 1}" for s in (0, 1) for d in range(4)}),
    (table_10, {f"server_list[{s}].device[{d}].device_ip": f"10.1.{s}.{d},10.2.{s}.{d}" for s in (0, 1) for d in range(4)}),
    (table_10, {"server_list[0].device[0].device_id": "15"}), (table_11, {"mode": "tcp"}), (table_11, {"mode": "rdma"}),
    (table_11, {"collective_id": "c" * 127}), (table_11, {"collective_id": "c"}),
    (standard, {"group_count": REMOVE, "group_list[0].device_count": REMOVE, "group_list[0].instance_count": REMOVE}),
    (table_12, {"super_pod_list": [{"super_pod_id": "all", "server_list": [{"server_id": f"node_{s}"} for s in range(4)]}],
                **{f"server_list[{s}].device[{d}].super_device_id": str(s * 2 + d) for s in range(4) for d in range(2)},
                **{f"server_list[{s}].device[{d}].device_ip": REMOVE for s in range(4) for d in range(2)}})])
def test_contract_what_is_allowed(check, make, changes):
    """contract: optional fields, either address family, unknown fields."""
    code, report = check(mutate(make, changes))
    assert code == 0, report


@pytest.mark.parametrize("servers, devices, good", [(1, 1, True), (1, 2, True), (1, 3, False), (1, 4, True), (1, 8, True),
                                                    (2, 1, True), (2, 4, True), (3, 8, True), (3, 2, False), (3, 1, False)])
def test_contract_910(check, servers, devices, good):
    """contract: 1, 2, 4 or a multiple of 8 devices on 910 topologies, as many on each server, device_id 0 to 7."""
    assert check(table_10(servers, devices))[0] == 0
    assert (check(table_10(servers, devices), "--chip", "910")[0] == 0) == good


def test_contract_910_more(check):
    """contract: see test_contract_910."""
    code, report = check(mutate(table_10, {"server_list[0].device[0].device_id": "8"}), "--chip", "910")
    assert code == 1 and [error["path"] for error in report["errors"]] == ["server_list[0].device[0].device_id"]
    uneven = table_10()
    moved = uneven["server_list"][1]["device"].pop(0)
    uneven["server_list"][0]["device"].append({**moved, "device_id": "7"})
    assert check(uneven)[0] == 0
    code, report = check(uneven, "--chip", "910")
    assert code == 1 and len(report["errors"]) == 1 and "device" in report["errors"][0]["path"]


@pytest.mark.parametrize("version", VALID)
def test_contract_950(check, version):
    """contract: newer chips reject a table before 2.0."""
    code, report = check(VALID[version][0](), "--chip", "950")
    assert code == (version != "2.0") and [error["path"] for error in report["errors"]] == ["version"] * code


def test_contract_hostile_input(tmp_path):
    """contract: a table comes from elsewhere, so reading it ends soon whatever is in it."""
    path = tmp_path / "hccl.json"
    deep = b'{"version":"1.0","status":"completed","server_list":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    many = json.dumps({"version": "1.0", "status": "completed", "server_list": [{}] * 200_000}).encode()
    good = json.dumps(table_10()).encode()
    cases = {"deep": deep, "deep objects": b'{"a":' * 200_000, "cut": good[:-5], "two": good + good, "empty": b"",
             "utf-8": good.replace(b"node_0", b"node_\xff"), "zero": good.replace(b"node_0", b"node_\0"),
             "twice": good.replace(b'"status"', b'"version":"1.0","status"'),
             "utf-16": json.dumps(table_10()).encode("utf-16"), "nan": good.replace(b'"2"', b"NaN"),
             "escape": good.replace(b"node_0", b"\\x41"), "huge number": good.replace(b'"2"', b"1" * 1_000_000)}
    for name, content in cases.items():
        path.write_bytes(content)
        result = run(path)
        if result.returncode == 1:
            assert json.loads(result.stdout)["errors"], name
            continue
        assert (result.returncode, result.stdout) == (2, b""), name
        assert result.stderr.count(b"\n") == 1 and len(result.stderr) < 1000, (name, result.stderr[:2000])
    for name, content in (("many", many), ("long", good.replace(b"node_0", b"n" * 20_000_000))):
        path.write_bytes(content)
        result = run(path)
        assert result.returncode in (1, 2) and len(result.stdout) + len(result.stderr) < 200_000, name
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    assert run(path).returncode == 2
