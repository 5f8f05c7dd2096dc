#!/usr/bin/env python3
"""Refuses product code that opens files without the rules for paths that others can touch.

Another user, or a rank of the job, can put a link, a FIFO or a device in the place of a file. common/files.h,
common/atomic_file.h and common/runtime_dir.h know that, and in Python taskd/python/utils/files.py; folders of ranks have
proxy/folder.h. Elsewhere are refused, but for tests and benchmarks:

  * in C and C++: std::ifstream, ofstream and fstream, fopen(), mkstemp() and the like, sqlite3_open();
  * open(2) and openat(2) that write to a file, or make one without O_EXCL and O_NOFOLLOW, and those for reading without O_NONBLOCK, which wait for a FIFO;
  * in Python: open() and os.open(), Path.write_text() and the like, in worker_sdk/python/taskd; elsewhere only those that write.

Folders (O_DIRECTORY, O_PATH) may be opened, and what a literal path in the same statement shows to be the kernel's or root's:
/proc, /sys, /etc, /dev/null. common/files.h has ReadSystemFile() for the rest of these. libtaskd.so has nothing but libc and
rules of its own (worker_sdk/src): there only a file that is made without O_EXCL and O_NOFOLLOW is refused.

tests/check_files.py [--root FOLDER]     exit 1 with a line for each
"""
import ast
import os
import re
import sys

import checker

SKIPPED = {"build", "node_modules", "__pycache__", "tests", "bench", "testing", "deploy", "cmake"}
HELPERS = {"common/files.cc", "common/runtime_dir.cc", "proxy/folder.cc", "worker_sdk/python/taskd/python/utils/files.py"}

# (file, a text of the line that is refused) -> why it may stay.
EXCEPTIONS = {
    ("agent/commands/output_file.cc", "::open(path.c_str(), O_WRONLY | O_NOCTTY"): "a pipe or device that the user named as the output",
    ("agent/commands/rdma.cc", "open(path.c_str(), O_RDONLY"): "a log that the user named; it may be a pipe, as <(ssh node cat log) is",
    ("agent/prompt_files.py", "os.path.join(folder, name)"): "runs in the build",
    ("manager/page/web/embed.py", "write_text("): "runs in the build",
    ("manager/switch/state_db.cc", "sqlite3_open_v2("): "its folder and files are checked first, and SQLite follows no link",
    ("proxy/aging.cc", "O_WRONLY"): "asks for a lock and a lease of a regular file, and writes nothing",
    ("readers/ledger_files.cc", "sqlite3_open_v2("): "its files are checked first, and Distrust() limits what the database can do",
    ("worker_sdk/python/licenses.py", 'open(path, "wb")'): "runs in the build",
    ("worker_sdk/python/make_wheel.py", 'open(path + ".new"'): "runs in the build",
    ("worker_sdk/python/taskd/python/utils/daemon.py", 'open(path, "rb")'): "a program that is about to be run; it may be a link",
}

SYSTEM_PATH = re.compile(r'"/(?:proc|sys|etc)/|"/dev/null"')
CPP_RULES = (
    (re.compile(r"\bstd::[io]?fstream\b"), "a stream of a file"),
    (re.compile(r"(?<![\w.>])(?:std::|::)?(?:fopen|freopen|creat|tmpfile|mkstemps?|mkostemps?)\("), "a file that is opened or made"),
    (re.compile(r"\bsqlite3_open\w*\("), "a database"),
)
CPP_OPEN = re.compile(r"(?<![\w.>:])(?:::)?open(?:at)?\(|\bsyscall\(SYS_open")
PYTHON_WRITES = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"}


def statement(text, begin):
    """From `begin` to the statement's end."""
    end = text.find(";", begin)
    return text[begin:len(text) if end < 0 else end]


def without_comments(text):
    """Comments become blanks, so that places stay."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), text)


def is_declaration(text, begin):
    """`bool open() const`, `OpenPhase MarkFold::open()`: a name is defined, not called."""
    line = text[text.rfind("\n", 0, begin) + 1:begin]
    return re.search(r"[\w>&*]\s+$", line) is not None and re.search(r"\b(?:return|co_return|throw|case)\s+$", line) is None


def cpp_problems(text, is_sdk):
    text = without_comments(text)
    if not is_sdk:
        for rule, why in CPP_RULES:
            for match in rule.finditer(text):
                if not SYSTEM_PATH.search(statement(text, match.start())):
                    yield text.count("\n", 0, match.start()) + 1, why
    for match in CPP_OPEN.finditer(text):
        call = statement(text, match.start())
        if is_declaration(text, match.start()) or not re.match(r"(?:::)?\w+\([^;]*,", call, re.DOTALL):
            continue
        line = text.count("\n", 0, match.start()) + 1
        if is_sdk:
            if "O_CREAT" in call and not ("O_EXCL" in call and "O_NOFOLLOW" in call):
                yield line, "a file that is made without O_EXCL and O_NOFOLLOW"
        elif SYSTEM_PATH.search(call) or "O_DIRECTORY" in call or "O_PATH" in call:
            continue
        elif all(flag in call for flag in ("O_CREAT", "O_EXCL", "O_NOFOLLOW")):
            continue
        elif re.search(r"\bO_(?:CREAT|TRUNC|WRONLY|RDWR)\b", call):
            yield line, "a file that is opened for writing"
        elif "O_NONBLOCK" not in call:
            yield line, "a file that is opened without O_NONBLOCK"


def python_problems(text, only_writes):
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            owner = getattr(node.func.value, "id", "")
            if node.func.attr in PYTHON_WRITES:
                yield node.lineno, f"{node.func.attr}()"
            elif owner in ("os", "io", "codecs") and node.func.attr == "open" and not only_writes:
                yield node.lineno, f"{owner}.open()"
        elif getattr(node.func, "id", "") == "open" and node.args:
            path, mode = node.args[0], node.args[1] if len(node.args) > 1 else None
            mode = next((keyword.value for keyword in node.keywords if keyword.arg == "mode"), mode)
            if isinstance(path, ast.JoinedStr) and path.values:
                path = path.values[0]
            is_system = isinstance(path, ast.Constant) and str(path.value).startswith(("/proc/", "/sys/"))
            writes = mode is not None and not (isinstance(mode, ast.Constant) and not set(str(mode.value)) & set("wax+"))
            if writes or not (is_system or only_writes):
                yield node.lineno, "open()" + (" that writes" if writes else "")


def problems_of(path, text):
    if path.endswith(".py"):
        return python_problems(text, not path.startswith("worker_sdk/python/taskd/"))
    return cpp_problems(text, path.startswith(("worker_sdk/src/", "worker_sdk/include/", "worker_sdk/python/ext/")))


def is_product(path):
    name = os.path.basename(path)
    return path.endswith((".cc", ".c", ".h", ".py")) and not re.search(r"_test\.\w+$|^test_", name) and path not in HELPERS


def rules_of(path):
    if not is_product(path):
        return None
    helper = "taskd/python/utils/files.py" if path.endswith(".py") else "common/files.h"
    return lambda text: ((number, f"{why}: use {helper}") for number, why in problems_of(path, text))


def check(root, exceptions=None):
    return checker.refused(root, SKIPPED, rules_of, EXCEPTIONS if exceptions is None else exceptions)


if __name__ == "__main__":
    sys.exit(checker.main(__doc__, check, "every file is opened by the helpers"))
