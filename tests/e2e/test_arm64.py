"""The aarch64 build at work: manager, proxy and marking processes of that architecture, under QEMU where this machine is another.

Needs `cmake --preset release-aarch64 && cmake --build --preset release-aarch64`, and is skipped without.
"""
import os
import re
import shutil
import subprocess

import harness
import pytest
from harness import KINDS, wait_until

BUILD = os.path.join(harness.stubs.REPOSITORY, "build", "release-aarch64")
PROGRAMS = {"TASKD": "bin/taskd", "RANK_MAIN": "tests/e2e_rank"}
EMULATOR = shutil.which("qemu-aarch64-static")


@pytest.fixture(params=[4096, 65536], ids=["4k_pages", "64k_pages"])
def arm64(request, tmp_path, monkeypatch):
    """The harness starts what was built for aarch64. Kernels for it have pages of 4 or of 64 KiB."""
    for path in [*PROGRAMS.values(), "lib/libtaskd.so"]:
        if not os.path.exists(os.path.join(BUILD, path)):
            pytest.skip(f"build/release-aarch64/{path} is not built")
    if EMULATOR is None:
        pytest.skip("there is no qemu-aarch64-static (Debian: qemu-user-static)")
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        sysroot = re.search("^TASKD_SYSROOT:PATH=(.*)$", cache.read(), re.M)[1]
    for name, path in PROGRAMS.items():
        wrapper = tmp_path / name
        wrapper.write_text(f"#!/bin/sh\nexec {EMULATOR} -p {request.param} -L {sysroot} {BUILD}/{path} \"$@\"\n")
        wrapper.chmod(0o755)
        monkeypatch.setattr(harness, name, str(wrapper))
    monkeypatch.setattr(harness, "LIBRARY", f"{BUILD}/lib/libtaskd.so")


def test_marks_are_switched_and_written_once(arm64, stage):
    assert "0.1.0" in subprocess.run([harness.TASKD, "--version"], check=True, capture_output=True, text=True).stdout
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
    wait_until(lambda: all(sum(proxy.counts(rank).values()) > 0 for rank in range(3)), "marks of every rank are written")
    for rank in (*ranks, late):
        rank.terminate()
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert late.verify(report) == 1000
    assert manager.terminate() == 0
