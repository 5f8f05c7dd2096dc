"""Files that others wrote, small on the disk and large in memory: refused by what they become, before they have become it."""
import base64
import gzip
import json
import os
import sys

import deadlines
import harness
import pytest

MIB = 1 << 20
# A program of 64 MiB of input at most, and itself.
MOST_BYTES = 256 * MIB if not harness.sanitized() else float("inf")  # a sanitizer shadows what is used

RANK_TABLE = {"version": "1.0", "status": "completed", "server_count": "2", "server_list": [
    {"server_id": name, "device": [{"device_id": "0", "device_ip": ip, "rank_id": rank}]}
    for name, ip, rank in (("n0", "10.0.0.1", "0"), ("n1", "10.0.0.2", "1"))]}


def packed(text):
    return base64.b64encode(gzip.compress(text))


def run(folder, *arguments, **environment):
    """Exit code, stderr, and how much memory it took at most."""
    usage = os.path.join(folder, "usage")
    script = ("import os, resource, subprocess, sys\ndone = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL)\n"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=open(sys.argv[1], 'w'))\n"
              "sys.exit(done.returncode)\n")
    done = deadlines.run([sys.executable, "-c", script, usage, harness.TASKD, *arguments], capture_output=True, text=True,
                         env=harness.clean_environment(**environment), timeout_s=60, check=False)
    with open(usage, encoding="ascii") as file:
        return done.returncode, done.stderr, int(file.read())


def route(folder, topology, *flags, **environment):
    for name, content in (("table.json", json.dumps(RANK_TABLE).encode()), ("topology", topology)):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    return run(folder, "route", "--rank-table", os.path.join(folder, "table.json"), "--topology", os.path.join(folder, "topology"), "--out",
               os.path.join(folder, "out"), "--wait-s", "0", *flags, **environment)


TOPOLOGIES = {
    # 76 KiB that became 2.1 GiB.
    "arrays in gzip": lambda: packed(b"[" + b"[]," * 19_000_000 + b"0]"),
    "objects in gzip": lambda: packed(b'{"server_list":[' + b'{"a":[{}]},' * 5_000_000 + b"0]}"),
    "zeros in gzip": lambda: packed(b'{"server_list":"' + bytes([48]) * (500 * MIB) + b'"}'),
    "arrays": lambda: b"[" + b"[]," * 8_000_000 + b"0]",
    "a ConfigMap": lambda: json.dumps({"data": {"tor_info": "[" + "[]," * 8_000_000 + "0]"}}).encode(),
    "a line of Slurm's": lambda: b"SwitchName=a Nodes=n[0-4000000]\n",
}


@pytest.mark.parametrize("what", TOPOLOGIES)
def test_a_topology_that_grows(tmp_path, what):
    code, said, most = route(str(tmp_path), TOPOLOGIES[what]())
    assert code == 2, (code, said)
    assert len(said.splitlines()) == 1 and "topology" in said and "64 MiB" in said and "--max-input-mb" in said, said
    assert most < MOST_BYTES, most // MIB
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize("device", ["{}", "[]", "0"])
def test_a_rank_table_that_grows(tmp_path, device):
    table = json.dumps(RANK_TABLE).replace("[{\"device_id", "[" + (device + ",") * 8_000_000 + "{\"device_id", 1)
    path = tmp_path / "table.json"
    path.write_text(table, encoding="ascii")
    code, said, most = run(str(tmp_path), "ranktable", "check", str(path))
    assert code == 2 and len(said.splitlines()) == 1 and "table.json" in said and "--max-input-mb" in said, (code, said)
    assert most < MOST_BYTES, most // MIB
    mode = run(str(tmp_path), "run", "--mode", "ascend", "--dry-run", "--", "true", RANK_TABLE_FILE=path, MA_NUM_HOSTS="1", DEVICE_NUM="1")
    assert mode[0] == 2 and "--max-input-mb" in mode[1] and mode[2] < MOST_BYTES, mode


def test_the_limit_is_the_operators(tmp_path):
    """By flag or variable, either way."""
    rows = b"node,level1\n" + b"".join(b"n%d,s%d\n" % (i, i % 100) for i in range(20_000))
    assert route(str(tmp_path), rows)[0] == 0
    for flags, environment in ((["--max-input-mb", "1"], {}), ([], {"TASKD_MAX_INPUT_MB": "1"})):
        code, said, _ = route(str(tmp_path), rows, *flags, **environment)
        assert code == 2 and "1 MiB" in said, (code, said)
    arrays = b"[" + b"[]," * 1_000_000 + b"0]"
    assert "--max-input-mb" in route(str(tmp_path), arrays)[1]
    assert "--max-input-mb" not in route(str(tmp_path), arrays, "--max-input-mb", "500")[1], "it is read, and of no known format"
