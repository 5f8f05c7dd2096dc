"""taskd.mstx: what reaches the ring, by the extension and by ctypes."""
import pytest

MARKS = """
import os, sys
from taskd import mstx
from taskd.python.cython_api import cython_api
if sys.argv[1] == "ctypes":
    mstx.mark, mstx.range_start, mstx.range_end, mstx.enabled_kinds = mstx._by_ctypes(cython_api.load())
else:
    assert mstx.backend == "extension", mstx.backend
class Npu: npu_stream = 4096
class Cuda: cuda_stream = 0
mstx.mark("plain-mark")
mstx.mark(b"bytes-mark", None)
mstx.mark("with-int-stream", 77)
mstx.mark("with-npu-stream", stream=Npu())
mstx.mark("with-cuda-stream", Cuda())
mstx.mark("with-no-stream", object())
mstx.mark("in-domain", domain="communication")
mstx.mark(message="by-keyword", stream=None, domain=None)
mstx.mark("\\u4e2d\\u6587")
mstx.mark("x" * 300)
first = mstx.range_start("step 1")
second = mstx.range_start("a range", Npu(), domain="communication")
assert first and second and first != second
mstx.range_end(second)
mstx.range_end(first)
assert mstx.enabled_kinds() & mstx.KIND_STEP
for nonsense in (None, 5, [], object(), float("nan")):
    assert mstx.range_start(nonsense) == 0
    mstx.mark(nonsense)
    mstx.range_end(nonsense)
for number in (0, -1, 2**64, 2**63):
    mstx.range_end(number)
mstx.mark("lone \\udc80 surrogate")
mstx.mark("strange domain", domain=7)
mstx.mark("strange stream", 2**80)
print("PID", os.getpid())
"""
MARK, RANGE_START = 2, 3
STREAM, TRUNCATED = 1, 4
STEP, COMMUNICATION = 0, 4


@pytest.mark.parametrize("backend", ["extension", "ctypes"])
def test_records(world, backend):
    pid = int(world.run(MARKS, backend, RANK="0").split("PID ")[1])

    def record(name):
        found = world.record(pid, name)
        assert found is not None, f"{name} was not recorded"
        return found

    assert record(b"plain-mark").type == MARK and not record(b"plain-mark").flags & STREAM
    for name in (b"bytes-mark", b"with-no-stream", b"by-keyword", b"in-domain"):
        assert not record(name).flags & STREAM, name
    for name in (b"with-int-stream", b"with-npu-stream", b"with-cuda-stream"):
        assert record(name).flags & STREAM, name
    assert record(b"in-domain").kind == COMMUNICATION and record(b"in-domain").domain == 1
    assert record("\u4e2d\u6587".encode()).type == MARK
    assert record(b"x" * 254).flags & TRUNCATED
    assert record(b"step 1").type == RANGE_START and record(b"step 1").kind == STEP
    assert record(b"a range").kind == COMMUNICATION and record(b"a range").flags & STREAM
    assert record(b"lone \xed\xb2\x80 surrogate").type == MARK
    assert record(b"strange stream").type == MARK


def test_without_the_extension_ctypes_does_it(world):
    out = world.run("import sys\nsys.modules['taskd._mstx'] = None\nfrom taskd import mstx\nmstx.mark('x')\nprint(mstx.backend)")
    assert out.split()[-1] == "ctypes"


def test_without_a_library_nothing_happens(world):
    out = world.run("""
from taskd.python.cython_api import cython_api
cython_api.LIBRARY_PATH = "/nonexistent"
from taskd import mstx
mstx.mark("x", None, domain="d"); mstx.range_end(mstx.range_start("x", stream=1)); assert mstx.enabled_kinds() == 0
print(mstx.backend)
""")
    assert out.split()[-1] == "nothing"
    assert out.count("nothing will be recorded") == 1


def test_off_records_nothing(world):
    pid = int(world.run("""
import os
from taskd import mstx
from taskd.api import *
assert init_taskd_worker(0)
mstx.mark("while-on")
destroy_taskd_worker()
mstx.mark("while-off")
assert mstx.range_start("while-off") == 0 and mstx.enabled_kinds() == 0
print("PID", os.getpid())
""").split("PID ")[1])
    assert world.record(pid, b"while-on") is not None
    assert world.record(pid, b"while-off") is None


def test_forked_child_records_nothing_until_it_asks(world):
    out = world.run("""
import os
from taskd import mstx
from taskd.api import *
assert init_taskd_worker(0)
mstx.mark("parent")
child = os.fork()
if child == 0:
    mstx.mark("child-unasked")
    assert start_taskd_worker() is False and destroy_taskd_worker() is False
    assert init_taskd_worker(1)
    mstx.mark("child-asked")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("PID", os.getpid(), child)
""")
    parent, child = (int(p) for p in out.split("PID ")[1].split())
    assert world.record(parent, b"parent") and not world.record(parent, b"child-asked")
    assert world.record(child, b"child-asked") and not world.record(child, b"child-unasked")


CHILD_OF_A_RANK = """
import os, subprocess, sys
from taskd import mstx
from taskd.api import *

if len(sys.argv) == 1:
    mstx.mark("parent")
    def child(*words, **environment):
        subprocess.run([sys.executable, sys.argv[0], *words], env={**os.environ, **environment}, check=True)
    child("unasked")
    child("asked")
    child("unasked", RANK="4")
elif sys.argv[1] == "asked":
    mstx.mark("before")
    assert init_taskd_worker(3)
mstx.mark("mark")
print("PID", os.getpid())
"""


def test_a_process_that_a_rank_starts_does_not_take_its_place(world):
    """It has the rank's variables. Only where it asks, or is another rank, it records."""
    unasked, asked, other, parent = (int(pid) for pid in world.run(CHILD_OF_A_RANK, RANK="3").split("PID ")[1:])
    assert world.record(parent, b"mark") and world.record(other, b"mark") and not world.segments(unasked)
    assert world.record(asked, b"mark") and not world.record(asked, b"before")
