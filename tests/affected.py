#!/usr/bin/env python3
"""Prints what a change can affect, for tests/run.sh.

tests/affected.py [--since REV] tests       a regular expression for ctest -L: the tests in C++ of the folders that are affected;
                                            nothing if there are none
tests/affected.py [--since REV] unneeded    a regular expression for ctest -E: groups of tests that no change can have affected
tests/affected.py [--since REV] sources     the C++ sources that have changed

A change is what differs from REV in the working tree, files that git does not track included. Without --since, REV is where
the branch left its upstream; without an upstream everything counts as changed. A folder, a row of check_layers.ALLOWED, is
affected if it has changed, or a folder that it or its tests include.
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys

import check_layers

# Nobody knows what depends on these, or everything does.
UNATTRIBUTED = ("*CMakeLists.txt", "CMakePresets.json", "cmake/*", "common/*", "worker_sdk/include/*", "deploy/apt-packages.txt", ".ci/*",
                "tests/run.sh", "tests/affected.py")
# Groups of tests that take a minute of a CPU and more, and only a change of these can affect: ctest's names, the folders (also
# by way of folders that they include), and what git's paths begin with.
SELDOM = {
    "engines_slurm.*": (("agent/engine", "agent/run", "agent/process"), ("tests/engines/", "tests/lib/")),
    "python_.*": (("worker_sdk",), ("worker_sdk/python/", "tests/python/", "tests/lib/", "deploy/debian/", "deploy/systemd/")),
    "e2e_manifests.*": ((), ("deploy/", "tests/e2e/test_manifests")),
    "sdk_arm64_check": (("worker_sdk", "proxy"), ("tests/integration/",)),
    "browser_.*": (("manager/page", "view"), ("manager/page/web/", "tests/browser/", "tests/lib/")),
    "e2e_(route.*|ranktable)": (("agent/route", "agent/ranktable"), ("tests/e2e/test_route", "tests/e2e/test_ranktable", "tests/lib/")),
    "e2e_(modes.*|rsh|contract_.*)": (("agent/modes",), ("tests/e2e/test_modes", "tests/e2e/test_rsh", "tests/e2e/test_contract", "tests/lib/")),
    "e2e_(from_.*|trace.*)": (("readers", "agent/trace"), ("tests/e2e/test_from", "tests/e2e/test_trace", "tests/lib/")),
    "(e2e|hostile)_store.*": (("store", "agent/run"), ("tests/e2e/test_store", "tests/hostile/test_store", "tests/lib/")),
}


def git(root, *arguments):
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def changed_files(root, since):
    """Paths, or None if git cannot tell."""
    since = since or (git(root, "merge-base", "HEAD", "@{upstream}") or "").strip()
    differing = since and git(root, "diff", "--name-only", "--no-renames", "-z", since)
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if not since or differing is None or untracked is None:
        return None
    return sorted({*filter(None, (differing + untracked).split("\0"))})


def is_unattributed(path):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in UNATTRIBUTED)


def users_of(root, changed, of_tests):
    """`changed` folders, those that include one of them, by way of others too, and `of_tests` those whose tests include any of these."""
    uses, tests_use = set(), set()
    for path, text in check_layers.sources(root):
        edges = tests_use if check_layers.IS_TEST.search(path) else uses
        edges.update((check_layers.folder_of(path), check_layers.folder_of(included)) for included in check_layers.INCLUDE.findall(text))
    users, found = set(), set(changed)
    while found - users:
        users |= found
        found = {own for own, other in uses if other in users}
    return users | {own for own, other in tests_use if of_tests and other in users}


def affected_folders(root, paths, of_tests=True):
    """Folders whose tests in C++ have to run, or with of_tests=False whose program differs; None: all of them. tests/integration and
    tests/fuzz use any folder."""
    if paths is None or any(map(is_unattributed, paths)):
        return None
    sources = [path for path in paths if path.endswith((".cc", ".h", ".c", ".proto"))]
    tests = {path for path in sources if check_layers.IS_TEST.search(path)}
    changed = {check_layers.folder_of(path) for path in sources if path not in tests} - {None}
    own = {check_layers.folder_of(path) for path in tests} - {None}
    own |= {"/".join(path.split("/")[:2]) for path in sources if path.startswith("tests/")}
    return users_of(root, changed, of_tests) | own | ({"tests/diagnosis", "tests/fuzz", "tests/integration"} if changed else set())


def labels(folders):
    """The regular expression for labels of taskd_test.cmake, which name the folder of a source: a row of the table or one below."""
    if folders is None:
        return "^in:"
    rows = set(check_layers.ALLOWED)
    alone = [folder for folder in sorted(folders) if not any(row.startswith(folder + "/") for row in rows)]
    above = sorted(set(folders) - set(alone))
    return "|".join([f"^in:{folder}(/|$)" for folder in alone] + [f"^in:{folder}$" for folder in above])


def unneeded(root, paths):
    folders = affected_folders(root, paths, of_tests=False)
    if folders is None:
        return []
    return [names for names, (of, beginnings) in SELDOM.items()
            if not folders & set(of) and not any(path.startswith(beginnings) for path in paths)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), help=argparse.SUPPRESS)
    parser.add_argument("--since", metavar="REV")
    parser.add_argument("what", choices=["tests", "unneeded", "sources"])
    arguments = parser.parse_args()
    if arguments.since and git(arguments.root, "rev-parse", "--verify", "--quiet", arguments.since + "^{commit}") is None:
        parser.error(f"--since '{arguments.since}': git knows no such commit")
    paths = changed_files(arguments.root, arguments.since)
    if arguments.what == "sources":
        there = [path for path in paths or [] if path.endswith(".cc") and os.path.exists(os.path.join(arguments.root, path))]
        print(*there, sep="\n", end="\n" if there else "")
    elif arguments.what == "tests":
        print(labels(affected_folders(arguments.root, paths)))
    else:
        print("|".join(f"^{names}$" for names in unneeded(arguments.root, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
