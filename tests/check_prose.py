#!/usr/bin/env python3
"""Refuses comments and documents that are not plain English, and commit subjects that are no headings.

It reads comments of Python, // comments of C and C++, docstrings and Markdown, in the folders (or files) that are named, or else
in FOLDERS: those that have been rewritten. It refuses:

  * openings: a sentence, but no question, that begins with Of, What, Who, Whose, Where, One that, As long as, Nothing, Nobody;
  * pronouns that make a program a person: who, he, somebody; "the user who" may stay, since PEOPLE has users;
  * double negations: two of not, never, none, without and the like within a clause;
  * sentences of more than 35 words;
  * a comment with lines of its own that is no sentence: it has no verb, begins with a small letter, or has no full stop. Beside
    code a noun phrase is enough, but "of the newest" is none;
  * words of the old vocabulary: docs/glossary.md has the terms;
  * a commit subject above 72 characters, or without "area: " before it, a folder of the tree. Commits before SINCE are older
    than the rule. Without git this part is left out.

Names of code are no words: `quoted` text, and drawings and examples (lines that are indented by three blanks), are left out, and
so are headings of Markdown.

tests/check_prose.py [--root FOLDER] [FOLDER ...]     exit 1 with a line for each
"""
import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tokenize

import check_docs
import checker

# These have been rewritten; more follow.
FOLDERS = ("marks", "store")
SKIPPED = {"build", "node_modules", "__pycache__"}
SINCE = "2026-11-29T14:00:00Z"
MAX_WORDS = 35
MAX_SUBJECT = 72

# (file, a text of the line that is refused) -> why it may stay.
EXCEPTIONS = {}

PEOPLE = re.compile(r"\b(?:users?|people|persons?|operators?|maintainers?|readers?|authors?|administrators?|those|anyone)$", re.I)
NEGATION = r"(?:not|never|no|none|nothing|nobody|nowhere|neither|cannot|\w+n't)"
OPENING = re.compile(r"(?:of|what|whatever|who|whoever|whose|where|one that|as long as|nothing|nobody)\b", re.I)
PERSON = re.compile(r"\b(?:who|whom|whoever|he|him|his|she|her|somebody|someone|nobody|everybody)\b", re.I)
NEGATED_TWICE = re.compile(rf"\b{NEGATION}\b(?! only\b)[^.,;:()]{{0,60}}? (?:{NEGATION}|without|unless)\b", re.I)
OLD = re.compile(r"\b(?:life(?![- ]of[- ]a\b)|(?:all|earlier|other|several|two) lives|weather|gusts?|restless|unrest|own times?|"
                 r"go(?:es|ing)? together|stands? out|fineness|strangers?|crowds?|dearest|hears?|heard|tells?|told|said|seen|"
                 r"(?<!there )(?:is|are) none)\b", re.I)
# A word that can be a verb: wide, because a wrong "no sentence" would be noise.
VERB = re.compile(r"\b(?:is|are|was|were|be|has|have|had|do|does|did|can|may|must|will|would|could|should|cannot|need|"
                  r"allow|apply|ask|become|begin|began|belong|came|come|contain|count|cover|end|find|fit|follow|found|gave|get|"
                  r"give|go|got|held|hold|keep|kept|know|leave|left|lie|lose|lost|made|make|mean|outlive|overlap|ran|read|reach|"
                  r"run|see|send|sent|share|show|stand|stay|take|took|use|wait|went|write|wrote|\w+(?:[^s\W]s|ed))\b", re.I)
# A contract in two words, and commands to the reader.
SENTENCE = re.compile(r"(?:Not )?[Tt]hread-safe|(?:These|They|Do|Add|Call|Check|Copy|Give|Keep|Let|Note|Set|Skip|Start|Stop|Try)\b")
FRAGMENT = re.compile(r"(?:as|until|which|that|then|and|or|but|else|such)\b")
PRAGMA = re.compile(r"namespace\b|clang-format|NOLINT|#|!|-\*-|\s*[-=*]{3,}|https?:|noqa|type:|pylint|Copyright|SPDX")
CPP_TOKEN = re.compile(r"""R"([^()\\ ]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/""", re.S)


def cpp_comments(text):
    """(line, column, whether code stands before it, text) of each // comment."""
    for match in CPP_TOKEN.finditer(text):
        if match.group().startswith("//"):
            begin = text.rfind("\n", 0, match.start()) + 1
            before = text[begin:match.start()]
            yield text.count("\n", 0, match.start()) + 1, len(before), bool(before.strip()), match.group()[2:]


def python_comments(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.start[1], bool(token.line[:token.start[1]].strip()), token.string[1:]


def blocks(comments):
    """(beside, [(line, text)]) of comments that go on from line to line."""
    block, end = None, None
    for number, column, beside, text in comments:
        if block is not None and not beside and end == (number - 1, column):
            block[1].append((number, text))
        else:
            if block is not None:
                yield block
            block = (beside, [(number, text)])
        end = (number, column)
    if block is not None:
        yield block


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            first = node.body[0]
            yield False, [(first.lineno + i, line) for i, line in enumerate(first.value.value.splitlines())]


def paragraphs(lines):
    """(whether it is an item of a list, [(line, text)]): pieces between empty lines and drawings, without these drawings."""
    piece, item = [], None
    for number, text in lines:
        marker = re.match(r"(\s*)(?:[*-]|\d+\.) ", text)
        indent = len(text) - len(text.lstrip())
        goes_on = item is not None and indent > item and not marker
        if text.strip() and (goes_on or item is None and not marker and indent < 3):
            piece.append((number, text.strip()))
            continue
        if piece:
            yield item is not None, piece
        piece, item = [], len(marker.group(1)) if marker else None
        if marker:
            piece = [(number, text[marker.end():])]
        elif text.strip() and indent < 3:
            piece = [(number, text.strip())]
    if piece:
        yield item is not None, piece


def sentences(piece):
    """(line, sentence) of a paragraph; what is quoted becomes a name."""
    text, starts = "", []
    for number, line in piece:
        starts.append((len(text), number))
        text += line + " "
    text = re.sub(r"`[^`]*`|\"[^\"]*\"", lambda quoted: "X" * len(quoted.group()), text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs)\.", lambda short: short.group().replace(".", "_"), text)
    begin = 0
    for match in list(re.finditer(r"[.!?][)\"]?\s+(?=[A-Z\"(`0-9]|\w+\(\))", text)) + [re.search(r"$", text)]:
        sentence = text[begin:match.end()].strip()
        if sentence:
            yield max(number for at, number in starts if at <= begin), sentence
        begin = match.end()


def word_problems(sentence):
    """The rules that hold for a sentence wherever it stands."""
    sentence = sentence.lstrip("(*_ ")
    if (match := OPENING.match(sentence)) and not sentence.endswith("?"):
        yield f"begins with '{match.group()}'"
    for match in PERSON.finditer(sentence):
        if match.start() > 0 and not PEOPLE.search(sentence[:match.start()].rstrip(" ,")):
            yield f"'{match.group()}' makes a program a person"
    if match := NEGATED_TWICE.search(sentence):
        yield f"double negation: '{match.group()}'"
    for match in OLD.finditer(sentence):
        yield f"old word '{match.group()}': see docs/glossary.md"
    words = sum(1 for word in sentence.split() if re.search(r"\w", word))
    if words > MAX_WORDS:
        yield f"a sentence of {words} words"


def shape_problem(sentence):
    """Why a piece of a comment with lines of its own is no sentence; None: it may be one."""
    bare = sentence.lstrip("(")
    if re.fullmatch(r"[A-Z]\w*:", bare):  # a heading of what follows
        return None
    if re.match(r"[a-z]+(?:[\s,;]|$)", bare):
        return "a comment that begins with a small letter"
    if not re.search(r"[.!?:;][)\"]*$", sentence):
        return "a comment without a full stop"
    if not VERB.search(bare.split(" ", 1)[-1]) and not VERB.match(bare) and not SENTENCE.match(bare):
        return "a comment that is no sentence"
    return None


def comment_problems(found):
    """(line, why) of blocks of comments."""
    for beside, lines in found:
        if PRAGMA.match(lines[0][1].strip()):
            continue
        for is_item, piece in paragraphs(lines):
            for number, sentence in sentences(piece):
                yield from ((number, why) for why in word_problems(sentence))
                if beside and FRAGMENT.match(sentence):
                    yield number, f"begins with '{sentence.split()[0]}'"
                elif not beside and not is_item and (why := shape_problem(sentence)):
                    yield number, why


def cpp_problems(text):
    return comment_problems(blocks(cpp_comments(text)))


def python_problems(text):
    yield from comment_problems(blocks(python_comments(text)))
    for _, lines in docstrings(text):
        for _, piece in paragraphs(lines):
            for number, sentence in sentences(piece):
                yield from ((number, why) for why in word_problems(sentence))


def markdown_problems(text):
    for number, what, piece in check_docs.pieces(text):
        if what == "a block of code":
            continue
        if piece.startswith("#"):
            continue
        for part in check_docs.cells(piece) if piece.startswith("|") else [piece]:
            for _, sentence in sentences([(number, re.sub(r"^\s*(?:[*-]|\d+\.) ", "", part))]):
                is_title = piece.startswith("|") and len(sentence.split()) <= 3  # "what it does", above a column
                yield from ((number, why) for why in word_problems(sentence) if not is_title)


def subject_problem(subject, areas):
    if len(subject) > MAX_SUBJECT:
        return f"a subject of {len(subject)} characters: at most {MAX_SUBJECT}"
    if not re.match(rf"(?:{'|'.join(sorted(areas))}): \S", subject):
        return "a subject without an area: begin it with a folder and a colon"
    return None


def commit_problems(root, since=SINCE):
    """Of the commits since then, if there is a repository."""
    log = subprocess.run(["git", "-C", root, "log", "--no-merges", f"--since={since}", "--format=%h %s"], text=True, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) if os.path.exists(os.path.join(root, ".git")) else None
    for line in log.stdout.splitlines() if log and log.returncode == 0 else ():
        commit, _, subject = line.partition(" ")
        if why := subject_problem(subject, check_docs.FOLDERS):
            yield f"commit {commit} '{subject}': {why}"


def check(root, folders=FOLDERS, exceptions=None):
    exceptions = EXCEPTIONS if exceptions is None else exceptions

    def is_named(path):
        return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)

    def rules_of(path):
        rules = {".py": python_problems, ".md": markdown_problems, ".h": cpp_problems, ".cc": cpp_problems, ".c": cpp_problems}
        return rules.get(os.path.splitext(path)[1]) if is_named(path) and not path.endswith(".zh-CN.md") else None
    used = {one: why for one, why in exceptions.items() if is_named(one[0])}
    return checker.refused(root, SKIPPED, rules_of, used) + list(commit_problems(root))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    arguments = parser.parse_args()
    problems = check(arguments.root, arguments.folders)
    print("\n".join(problems) if problems else "the prose is plain")
    sys.exit(1 if problems else 0)
