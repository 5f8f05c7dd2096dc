#!/usr/bin/python3
"""Strict check of mark files: TaskD contract 4.5 and 4.6, and what MindCluster's own reader needs of them.

As a program:  check_marks.py DIR     DIR is <profiling-dir>/<task>, which has one folder a rank.
  Prints one line a rank, then every problem; exit code 1 if there is any.
As a module:   check(DIR) -> Report
"""
import argparse
import dataclasses
import functools
import json
import os
import re
import stat
import sys

KINDS = ("step", "save_checkpoint", "fp", "dataloader", "communication", "other")
MAX_FILE_BYTES = 10 * 1024 * 1024
# One write after the limit was not yet passed. The proxy's own limit of a write.
MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 100_000
# The official reader keeps about this many ids open and forgets the oldest beyond.
READER_OPEN_IDS = 100

INSTANT, START, END, INSTANT_STREAM, START_STREAM, END_STREAM = 1, 2, 4, 8, 16, 32
HOST, DEVICE = 0, 1

_LINE = re.compile(
    rb'\{"Kind":1,"Flag":(1|2|4|8|16|32),"SourceKind":(0|1),"Timestamp":([1-9][0-9]{18}),"Id":([1-9][0-9]{0,15}),'
    rb'"MsptiObjectId":\{"Pt":\{"ProcessId":(0|[1-9][0-9]{0,9}),"ThreadId":(0|[1-9][0-9]{0,9})\},'
    rb'"Ds":\{"DeviceId":(0|[1-9][0-9]{0,9}),"StreamId":(0|[1-9][0-9]{0,9})\}\},'
    rb'"Name":("(?:[^"\\\x00-\x1f]|\\.)*"),"Domain":("(?:[^"\\\x00-\x1f]|\\.)*")\}'
)
_GO_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t",
               "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclasses.dataclass
class Mark:
    """One line."""
    flag: int
    source: int
    timestamp_ns: int
    id: int
    pid: int
    tid: int
    name: str
    domain: str


@dataclasses.dataclass
class RankReport:
    rank: int
    lines: int = 0
    counts: dict = dataclasses.field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # ranges started, instants
    open_ranges: int = 0
    most_open: int = 0
    marks: list = dataclasses.field(default_factory=list)  # every Mark, in the order of the files; with keep_marks


@dataclasses.dataclass
class Report:
    ranks: dict  # rank -> RankReport
    problems: list

    @property
    def ok(self):
        return not self.problems


def kind_of(name, domain):
    """Kind of a mark by its name and domain, as the switch understands it."""
    if domain == "communication":
        return "communication"
    if re.fullmatch(r"step \d+", name):
        return "step"
    return {"forward": "fp", "dataloader": "dataloader", "save_checkpoint": "save_checkpoint"}.get(name, "other")


def go_json_string(text):
    """`text` as Go's encoding/json writes a string."""
    return '"' + "".join(_GO_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'


@functools.lru_cache(1 << 12)  # most names are said again and again
def _parse_string(raw):
    """(its text, None), or (None, what is wrong)."""
    try:
        decoded = raw.decode("utf-8")
        text = json.loads(decoded)
    except ValueError as error:
        return None, f"a string is not valid: {error}"
    # Go writes invalid UTF-8 as the escape and a true U+FFFD as it is; both read back the same.
    if go_json_string(text) != decoded.replace("\\ufffd", "\ufffd"):
        return None, f"{decoded} is not escaped as Go's encoding/json does"
    return text, None


def parse_line(line):
    """A Mark, or a string with what is wrong. `line` is bytes without the line feed."""
    match = _LINE.fullmatch(line)
    if not match:
        return "is not one object with the contract's keys in their order"
    flag, source, timestamp, mark_id, pid, tid, device, stream = (int(g) for g in match.groups()[:8])
    if (pid, tid) != (device, stream):
        return "Pt and Ds differ"
    texts = []
    for raw in match.groups()[8:]:
        text, problem = _parse_string(raw)
        if problem is not None:
            return problem
        texts.append(text)
    if mark_id >= 1 << 53:
        return f"Id {mark_id} is not exact as a double"
    return Mark(flag, source, timestamp, mark_id, pid, tid, *texts)


def _communication_problem(name):
    try:
        value = json.loads(name)
    except ValueError:
        return "the name of a communication mark is not JSON"
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        return "the name of a communication mark is not an object of strings"
    if not re.fullmatch(r"[+-]?\d+", value.get("count", "")):
        return 'the name of a communication mark has no "count" that is a number'
    return None


class _Rank:
    """Checks one rank's lines in the order of its files."""

    def __init__(self, report, rank, problems, communication_json, window, keep_marks):
        self.out = RankReport(rank)
        report.ranks[rank] = self.out
        self.problems = problems
        self.communication_json = communication_json
        self.window = window
        self.keep_marks = keep_marks
        self.open = {}  # id -> its first Mark
        self.closed = set()  # (pid, id)

    def add(self, where, line):
        mark = parse_line(line)
        if isinstance(mark, str):
            self.problems.append(f"{where}: {mark}: {line[:200]!r}")
            return
        self.out.lines += 1
        if self.keep_marks:
            self.out.marks.append(mark)
        problem = self._rule(mark)
        if problem:
            self.problems.append(f"{where}: {problem}: {line[:200]!r}")

    def _rule(self, mark):
        if self.window and not self.window[0] <= mark.timestamp_ns <= self.window[1]:
            return "the time lies outside the run"
        if mark.source == DEVICE:  # MSPTI's only; joined to the host's by the id, without name and domain
            return "a device line with a name or domain" if mark.name or mark.domain else None
        if mark.flag in (END, END_STREAM):
            return self._end(mark)
        if not mark.domain:
            return "the first line of an id has no domain"
        if (mark.pid, mark.id) in self.closed or mark.id in self.open:
            return "the id is used again"
        kind = kind_of(mark.name, mark.domain)
        self.out.counts[kind] += 1
        if mark.flag in (START, START_STREAM):
            self.open[mark.id] = mark
            self.out.most_open = max(self.out.most_open, len(self.open))
        else:
            self.closed.add((mark.pid, mark.id))
        if kind == "communication" and self.communication_json:
            return _communication_problem(mark.name)
        return None

    def _end(self, mark):
        start = self.open.pop(mark.id, None)
        if start is None:
            return "an end without its start before it"
        self.closed.add((mark.pid, mark.id))
        if mark.name or mark.domain:
            return "an end with a name or domain"
        if mark.pid != start.pid:
            return "an end from another process"
        if mark.flag != {START: END, START_STREAM: END_STREAM}[start.flag]:
            return f"flag {mark.flag} ends a range that began with flag {start.flag}"
        if mark.timestamp_ns < start.timestamp_ns:
            return "an end earlier than its start"
        return None

    def finish(self):
        self.out.open_ranges = len(self.open)


def _rank_files(folder, problems):
    """Mark files of a rank's folder, oldest first."""
    names = sorted(os.listdir(folder))
    if len(names) > MAX_ENTRIES:
        problems.append(f"{folder}: {len(names)} entries, the reader takes {MAX_ENTRIES}")
    files = []
    for name in names:
        path = os.path.join(folder, name)
        if re.fullmatch(r"[0-9]{10}", name):
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode):
                problems.append(f"{path}: not a regular file")
                continue
            if info.st_size > MAX_FILE_BYTES + MAX_BATCH_BYTES:
                problems.append(f"{path}: {info.st_size} bytes, above 10 MiB and one batch")
            files.append(path)
        elif name != "parallel_group.json" and not name.startswith("."):
            problems.append(f"{path}: an entry that is neither a mark file nor parallel_group.json")
    return files


def check(folder, communication_json=True, window=None, keep_marks=False, torn_files=(), live=False):
    """Checks a task's folder.

    communication_json: names in the domain "communication" must be what the reader parses.
    window: (first, last) Unix ns that every mark must lie in.
    keep_marks: keep every Mark in RankReport.marks.
    torn_files: paths whose last line may be incomplete (not the proxy's doing).
    live: the job goes on. A write(2) is whole, but a reader beside it may see its first pages before the others.
    """
    report = Report({}, [])
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not re.fullmatch(r"0|[1-9][0-9]*", name):
            if not name.startswith(".") and name != "labels.json":  # the truth beside a simulated job
                report.problems.append(f"{path}: not a rank's folder")
            continue
        rank = _Rank(report, int(name), report.problems, communication_json, window, keep_marks)
        for file in _rank_files(path, report.problems):
            with open(file, "rb") as stream:
                lines = stream.read().split(b"\n")
            if lines.pop() and not live and file not in torn_files:
                report.problems.append(f"{file}: does not end with a whole line")
            for number, line in enumerate(lines, 1):
                rank.add(f"{file}:{number}", line)
        rank.finish()
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", help="<profiling-dir>/<task>")
    parser.add_argument("--live", action="store_true", help="the job goes on: accept an incomplete last line")
    parser.add_argument("--any-communication", action="store_true",
                        help="accept names in the domain communication that the official reader cannot parse")
    arguments = parser.parse_args()
    try:
        report = check(arguments.dir, communication_json=not arguments.any_communication, live=arguments.live)
    except OSError as error:
        print(f"check_marks.py: {error}", file=sys.stderr)
        return 2
    for rank, found in sorted(report.ranks.items()):
        counts = " ".join(f"{kind}={found.counts[kind]}" for kind in KINDS)
        note = f" (more than {READER_OPEN_IDS} ids open at once)" if found.most_open > READER_OPEN_IDS else ""
        print(f"rank {rank}: {found.lines} lines, {counts}, open={found.open_ranges}{note}")
    for problem in report.problems[:50]:
        print(problem)
    print(f"{len(report.problems)} problems in {sum(r.lines for r in report.ranks.values())} lines")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
