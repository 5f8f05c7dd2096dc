"""deploy/release.sh in a small repository, where others stand in for what compiles."""
import json
import os
import shutil
import subprocess

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ARCHITECTURE = os.uname().machine
CHANGELOG = """# Changelog

## [Unreleased]

## [2.3.4] - 2026-01-02

### Added
- A thing.

## [2.3.3] - 2025-01-02

- An older thing.
"""
FILES = {
    "CMakeLists.txt": "project(taskd VERSION 2.3.4 LANGUAGES C)\n",
    "worker_sdk/python/taskd/__init__.py": '__version__ = "2.3.4"\n',
    "deploy/helm/taskd/Chart.yaml": "version: 2.3.4\nappVersion: 2.3.4\n",
    "CHANGELOG.md": CHANGELOG,
    "tests/check_docs.py": "",
    "deploy/wheels.sh": """#!/bin/sh
for file in "taskd-2.3.4-py3-none-manylinux2014_$2.whl" "taskd-2.3.4-linux-$2.tar.gz"; do echo "$SOURCE_DATE_EPOCH" >"dist/$file"; done
[ -z "$EDITED" ] || echo edited >>CHANGELOG.md
""",
    "stubs/cpack": '#!/bin/sh\nmkdir -p "$4" && echo "$SOURCE_DATE_EPOCH" >"$4"/taskd_2.3.4_any.deb\n',
    ".gitignore": "build\ndist\n",
}


class Project:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{folder / 'stubs'}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": "/dev/null",
                            **{f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}}
        for name, text in FILES.items():
            self.write(name, text)
        for name in ("deploy/release.sh", "worker_sdk/python/licenses.py"):
            shutil.copy(os.path.join(REPOSITORY, name), folder / name)
        (folder / "build").mkdir()
        self.git("init", "--quiet")
        self.commit()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def git(self, *words):
        return subprocess.run(["git", *words], cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True).stdout

    def commit(self):
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "all")

    def release(self, *words, umask=-1, **environment):
        return subprocess.run(["deploy/release.sh", "--arch", ARCHITECTURE, *words], cwd=self.folder, env={**self.environment, **environment},
                              check=False, capture_output=True, text=True, umask=umask)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_release(project):
    ran = project.release("--dry-run", "2.3.4")
    assert ran.returncode == 0, ran.stderr
    out = project.folder / "dist" / "taskd-2.3.4"
    bill = f"taskd-2.3.4-linux-{ARCHITECTURE}.spdx.json"
    assert sorted(os.listdir(out)) == sorted([
        "NOTES.md", "SHA256SUMS", bill, "taskd-2.3.4.tar.gz", "taskd_2.3.4_any.deb", f"taskd-2.3.4-linux-{ARCHITECTURE}.tar.gz",
        f"taskd-2.3.4-py3-none-manylinux2014_{ARCHITECTURE}.whl"])
    assert (out / "NOTES.md").read_text(encoding="utf-8") == "### Added\n- A thing.\n\n"
    sums = (out / "SHA256SUMS").read_text(encoding="utf-8")
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    assert len(sums.splitlines()) == 6
    parts = json.loads((out / bill).read_text(encoding="utf-8"))["packages"]
    assert {"taskd", "gRPC", "OpenSSL", "glibc"} <= {part["name"] for part in parts} and all(part["versionInfo"] for part in parts)
    assert project.git("tag") == ""

    # The same commit once more, and under another umask.
    assert project.release("2.3.4", umask=0o077).returncode == 0
    assert (out / "SHA256SUMS").read_text(encoding="utf-8") == sums
    assert project.git("rev-parse", "v2.3.4^{commit}") == project.git("rev-parse", "HEAD")
    assert project.git("tag", "--list", "--format=%(contents)").strip() == "TaskD 2.3.4\n\n### Added\n- A thing."
    again = project.release("2.3.4")
    assert (again.returncode, again.stderr) == (1, "release.sh: the tag v2.3.4 exists\n")


@pytest.mark.parametrize("name, before, after, problem", [
    ("CMakeLists.txt", "2.3.4", "2.3.5", "CMakeLists.txt has version '2.3.5', not 2.3.4"),
    ("worker_sdk/python/taskd/__init__.py", "2.3.4", "2.3.5", "worker_sdk/python/taskd/__init__.py has version '2.3.5', not 2.3.4"),
    ("deploy/helm/taskd/Chart.yaml", "appVersion: 2.3.4", "", "deploy/helm/taskd/Chart.yaml has version '', not 2.3.4"),
    ("CHANGELOG.md", " - 2026-01-02", "", "CHANGELOG.md has no heading '## [2.3.4] - YEAR-MONTH-DAY'"),
    ("CHANGELOG.md", "### Added\n- A thing.\n", "", "CHANGELOG.md says nothing of 2.3.4"),
    ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n- News.\n", "CHANGELOG.md has unreleased changes: they belong to 2.3.4"),
    ("tests/check_docs.py", "", "import sys; sys.exit('a.md: no')", "tests/check_docs.py: a.md: no"),
])
def test_everything_has_to_agree(project, name, before, after, problem):
    project.write(name, FILES[name].replace(before, after, 1))
    project.commit()
    ran = project.release("2.3.4")
    assert (ran.returncode, ran.stderr) == (1, f"release.sh: {problem}\n")
    assert not (project.folder / "dist").exists()


def test_a_tree_with_changes_is_not_released(project):
    project.write("new", "")
    ran = project.release("2.3.4")
    assert (ran.returncode, ran.stderr) == (1, "release.sh: the working tree has changes that no commit has (git status)\n")


def test_a_tree_that_changes_during_the_build_is_not_tagged(project):
    ran = project.release("2.3.4", EDITED="yes")
    assert ran.returncode == 1 and "no tag is made" in ran.stderr and project.git("tag") == ""


@pytest.mark.parametrize("words", [["2.3"], ["v2.3.4"], ["02.3.4"], ["2.3.4-rc1"], [], ["2.3.4", "2.3.5"], ["--push", "2.3.4"], ["--arch", "arm", "2.3.4"]])
def test_wrong_usage(project, words):
    ran = project.release(*words)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1 and "usage: release.sh" in ran.stderr
