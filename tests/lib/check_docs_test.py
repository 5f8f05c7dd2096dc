"""What check_docs.py takes for a name that is not there."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import check_docs  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "core.cc").write_text('int Core::Answer(); flags.Add("--max-restarts"); _gate.kinds()\n')
    (root / "picture.png").write_bytes(b"\xff\xd8")
    (root / "words.md").write_text("is_compiling --gone\n")
    return check_docs.source_words(root)


@pytest.mark.parametrize("code", ["Core::Answer", "Answer()", "_gate.kinds()", "core.cc", "taskd run --max-restarts=3",
                                  "TASKD_MAX_RESTARTS=3", "srun --export=ALL", "-D_FORTIFY_SOURCE=2", "any word at all", "a-b"])
def test_what_is_there(source, code):
    assert list(check_docs.name_problems(code, *source)) == []


@pytest.mark.parametrize("code, missing", [("_gate.is_compiling", "is_compiling"), ("Core::Ask()", "Ask"), ("gone.cc", "gone"),
                                           ("taskd run --gone", "--gone"), ("TASKD_GONE", "TASKD_GONE"), ("undo_", "undo_")])
def test_what_is_not(source, code, missing):
    assert list(check_docs.name_problems(code, *source)) == [f"no source knows {missing}"]


@pytest.mark.parametrize("quoted, problems", [("int Answer() {\n  return 42;", []), ("return 42;\n", []),
                                              ("int Answer() {\nreturn 41;", [(1, "a.cc does not have what is quoted from it")])])
def test_a_quote_is_what_the_file_has(tmp_path, quoted, problems):
    (tmp_path / "a.cc").write_text("int Answer() {\n  return 42;\n}\n")
    text = f"As ([a.cc](a.cc)):\n\n```cpp\n{quoted}\n```\n"
    assert list(check_docs.quote_problems(str(tmp_path), "PAGE.md", text)) == problems
