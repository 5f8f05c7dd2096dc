"""What affected.py takes for affected, in a small tree of its own."""
import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import affected  # noqa: E402

FILES = {
    "diagnosis/engine.h": "",
    "readers/reader.cc": '#include "diagnosis/engine.h"\n',
    "manager/page/page.h": "",
    "manager/server.h": '#include "manager/page/page.h"\n',
    "agent/run/run_test.cc": '#include "manager/server.h"\n',
    "agent/run/run.cc": "",
    "store/server.cc": "",
}
TOOLS = {"tests/diagnosis", "tests/fuzz", "tests/integration"}  # use any folder


@pytest.fixture
def tree(tmp_path):
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize("changed, wanted", [
    (["store/server.cc"], {"store"} | TOOLS),
    (["diagnosis/engine.cc"], {"diagnosis", "readers"} | TOOLS),
    (["manager/page/page.cc"], {"manager", "manager/page", "agent/run"} | TOOLS),
    (["agent/run/run_test.cc"], {"agent/run"}),
    (["tests/fuzz/a_fuzz.cc"], {"tests/fuzz"}),
    (["docs/install.md", "tests/e2e/test_run.py"], set()),
    (["store/server.cc", "store/CMakeLists.txt"], None),
    (["common/log.cc"], None),
    (None, None),
])
def test_folders_that_include_the_change_are_affected(tree, changed, wanted):
    assert affected.affected_folders(tree, changed) == wanted


@pytest.mark.parametrize("folders, label, is_it", [
    ({"manager"}, "in:manager", True), ({"manager"}, "in:manager/page", False),
    ({"agent/modes"}, "in:agent/modes/plans", True), ({"agent/modes"}, "in:agent/modes2", False),
    (None, "in:store", True), (None, "unit", False),
])
def test_labels_are_those_of_the_folders(folders, label, is_it):
    assert bool(re.search(affected.labels(folders), label)) == is_it


def test_slow_tests_wait_for_a_change_of_theirs(tree):
    assert affected.unneeded(tree, ["docs/install.md"]) == list(affected.SELDOM)
    assert "engines_slurm.*" not in affected.unneeded(tree, ["agent/engine/slurm.cc"])
    assert "browser_.*" not in affected.unneeded(tree, ["tests/browser/test_page.py"])
    by_way_of = affected.unneeded(tree, ["diagnosis/engine.cc"])
    assert "e2e_(from_.*|trace.*)" not in by_way_of and "(e2e|hostile)_store.*" in by_way_of, "readers include diagnosis"
    assert affected.unneeded(tree, ["CMakeLists.txt"]) == affected.unneeded(tree, None) == []


def test_a_change_is_what_differs_from_the_upstream(tree):
    def git(*arguments):
        subprocess.run(["git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments], check=True,
                       stdout=subprocess.DEVNULL)

    def write(path, text):
        with open(os.path.join(tree, path), "a", encoding="utf-8") as file:
            file.write(text)

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert affected.changed_files(tree, None) is None, "no upstream"
    git("checkout", "-q", "-b", "branch", "--track", "main")
    assert affected.changed_files(tree, None) == []
    write("store/server.cc", "// more\n")
    git("commit", "-q", "-a", "-m", "second")
    write("agent/run/run.cc", "// more\n")
    write("view é.cc", "")
    assert affected.changed_files(tree, None) == ["agent/run/run.cc", "store/server.cc", "view é.cc"]
    assert affected.changed_files(tree, "HEAD") == ["agent/run/run.cc", "view é.cc"]
