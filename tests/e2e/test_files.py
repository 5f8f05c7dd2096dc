"""The mark files: odd names, times, rolling, aging, and directories that are missing, full, read-only or not what they seem."""
import json
import os
import re
import subprocess
import time

import harness
import pytest
from harness import KINDS, check_marks, wait_until


# Marks each argument (hex) with the C API; "!" before it: in the domain "communication". Ends with the times around a mark.
MARKER = """
import ctypes, sys, time
taskd = ctypes.CDLL(None)
taskd.taskd_domain_create.restype = ctypes.c_void_p
taskd.taskd_domain_mark.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
taskd.taskd_range_start.restype = ctypes.c_uint64
taskd.taskd_range_end.argtypes = [ctypes.c_uint64]
communication = taskd.taskd_domain_create(b"communication")
assert taskd.taskd_worker_init(0, 0, 0) == 0
for argument in sys.argv[1:]:
    if argument == "NULL":
        taskd.taskd_mark(None)
    elif argument[:1] == "!":
        taskd.taskd_domain_mark(communication, bytes.fromhex(argument[1:]))
    else:
        taskd.taskd_mark(bytes.fromhex(argument))
before = time.time_ns()
range_id = taskd.taskd_range_start(b"timed")
after = time.time_ns()
taskd.taskd_range_end(range_id)
print(before, after, flush=True)
"""


def mark(stage, proxy, *names):
    """Runs a rank that marks these; returns its process."""
    arguments = [n if n is None else (n if isinstance(n, str) else n.hex()) for n in names]
    process = stage.python("marker", MARKER, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": proxy.socket}, *arguments)
    assert process.wait() == 0, process.log()
    return process


def read_back(proxy, communication_json=False):
    """All marks of rank 0 once its last one is there."""
    wait_until(lambda: any(m.name == "timed" for r in proxy.check(communication_json=False, keep_marks=True).ranks.values()
                           for m in r.marks), "the last mark is in the file")
    assert proxy.terminate() == 0
    report = proxy.check(communication_json=communication_json, keep_marks=True)
    assert report.ok, report.problems[:5]
    return report.ranks[0].marks


ODD_NAMES = [
    b'quote " and \\ backslash',
    b"line\nfeed\r\ttab",
    b"\x01\x1f\x7f control",
    b"<html> & </html>",
    "日本語 é \u2028 \u2029 😀".encode(),
    b"",
    b"%s %n %d",
    b'"},"Name":"forged","Domain":"default"}\n{"Kind":1',
    b"x" * 254,
]


def test_odd_names_come_back_as_they_were(stage, manager, recording, proxy):
    mark(stage, proxy, *ODD_NAMES)
    names = [m.name for m in read_back(proxy) if m.domain]
    assert names[:len(ODD_NAMES)] == [n.decode() for n in ODD_NAMES]


@pytest.mark.parametrize("name,pattern", [
    (b"x" * 10_240, r"x{200,254}"),
    ("é".encode() * 5_000, r"é{100,127}"),
    (b"x" + "é".encode() * 5_000, r"xé{100,127}"),
    ("😀".encode() * 3_000, r"😀{50,63}"),
    (b"\xff\xfe broken \xc3", "\ufffd+ broken \ufffd"),
    (b"\xed\xa0\x80 surrogate", "\ufffd+ surrogate"),
    (b"\xc0\xaf overlong", "\ufffd+ overlong"),
])
def test_long_and_broken_names_are_mended(stage, manager, recording, proxy, name, pattern):
    mark(stage, proxy, name, "NULL")
    found = [m.name for m in read_back(proxy) if m.domain]
    assert re.fullmatch(pattern, found[0]), found[0][:300]


def test_communication_names_escaped_or_plain_are_the_same(stage, manager, recording, proxy):
    value = {"count": "1024", "streamId": "7", "dataType": "bfp16", "groupName": 'a"b\\c', "opName": "HcclSend",
             "srcRank": "0", "destRank": "1"}
    plain = json.dumps(value).encode()
    escaped = plain.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    mark(stage, proxy, "!" + plain.hex(), "!" + escaped.hex())
    names = [m.name for m in read_back(proxy, communication_json=True) if m.domain == "communication"]
    assert [json.loads(n) for n in names] == [value, value]


def test_other_communication_names_still_give_valid_lines(stage, manager, recording, proxy):
    odd = [b"all_reduce", b'{\\"count', b'\\"', b"\\", b'{"count": "1"', b"\xff", b'a\nb"', b""]
    mark(stage, proxy, *("!" + n.hex() for n in odd))
    names = [m.name for m in read_back(proxy) if m.domain == "communication"]
    assert len(names) == len(odd)


def test_times_and_ids_are_those_of_the_call(stage, manager, recording, proxy):
    marker = mark(stage, proxy)
    before, after = map(int, marker.log().split()[-2:])
    start = next(m for m in read_back(proxy) if m.name == "timed")
    assert before - 2_000_000 <= start.timestamp_ns <= after + 2_000_000
    assert start.pid == start.tid == marker.pid


def test_marks_are_in_the_file_within_five_seconds(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, rate=1000)
    rank.wait_made(1000)
    made = max(rank.made())
    wait_until(lambda: proxy.counts(0)["other"] >= made, "marks made so far are in the file", 5)


def test_new_file_above_ten_mebibytes(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, rate=4000, count=32_000, name_bytes=250)  # 8,000 records/s; 2 lines a range: above 13 MB
    rank.wait_finished(32_000, 60)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    folder = os.path.join(proxy.task_dir, "0")
    sizes = [os.path.getsize(os.path.join(folder, n)) for n in sorted(os.listdir(folder)) if n.isdigit()]
    assert len(sizes) >= 2 and all(s > check_marks.MAX_FILE_BYTES for s in sizes[:-1]), sizes
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


def test_appends_to_the_newest_file_but_not_after_a_torn_end(stage, manager):
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    contents = {0: b"", 1: b'{"Kind":1,"Fl'}
    names = {0: "1700000001", 1: "1700000002"}
    for rank, content in contents.items():
        folder = os.path.join(profiling, harness.TASK, str(rank))
        os.makedirs(folder)
        for name, data in (("1600000000", b""), (names[rank], content)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
    proxy = stage.proxy(manager, profiling_dir=profiling)
    ranks = [stage.rank(r, proxy, rate=500, count=100) for r in contents]
    for rank in ranks:
        rank.wait_finished(100)
    assert proxy.terminate() == 0

    def size(rank, name):
        return os.path.getsize(os.path.join(profiling, harness.TASK, str(rank), name))

    assert size(0, names[0]) > 0 and size(0, "1600000000") == 0
    torn = os.path.join(profiling, harness.TASK, "1", names[1])
    report = proxy.check(keep_marks=True, torn_files=[torn])
    for rank in ranks:
        rank.verify(report)
    with open(torn, "rb") as file:
        assert contents[1] in file.read().split(b"\n"), "the torn line was continued"


def test_aging_deletes_the_oldest_digit_named_files_only(stage, manager):
    profiling = os.path.join(stage.folder, "profiling")
    folder = os.path.join(profiling, harness.TASK, "0")
    os.makedirs(folder)
    now = int(time.time())
    for number in range(20):
        path = os.path.join(folder, str(1_600_000_000 + number))
        with open(path, "wb") as file:
            file.write(b"\n" * 1_000_000)
        # Modification time decides, not the name: the highest name is the oldest.
        os.utime(path, (now - 1000 - number, now - 1000 - number))
    for name in ("notes.txt", "parallel_group.json"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"x" * 1_000_000)
        os.utime(os.path.join(folder, name), (1, 1))
    proxy = stage.proxy(manager, profiling_dir=profiling, flags=["--disk-limit-mb", "18"])

    def below_limit():
        try:
            return sum(entry.stat().st_size for entry in os.scandir(folder)) <= 18 << 20
        except FileNotFoundError:  # deleted between the listing and the look
            return False

    wait_until(below_limit, "the folder is below its limit", 65, 0.2)
    proxy.require_alive()
    left = set(os.listdir(folder))
    assert {"notes.txt", "parallel_group.json"} <= left
    gone = {str(1_600_000_000 + n) for n in range(20)} - left
    assert gone == {str(1_600_000_000 + n) for n in range(20 - len(gone), 20)}, "not the oldest went"
    assert len(gone) == 4, f"a fifth of 20 goes at a time, {len(gone)} went"


def test_missing_profiling_directory(stage, manager):
    manager.all_on()
    proxy = stage.proxy(manager, profiling_dir=os.path.join(stage.folder, "not", "there", "yet"))
    rank = stage.rank(0, proxy, rate=500, count=200)
    rank.wait_finished(200)
    # Either the proxy makes it, or it waits for whoever does.
    os.makedirs(proxy.profiling_dir, exist_ok=True)
    wait_until(lambda: proxy.counts(0)["other"] == 200, "all marks are in the file")


@pytest.mark.parametrize("level", ["profiling", "task", "rank", "file"])
def test_symbolic_links_are_refused(stage, manager, level):
    manager.all_on()
    elsewhere = os.path.join(stage.folder, "elsewhere")
    os.mkdir(elsewhere)
    victim = os.path.join(elsewhere, "victim")
    with open(victim, "wb"):
        pass
    profiling = os.path.join(stage.folder, "profiling")
    link = {"profiling": profiling, "task": os.path.join(profiling, harness.TASK),
            "rank": os.path.join(profiling, harness.TASK, "0"),
            "file": os.path.join(profiling, harness.TASK, "0", "1700000001")}[level]
    os.makedirs(os.path.dirname(link), exist_ok=True)
    os.symlink(victim if level == "file" else elsewhere, link)
    if level == "profiling":
        # Refused at the start or at the first write; never followed.
        proxy = harness.Proxy(stage.folder, manager, profiling_dir=profiling, wait=False)
        stage.processes.append(proxy)
        wait_until(lambda: not proxy.alive() or os.path.exists(proxy.socket), "the proxy decides")
    else:
        proxy = stage.proxy(manager, profiling_dir=profiling)
    if proxy.alive():
        rank = stage.rank(0, proxy, rate=500, count=200, hold=False)
        rank.wait_finished(200)
        other = None
        if level in ("rank", "file"):  # the other ranks do not suffer
            other = stage.rank(1, proxy, rate=500, count=200)
            other.wait_finished(200)
            wait_until(lambda: proxy.counts(1)["other"] == 200, "rank 1 records")
        if level == "file":  # left alone; the marks go into a file of their own
            wait_until(lambda: any(n.isdigit() and n != os.path.basename(link) for n in os.listdir(os.path.dirname(link))),
                       "another file")
        else:
            wait_until(lambda: "symbolic link" in proxy.log(), "the log names the link")
        proxy.terminate(10)
    assert os.listdir(elsewhere) == ["victim"] and os.path.getsize(victim) == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB of its own."""
    path = str(tmp_path / "disk")
    os.mkdir(path)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "taskd-test", path], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def remount(path, options):
    subprocess.run(["mount", "-o", f"remount,{options}", path], check=True)


@pytest.mark.root("mounts a file system")
def test_full_disk(stage, small_disk):
    manager = stage.manager()
    manager.all_on()
    proxy = stage.proxy(manager, profiling_dir=small_disk)
    rank = stage.rank(0, proxy, rate=1000)
    wait_until(lambda: re.search(r"[Nn]o space left|ENOSPC", proxy.log()), "the proxy reports that the disk is full")
    rank.wait_made(max(rank.made()) + 3000)
    proxy.require_alive()

    def shown():
        return manager.status()["nodes"][0]["mark_files"]

    wait_until(lambda: "No space left" in shown()["error"], "the status says why marks are not written")
    told = stage.run("status", "--manager", manager.address).stdout
    assert re.search(rf"^mark files: {small_disk} \(marks wait in memory: .*No space left on device\)$", told, re.M), told
    # A second rank and the switch go on meanwhile.
    assert manager.modify(communication="off") == 200
    manager.wait_applied({"communication": "off"}, [0], 1)
    remount(small_disk, "size=100m")
    wait_until(lambda: shown() == {"dir": small_disk, "error": ""}, "nor does it say so any more")
    made = max(rank.made())
    rank.wait_made(made + 500)
    assert rank.terminate() == 0
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    found = [int(m.name.split()[2]) for m in report.ranks[0].marks if m.name.startswith("seq ")]
    assert found == sorted(set(found)), "doubled or out of order"
    assert set(range(made, max(rank.made()))) <= set(found), "what was made after there was room again is not there"


@pytest.mark.root("mounts a file system")
def test_read_only_directory(stage, small_disk):
    manager = stage.manager()
    manager.all_on()
    proxy = stage.proxy(manager, profiling_dir=small_disk)
    remount(small_disk, "ro")
    rank = stage.rank(0, proxy, rate=500, count=500)
    rank.wait_finished(500)
    wait_until(lambda: "ead-only" in proxy.log(), "the proxy reports why it cannot write")
    proxy.require_alive()
    remount(small_disk, "rw")
    wait_until(lambda: proxy.counts(0)["other"] == 500, "all marks are in the file once it can be written")
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    rank.verify(report)


def test_files_that_somebody_removes(stage, manager, recording, proxy):
    rank = stage.rank(0, proxy, rate=1000)
    wait_until(lambda: proxy.counts(0)["other"] > 100, "marks are written")
    folder = os.path.join(proxy.task_dir, "0")
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    rank.wait_made(max(rank.made()) + 500)
    wait_until(lambda: proxy.counts(0)["other"] > 100, "marks are written to a new file")


def hand_over(stage, proxy, rounds):
    """Six processes, each with a thread that starts 3,000 ranges and one that ends each at once."""
    ranks = []
    for number in range(rounds):
        live = [stage.rank(r, proxy, threads=2, rate=0, count=3000, pattern="handover", hold=False, name=f"rank{r}-{number}")
                for r in range(6)]
        for rank in live:
            assert rank.wait(timeout_s=120) == 0, rank.log()
        ranks += live
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert sum(rank.verify(report) for rank in ranks) == rounds * 6 * 3000
    assert {r: found.open_ranges for r, found in report.ranks.items()} == dict.fromkeys(range(6), 0), "ends are missing"


def test_every_end_of_another_thread_is_there_and_not_before_its_start(stage, manager, recording, proxy):
    hand_over(stage, proxy, 1)


@pytest.mark.slow
def test_every_end_of_another_thread_is_there_round_after_round(stage, manager, recording, proxy):
    hand_over(stage, proxy, 12)


def test_where_a_rank_runs_is_beside_its_marks(stage, manager):
    manager.all_on()
    proxy = stage.proxy(manager, node=3)
    rank = stage.rank(0, proxy, rate=500, count=50)
    rank.wait_finished(50)
    wait_until(lambda: proxy.counts(0)["other"] == 50, "marks are written")
    with open(os.path.join(proxy.task_dir, "0", ".rank.json"), encoding="utf-8") as file:
        place = json.load(file)
    assert place["node"] == 3 and place["host"] and "local_rank" in place


def test_without_a_task_id_the_folder_has_a_default_name(stage, manager):
    manager.all_on()
    proxy = stage.proxy(manager, environment=harness.clean_environment())
    rank = stage.rank(0, proxy, rate=500, count=50)
    rank.wait_finished(50)
    folders = wait_until(lambda: os.listdir(proxy.profiling_dir), "a task folder")
    assert re.fullmatch(r"default_task_id_[0-9]{10}", folders[0]), folders
    assert proxy.terminate() == 0
    assert check_marks.check(os.path.join(proxy.profiling_dir, folders[0])).ranks[0].counts["other"] == 50
