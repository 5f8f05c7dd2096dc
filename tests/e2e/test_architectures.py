"""The program on other processors, under QEMU: what was built for aarch64, and the oldest that each build is for.

aarch64 needs `cmake --preset release-aarch64 && cmake --build --preset release-aarch64`, and is skipped without.
"""
import os
import re
import shutil
import subprocess

import harness
import pytest
from harness import KINDS, wait_until

AARCH64 = os.path.join(harness.stubs.REPOSITORY, "build", "release-aarch64")


def emulate(machine, build, options, folder, monkeypatch):
    """Lets the harness start what is in `build` under QEMU. Ranks need the libraries of their architecture; `taskd` needs none, and
    must not get them: with them QEMU takes the folder they are in for "/", from which TaskD walks to its runtime folder.
    """
    emulator = shutil.which(f"qemu-{machine}-static")
    if emulator is None:
        pytest.skip(f"there is no qemu-{machine}-static (Debian: qemu-user-static)")
    for name, path in (("TASKD", "bin/taskd"), ("RANK_MAIN", "tests/e2e_rank"), ("LIBRARY", "lib/libtaskd.so")):
        if not os.path.exists(os.path.join(build, path)):
            pytest.skip(f"{build}/{path} is not built")
        wrapper = folder / name
        libraries = f"-L {sysroot()}" if name == "RANK_MAIN" else ""
        wrapper.write_text(f'#!/bin/sh\nexec {emulator} {libraries} {options} {build}/{path} "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setattr(harness, name, os.path.join(build, path) if name == "LIBRARY" else str(wrapper))


def sysroot():
    """Where the libraries of aarch64 are, which ranks need."""
    try:
        with open(os.path.join(AARCH64, "CMakeCache.txt"), encoding="utf-8") as cache:
            return re.search("^TASKD_SYSROOT:PATH=(.*)$", cache.read(), re.M)[1]
    except FileNotFoundError:
        return "/"


def test_marks_are_switched_and_written_once_on_aarch64(stage, tmp_path, monkeypatch):
    emulate("aarch64", AARCH64, "", tmp_path, monkeypatch)
    manager = stage.manager()
    proxy = stage.proxy(manager)
    ranks = [stage.rank(rank, proxy, threads=2, rate=200) for rank in range(2)]
    manager.wait_attached(range(2))
    code, answer = manager.switch("all=on")
    assert code == 0, answer
    manager.wait_applied(dict.fromkeys(KINDS, "on"), range(2))
    assert {rank["rank"] for node in manager.status()["nodes"] for rank in node["ranks"]} == {0, 1}

    # A rank that begins now has no marks from before the switch: all of them are to be found.
    late = stage.rank(2, proxy, threads=2, count=500, rate=500)
    late.wait_finished(500)
    for rank in ranks:
        rank.wait_made(max(rank.made()) + 200)
    wait_until(lambda: proxy.require_alive() and all(sum(proxy.counts(rank).values()) > 0 for rank in range(3)),
               "marks of every rank are written")
    for rank in (*ranks, late):
        rank.terminate()
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert late.verify(report) == 1000
    assert manager.terminate() == 0


# Of 2003 and 2012. The third has pages of 64 KiB, as kernels for aarch64 may; QEMU cannot map files there that grow later, so
# no proxy.
@pytest.mark.parametrize("machine, build, options", [("x86_64", harness.BUILD, "-cpu Opteron_G1"), ("aarch64", AARCH64, "-cpu cortex-a53"),
                                                     ("aarch64", AARCH64, "-p 65536")], ids=["x86_64", "aarch64", "64k_pages"])
def test_manager_answers_on_the_oldest_processor(stage, tmp_path, monkeypatch, machine, build, options):
    emulate(machine, build, options, tmp_path, monkeypatch)
    manager = stage.manager()
    assert manager.status()["job"] == harness.JOB
    assert subprocess.run([harness.TASKD, "--version"], check=True, capture_output=True, text=True).stdout.startswith("taskd ")
    assert manager.terminate() == 0
