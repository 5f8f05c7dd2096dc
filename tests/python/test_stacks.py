"""The Python half of stacks for the launcher: armed where it asks, and nowhere else."""
import os

import pytest
from deadlines import wait_child

PROGRAM = """
import os, signal, sys, threading
{before}
import taskd
number = signal.SIGRTMAX - 6
lock = threading.Lock()
lock.acquire()
def helper():
    lock.acquire()
threading.Thread(target=helper, daemon=True).start()
with open(f"/proc/{{os.getpid()}}/status") as status:
    caught = int(next(line for line in status if line.startswith("SigCgt")).split()[1], 16)
armed = bool(caught >> (number - 1) & 1)
if armed:
    os.kill(os.getpid(), number)
path = os.path.join(os.environ.get("TASKD_STACK_DIR", "/nonexistent"), f"{{os.getpid()}}.py")
text = open(path).read() if os.path.exists(path) else ""
print(armed, "in helper" in text, "in <module>" in text)
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "stacks"
    path.mkdir(mode=0o700)
    return path


def test_frames_of_all_threads(world, folder):
    assert world.run(PROGRAM.format(before=""), TASKD_STACK_DIR=folder).split() == ["True", "True", "True"]


def test_nothing_happens_unasked(world):
    assert world.run(PROGRAM.format(before="")).split() == ["False", "False", "False"]


def test_a_folder_that_others_can_write_is_not_taken(world, folder):
    folder.chmod(0o777)
    assert world.run(PROGRAM.format(before=""), TASKD_STACK_DIR=folder).split() == ["False", "False", "False"]
    assert not os.listdir(folder)


def test_a_folder_that_is_not_there(world, tmp_path):
    assert world.run(PROGRAM.format(before=""), TASKD_STACK_DIR=tmp_path / "no").split() == ["False", "False", "False"]


def test_the_programs_own_handler_stays(world, folder):
    before = "signal.signal(signal.SIGRTMAX - 6, lambda *_: None)"
    assert world.run(PROGRAM.format(before=before), TASKD_STACK_DIR=folder).split() == ["True", "False", "False"]


def test_pth_arms_ranks_that_never_import_taskd(world, folder):
    line = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker_sdk", "python", "taskd_torch.pth")
    code = (f"import sys\nexec(open({line!r}).read())\nprint('taskd._stacks' in sys.modules, 'torch' in sys.modules, "
            "'taskd.torch' in sys.modules)")
    assert world.run(code, TASKD_STACK_DIR=folder, RANK="0").split() == ["True", "False", "False"]
    assert world.run(code, TASKD_STACK_DIR=folder).split() == ["False", "False", "False"]


INTERRUPTED = """
import sys
if "own" in sys.argv:
    sys.excepthook = lambda *_: print("own hook")
import taskd
def wait(rank):
    if rank == "2":
        raise KeyboardInterrupt("elsewhere")
    raise KeyboardInterrupt
wait(sys.argv[1])
"""


def test_of_equal_tracebacks_of_an_interrupt_one_is_printed(world, folder):
    script = world.write("train.py", INTERRUPTED)
    world.write("output", "")

    def said(*arguments):
        before = len(world.output())
        wait_child(world.start(world.interpreter, script, *arguments, TASKD_STACK_DIR=str(folder)))
        return world.output()[before:]
    assert "in wait" in said("0")
    assert said("1") == ""
    assert "elsewhere" in said("2")
    assert said("3", "own") == "own hook\n"
    os.rename(folder, world.path("gone"))
    assert "in wait" in said("1"), "what cannot be compared is printed"
