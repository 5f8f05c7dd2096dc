#!/usr/bin/env python3
"""Who may include whom: fails where an include runs against the table below (docs/architecture.md shows it), where nobody
makes use of what the table allows, or where a file's namespace is not its folder's.

tests/check_layers.py [--root FOLDER]     exit 1 with a line for each include, namespace or arrow that may not be
"""
import os
import re
import sys

import checker

# Folder -> folders that it may include, besides itself and what is below it. A folder that is not here belongs to the
# one above it. The ring's layout and the C API (worker_sdk/include, written <taskd/...> or "taskd/...") are everybody's.
ALLOWED = {
    "common": set(),
    "marks": {"common"},
    "store": {"common"},
    "diagnosis": {"common", "marks"},
    "readers": {"common", "marks", "diagnosis", "ledger"},
    "ledger": {"common", "marks", "diagnosis"},
    "policy": {"common", "diagnosis", "ledger"},
    "view": {"common", "marks", "diagnosis", "ledger", "policy"},
    "proto": {"common", "marks", "diagnosis"},
    "worker_sdk": set(),
    "proxy": {"common", "marks", "proto"},
    "manager/rpc": set(),
    "manager/switch": {"common", "marks", "proto", "manager/rpc"},
    "manager/verdicts": {"common", "marks", "diagnosis", "proto", "manager/rpc", "manager/switch"},
    "manager/supervision": {"common", "proto", "manager/rpc", "manager/switch"},
    "manager/job": {"common", "proto", "manager/rpc", "manager/switch"},
    "manager/ledger": {"common", "marks", "diagnosis", "ledger", "proto", "manager/switch", "manager/supervision"},
    "manager/actions": {"common", "policy", "proto", "manager/rpc", "manager/switch", "manager/verdicts"},
    "manager/nodes": {"common", "proto", "manager/rpc", "manager/switch", "manager/verdicts"},
    "manager/page": {"common", "diagnosis", "proto", "view", "manager/rpc", "manager/switch", "manager/verdicts", "manager/supervision",
                     "manager/ledger", "manager/actions"},
    "manager": {"common", "marks", "policy", "proto", "view", "manager/rpc", "manager/switch", "manager/verdicts", "manager/supervision",
                "manager/job", "manager/ledger", "manager/actions", "manager/nodes", "manager/page"},
    "agent/process": {"common", "marks"},
    "agent/stacks": {"common"},
    "agent/evidence": {"common", "diagnosis", "readers"},
    "agent/engine": {"common"},
    "agent/rdma": {"common"},
    "agent/ranktable": {"common"},
    "agent/route": {"common", "proto"},
    "agent/trace": {"common", "marks"},
    "agent/simulate": {"common", "marks", "proto"},
    "agent/run": {"common", "policy", "proto", "store", "agent/engine", "agent/evidence", "agent/process", "agent/stacks"},
    "agent/modes": {"common", "proto", "agent/process", "agent/ranktable", "agent/rdma"},
    "agent/commands": {"common", "marks", "diagnosis", "ledger", "policy", "proto", "store", "agent/engine", "agent/modes", "agent/process",
                       "agent/ranktable", "agent/rdma", "agent/route", "agent/run", "agent/simulate", "agent/trace", "readers", "view"},
    "agent": {"agent/commands", "agent/modes"},
}
# Single headers beyond the table, with the reason.
DOORS = {
    ("agent/commands", "manager/manager.h"): "`taskd manager` is the manager",
    ("agent/commands", "proxy/proxy.h"): "`taskd proxy` is the proxy",
    ("worker_sdk", "common/testing/deadline.h"): "its tests wait as all others do",
}
# What unit tests may use besides: a real manager or proxy to speak with, and synthetic jobs.
FOR_TESTS = {"manager", "proxy", "agent/simulate"}

# What everybody builds on and the program are `taskd` itself, every other folder `taskd::<its name>`, the manager's rooms
# `taskd::manager`. Besides:
NAMESPACES = {
    "worker_sdk": {"taskd::worker", "taskd::nccl", "taskd::nvtx"},  # the foreign interfaces that libtaskd.so serves
}
PUBLIC_HEADERS = "worker_sdk/include/"

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
NAMESPACE = re.compile(r"^namespace (taskd[\w:]*) {", re.M)
IS_TEST = re.compile(r"(_test|_benchmark)\.(cc|c)$|/testing/|/test_\w+\.h$")


def folder_of(path):
    """The row of the table that a file belongs to; None: no row."""
    folder = os.path.dirname(path)
    while folder and folder not in ALLOWED:
        folder = os.path.dirname(folder)
    return folder or None


def problem(path, included):
    """Why `path` may not include `included`; None: it may."""
    own, other = folder_of(path), folder_of(included)
    if other is None and included.startswith("tests/"):
        other = "tests"
    if other is None or other == own or other in ALLOWED[own] or (own, included) in DOORS:
        return None
    if IS_TEST.search(path):
        return None if other in FOR_TESTS else f"{own}'s tests may not use {other}"
    return f"{own} may not use {other}"


def line_of(match):
    return match.string.count("\n", 0, match.start()) + 1


def namespaces_of(path):
    """Those that a file may open, besides nameless ones."""
    folder = folder_of(path)
    name = "manager" if folder.startswith("manager/") else os.path.basename(folder)
    own = NAMESPACES.get(folder) or {"taskd" if folder in ("common", "marks", "agent") else f"taskd::{name}"}
    return own | {"taskd::testing"} if "/testing/" in path else own


def sources(root):
    """(path, text) of each source that has a row of the table."""
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in ("build", ".git")]
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith((".cc", ".h", ".c")) and folder_of(path) is not None:
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    yield path, file.read()


def check(root):
    problems = []
    unused = {(own, other) for own, others in ALLOWED.items() for other in others}
    for path, text in sources(root):
        for match in INCLUDE.finditer(text):
            unused.discard((folder_of(path), folder_of(match.group(1))))
            why = problem(path, match.group(1))
            if why:
                problems.append(f"{path}:{line_of(match)}: includes {match.group(1)}: {why}")
        for match in NAMESPACE.finditer(text):
            if path.startswith(PUBLIC_HEADERS) or match.group(1).startswith("taskd::testing::"):
                continue
            if match.group(1) not in namespaces_of(path):
                wanted = " or ".join(sorted(namespaces_of(path)))
                problems.append(f"{path}:{line_of(match)}: is in {match.group(1)}, not in {wanted}")
    return problems + [f"{own} does not use {other}: the table need not allow it" for own, other in sorted(unused)]


if __name__ == "__main__":
    sys.exit(checker.main(__doc__, check, "every include and every namespace follows the table, and the table has no more than that"))
