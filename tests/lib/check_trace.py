#!/usr/bin/python3
"""Strict check of a timeline: the Trace Event Format's rules, and what Perfetto and chrome://tracing need beyond them.

As a program:  check_trace.py FILE     prints counts, then every problem; exit code 1 if there is any.
As a module:   check(FILE) -> Report,  check_text(TEXT) -> Report

What is checked: JSON without duplicate keys or NaN; the keys of each phase and their types; times that are not negative and
are whole ns after a viewer's conversion; ranges of one thread that nest or are disjoint, as viewers read them in the order of the
file; names and sort indices of every process and thread that has events, once each; names that differ within their
parent; tids that are unique in the file and no pid.
"""
import argparse
import collections
import dataclasses
import json
import math
import sys

PHASES = ("X", "i", "M")
METADATA = {"process_name": ("name", str), "process_sort_index": ("sort_index", int),
            "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
SCOPES = ("g", "p", "t")
TIME_UNITS = ("ms", "ns")
LARGEST = 2**32 - 1  # pids and tids are 32 bits wide in viewers


@dataclasses.dataclass
class Event:
    """A range or an instant. Times in ns after the start of the file."""
    phase: str
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    name: str
    category: str
    args: dict
    scope: str = ""


@dataclasses.dataclass
class Report:
    problems: list = dataclasses.field(default_factory=list)
    events: list = dataclasses.field(default_factory=list)  # in the order of the file, without metadata
    processes: dict = dataclasses.field(default_factory=dict)  # pid -> name
    process_order: dict = dataclasses.field(default_factory=dict)  # pid -> sort index
    threads: dict = dataclasses.field(default_factory=dict)  # (pid, tid) -> name
    thread_order: dict = dataclasses.field(default_factory=dict)  # (pid, tid) -> sort index
    other_data: dict = dataclasses.field(default_factory=dict)

    @property
    def ok(self):
        return not self.problems

    def on(self, pid, track):
        """Events of one process on the thread with this name."""
        return [e for e in self.events if e.pid == pid and self.threads.get((pid, e.tid)) == track]

    def tracks(self, pid):
        """Names of the threads of a process, as they stand below each other."""
        mine = [key for key in self.threads if key[0] == pid]
        return [self.threads[key] for key in sorted(mine, key=lambda key: self.thread_order.get(key, 0))]


def _object(pairs):
    keys = collections.Counter(key for key, _ in pairs)
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        raise ValueError(f"key {twice[0]!r} twice in one object")
    return dict(pairs)


def _constant(text):
    raise ValueError(f"{text} is no JSON")


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def nanoseconds(value):
    """A ts or dur as Perfetto takes it: whole microseconds exactly, others times 1000 and cut. None: not a whole ns."""
    if is_integer(value):
        return value * 1000
    cut = int(value * 1000.0)
    return cut if value * 1000.0 - cut < 0.1 + 1000 * math.ulp(value) else None


class _Checker:
    def __init__(self):
        self.report = Report()
        self.where = ""

    def problem(self, text):
        self.report.problems.append(f"{self.where}: {text}" if self.where else text)

    def run(self, text):
        try:
            file = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            self.problem(f"not JSON: {error}")
            return self.report
        if not isinstance(file, dict) or not isinstance(file.get("traceEvents"), list):
            self.problem("not an object with a list traceEvents")
            return self.report
        if file.get("displayTimeUnit") not in TIME_UNITS:
            self.problem(f"displayTimeUnit {file.get('displayTimeUnit')!r} is neither ms nor ns")
        other = file.get("otherData", {})
        if not isinstance(other, dict) or not all(isinstance(v, str) for v in other.values()):
            self.problem("otherData is not an object of strings")
        else:
            self.report.other_data = other
        for number, event in enumerate(file["traceEvents"]):
            self.where = f"event {number}"
            if isinstance(event, dict):
                self.event(event)
            else:
                self.problem("not an object")
        self.where = ""
        self.metadata_is_there()
        self.names_differ()
        self.ranges_nest()
        return self.report

    def id(self, event, key):
        value = event.get(key)
        if is_integer(value) and 0 <= value <= LARGEST:
            return True
        self.problem(f"{key} {value!r} is not an integer from 0 to {LARGEST}")
        return False

    def time(self, event, key):
        value = event.get(key)
        if not is_number(value):
            self.problem(f"{key} {value!r} is not a number")
        elif value < 0:
            self.problem(f"{key} {value!r} is negative")
        elif nanoseconds(value) is None:
            self.problem(f"{key} {value!r} is not a whole number of ns to a viewer")
        else:
            return nanoseconds(value)
        return None

    def event(self, event):
        phase = event.get("ph")
        if phase not in PHASES:
            return self.problem(f"ph {phase!r} is not one of {', '.join(PHASES)}")
        allowed = {"ph", "pid", "tid", "name", "args"}
        if phase != "M":
            allowed |= {"ts", "cat", "dur" if phase == "X" else "s"}
        for key in sorted(set(event) - allowed):
            self.problem(f"unexpected key {key!r}")
        if not isinstance(event.get("name"), str) or not event["name"]:
            self.problem(f"name {event.get('name')!r} is not a string with something in it")
            return None
        if not isinstance(event.get("args", {}), dict):
            self.problem("args is not an object")
            return None
        if not self.id(event, "pid"):
            return None
        if phase == "M":
            return self.metadata(event)
        if not self.id(event, "tid"):
            return None
        if not isinstance(event.get("cat"), str):
            self.problem(f"cat {event.get('cat')!r} is not a string")
        start = self.time(event, "ts")
        duration = self.time(event, "dur") if phase == "X" else 0
        if phase == "i" and event.get("s") not in SCOPES:
            self.problem(f"s {event.get('s')!r} is not one of {', '.join(SCOPES)}")
        if start is not None and duration is not None:
            self.report.events.append(Event(phase, event["pid"], event["tid"], start, start + duration, event["name"],
                                            event.get("cat", ""), event.get("args", {}), event.get("s", "")))
        return None

    def metadata(self, event):
        name = event["name"]
        if name not in METADATA:
            return self.problem(f"metadata {name!r} is not known")
        key, kind = METADATA[name]
        value = event.get("args", {}).get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or value == "":
            return self.problem(f"{name}: args.{key} {value!r} is not a {kind.__name__} with something in it")
        if name.startswith("process"):
            if "tid" in event:
                self.problem(f"{name}: a tid")
            where, owner = event["pid"], f"pid {event['pid']}"
        else:
            if not self.id(event, "tid"):
                return None
            where, owner = (event["pid"], event["tid"]), f"pid {event['pid']} tid {event['tid']}"
        table = {"process_name": self.report.processes, "process_sort_index": self.report.process_order,
                 "thread_name": self.report.threads, "thread_sort_index": self.report.thread_order}[name]
        if where in table:
            self.problem(f"{name} of {owner} twice")
        table[where] = value
        return None

    def metadata_is_there(self):
        report = self.report
        threads = {(e.pid, e.tid) for e in report.events}
        for pid in sorted({pid for pid, _ in threads} | set(report.process_order) | {p for p, _ in report.threads}):
            for table, what in ((report.processes, "process_name"), (report.process_order, "process_sort_index")):
                if pid not in table:
                    self.problem(f"pid {pid} has no {what}")
        for key in sorted(threads | set(report.thread_order)):
            for table, what in ((report.threads, "thread_name"), (report.thread_order, "thread_sort_index")):
                if key not in table:
                    self.problem(f"pid {key[0]} tid {key[1]} has no {what}")
        for key in sorted(set(report.threads) - threads):
            self.problem(f"pid {key[0]} tid {key[1]} has a name and no events")

    def twice(self, items, what):
        for item, count in collections.Counter(items).items():
            if count > 1:
                self.problem(f"{what} {item!r} {count} times")

    def names_differ(self):
        report = self.report
        self.twice(report.processes.values(), "process name")
        self.twice(((pid, name) for (pid, _), name in report.threads.items()), "thread name (pid, name)")
        self.twice(report.process_order.values(), "process sort index")
        self.twice(((pid, index) for (pid, _), index in report.thread_order.items()), "thread sort index (pid, index)")
        self.twice((tid for _, tid in report.threads), "tid")
        for tid in sorted({tid for _, tid in report.threads} & set(report.processes)):
            self.problem(f"tid {tid} is a pid, too")

    def ranges_nest(self):
        threads = collections.defaultdict(list)
        for event in self.report.events:
            if event.phase == "X":
                threads[event.pid, event.tid].append(event)
        for (pid, tid), events in sorted(threads.items()):
            open_ranges = []
            # As viewers do: by time, and what begins together in the order of the file.
            for event in sorted(events, key=lambda e: e.start_ns):
                while open_ranges and open_ranges[-1].end_ns <= event.start_ns:
                    open_ranges.pop()
                if open_ranges and event.end_ns > open_ranges[-1].end_ns:
                    self.problem(f"pid {pid} tid {tid}: {event.name!r} at {event.start_ns} ns ends after "
                                 f"{open_ranges[-1].name!r} that it begins in")
                    continue
                open_ranges.append(event)


def check_text(text):
    return _Checker().run(text)


def check(path):
    with open(path, "rb") as file:
        data = file.read()
    try:
        return check_text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Report(problems=[f"not UTF-8: {error}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a timeline, as `taskd trace -o FILE` writes it")
    arguments = parser.parse_args()
    try:
        report = check(arguments.file)
    except OSError as error:
        print(f"check_trace.py: {error}", file=sys.stderr)
        return 2
    ranges = sum(event.phase == "X" for event in report.events)
    print(f"{len(report.processes)} processes, {len(report.threads)} threads, {ranges} ranges, "
          f"{len(report.events) - ranges} instants")
    for problem in report.problems[:50]:
        print(problem)
    print(f"{len(report.problems)} problems")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
