"""Completion and man pages, which the build makes of what `taskd --help --json` prints."""
import glob
import json
import os
import re
import shutil
import subprocess

import pytest

import conftest

SHARE = os.path.join(conftest.BUILD, "share")
BASH = os.path.join(SHARE, "bash-completion", "completions", "taskd")
FISH = os.path.join(SHARE, "fish", "vendor_completions.d", "taskd.fish")
ZSH = os.path.join(SHARE, "zsh", "site-functions", "_taskd")
TASKD = os.path.join(conftest.BUILD, "bin", "taskd")
PAGES = sorted(glob.glob(os.path.join(SHARE, "man", "man1", "*.1")))

pytestmark = pytest.mark.skipif(not PAGES, reason="completion and man pages are not built")


def listed():
    return json.loads(subprocess.run([TASKD, "--help", "--json"], check=True, capture_output=True, text=True).stdout)


def needs(program):
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")


def in_bash(line, file=BASH):
    """What bash offers at the end of this line."""
    words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith((" ", "=")) else [])  # as bash splits it
    script = ('source "$0" || exit; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
              'function=$(complete -p "${1##*/}") && function=${function##*-F } && function=${function%% *} || exit\n'
              '"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "--norc", "-c", script, file, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("line, offered", [
    ("taskd st", ["status", "store"]),
    ("taskd --v", ["--version"]),
    ("taskd rdma ", ["env", "check"]),
    ("taskd rdma check --he", ["--help"]),
    ("taskd status --wat", ["--watch"]),
    ("taskd run --nnod", ["--nnodes"]),
    ("taskd run --nnodes 2 --hang-a", ["--hang-action"]),
    ("taskd run --nnodes=2 --hang-a", ["--hang-action"]),
    ("taskd run --hang-action ", ["report", "restart", "stop"]),
    ("taskd run --hang_action r", ["report", "restart"]),
    ("taskd run --hang-action=st", ["stop"]),
    ("taskd run --hang-action=", ["report", "restart", "stop"]),
    ("taskd run --mode as", ["ascend"]),
    ("torch_npu_run --rdzv-backend p", ["parallel"]),
    ("/opt/bin/taskd run --stand", ["--standalone"]),
    # The program's own words: bash offers files.
    ("taskd run --nnodes 2 train.py --nnod", []),
    ("taskd run -- train --nnod", []),
])
def test_bash(line, offered):
    assert in_bash(line) == offered


def test_bash_knows_every_command_and_option():
    for command in listed()["commands"]:
        options = {name for option in command["options"] for name in option["names"] if name.startswith("--")}
        assert options <= set(in_bash(f"taskd {command['name']} --")), command["name"]


def test_bash_finds_torch_npu_run():
    assert in_bash("torch_npu_run --stand", os.path.join(os.path.dirname(BASH), "torch_npu_run")) == ["--standalone"]


def test_fish():
    needs("fish")

    def offered(line):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {FISH}; complete -C '{line}'"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return {one.split("\t")[0] for one in done.stdout.splitlines()}

    assert offered("taskd st") == {"status", "store"}
    assert offered("taskd rdma ") == {"env", "check"}
    assert "--nnodes" in offered("taskd run --nn")
    assert offered("taskd run --hang-action ") == {"report", "restart", "stop"}


def test_zsh():
    """In a zsh with a terminal of its own: completion works nowhere else."""
    needs("zsh")
    # zsh completes only once it shows its prompt: until then the terminal itself edits the line.
    script = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; fpath=(${0:h} \$fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=1000; bindkey '^I' list-choices"
zpty -w shell "PROMPT='<re''ady>'"
zpty -r shell line '*<ready>*'
zpty -n -w shell "$1"$'\t'
zpty -n -w shell $'\C-u'
zpty -w shell "echo do''ne"
zpty -r shell line '*done*'
print -r -- $line
"""

    def shown(line):
        with open(ZSH, encoding="utf-8") as file:
            assert "#compdef taskd" in file.readline()
        done = subprocess.run(["zsh", "-f", "-c", script, ZSH, line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "_arguments:" not in done.stdout and "parse error" not in done.stdout, done.stdout
        return done.stdout

    assert re.search(r"status.*store", shown("taskd st"), re.S)
    assert "--nnodes" in shown("taskd run --nn")
    assert re.search(r"report\s+restart\s+stop", shown("taskd run --hang-action "))


def test_there_is_a_page_for_every_command():
    names = ["taskd"] + ["taskd-" + command["name"].replace(" ", "-") for command in listed()["commands"]]
    assert sorted(os.path.basename(page)[:-2] for page in PAGES) == sorted(names)


@pytest.mark.parametrize("page", PAGES, ids=os.path.basename)
def test_page_renders(page):
    needs("man")
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-P", "cat", "-l", page], capture_output=True, text=True, check=False,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "90"})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    command = next((one for one in listed()["commands"] if "taskd-" + one["name"].replace(" ", "-") == os.path.basename(page)[:-2]), None)
    for option in command["options"] if command else []:
        assert option["names"][-1] in done.stdout
