"""Comments and commit subjects that check_prose.py refuses, and others that it lets pass."""
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import check_prose  # noqa: E402


def reasons(problems):
    return [why for _, why in problems]


@pytest.mark.parametrize("text, why", [
    ("// Of a few ranks the noise is known.", "begins with 'Of'"),
    ("// The gate is open. What comes later is lost.", "begins with 'What'"),
    ("// Nobody reads this.", "begins with 'Nobody'"),
    ("int a;  // of the newest record", "begins with 'of'"),
    ("int a;  // as the caller named it", "begins with 'as'"),
    ("// The store closes whoever writes.", "'whoever' makes a program a person"),
    ("// The proxy has a queue for the rank who waits.", "'who' makes a program a person"),
    ("// The rank does not end without an answer.", "double negation: 'not end without'"),
    ("// The file is never closed if no rank is there.", "double negation: 'never closed if no'"),
    ("// The weather of a host is known.", "old word 'weather': see docs/glossary.md"),
    ("// A name that is none is refused.", "old word 'is none': see docs/glossary.md"),
    ("// The list has " + "one more word and " * 9 + "ends.", "a sentence of 40 words"),
    ("// The same of an open file.", "a comment that is no sentence"),
    ("// False: no such key.", "a comment that is no sentence"),
    ("// the rank waits for its peers.", "a comment that begins with a small letter"),
    ("// The rank waits for its peers", "a comment without a full stop"),
])
def test_cpp_that_is_refused(text, why):
    assert reasons(check_prose.cpp_problems(text)) == [why]


@pytest.mark.parametrize("text", [
    "// Returns the number of lines that are not marks.", "// `word` has no digits.", "// Not thread-safe.", "// Design:\n// 1. Keys are read once.",
    "// INVALID_ARGUMENT: the text is not JSON.", "int a;  // smallest device id; -1: unknown", "}  // namespace taskd",
    "// NOLINTNEXTLINE(what)", "// The user who starts the job is root.", "// The answer is `who is none`.", 'call("// Of what");',
    "const int kLimit = 1'000;  // bytes\nchar c = '\"';  // a quote", "// The step has three parts:\n//\n//   of  0..100\n//   what 3",
    "// The folder has two forms:\n// * in a working folder: a new name,\n//   of one second,\n// * elsewhere: \"none\".\n// The name is free.",
    "// The call waits. Not only readers need memory.", "// An object lives as long as its owner.",
])
def test_cpp_that_may_stay(text):
    assert list(check_prose.cpp_problems(text)) == []


def test_a_problem_has_the_line_of_its_sentence():
    text = "int a;\n// The first sentence is plain. The second\n// one is too.\n// Of the third this is not true.\n"
    assert list(check_prose.cpp_problems(text)) == [(4, "begins with 'Of'")]


def test_python_and_markdown():
    text = '"""Reads marks.\n\nOf what it reads it keeps all.\n"""\nA = 1  # of bytes\n'
    assert sorted(check_prose.python_problems(text)) == [(3, "begins with 'Of'"), (5, "begins with 'of'")]
    text = "# What it is\n\nWhat it is?\n\nWhat it\nis.\n\n| what it does |\n|---|\n| a rank who waits |\n\n```\nOf code\n```\n"
    assert list(check_prose.markdown_problems(text)) == [(5, "begins with 'What'"), (10, "'who' makes a program a person")]


@pytest.mark.parametrize("subject, ok", [
    ("store: say the comments plainly", True), ("store:say it", False), ("Say the comments plainly", False), ("stores: say it", False),
    ("store: " + "x" * 65, True), ("store: " + "x" * 66, False),
])
def test_subjects(subject, ok):
    assert (check_prose.subject_problem(subject, {"store", "docs"}) is None) == ok


def test_commits_since_the_rule(tmp_path):
    def git(*arguments, date="2030-01-01T00:00:00Z"):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "GIT_COMMITTER_DATE": date})
    assert list(check_prose.commit_problems(str(tmp_path))) == []
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "An old one", date="2020-01-01T00:00:00Z")
    git("commit", "-q", "--allow-empty", "-m", "docs: say it")
    assert list(check_prose.commit_problems(str(tmp_path))) == []
    git("commit", "-q", "--allow-empty", "-m", "Say it")
    assert len(list(check_prose.commit_problems(str(tmp_path)))) == 1


def test_only_the_named_folders_are_checked(tmp_path):
    for folder in ("marks", "store"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.h").write_text("// Of all.\n")
    assert check_prose.check(str(tmp_path), ["marks/"], {}) == ["marks/a.h:1: a comment that is no sentence", "marks/a.h:1: begins with 'Of'"]
    assert check_prose.check(str(tmp_path), ["marks/"], {("marks/a.h", "Of all"): "why", ("store/a.h", "x"): "why"}) == []
