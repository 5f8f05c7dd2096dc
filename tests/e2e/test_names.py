"""How the program resolves names: hosts file, resolv.conf, DNS; each in a network and an /etc of its own."""
import json
import os
import subprocess
import sys

import pytest

import deadlines
from harness import BUILD, TASKD, clean_environment
from namespaces import missing_privilege
from ports import free_port

NAME_SERVER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib", "name_server.py")
# Two launchers of a job; the second one knows the first by its name. Then a manager, asked by its name.
JOIN = """
"$1" run --nnodes 2 --node-rank 0 --master-addr localhost --master-port $3 --no-python /bin/true & first=$!
"$1" run --nnodes 2 --node-rank 1 --master-addr "$2" --master-port $3 --no-python /bin/true && wait $first
"""
ASK = """
"$1" manager --job a/b --listen "$2:$3" --http "" & manager=$!
answered=1
for i in $(seq 100); do "$1" status --manager "$2:$3" 2>&1 && answered=0 && break; sleep 0.1; done
kill $manager; wait $manager
exit $answered
"""

# A job of one node whose endpoint is the machine's own name.
OWN = """
unshare --uts sh -c 'hostname "$2" && exec "$1" run --nnodes 1 --rdzv-backend c10d --rdzv-endpoint "$2:$3" --no-python \\
    sh -c "echo master is \\$MASTER_ADDR"' sh "$1" "$2" "$3"
"""


@pytest.fixture
def names():
    """names(script, name, ...): what `script` printed, and that it succeeded, where `name` is to be resolved."""
    reason = missing_privilege()
    if reason:
        pytest.skip(reason)

    def run(script, name, hosts="127.0.0.1 localhost\n::1 localhost\n", resolv="nameserver 127.0.0.53\n",
            server="127.0.0.53", zone=None, after_s=0):
        setting = json.dumps({"hosts": hosts, "resolv": resolv, "server": server, "zone": zone or {}, "after_s": after_s})
        done = deadlines.run([sys.executable, NAME_SERVER, setting, "sh", "-c", script, "sh", TASKD, name, str(free_port())],
                             env=clean_environment(TASKD_TOKEN="secret", TASKD_LOG_LEVEL="info"), capture_output=True,
                             text=True, timeout_s=100, check=False)
        print(done.stdout, done.stderr)
        assert done.returncode == 0
        return done.stdout + done.stderr
    return run


@pytest.mark.root("a network of its own")
@pytest.mark.parametrize("script", [JOIN, ASK], ids=["join", "ask"])
@pytest.mark.parametrize("name, setting", [
    ("in-hosts", {"hosts": "127.0.0.1 localhost\n127.0.0.1 in-hosts\n"}),
    ("in-hosts", {"hosts": "127.0.0.1 localhost\n127.0.0.1 in-hosts\n", "resolv": None}),
    ("localhost", {"resolv": None}),
    ("job-0.job.ns.svc.cluster.local", {"zone": {"job-0.job.ns.svc.cluster.local": "127.0.0.1"}}),
    # As Kubernetes writes it: a short name goes through the search list first.
    ("job-0.job", {"resolv": "search ns.svc.cluster.local svc.cluster.local\nnameserver 127.0.0.53\noptions ndots:5\n",
                   "zone": {"job-0.job.ns.svc.cluster.local": "127.0.0.1"}}),
    ("only-six.test", {"zone": {"only-six.test": "::1"}}),
    ("only-six.test", {"resolv": "nameserver ::1\n", "server": "::1", "zone": {"only-six.test": "::1"}}),
], ids=["hosts", "hosts-no-resolv", "localhost", "dns", "search", "ipv6", "ipv6-server"])
def test_resolves(names, script, name, setting):
    names(script, name, **setting)


@pytest.mark.root("a network of its own")
@pytest.mark.parametrize("script", [JOIN, ASK], ids=["join", "ask"])
def test_the_first_dns_server_is_gone(names, script):
    names(script, "second.test", resolv="nameserver 127.0.0.99\nnameserver 127.0.0.53\noptions timeout:1\n",
          zone={"second.test": "127.0.0.1"})


@pytest.mark.root("a network of its own")
def test_a_name_that_appears_later(names):
    names(JOIN, "late.test", zone={"late.test": "127.0.0.1"}, after_s=5)


@pytest.mark.root("a network of its own")
@pytest.mark.parametrize("hosts, master", [
    ("127.0.0.1 localhost\n", "127.0.0.1"), ("127.0.0.1 localhost\n192.0.2.77 own-name\n", "127.0.0.1"),
    ("127.0.0.1 localhost own-name\n", "own-name")], ids=["unknown", "elsewhere", "here"])
def test_own_name_that_ranks_cannot_reach(names, hosts, master):
    said = names(OWN, "own-name", hosts=hosts)
    assert f"master is {master}\n" in said
    assert ("own-name does not resolve to this machine" in said) == (master != "own-name")


def test_the_static_program_needs_no_library():
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        if "TASKD_STATIC:BOOL=ON" not in cache.read():
            pytest.skip("this build's program is not static")
    headers = subprocess.run(["readelf", "--wide", "--program-headers", "--dynamic", TASKD], capture_output=True, text=True,
                             check=True).stdout
    assert "INTERP" not in headers and "(NEEDED)" not in headers
    assert "(FLAGS_1)" in headers and "PIE" in headers
