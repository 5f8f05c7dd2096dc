#!/usr/bin/env python3
"""Whether check_docs.py notices a translation that fell behind, and a page that names what is no longer there."""

import os
import shutil
import tempfile
import unittest

import check_docs

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


class Translation(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def problem(self, original, translation):
        for name, text in (("A.md", original), ("A.zh-CN.md", translation)):
            with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
                file.write(text)
        return check_docs.translation_problem(self.root, "A.zh-CN.md")

    def test_other_words_and_comments_are_no_problem(self):
        self.assertIsNone(self.problem(ORIGINAL, TRANSLATION))

    def test_what_only_one_of_them_has_is_named_with_both_lines(self):
        for old, new, expected in (
                ("tool run  ", "tool go  ", "A.zh-CN.md:5, in A.md:5: 'tool run' is 'tool go' there"),
                ("`run`", "`go`", "A.zh-CN.md:3, in A.md:3: lacks go, adds run"),
                ("2 s", "3 s", "A.zh-CN.md:3, in A.md:3: lacks 3, adds 2"),
                ("how.md", "why.md", "A.zh-CN.md:3, in A.md:3: lacks docs/why.md, adds docs/how.md"),
                ("`9601`", "`9602`", "A.zh-CN.md:11, in A.md:11: lacks 9602, adds 9601"),
                ("| `9601` |", "| `9601` | |", "A.zh-CN.md:11, in A.md:11: a row of 2 cells is a row of 3 cells there"),
                ("# Tool", "## Tool", "A.zh-CN.md:1, in A.md:1: a heading of level 1 is a heading of level 2 there"),
                ("* one\n", "* one\n* two\n", "A.zh-CN.md:0, in A.md:14: the end is an item of a list there"),
                ("* one\n", "", "A.zh-CN.md:13, in A.md:0: an item of a list is the end there")):
            with self.subTest(new):
                self.assertEqual(self.problem(ORIGINAL.replace(old, new), TRANSLATION), expected)

    def test_a_drawing_keeps_its_lines_and_its_names(self):
        drawing = "```\nMANAGER ──► PROXY  one a node\n```\n"
        self.assertIsNone(self.problem(drawing, drawing.replace("one a node", "每个节点一个")))
        for old, new in (("──►", "─►"), ("PROXY", "AGENT")):
            self.assertIn(f"'{new}' is '{old}' there", self.problem(drawing, drawing.replace(old, new)))


class Functions(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.mkdir(os.path.join(self.root, "proxy"))
        with open(os.path.join(self.root, "proxy/a.cc"), "w", encoding="utf-8") as file:
            file.write("void Ring::Read() { Parse(); }\n")

    def problems(self, name):
        table = f"| file | function |\n|---|---|\n| `proxy/a.cc` | `{name}` |\n"
        return [problem for _, problem in check_docs.functions_problems(self.root, table)]

    def test_a_function_is_in_the_file_of_its_row(self):
        self.assertEqual(self.problems("Ring::Read"), [])
        self.assertEqual(self.problems("Parse"), [])

    def test_a_function_or_class_that_is_not_is_named(self):
        self.assertEqual(self.problems("Ring::Write"), ["Ring::Write is not in proxy/a.cc"])
        self.assertEqual(self.problems("Reader::Read"), ["Reader::Read is not in proxy/a.cc"])

    def test_a_page_that_is_walked_names_one_file_a_function_and_nothing_else(self):
        table = "| file | function | what |\n|---|---|---|\n| `proxy/a.cc` | `Ring::Read` | reads; `Parse` |\n"
        self.assertEqual(list(check_docs.walk_problems(self.root, table)), [])
        self.assertEqual(list(check_docs.walk_problems(self.root, table + "\nThen `Ring::Write`.\n")),
                         [(5, "Ring::Write is in no file of this page")])
        for row in ("| `proxy/a.cc` | reads | |", "| `proxy/a.cc`, `proxy/b.cc` | `Parse` | |"):
            self.assertEqual(list(check_docs.walk_problems(self.root, table + row + "\n")),
                             [(4, "this row is not one file and a function of it")])


if __name__ == "__main__":
    unittest.main()
