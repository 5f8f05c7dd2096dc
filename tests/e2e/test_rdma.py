"""`taskd rdma check` and `taskd rdma env`: exact output, exit codes, and what the environment and stdin may hold.

test_ranktable.py has the plain cases; here is what they leave out.
"""
import json
import os

import pytest

import deadlines
import harness

CHANNEL = "[0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via "
VARIABLES = [
    "NCCL_IB_GID_INDEX=3", "NCCL_IB_SL=3", "NCCL_CHECK_DISABLE=1", "NCCL_P2P_DISABLE=0", "NCCL_IB_DISABLE=0",
    "NCCL_LL_THRESHOLD=16384", "NCCL_IB_CUDA_SUPPORT=1", "NCCL_IB_HCA=mlx5_bond", "NCCL_NET_GDR_LEVEL=2",
    "NCCL_IB_QPS_PER_CONNECTION=4", "NCCL_IB_TC=160", "NCCL_PXN_DISABLE=1", "NCCL_IB_TIMEOUT=24", "NCCL_DEBUG=INFO",
    "NCCL_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME=eth0", "TCCL_TOPO_AFFINITY=4"]


def taskd(*arguments, stdin=None, **environment):
    return deadlines.run([harness.TASKD, "rdma", *map(str, arguments)], input=stdin, capture_output=True, timeout_s=60,
                         env={"PATH": "/usr/bin:/bin", **environment}, check=False)


def check(log, *flags):
    result = taskd("check", "-", "--json", *flags, stdin=log)
    assert result.stderr == b"" and result.stdout.count(b"\n") == 1
    return result.returncode, json.loads(result.stdout)


@pytest.mark.parametrize("ways, expected", [
    ([], ("unknown", 0, 0, 0, 0)), (["P2P/IPC", "SHM/direct/direct"], ("unknown", 0, 0, 0, 2)),
    (["NET/IBext/0/GDRDMA", "NET/IB/0(1)/GDRDMA(PCI)", "NET/IBext_v8/0/GDRDMA/Shared"], ("gdrdma", 3, 0, 0, 0)),
    (["NET/IB/0/GDRDMA", "NET/IB/0/Shared", "P2P/CUMEM"], ("rdma", 1, 1, 0, 1)), (["NET/AWS Libfabric/0"], ("rdma", 0, 1, 0, 0)),
    (["NET/Socket/0", "NET/Socket/1/Shared"], ("socket", 0, 0, 2, 0)), (["NET/Socket/0", "P2P/IPC"], ("socket", 0, 0, 1, 1)),
    (["NET/IB/0", "NET/Socket/0"], ("mixed", 0, 1, 1, 0)), (["NET/IB/0/GDRDMA", "NET/Socket/0"], ("mixed", 1, 0, 1, 0))])
def test_report(ways, expected):
    log = "".join(["NCCL INFO Using network IB\n", *(CHANNEL + way + "\n" for way in ways)])
    code, report = check(log.encode())
    assert list(report) == ["verdict", "gdrdma", "rdma", "socket", "intra", "first_offending"]
    assert tuple(report[name] for name in ("verdict", "gdrdma", "rdma", "socket", "intra")) == expected
    assert code == (expected[0] not in ("gdrdma", "rdma"))
    bad = [i for i, way in enumerate(ways) if way.startswith("NET/") and "GDRDMA" not in way]
    assert report["first_offending"] == ({"line": bad[0] + 2, "text": CHANNEL + ways[bad[0]]} if bad else None)


def test_logs_as_they_are():
    gdrdma, socket = (CHANNEL + way for way in ("NET/IB/0/GDRDMA", "NET/Socket/0"))
    assert check(gdrdma.replace("8[0]", "8[8000]").encode())[1]["gdrdma"] == 1  # no newline at the end, old bus ids
    assert check(f"\x1b[31mnode-1:123:456 {gdrdma}\x1b[0m\r\n".encode())[1]["gdrdma"] == 1
    assert check(b"\xff\xfe" + socket.encode() + b"\xff\n")[1]["first_offending"]["line"] == 1
    assert check(b"NCCL INFO NET/Socket : Using [0]eth0\nChannel 00/02 : 0 1\nvia NET/Socket/0\n")[1]["socket"] == 0
    many = (gdrdma + "\n") * 100_000 + socket + "\n"
    code, report = check(many.encode())
    assert (code, report["verdict"], report["gdrdma"], report["first_offending"]["line"]) == (1, "mixed", 100_000, 100_001)
    assert check(b"x" * 20_000_000)[1]["verdict"] == "unknown"


@pytest.fixture
def bond(tmp_path):
    os.makedirs(tmp_path / "class" / "infiniband" / "mlx5_bond_3")
    return {"TASKD_SYSFS": str(tmp_path), "NODE_LIST": "a:8,b:8,[fd00::1]:8"}


def test_the_17_lines(bond):
    result = taskd("env", **bond)
    assert (result.returncode, result.stderr) == (0, b"") and sorted(result.stdout.decode().splitlines()) == sorted(VARIABLES)


@pytest.mark.parametrize("line", VARIABLES)
def test_a_value_of_the_user_stays(bond, line):
    name = line.split("=")[0]
    for value in ("", "a b;c=d'\"", "99"):
        found = taskd("env", **bond, **{name: value}).stdout.decode().splitlines()
        assert sorted(found) == sorted(f"{name}={value}" if one == line else one for one in VARIABLES)


@pytest.mark.parametrize("changes, flags", [
    ({"NODE_LIST": "a:8"}, []), ({"NODE_LIST": "a:8,b:7"}, []), ({"NODE_LIST": "a:16,b:8"}, []), ({"NODE_LIST": ""}, []),
    ({"TASKD_SYSFS": "/nowhere"}, []), ({}, ["--rdma", "off"]), ({"NODE_LIST": "a:8"}, ["--rdma", "auto"])])
def test_conditions_that_are_not_met(bond, changes, flags):
    result = taskd("env", *flags, **{**bond, **changes})
    assert (result.returncode, result.stdout) == (1, b"") and result.stderr.count(b"\n") == 1
    assert len(taskd("env", "--rdma", "on", **{**bond, **changes}).stdout.splitlines()) == 17


def test_other_devices_do_not_count(tmp_path):
    for name in ("mlx5_0", "xmlx5_bond", "mlx5_bon"):
        os.makedirs(tmp_path / "class" / "infiniband" / name)
    assert taskd("env", TASKD_SYSFS=str(tmp_path), NODE_LIST="a:8,b:8").returncode == 1
    os.symlink("/nowhere", tmp_path / "class" / "infiniband" / "mlx5_bond_0")  # in sysfs all of them are links
    assert taskd("env", TASKD_SYSFS=str(tmp_path), NODE_LIST="a:8,b:8").returncode == 0


@pytest.mark.parametrize("nodes", ["a:8,a:8", "a:8,b", "a:x,b:8", "fd00::1:8,b:8"])
def test_a_broken_node_list(bond, nodes):
    result = taskd("env", **{**bond, "NODE_LIST": nodes})
    assert (result.returncode, result.stdout) == (2, b"") and b"NODE_LIST" in result.stderr
