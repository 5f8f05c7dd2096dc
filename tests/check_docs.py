#!/usr/bin/env python3
"""Whether the documents speak of what is there: links, paths, names of functions, and the table of arrows.

tests/check_docs.py [--root FOLDER]     exit 1 with a line for each thing that is not there

* A Markdown link to a file, or to a heading (#...) of a Markdown file.
* A path in backticks that begins with one of the tree's folders: `store/wire.h`, `common/job_file.{h,cc}`, `tests/*.py`.
* A name in backticks that a program would read: one with `_`, `::` or `.` in it, or with `()` behind it. Each of its
  words occurs in a source. So does each option, `--x`; `TASKD_X` may stand for the option `--x`.
* Names in backticks in a table's column "function": each occurs in a file of the same row's column "file".
* docs/life-of-*.md, which are walked function by function: each such row has one file and a function, and every other name in
  backticks occurs in a file that the page names.
* A block of C++ below a link to a source file, "([name](file)):": that file has it, line for line.
* The table of arrows in docs/architecture.md: it is ALLOWED of check_layers.py.
* A translation, README.zh-CN.md of README.md, or a page's second part that begins with a heading of level 1, of its first: the
  same headings, paragraphs, list items, blocks of code and rows of tables in the same order, and in each the same code, links
  and numbers. Words, and comments within blocks of code, are its own.

What has happened (CHANGELOG.md) is not checked, and neither are other blocks of code.
"""

import glob
import itertools
import os
import re
import sys

import check_layers
import checker

FOLDERS = {folder.split("/")[0] for folder in check_layers.ALLOWED} | {"cmake", "deploy", "docs", "tests"}
CODE_BLOCK = re.compile(r"^```.*?^```", re.M | re.S)
QUOTE = re.compile(r"\(\[[^\]]*\]\(([^)]*)\)\):\n\n```cpp\n(.*?)```", re.S)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*{},/-]+")
FUNCTION = re.compile(r"[A-Z]\w*[a-z]\w*(::~?\w+)*")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
HEADING = re.compile(r"^#+ +(.*)$", re.M)
WORD = re.compile(r"\w+")
NAME = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*(?:\(\))?")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# What a document may name though no source of ours does.
ELSEWHERE = {
    "--export": "srun's",
    "--include": "grep's",
    "CTestCostData": "CTest's own file",
    "TASKD_PROCESS_INTERVAL": "MindCluster's",
    "TASKD_REPORT_FAULT_TIMEOUT": "MindCluster's",
    "_FORTIFY_SOURCE": "the compiler's",
    "bootstrap": "a user's script",
    "libnvToolsExt": "NVIDIA's library",
    "_make_x": "any hook",
    "x_test": "any test",
}


def markdown_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("build", ".git", ".pytest_cache"))
        for name in sorted(names):
            if name.endswith(".md") and name != "CHANGELOG.md":
                yield os.path.relpath(os.path.join(folder, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def without_blocks(text):
    """The text with code blocks emptied, so that lines keep their numbers."""
    return CODE_BLOCK.sub(lambda block: "\n" * block.group().count("\n"), text)


def anchors(text):
    """The headings of a document as the end of a link writes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def expand(path):
    """`a/b.{h,cc}` as a/b.h and a/b.cc."""
    parts = [part[1:-1].split(",") if part.startswith("{") else [part] for part in re.split(r"(\{[^}]*\})", path)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def is_path(code):
    return PATH.fullmatch(code) is not None and "/" in code and code.split("/")[0] in FOLDERS


def source_words(root):
    """The words and the options of all files but documents, and the words of all files' names."""
    words, options = set(), set()
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in ("build", ".git", "__pycache__")]
        for name in names:
            words.update(WORD.findall(name))
            if name.endswith(".md") or name.startswith("check_docs"):
                continue
            try:
                text = read(folder, name)
            except (UnicodeDecodeError, OSError):
                continue  # a picture, or no file
            words.update(WORD.findall(text))
            options.update(OPTION.findall(text))
    return words, options


def name_problems(code, words, options):
    for option in OPTION.findall(code):
        if option not in options and option not in ELSEWHERE:
            yield f"no source knows {option}"
    for name in NAME.findall(re.sub(r"(?<!\w)-D(?=\w)", "", code)):
        if not re.search(r"_|::|\.|\(\)", name):
            continue
        for word in WORD.findall(name):
            option = "--" + word.removeprefix("TASKD_").lower().replace("_", "-")
            if word not in words and word not in ELSEWHERE and not (word.startswith("TASKD_") and option in options):
                yield f"no source knows {word}"


def link_problem(root, path, target):
    if "://" in target or target.startswith("mailto:"):
        return None
    name, _, anchor = target.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
    if not os.path.exists(os.path.join(root, file)):
        return f"the link to {target} leads nowhere"
    if anchor and file.endswith(".md") and anchor not in anchors(without_blocks(read(root, file))):
        return f"the link to {target}: {file} has no such heading"
    return None


def quote_problems(root, path, text):
    """A block of C++ below a link to a source file, "([name](file)):", is what that file has, line for line."""
    for match in QUOTE.finditer(text):
        file = os.path.normpath(os.path.join(os.path.dirname(path), match.group(1)))
        wanted = [line.strip() for line in match.group(2).strip().splitlines()]
        lines = [line.strip() for line in read(root, file).splitlines()] if os.path.exists(os.path.join(root, file)) else []
        if not any(lines[at:at + len(wanted)] == wanted for at in range(len(lines))):
            yield text.count("\n", 0, match.start()) + 1, f"{file} does not have what is quoted from it"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def functions_problems(root, text):
    """Of the tables with columns "file" and "function": (line, problem)."""
    columns = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            columns = None
            continue
        row = cells(line)
        if columns is None:
            columns = {name: i for i, name in enumerate(row)}
            continue
        if "file" not in columns or "function" not in columns or len(row) != len(columns) or set(row[0]) <= set("-: "):
            continue
        files = [file for code in CODE.findall(row[columns["file"]]) for file in expand(code)]
        source = "".join(read(root, file) for file in files if os.path.isfile(os.path.join(root, file)))
        for name in CODE.findall(row[columns["function"]]):
            if not all(re.search(rf"\b{re.escape(word)}\b", source) for word in re.split(r"::|\.", name)):
                yield number, f"{name} is not in {', '.join(files)}"


def walk_problems(root, text):
    """Of a page that is walked function by function: (line, problem)."""
    paths = {code for code in CODE.findall(text) if is_path(code)}
    source = "".join(read(root, path) for path in sorted(paths) if os.path.isfile(os.path.join(root, path)))
    words = set(re.findall(r"\w+", source))
    columns = None
    for number, line in enumerate(text.splitlines(), 1):
        for name in CODE.findall(line):
            if FUNCTION.fullmatch(name) and not words.issuperset(name.split("::")):
                yield number, f"{name} is in no file of this page"
        row = cells(line) if line.startswith("|") else None
        if row and columns and "function" in columns and not set(row[0]) <= set("-: "):
            file, function = row[columns.index("file")], row[columns.index("function")]
            if len(CODE.findall(file)) != 1 or not CODE.findall(function):
                yield number, "this row is not one file and a function of it"
        columns = (columns or row) if row else None


def arrows_problems(root):
    """The rows `folder/` | what for | `may/`, `include/` of docs/architecture.md against ALLOWED."""
    shown = {}
    for line in read(root, "docs/architecture.md").splitlines():
        row = cells(line)
        folder = CODE.fullmatch(row[0]) if line.startswith("|") and len(row) == 3 else None
        if folder and folder.group(1).rstrip("/") in check_layers.ALLOWED:
            shown[folder.group(1).rstrip("/")] = {code.rstrip("/") for code in CODE.findall(row[2])}
    for folder, allowed in check_layers.ALLOWED.items():
        if shown.get(folder) != allowed:
            yield (f"docs/architecture.md: the table of arrows shows {sorted(shown.get(folder, []))} for {folder}, "
                   f"tests/check_layers.py has {sorted(allowed)}")


def facts(text):
    """What a translation keeps of a text, however often it says it: its code, where its links lead, its numbers."""
    links = [link.replace(".zh-CN.md", ".md") for link in LINK.findall(text) if not link.startswith("#")]
    return {*CODE.findall(text), *links, *NUMBER.findall(LINK.sub("", CODE.sub("", text)))}


def commands(lines):
    """A block of code without its comments; of a drawing only what is drawn, and names in capitals."""
    if any("\u2500" <= character <= "\u257f" for line in lines for character in line):
        return re.findall(r"[\u2500-\u257f◄►▲▼]+|[A-Z]{4,}|:\d+|taskd \w+", "\n".join(lines))
    return [re.sub(r"(^| +)#.*", "", line) for line in lines]


def pieces(text):
    """A document's pieces in their order: (number of the line, what it is, its text or its cells or its commands)."""
    found = []
    block = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            block = None if block is not None else [line]
            if block:
                found.append((number, "a block of code", block))
        elif block is not None:
            block.append(line)
        elif re.match(r"#+ ", line):
            found.append((number, f"a heading of level {line.index(' ')}", line))
        elif line.startswith("|"):
            found.append((number, f"a row of {len(cells(line))} cells", line))
        elif re.match(r" *([*-]|\d+\.) ", line):
            found.append((number, "an item of a list", line))
        elif not line.strip():
            found.append((number, None, ""))
        elif found and found[-1][1] in ("a paragraph", "an item of a list"):
            found[-1] = (*found[-1][:2], f"{found[-1][2]} {line}")
        else:
            found.append((number, "a paragraph", line))
    return [piece for piece in found if piece[1]]


def difference(ours, theirs):
    """What a piece of a translation and its original do not share, in words; empty where they share all."""
    if isinstance(ours, list):
        ours, theirs = commands(ours), commands(theirs)
        pairs = itertools.zip_longest(ours, theirs, fillvalue="")
        return next((f"'{one}' is '{other}' there" for one, other in pairs if one != other), "")
    if ours.startswith("|"):
        return next(filter(None, map(difference, cells(ours), cells(theirs))), "")
    lacks, adds = facts(theirs) - facts(ours), facts(ours) - facts(theirs)
    return ", ".join([f"lacks {one}" for one in sorted(lacks)] + [f"adds {one}" for one in sorted(adds)])


def translation_problem(root, path):
    """The first place where a page says something else in its other language; None: there is none."""
    original = path.replace(".zh-CN.md", ".md")
    if not os.path.isfile(os.path.join(root, original)):
        return f"{path}: there is no {original}"
    ours, theirs = pieces(read(root, path)), pieces(read(root, original))
    if path == original:
        second = [i for i, (_, what, _) in enumerate(ours) if what == "a heading of level 1"][1:2]
        if not second:
            return None
        ours, theirs = ours[second[0]:], ours[:second[0]]
    end = (0, "the end", "")
    for one, other in itertools.zip_longest(ours, theirs, fillvalue=end):
        problem = f"{one[1]} is {other[1]} there" if one[1] != other[1] else difference(one[2], other[2])
        if problem:
            return f"{path}:{one[0]}, in {original}:{other[0]}: {problem}"
    return None


def check(root):
    problems = []
    words, options = source_words(root)
    for path in markdown_files(root):
        text = without_blocks(read(root, path))
        found = [(match.start(), link_problem(root, path, match.group(1))) for match in LINK.finditer(text)]
        for match in CODE.finditer(text):
            if is_path(match.group(1)):
                found += [(match.start(), f"there is no {file}") for file in expand(match.group(1))
                          if not glob.glob(os.path.join(root, file))]
            else:
                found += [(match.start(), problem) for problem in name_problems(match.group(1), words, options)]
        problems += [f"{path}:{text.count(chr(10), 0, at) + 1}: {problem}" for at, problem in sorted(
            one for one in found if one[1])]
        problems += [f"{path}:{number}: {problem}" for number, problem in functions_problems(root, text)]
        if os.path.basename(path).startswith("life-of-"):
            problems += [f"{path}:{number}: {problem}" for number, problem in walk_problems(root, text)]
        problems += [f"{path}:{number}: {problem}" for number, problem in quote_problems(root, path, read(root, path))]
        problems += filter(None, [translation_problem(root, path)])
    return problems + list(arrows_problems(root))


if __name__ == "__main__":
    sys.exit(checker.main(__doc__, check, "the documents speak of what is there"))
