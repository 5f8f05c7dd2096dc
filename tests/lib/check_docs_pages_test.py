"""That check_docs.py notices a translation that fell behind, and a page that names what is no longer there."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import check_docs  # noqa: E402

ORIGINAL = """# Tool

First `run` it, for 2 s ([how](docs/how.md)).

```
tool run    # now
```

| | port |
|---|---|
| manager | `9601` |

* one
"""
TRANSLATION = """# 工具

先运行 `run`,2 s([方法](docs/how.md))。

```
tool run    # 现在
```

| | 端口 |
|---|---|
| 管理 | `9601` |

* 一
"""
DRAWING = "```\nMANAGER ──► PROXY  one a node\n```\n"
WALK = "| file | function | what |\n|---|---|---|\n| `proxy/a.cc` | `Ring::Read` | reads; `Parse` |\n"


def translation_problem(root, original, translation):
    (root / "A.md").write_text(original, encoding="utf-8")
    (root / "A.zh-CN.md").write_text(translation, encoding="utf-8")
    return check_docs.translation_problem(str(root), "A.zh-CN.md")


@pytest.mark.parametrize("original, translation", [(ORIGINAL, TRANSLATION), (DRAWING, DRAWING.replace("one a node", "每个节点一个"))])
def test_words_and_comments_are_the_translations_own(tmp_path, original, translation):
    assert translation_problem(tmp_path, original, translation) is None


@pytest.mark.parametrize("old, new, problem", [
    ("tool run  ", "tool go  ", "A.zh-CN.md:5, in A.md:5: 'tool run' is 'tool go' there"),
    ("`run`", "`go`", "A.zh-CN.md:3, in A.md:3: lacks go, adds run"),
    ("2 s", "3 s", "A.zh-CN.md:3, in A.md:3: lacks 3, adds 2"),
    ("how.md", "why.md", "A.zh-CN.md:3, in A.md:3: lacks docs/why.md, adds docs/how.md"),
    ("`9601`", "`9602`", "A.zh-CN.md:11, in A.md:11: lacks 9602, adds 9601"),
    ("| `9601` |", "| `9601` | |", "A.zh-CN.md:11, in A.md:11: a row of 2 cells is a row of 3 cells there"),
    ("# Tool", "## Tool", "A.zh-CN.md:1, in A.md:1: a heading of level 1 is a heading of level 2 there"),
    ("* one\n", "* one\n* two\n", "A.zh-CN.md:0, in A.md:14: the end is an item of a list there"),
    ("* one\n", "", "A.zh-CN.md:13, in A.md:0: an item of a list is the end there"),
])
def test_what_only_one_of_them_has_is_named_with_both_lines(tmp_path, old, new, problem):
    assert translation_problem(tmp_path, ORIGINAL.replace(old, new), TRANSLATION) == problem


def test_the_second_part_of_a_page_is_a_translation_of_the_first(tmp_path):
    def problem(second):
        (tmp_path / "B.md").write_text(f"{ORIGINAL}\n{second}", encoding="utf-8")
        return check_docs.translation_problem(str(tmp_path), "B.md")

    assert problem("") is problem(TRANSLATION) is None
    assert problem(TRANSLATION.replace("9601", "9602")) == "B.md:25, in B.md:11: lacks 9601, adds 9602"
    assert problem(TRANSLATION.replace("* 一\n", "")) == "B.md:0, in B.md:13: the end is an item of a list there"


@pytest.mark.parametrize("old, new", [("──►", "─►"), ("PROXY", "AGENT")])
def test_a_drawing_keeps_its_lines_and_its_names(tmp_path, old, new):
    assert f"'{new}' is '{old}' there" in translation_problem(tmp_path, DRAWING, DRAWING.replace(old, new))


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy/a.cc").write_text("void Ring::Read() { Parse(); }\n")
    return str(tmp_path)


def test_a_function_is_in_the_file_of_its_row_with_its_class(tree):
    def problems(name):
        return [problem for _, problem in check_docs.functions_problems(tree, WALK.replace("Ring::Read", name))]

    assert problems("Ring::Read") == problems("Parse") == []
    assert problems("Ring::Write") == ["Ring::Write is not in proxy/a.cc"]
    assert problems("Reader::Read") == ["Reader::Read is not in proxy/a.cc"]


def test_a_page_that_is_walked_has_one_file_a_function_and_no_name_beside_them(tree):
    assert list(check_docs.walk_problems(tree, WALK)) == []
    assert list(check_docs.walk_problems(tree, WALK + "\nThen `Ring::Write`.\n")) == [(5, "Ring::Write is in no file of this page")]
    for row in ("| `proxy/a.cc` | reads | |", "| `proxy/a.cc`, `proxy/b.cc` | `Parse` | |"):
        assert list(check_docs.walk_problems(tree, WALK + row + "\n")) == [(4, "this row is not one file and a function of it")]
