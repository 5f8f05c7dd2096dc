"""The wheel: it installs without any index, and what it brings works from there."""
import os
import subprocess
import sys
import zipfile

import pytest

import conftest


@pytest.fixture
def wheel(world, program):
    maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker_sdk", "python", "make_wheel.py")
    made = subprocess.run([sys.executable, maker, "--version", "0.1.0", "--package", os.path.join(conftest.BUILD, "python", "taskd"),
                           "--program", program, "--out", world.path("dist")], check=True, capture_output=True, text=True)
    return made.stdout.strip()


def test_installs_and_works(world, wheel):
    assert os.path.basename(wheel).startswith("taskd-0.1.0-py3-none-linux_")
    with zipfile.ZipFile(wheel) as file:
        listed = set(file.namelist())
    assert {"taskd/bin/taskd", "taskd/_mstx.abi3.so", "taskd/python/cython_api/libs/libtaskd.so", "taskd_torch.pth"} <= listed
    assert not any("__pycache__" in name for name in listed)
    target = world.path("site")
    install = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", target, wheel],
                             capture_output=True, text=True, env=world.environment, check=False)
    assert install.returncode == 0, install.stderr
    assert os.access(os.path.join(target, "taskd", "bin", "taskd"), os.X_OK)
    output = world.run(f"""
import os, sys
import taskd
assert taskd.__file__.startswith({target!r}), taskd.__file__
from taskd import mstx
from taskd.api import *
from taskd.python.utils import daemon
assert mstx.backend == "extension" and init_taskd_worker(0) and start_taskd_worker()
assert daemon.program() == os.path.join({target!r}, "taskd", "bin", "taskd")
print("fine")
""", PYTHONPATH=target)
    assert output.endswith("fine\n")
    for command in (["bin/taskd", "run"], ["bin/torch_npu_run"]):
        script = world.write("rank.py", "import os, sys; print(os.environ['RANK'], sys.executable, *sys.argv[1:])")
        ran = subprocess.run([os.path.join(target, command[0]), *command[1:], "--standalone", "--no-taskd", script, "--x", "1"],
                             env={**world.environment, "PYTHONPATH": target}, cwd=world.folder, capture_output=True, text=True,
                             check=False)
        assert (ran.returncode, ran.stdout) == (0, f"0 {sys.executable} --x 1\n"), ran.stderr
    help_text = subprocess.run([os.path.join(target, "bin", "taskd"), "--help"], env={**world.environment, "PYTHONPATH": target},
                               capture_output=True, text=True, check=False)
    assert help_text.returncode == 0 and "proxy" in help_text.stdout


@pytest.mark.parametrize("named, python", [({}, sys.executable), ({"PYTHON_EXEC": "/opt/python"}, "/opt/python")])
def test_module_run_becomes_the_program(world, named, python):
    world.environment["TASKD_BIN"] = world.write("fake", """#!/bin/sh
echo "$$ $PYTHON_EXEC $@"
exit 7
""", 0o755)
    child = world.start(sys.executable, "-m", "taskd.run", "--nnodes=1", "train.py", "--a b", **named)
    assert child.wait(60) == 7
    assert world.output() == f"{child.pid} {python} run --nnodes=1 train.py --a b\n"


def test_pth_imports_the_package_only_into_ranks_that_need_it(world):
    line = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker_sdk", "python", "taskd_torch.pth")
    code = f"import sys\nexec(open({line!r}).read())\nprint('taskd' in sys.modules, 'torch' in sys.modules)"
    assert world.run(code, TASKD_TORCH="1", RANK="0").split() == ["True", "False"]
    assert world.run(code, TASKD_RUN_COOKIE="c0ffee", RANK="0").split() == ["True", "False"]
    assert world.run(code, TASKD_TORCH="1").split() == ["False", "False"]
    assert world.run(code, RANK="0").split() == ["False", "False"]
    assert world.run(code, TASKD_TORCH="1", RANK="0", PYTHONPATH="/nonexistent").split() == ["False", "False"]
