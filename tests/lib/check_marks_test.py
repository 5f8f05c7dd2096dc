"""Literal lines, right and wrong, through the checker: a checker that accepts everything would prove nothing."""
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_marks  # noqa: E402


def line(flag=16, time=1745567190000000000, mark_id=7, name='"step 1"', domain='"default"', source=0, pid=123, tid=456,
         device=None):
    return (f'{{"Kind":1,"Flag":{flag},"SourceKind":{source},"Timestamp":{time},"Id":{mark_id},"MsptiObjectId":'
            f'{{"Pt":{{"ProcessId":{pid},"ThreadId":{tid}}},"Ds":{{"DeviceId":{device or pid},"StreamId":{tid}}}}},'
            f'"Name":{name},"Domain":{domain}}}\n')


def end(flag=32, time=1745567190000000001, mark_id=7, **fields):
    return line(flag, time, mark_id, **{"name": '""', "domain": '""', **fields})


COMMUNICATION = r'"{\"count\": \"1024\",\"groupName\": \"tp\",\"opName\": \"HcclSend\"}"'
GOOD = [
    line() + end(),
    line(2) + end(4),
    line(1),
    line(8),
    line(name=COMMUNICATION, domain='"communication"') + end(),
    line(name=r'"a \"b\" \\ \n \u0001 \u003c\u2028 é"') + end(),
    line(mark_id=1) + line(mark_id=2) + end(mark_id=1) + end(mark_id=2),
    line() + line(source=1, name='""', domain='""') + end() + end(source=1),  # MSPTI's device lines
    line(),  # open at the end: a range that goes on
]
BAD = {
    "keys in another order": line().replace('"Kind":1,"Flag":16', '"Flag":16,"Kind":1'),
    "a space": line().replace(",", ", ", 1),
    "not nanoseconds": line(time=1745567190),
    "Pt and Ds differ": line(device=9),
    "an end alone": end(),
    "an end with a name": line() + end(name='"step 1"'),
    "an end with a domain": line() + end(domain='"default"'),
    "the wrong end": line() + end(4),
    "an end before its start": line() + end(time=1745567189999999999),
    "a start without a domain": line(domain='""'),
    "an id twice": line() + end() + line(),
    "an id open twice": line() + line(),
    "a quote that is not escaped": line(name='"a"b"'),
    "an escape that Go does not write": line(name=r'"\/"'),
    "a character that Go escapes": line(name='"<"'),
    "invalid UTF-8": line(name='"?"').encode().replace(b"?", b"\xff"),
    "communication without JSON": line(name='"all_reduce"', domain='"communication"'),
    "communication without count": line(name=r'"{\"opName\": \"x\"}"', domain='"communication"'),
    "an unknown flag": line(flag=3),
    "half a line": line()[:-10],
    "no line feed": line()[:-1],
    "an empty line": line() + "\n",
}


def write(tmp_path, content, name="1745567190"):
    folder = tmp_path / "task" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / "task"


@pytest.mark.parametrize("content", GOOD)
def test_accepts(tmp_path, content):
    assert check_marks.check(write(tmp_path, content)).problems == []


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_refuses(tmp_path, content):
    assert check_marks.check(write(tmp_path, content)).problems


@pytest.mark.parametrize("name", ["174556719", "17455671900", "1745567190.log", "notes"])
def test_refuses_other_names(tmp_path, name):
    assert check_marks.check(write(tmp_path, line(), name)).problems


def test_refuses_links(tmp_path):
    task = write(tmp_path, line())
    os.symlink(task / "0" / "1745567190", task / "0" / "1745567191")
    assert check_marks.check(task).problems


def test_joins_over_files_and_counts(tmp_path):
    write(tmp_path, line(name='"forward"') + line(mark_id=8), "1745567190")
    task = write(tmp_path, end() + end(mark_id=8), "1745567191")
    (task / "0" / "parallel_group.json").write_text("{}")
    (task / "0" / ".rank.json").write_text("{}")
    report = check_marks.check(task)
    assert report.ok
    assert report.ranks[0].counts["fp"] == 1 and report.ranks[0].counts["step"] == 1
    assert report.ranks[0].open_ranges == 0


def test_program(tmp_path):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_marks.py")
    task = write(tmp_path, line() + end())
    assert subprocess.run([sys.executable, program, task], check=False, capture_output=True).returncode == 0
    write(tmp_path, "x\n")
    assert subprocess.run([sys.executable, program, task], check=False, capture_output=True).returncode == 1
    assert subprocess.run([sys.executable, program, tmp_path / "no"], check=False, capture_output=True).returncode == 2
