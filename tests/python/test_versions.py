"""The package runs on Python 3.7 to 3.13: by a checker that knows 3.7's syntax and library, and on each Python that is here."""
import ast
import glob
import os
import re
import shutil
import subprocess

import pytest

import test_mstx

OLDEST = (3, 7)
VERSIONS = [(3, minor) for minor in range(7, 14)]
PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "worker_sdk", "python", "taskd"))
SOURCES = sorted(glob.glob(os.path.join(PACKAGE, "**", "*.py"), recursive=True))


def name(version):
    return "{}.{}".format(*version)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: os.path.relpath(path, PACKAGE))
def test_is_in_the_oldest_syntax(path):
    with open(path, encoding="utf-8") as file:
        ast.parse(file.read(), path, feature_version=OLDEST)


@pytest.fixture
def mypy(tmp_path):
    """What mypy finds wrong in files for a version of Python, as a set of lines."""
    program = shutil.which("mypy")
    if program is None:
        pytest.skip("mypy is not installed")

    def check(version, *paths):
        done = subprocess.run(
            [program, "--config-file=", "--python-version", name(version), "--no-site-packages", "--ignore-missing-imports",
             "--check-untyped-defs", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), *paths],
            capture_output=True, text=True, cwd=tmp_path)
        if "not supported (must be" in done.stderr:
            pytest.skip("this mypy does not know Python " + done.stderr.strip())
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return set(done.stdout.splitlines())

    return check


# The package has no types, so most of what mypy says is nothing. What it says of the oldest version only is what that lacks.
def test_uses_nothing_that_the_oldest_library_lacks(mypy):
    assert mypy(OLDEST, PACKAGE) - mypy((3, 11), PACKAGE) == set()


def test_what_the_oldest_library_lacks_is_noticed(mypy, tmp_path):
    source = tmp_path / "newer.py"
    source.write_text("import multiprocessing, shlex\nmultiprocessing.parent_process()\nshlex.join([])\n'a'.removeprefix('b')\n")
    found = "\n".join(sorted(mypy(OLDEST, str(source)) - mypy((3, 11), str(source))))
    assert re.findall(r"has no attribute \"(\w+)\"", found) == ["parent_process", "join", "removeprefix"], found


def interpreter(version):
    """In PATH, or where pyenv keeps them; None: not on this machine."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [shutil.which("python" + name(version)),
                  *sorted(glob.glob(os.path.join(pyenv, "versions", name(version) + ".*", "bin", "python")))]
    for candidate in filter(None, candidates):
        asked = subprocess.run([candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                               capture_output=True, text=True)
        if asked.stdout.strip() == name(version):
            return candidate
    return None


@pytest.fixture(params=VERSIONS, ids=name)
def world_of(request, world):
    """A world whose scripts run on that Python."""
    world.interpreter = interpreter(request.param)
    if world.interpreter is None:
        pytest.skip("there is no Python {} on this machine".format(name(request.param)))
    return world


@pytest.mark.parametrize("backend", ["extension", "ctypes"])
def test_marks(world_of, backend):
    test_mstx.test_records(world_of, backend)


def test_every_module_can_be_imported(world_of):
    out = world_of.run("""
import importlib, pkgutil, warnings
warnings.simplefilter("error")
import taskd
names = [module.name for module in pkgutil.walk_packages(taskd.__path__, "taskd.")]
for name in names:
    importlib.import_module(name)
print(*names)
""")
    assert len(out.split()) >= len(SOURCES) - 5, out  # all but taskd itself, and the extension besides
    assert {"taskd._mstx", "taskd.torch._waiter", "taskd.python.adaptor.patch"} <= set(out.split())


def test_hooks_come_with_the_import(world_of):
    world_of.write("watched.py", "value = 1\n")
    world_of.write("broken.py", "raise ValueError('as it is')\n")
    world_of.run("""
import sys
sys.path.insert(0, ".")
import taskd.torch
from taskd.torch import _imports
assert taskd.torch.enable() and "torch" not in sys.modules
seen = []
_imports.when_imported("watched", lambda module: seen.append(module.value))
_imports.when_imported("broken", seen.append)
try:
    import broken
except ValueError:
    pass
import watched, json.tool, importlib
assert seen == [1], seen
importlib.reload(watched)
assert seen == [1] and _imports._finder in sys.meta_path
_imports.forget()
assert _imports._finder not in sys.meta_path
""")


def test_the_waiter_keeps_nothing(world_of):
    world_of.run("""
import gc, weakref
from taskd.torch import _waiter
class Work:
    def wait(self): pass
import threading
done = threading.Event()
work = Work()
gone = threading.Event()
weakref.finalize(work, gone.set)
_waiter.when_done(work, done.set, print)
del work
done.wait()
gone.wait()
""")


def test_one_proxy_and_none_in_children(world_of):
    world_of.fake_program()
    world_of.run("""
import multiprocessing
import taskd.python.adaptor.patch
from taskd.api import destroy_taskd_proxy, init_taskd_proxy
if __name__ == "__main__":
    for start in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(start)
        child = context.Process(target=print, args=(start,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert init_taskd_proxy({}) and destroy_taskd_proxy()
""")
    assert [call["argv"][0] for call in world_of.calls()] == ["proxy"]
