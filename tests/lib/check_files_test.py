"""Ways to open a file that check_files.py refuses, and others that it lets pass."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import check_files  # noqa: E402


def reasons(problems):
    return [why for _, why in problems]


@pytest.mark.parametrize("text, why", [
    ("std::ifstream file(path);", "a stream of a file"),
    ("std::ofstream(path) << text;", "a stream of a file"),
    ("std::fstream file;", "a stream of a file"),
    ("FILE* file = fopen(path.c_str(), \"w\");", "a file that is opened or made"),
    ("fd.reset(::mkostemp(name.data(), O_CLOEXEC));", "a file that is opened or made"),
    ("sqlite3_open_v2(path.c_str(), &db, flags, nullptr);", "a database"),
    ("UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));", "a file that is opened without O_NONBLOCK"),
    ("UniqueFd fd(::openat(folder, name, O_RDONLY));", "a file that is opened without O_NONBLOCK"),
    ("fd.reset(open(\n    path.c_str(), O_WRONLY | O_NONBLOCK));", "a file that is opened for writing"),
    ("fd.reset(openat(folder, name, O_WRONLY | O_CREAT | O_NOFOLLOW, 0600));", "a file that is opened for writing"),
    ("syscall(SYS_openat, AT_FDCWD, path, O_CREAT, 0600);", "a file that is opened for writing"),
])
def test_cpp_that_is_refused(text, why):
    assert reasons(check_files.cpp_problems(text, False)) == [why]


@pytest.mark.parametrize("text", [
    "std::ifstream file(\"/proc/self/stat\");", "std::ifstream maps(absl::StrCat(\"/proc/\", pid, \"/maps\"));",
    "open(\"/dev/null\", O_RDWR);", "open(path.c_str(), O_RDONLY | O_NONBLOCK);", "open(path, O_RDONLY | O_DIRECTORY);",
    "openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);", "// std::ifstream, fopen(path)",
    "bool open() const { return open_; }", "if (!reactor->open()) return;", "if (!open(record->id)) return;",
    "absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDWR);",
])
def test_cpp_that_passes(text):
    assert not list(check_files.cpp_problems(text, False))


def test_libtaskd_has_rules_of_its_own():
    assert not list(check_files.cpp_problems("open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600); open(path, O_RDONLY);", True))
    assert reasons(check_files.cpp_problems("open(path, O_RDWR | O_CREAT, 0600);", True)) == ["a file that is made without O_EXCL and O_NOFOLLOW"]


@pytest.mark.parametrize("text, why", [
    ("open(path)", "open()"), ("open(path, 'w')", "open() that writes"), ("open(path, mode='ab')", "open() that writes"),
    ("open(path, mode)", "open() that writes"), ("open('/proc/self/comm', 'w')", "open() that writes"), ("os.open(path, flags)", "os.open()"),
    ("Path(path).write_text(text)", "write_text()"), ("io.open(path)", "io.open()"),
])
def test_python_that_is_refused(text, why):
    assert reasons(check_files.python_problems(text, False)) == [why]


@pytest.mark.parametrize("text, only_writes", [
    ("open('/proc/self/comm')", False), ("open(f'/proc/{pid}/comm', 'rb')", False), ("files.open_regular(path, flags)", False),
    ("open(path)", True), ("open(path, 'rb')", True), ("os.open(path, flags)", True),
])
def test_python_that_passes(text, only_writes):
    assert not list(check_files.python_problems(text, only_writes))


def test_an_exception_has_to_be_used(tmp_path):
    (tmp_path / "a.cc").write_text("std::ifstream file(path);\n")
    assert check_files.check(tmp_path, {}) == ["a.cc:1: a stream of a file: use common/files.h"]
    assert check_files.check(tmp_path, {("a.cc", "ifstream file(path)"): "why"}) == []
    unused = check_files.check(tmp_path, {("a.cc", "ifstream file(path)"): "why", ("a.cc", "fopen"): "why"})
    assert unused == ["a.cc: no line with 'fopen' is refused: the table need not allow it"]
