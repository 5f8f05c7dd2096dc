"""Untrusted names reach logs and terminals as text, never as commands or as lines of their own."""
import json
import os
import re

import harness
import pytest
from harness import wait_until

FORGED = "2026-01-01T00:00:00.000 error manager: forged"
EVIL = f"e\n{FORGED}\x1b[2J\u009b\u202e"
# What a terminal acts on, but for the line feeds that end lines.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# Runs the program in a UTS namespace whose host name the first argument is.
RENAMED = """#!/usr/bin/python3
import ctypes, os, socket, sys
CLONE_NEWUTS = 0x04000000
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) != 0:
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
socket.sethostname({name!r})
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


@pytest.fixture
def evil_proxy(stage, manager, monkeypatch):
    """A proxy on a host with that name."""
    if os.geteuid() != 0:
        pytest.skip("another host name needs root")
    script = os.path.join(stage.folder, "renamed")
    with open(script, "w", encoding="utf-8") as file:
        file.write(RENAMED.format(name=EVIL, program=harness.TASKD))
    os.chmod(script, 0o755)
    with monkeypatch.context() as patched:
        patched.setattr(harness, "TASKD", script)
        proxy = stage.proxy(manager)
    wait_until(lambda: any(n["host"] == EVIL and n["connected"] for n in manager.status()["nodes"]), "the node is known")
    return proxy


def assert_harmless(text):
    found = OBEYED.search(text)
    assert not found, f"{found[0]!r} in {text[max(0, found.start() - 100):found.end() + 20]!r}"
    assert not [line for line in text.splitlines() if line.startswith(FORGED)], text


def raw(process):
    with open(process.log_path, "rb") as log:
        return log.read().decode()


def test_a_host_name_is_no_line_and_no_command(stage, manager, evil_proxy):
    log = raw(manager)
    assert re.search(r"node 0 connected: e\\n2026.*\\x1b\[2J\\u009b\\u202e ", log), log
    assert_harmless(log)
    assert_harmless(raw(evil_proxy))
    shown = stage.run("status", "--manager", manager.address)
    assert shown.returncode == 0
    assert_harmless(shown.stdout + shown.stderr)
    assert r"(e\n2026" in shown.stdout and r"\x1b[2J" in shown.stdout


def test_json_on_a_terminal_is_harmless_and_says_the_same(stage, manager, evil_proxy):
    shown = stage.run("status", "--manager", manager.address, "--json")
    assert_harmless(shown.stdout)
    assert json.loads(shown.stdout)["nodes"][0]["host"] == EVIL


def test_errors_about_files_and_flags_are_harmless(stage):
    table = os.path.join(stage.folder, "table.json")
    server = {"server_id": EVIL, "host_ip": EVIL, "device": [{"device_id": EVIL, "device_ip": EVIL, "rank_id": EVIL}]}
    with open(table, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "status": EVIL, "server_count": "1", "server_list": [server]}, file)
    for arguments in (["ranktable", "check", table], ["ranktable", "check", table, "--json"],
                      ["status", "--manager", EVIL], ["diagnose", "--from", EVIL], ["trace", "--from", EVIL, "-o", "x"],
                      ["route", "--rank-table", table, "--topology", EVIL, "--out", stage.folder],
                      ["run", "--nnodes", EVIL, "--", "true"], ["run", "--mode", EVIL, "--", "true"]):
        done = stage.run(*arguments)
        assert done.returncode != 0, arguments
        assert_harmless(done.stdout + done.stderr)
