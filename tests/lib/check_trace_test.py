"""Timelines, right and wrong, through the checker: a checker that accepts everything would prove nothing."""
import json
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_trace  # noqa: E402

TID = 100000


def process(pid=3, name="rank 3", index=0):
    return [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": index}}]


def thread(pid=3, tid=TID, name="step", index=0):
    return [{"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}},
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": index}}]


def span(ts=1.5, dur=2, **fields):
    return {"ph": "X", "pid": 3, "tid": TID, "ts": ts, "dur": dur, "name": "step 1", "cat": "step", **fields}


def instant(**fields):
    return {"ph": "i", "pid": 3, "tid": TID, "ts": 7, "s": "t", "name": "here", "cat": "other", **fields}


def without(event, key):
    return {k: v for k, v in event.items() if k != key}


HEAD = process() + thread()


def file(events, **fields):
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"a": "b"}, **fields})


GOOD = {
    "nothing": file([]),
    "one range": file(HEAD + [span()]),
    "instants": file(HEAD + [instant(), instant(s="g"), instant(s="p")]),
    "metadata behind": file([span()] + HEAD),
    "args": file(HEAD + [span(args={"bytes": 5, "group": "tp"})]),
    "disjoint, not in order": file(HEAD + [span(10, 2), span(1, 2)]),
    "touching": file(HEAD + [span(1, 2), span(3, 2)]),
    "nested, the inner one first": file(HEAD + [span(2, 1), span(1, 5)]),
    "ending together": file(HEAD + [span(2, 3), span(1, 4)]),
    "the same twice": file(HEAD + [span(), span()]),
    "empty ones": file(HEAD + [span(1, 0), span(1, 0), span(1, 5), span(1, 0)]),
    "ns of 50 days": file(HEAD + [span(4320000000000.0015, 0.001)]),
    "two processes": file(HEAD + process(4, "rank 4", 1) + thread(4, TID + 1) + [span(), span(pid=4, tid=TID + 1)]),
    "crossing on two threads": file(HEAD + thread(3, TID + 1, "step 2", 1) + [span(1, 5), span(2, 9, tid=TID + 1)]),
}
BAD = {
    "no JSON": "{",
    "a comma too many": file([span()]).replace("}]", "},]"),
    "NaN": file(HEAD + [span(args={"x": float("nan")})]),
    "a key twice": file(HEAD + [span()]).replace('"cat"', '"ph": "X", "cat"'),
    "a list alone": json.dumps(HEAD),
    "no events": json.dumps({"displayTimeUnit": "ms"}),
    "another unit": file([], displayTimeUnit="s"),
    "other data that a viewer shows wrong": file([], otherData={"start": 1745567190000000000}),
    "an event that is none": file(HEAD + [7]),
    "an unknown phase": file(HEAD + [span(ph="Z")]),
    "begin and end": file(HEAD + [span(ph="B")]),
    "an unknown key": file(HEAD + [span(duration=5)]),
    "no name": file(HEAD + [without(span(), "name")]),
    "an empty name": file(HEAD + [span(name="")]),
    "no category": file(HEAD + [without(span(), "cat")]),
    "no pid": file(HEAD + [without(span(), "pid")]),
    "no tid": file(HEAD + [without(span(), "tid")]),
    "a pid that is text": file(HEAD + [span(pid="3")]),
    "a negative tid": file(HEAD + thread(3, -1, "x", 1) + [span(tid=-1)]),
    "no ts": file(HEAD + [without(span(), "ts")]),
    "ts as text": file(HEAD + [span(ts="1")]),
    "ts as truth": file(HEAD + [span(ts=True)]),
    "a negative ts": file(HEAD + [span(ts=-1)]),
    "no dur": file(HEAD + [without(span(), "dur")]),
    "a negative dur": file(HEAD + [span(dur=-0.5)]),
    "parts of a ns": file(HEAD + [span(ts=1.0005)]),
    "a ns that the conversion loses": file(HEAD + [span(ts=1.001)]),
    "an instant without scope": file(HEAD + [without(instant(), "s")]),
    "an instant with another scope": file(HEAD + [instant(s="x")]),
    "args that are no object": file(HEAD + [span(args=[1])]),
    "metadata without its value": file(HEAD + [span()] + [{"ph": "M", "pid": 3, "name": "process_name"}]),
    "unknown metadata": file(HEAD + [span(), {"ph": "M", "pid": 3, "name": "colour", "args": {"name": "x"}}]),
    "a thread without name": file(process() + [span()]),
    "a thread without index": file(process() + thread()[:1] + [span()]),
    "a process without name": file(thread() + [span()]),
    "a process without index": file(process()[:1] + thread() + [span()]),
    "a thread without events": file(HEAD + thread(3, TID + 1, "x", 1) + [span()]),
    "a thread named twice": file(HEAD + thread() + [span()]),
    "two processes of one name": file(process() + process(4, "rank 3", 1)),
    "two processes in one place": file(process() + process(4, "rank 4", 0)),
    "two threads of one name": file(HEAD + thread(3, TID + 1, "step", 1) + [span(), span(tid=TID + 1)]),
    "two threads in one place": file(HEAD + thread(3, TID + 1, "x", 0) + [span(), span(tid=TID + 1)]),
    "a tid in two processes": file(HEAD + process(4, "rank 4", 1) + thread(4) + [span(), span(pid=4)]),
    "a tid that is a pid": file(process() + thread(tid=3) + [span(tid=3)]),
    "crossing": file(HEAD + [span(1, 5), span(2, 9)]),
    "crossing, later one first": file(HEAD + [span(2, 9), span(1, 5)]),
    "crossing by a ns": file(HEAD + [span(1, 5), span(3, 3.0010000000000003)]),
    "crossing within a nested one": file(HEAD + [span(1, 20), span(2, 5), span(4, 6)]),
    "beginning together, the inner one first": file(HEAD + [span(1, 2), span(1, 5)]),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_accepts(text):
    assert check_trace.check_text(text).problems == []


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_refuses(text):
    assert check_trace.check_text(text).problems


def test_each_problem_is_one():
    """An error in one event is reported only once."""
    assert len(check_trace.check_text(BAD["crossing"]).problems) == 1
    assert len(check_trace.check_text(BAD["a ns that the conversion loses"]).problems) <= 2


def test_reads_what_is_there():
    report = check_trace.check_text(file(HEAD + thread(3, TID + 1, "forward", -1) + [
        span(args={"open": True}), instant(tid=TID + 1)]))
    assert report.ok
    assert report.tracks(3) == ["forward", "step"]
    [event] = report.on(3, "step")
    assert (event.start_ns, event.end_ns, event.args) == (1500, 3500, {"open": True})


def test_program(tmp_path):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_trace.py")
    path = tmp_path / "trace.json"
    run = lambda: subprocess.run([sys.executable, program, path], check=False, capture_output=True).returncode  # noqa: E731
    assert run() == 2
    path.write_text(GOOD["one range"])
    assert run() == 0
    path.write_bytes(GOOD["one range"].encode().replace(b"step", b"st\xffp"))
    assert run() == 1
