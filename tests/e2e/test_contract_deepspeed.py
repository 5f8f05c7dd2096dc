"""contract: DeepSpeed's hostfile grammar, as its documentation gives it (Getting Started, "Resource Configuration (multi-node)").

DeepSpeed itself is not here: nothing below claims that it was run. Its documented rules: one host a line, "HOST slots=NUMBER"; empty lines and lines
that begin with "#" do not count; anything else, a host that stands there twice, and a file without a host are errors.
"""
import json
import re

import deadlines
import harness
import pytest


def read_hostfile(text):
    """{host: slots} in the file's order; ValueError where the rules are broken."""
    hosts = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)\s+slots=(\d+)", line)
        if not match:
            raise ValueError(f"not HOST slots=NUMBER: {line}")
        if match[1] in hosts:
            raise ValueError(f"{match[1]} is there twice")
        hosts[match[1]] = int(match[2])
    if not hosts:
        raise ValueError("no host")
    return hosts


def dry_run(nodes, index=0):
    return deadlines.run([harness.TASKD, "run", "--mode", "mpi", "--dry-run", "--json", "--", "deepspeed", "train.py"],
                         env=harness.clean_environment(NODE_LIST=nodes, INDEX=index), capture_output=True, text=True, timeout_s=60,
                         check=False)


@pytest.mark.parametrize("text", ["", "# a slots=1\n", "a\n", "a slots=\n", "a slots=x\n", "a slots=-1\n", "a slots=1\na slots=2\n", "a:4\n",
                                  "a slots=1 max_slots=2\n", "slots=4\n"])
def test_contract_the_reader_refuses(text):
    with pytest.raises(ValueError):
        read_hostfile(text)


def test_contract_the_reader_reads():
    assert read_hostfile("# two\nworker-1 slots=4\n\nworker-2   slots=8\n") == {"worker-1": 4, "worker-2": 8}


@pytest.mark.parametrize("nodes", [
    {"train-launcher": 1, "train-worker-0": 1},
    {"10.0.0.1": 8},
    {f"job-{i}.svc.cluster.local": 1 + i % 8 for i in range(64)},
], ids=["launcher and worker", "one address", "64 names"])
def test_contract_hostfile_of_the_mpi_mode(nodes):
    node_list = ",".join(f"{host}:{cards}" for host, cards in nodes.items())
    for index in sorted({0, len(nodes) - 1}):
        done = dry_run(node_list, index)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        (content,) = [file["content"] for file in plan["files"] if file["path"] == "/etc/mpi/hostfile"]
        assert content.endswith("\n")
        assert list(read_hostfile(content).items()) == list(nodes.items()), "every host, in order, with its cards"
        (process,) = plan["processes"]
        assert process["argv"] == ["deepspeed", "train.py"]
        assert process["env"]["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"


@pytest.mark.parametrize("nodes", ["a:1,a:2", "a:1,b", "a:x", "a:0"])
def test_contract_what_the_grammar_cannot_say_is_refused(nodes):
    done = dry_run(nodes)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "NODE_LIST" in done.stderr
