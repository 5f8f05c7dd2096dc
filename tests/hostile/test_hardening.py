"""What is shipped stands in the way of whoever finds a memory error in it: read back from the files themselves."""
import os
import re
import subprocess

import harness
import pytest

PACKAGE = os.path.join(harness.PYTHON_PACKAGE, "taskd")
SHIPPED = {
    "taskd": harness.TASKD,
    "libtaskd.so": harness.LIBRARY,
    "libnccl-profiler-taskd.so": os.path.join(harness.BUILD, "lib", "libnccl-profiler-taskd.so"),
    "_mstx": os.path.join(PACKAGE, "_mstx.abi3.so"),
    "the package's libtaskd.so": os.path.join(PACKAGE, "python", "cython_api", "libs", "libtaskd.so"),
    "the package's NCCL plugin": os.path.join(PACKAGE, "python", "cython_api", "libs", "libnccl-profiler-taskd.so"),
}
# NCCL's functions that are marked where no profiler plugin speaks, under a version of ours.
NCCL_CALLS = """CommInitRank CommInitRankConfig CommInitRankScalable CommInitAll CommSplit CommShrink CommDestroy CommAbort
    AllReduce AllGather ReduceScatter Broadcast Bcast Reduce AlltoAll Gather Scatter Send Recv
    GroupStart GroupEnd GroupSimulateEnd"""
# C ABI of TaskD contract 6.3, mstx's and NVTX's entries, NCCL's, and ours.
EXPORTED = {
    "libtaskd.so": """
        InitWorker StartMonitorClient DestroyTaskdWorker AtExitAction
        RegisterSwitchCallback RegisterStressTestCallback RegisterBackendCallback
        InitTaskdManager StartTaskdManager InitTaskdProxy DestroyTaskdProxy CreateTaskdLog InitNetwork
        SyncSendMessage AsyncSendMessage ReceiveMessageC FreeCMemory DestroyNetTool SendMessageToBackend
        InitInjectionMstx InitializeInjectionNvtx2 InitializeInjectionNvtxExtension
        mstxGetToolId mstxMarkA mstxRangeStartA mstxRangeEnd
        mstxDomainCreateA mstxDomainDestroy mstxDomainMarkA mstxDomainRangeStartA mstxDomainRangeEnd
        taskd_worker_init taskd_worker_start taskd_worker_destroy taskd_worker_get_stats taskd_enabled_kinds
        taskd_mark taskd_range_start taskd_range_end taskd_domain_create taskd_domain_mark taskd_domain_range_start
        taskd_communication_begin taskd_communication_end taskd_nccl_plugin_speaks
        taskd_core_v1 TASKD_NCCL_CALLS """ + " ".join(f"nccl{call}@TASKD_NCCL_CALLS" for call in NCCL_CALLS.split()),
    "libnccl-profiler-taskd.so": " ".join(f"ncclProfiler_v{n}" for n in range(1, 8)),
    "_mstx": "PyInit__mstx",
}


def read(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=SHIPPED)
def name(request):
    if not os.path.exists(SHIPPED[request.param]):
        pytest.skip(f"{SHIPPED[request.param]} is not built")
    return request.param


def test_relocations_are_read_only_and_the_stack_is_not_code(name):
    dynamic, segments = read(SHIPPED[name], "-d"), read(SHIPPED[name], "-l")
    assert re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic), dynamic
    assert "(TEXTREL)" not in dynamic
    assert "GNU_RELRO" in segments
    stack = re.search(r"GNU_STACK.* (R\w*) +0x", segments)
    assert stack and stack[1] == "RW", segments
    assert not re.search(r"LOAD.* RWE ", segments), segments


def test_the_program_is_position_independent():
    assert re.search(r"Type:\s+DYN", read(harness.TASKD, "-h"))
    assert re.search(r"\(FLAGS_1\).*\bPIE\b", read(harness.TASKD, "-d"))


@pytest.mark.skipif(harness.sanitized(), reason="a sanitizer checks more than these")
def test_frames_have_canaries_and_copies_are_checked(name):
    symbols = read(SHIPPED[name], "--syms")  # a static program has no dynamic ones
    assert "__stack_chk_fail" in symbols
    if harness.build_variable("CMAKE_BUILD_TYPE") in ("Release", "RelWithDebInfo", "MinSizeRel") and name != "_mstx":  # it copies nothing
        assert re.search(r"__(snprintf|memcpy|read|vsnprintf|fprintf|realpath|strcpy)_chk", symbols), symbols


@pytest.mark.skipif(harness.sanitized(), reason="a sanitizer shows its own")
@pytest.mark.parametrize("library", EXPORTED)
def test_a_library_shows_its_interface_and_nothing_else(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", SHIPPED[library]], capture_output=True, text=True, check=True)
    assert {line.split()[2] for line in listed.stdout.splitlines()} == set(EXPORTED[library].split())


@pytest.mark.skipif(harness.sanitized(), reason="a sanitizer's runtime needs more")
@pytest.mark.parametrize("library", EXPORTED)
def test_what_is_loaded_into_training_needs_libc_only(library):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", read(SHIPPED[library], "-d"))
    assert set(needed) <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-aarch64.so.1"}, needed
