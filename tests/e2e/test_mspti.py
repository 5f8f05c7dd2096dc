"""Marks that MSPTI takes, end to end. All of it against a libmspti.so of our own, so every test is named `contract`:
TaskD contract 4.1 (how it is found), 4.2 (switching), 4.3 (records and buffers), 4.5 (lines)."""
import dataclasses
import os
import re
import signal

import harness
import pytest
from harness import KINDS, check_marks, wait_until

ALL_ON = dict.fromkeys(KINDS, "on")
ALL_OFF = dict.fromkeys(KINDS, "off")
FAKES = os.path.join(harness.BUILD, "tests", "fake_mspti")
MSPTI = os.path.join(FAKES, "libmspti.so")
MSTX = os.path.join(FAKES, "libms_tools_ext.so")
MSPTI_WITH_MSTX = os.path.join(harness.BUILD, "tests", "fake_mspti_mstx", "libmspti.so")
FIRST_OWN_ID = 1 << 48  # MSPTI counts from 1
# More records than MSPTI's buffers (16 MiB of 56 bytes) and a ring (2 MiB of at least 32) hold.
CAPACITY = 16 * 1024 * 1024 // 56 + 2 * 1024 * 1024 // 32

# Steps with marks by mstx's symbols, as in a program that is linked with mstx's library. Files control what else it does:
# FOLDER/RANK.other: a full profiling is open; FOLDER/RANK.burst: so many instant marks at once.
TRAINING = r'''
import ctypes, mmap, os, signal, struct, sys, time

folder, rank, count, rate, ending = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
if os.environ["TEST_MSTX"]:
    ctypes.CDLL(os.environ["TEST_MSTX"], mode=ctypes.RTLD_GLOBAL)
marks = ctypes.CDLL(None)  # the first one in the linker's order
for name in ("mstxRangeStartA", "mstxDomainRangeStartA"):
    getattr(marks, name).restype = ctypes.c_uint64
marks.mstxDomainCreateA.restype = ctypes.c_void_p
marks.mstxRangeStartA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
marks.mstxRangeEnd.argtypes = [ctypes.c_uint64]
marks.mstxMarkA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
marks.mstxDomainRangeStartA.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
marks.mstxDomainRangeEnd.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
stream = 0x5000
operation = (rb'{\"count\": \"1024\",\"streamId\": \"2\",\"dataType\": \"bfp16\",\"groupName\": \"default_group\",'
             rb'\"opName\": \"HcclAllreduce\"}')

with open(f"{folder}/{rank}.counter", "w+b") as file:
    file.truncate(16)
    counter = mmap.mmap(file.fileno(), 16)
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))

def setting(what):
    try:
        with open(f"{folder}/{rank}.{what}") as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0

def full_profiling(there):
    fake = getattr(marks, "FakeOtherSubscriber", None)
    if fake:
        fake(there)

def named(name, on=None):
    marks.mstxRangeEnd(marks.mstxRangeStartA(name, on))

def step(number):
    whole = marks.mstxRangeStartA(b"step %d" % number, stream)
    named(b"dataloader")
    named(b"forward", stream)
    marks.mstxDomainRangeEnd(communication, marks.mstxDomainRangeStartA(communication, operation, stream))
    if number % 10 == 0:
        named(b"save_checkpoint")
    marks.mstxRangeEnd(whole)
    struct.pack_into("Q", counter, 0, number + 1)

full_profiling(setting("other"))
if ending == "api":
    from taskd.api.taskd_worker_api import destroy_taskd_worker, init_taskd_worker
    init_taskd_worker(rank, 5000)
else:
    library = ctypes.CDLL(os.environ["TEST_LIBRARY"])
    assert library.taskd_worker_init(rank, -1, 0) == 0
communication = marks.mstxDomainCreateA(b"communication")
number = 0
burst = 0
while (number < count or count == 0) and not stopped:
    step(number)
    number += 1
    full_profiling(setting("other"))
    if not burst and setting("burst"):
        burst = setting("burst")
        for i in range(burst):
            marks.mstxMarkA(b"burst", None)
            if i % 1000 == 999:
                struct.pack_into("Q", counter, 8, i + 1)
    if rate:
        time.sleep(1 / rate)
if ending == "fork":
    children = []
    for n in range(4):
        pid = os.fork()
        if pid == 0:
            step(10**6 + n)
            sys.exit(0) if n % 2 else os._exit(0)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    assert codes == [0] * 4, codes
    step(number)
elif ending == "init again":
    assert library.taskd_worker_destroy() == 0
    assert library.taskd_worker_init(rank, -1, 0) == 0
    subscribed = time.monotonic() + 20
    while not marks.mstxRangeStartA(b"waits", None) and time.monotonic() < subscribed:
        pass
    step(number)
elif ending == "exit":
    sys.exit(0)
elif ending == "_exit":
    os._exit(0)
elif ending == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
'''


@dataclasses.dataclass
class Way:
    """How the two libraries come into the rank."""
    preload: str
    library_path: str = ""
    mstx: str = MSTX
    in_front: bool = True  # our symbols take the marks until MSPTI does
    api: bool = False


WAYS = {
    "preloaded": Way(f"{MSPTI}:{harness.LIBRARY}"),  # as the documents say
    "by LD_LIBRARY_PATH": Way(harness.LIBRARY, library_path=FAKES),
    "with mstx behind ours": Way(f"{harness.LIBRARY}:{MSPTI_WITH_MSTX}", mstx=""),
    "with mstx in front of ours": Way(f"{MSPTI_WITH_MSTX}:{harness.LIBRARY}", mstx="", in_front=False),
    "by the Python API only": Way(MSPTI, in_front=False, api=True),
}


class Trainer(harness.Process):
    def __init__(self, stage, rank, proxy, way=WAYS["preloaded"], count=0, rate=100.0, ending=""):
        self.rank = rank
        self.folder = stage.folder
        script = os.path.join(stage.folder, "training.py")
        if not os.path.exists(script):
            with open(script, "w", encoding="utf-8") as file:
                file.write(TRAINING)
        environment = harness.clean_environment(
            LD_PRELOAD=way.preload, LD_LIBRARY_PATH=way.library_path, TASKD_SOCKET=proxy.socket, TEST_MSTX=way.mstx,
            TEST_LIBRARY=harness.LIBRARY, PYTHONPATH=harness.PYTHON_PACKAGE, RANK=rank if not way.api else None)
        super().__init__(f"rank{rank}", [harness.PYTHON, script, stage.folder, str(rank), str(count), str(rate),
                                         "api" if way.api else ending], environment, stage.folder)
        stage.processes.append(self)

    def _counter(self, place):
        try:
            with open(os.path.join(self.folder, f"{self.rank}.counter"), "rb") as file:
                return int.from_bytes(file.read()[place:place + 8], "little")
        except FileNotFoundError:
            return 0

    def steps(self):
        return self._counter(0)

    def wait_steps(self, count):
        wait_until(lambda: self.require_alive() and self.steps() >= count, f"rank {self.rank} made {count} steps")

    def burst(self):
        return self._counter(8)

    def set(self, what, value):
        path = os.path.join(self.folder, f"{self.rank}.{what}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(str(value))
        os.rename(f"{path}.new", path)


def checked(proxy):
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    return report


def steps_in(marks):
    return [int(m.name[5:]) for m in marks if m.source == check_marks.HOST and re.fullmatch(r"step \d+", m.name)]


def newest(proxy, rank, kind):
    """Unix ns of the newest mark of a kind, 0 for none."""
    report = checked(proxy)
    return max((m.timestamp_ns for m in report.ranks[rank].marks
                if m.domain and check_marks.kind_of(m.name, m.domain) == kind), default=0) if rank in report.ranks else 0


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_contract_files_of_four_ranks(stage, manager, recording, proxy, way):
    """contract 4.1: libmspti.so is preloaded, or found. 4.3 and 4.4: four records where there is a stream, two where
    there is none. 4.5: their lines."""
    ranks = [Trainer(stage, rank, proxy, way) for rank in range(4)]
    manager.wait_applied(ALL_ON, range(4))

    def by_mspti(rank):
        found = checked(proxy).ranks.get(rank)
        return found and sum(m.source == check_marks.DEVICE for m in found.marks) > 100
    for rank in ranks:
        wait_until(lambda: rank.require_alive() and by_mspti(rank.rank), f"rank {rank.rank} has device lines")
        assert rank.terminate() == 0, rank.log()
    assert proxy.terminate() == 0
    report = checked(proxy)
    for rank in ranks:
        marks = report.ranks[rank.rank].marks
        # Every step once, in order; where our symbols are not in front, those before MSPTI was on are not recorded.
        steps = steps_in(marks)
        first = 0 if way.in_front else rank.steps() - len(steps)
        assert steps == list(range(first, rank.steps())), f"rank {rank.rank}"
        of_id = {}
        for mark in marks:
            if mark.id < FIRST_OWN_ID:
                of_id.setdefault(mark.id, []).append(mark)
        ids = list(of_id)
        assert ids and (not way.in_front or ids[0] == 1)
        seen = set()
        for lines in of_id.values():
            kind = check_marks.kind_of(lines[0].name, lines[0].domain)
            flags = [(m.flag, m.source) for m in lines]
            seen.add(kind)
            if kind in ("dataloader", "save_checkpoint"):
                assert flags == [(2, 0), (4, 0)]
                continue
            assert flags == [(16, 0), (32, 0), (16, 1), (32, 1)], f"{kind}: {flags}"
            assert [(m.pid, m.tid) for m in lines] == [(rank.pid, rank.pid)] * 2 + [(3, 17)] * 2
            times = [m.timestamp_ns for m in lines]
            assert times == sorted(times) and times[3] - times[2] == 1000, "not the fake device's times"
        assert seen == set(KINDS)
        assert rank.log() == ""


def test_contract_switching(stage, manager):
    """contract 4.2 over gRPC: nothing while off, one domain without the other, and nothing any more."""
    proxies = [stage.proxy(manager, node=node) for node in (0, 1)]
    ranks = [Trainer(stage, rank, proxies[rank // 2], rate=50) for rank in range(4)]
    manager.wait_attached(range(4))
    for rank in ranks:
        rank.wait_steps(10)
    assert all(sum(proxies[r // 2].counts(r).values()) == 0 for r in range(4)), "marks before anybody switched them on"

    manager.all_on()
    manager.wait_applied(ALL_ON, range(4), timeout_s=1)
    for rank in range(4):
        proxy = proxies[rank // 2]
        wait_until(lambda: all(proxy.counts(rank)[kind] > 0 for kind in KINDS), f"rank {rank} has marks of all kinds")

    assert manager.modify(communication="off") == 200
    manager.wait_applied({"communication": "off", "step": "on"}, range(4), timeout_s=1)
    since = [rank.steps() for rank in ranks]
    last = [newest(proxies[r // 2], r, "communication") for r in range(4)]
    for rank in ranks:
        rank.wait_steps(since[rank.rank] + 20)
    wait_until(lambda: all(newest(proxies[r // 2], r, "step") > last[r] + 200_000_000 for r in range(4)), "steps go on")
    off = [newest(proxies[r // 2], r, "communication") for r in range(4)]

    manager.all_off()
    manager.wait_applied(ALL_OFF, range(4), timeout_s=1)
    since = [rank.steps() for rank in ranks]
    for rank in ranks:
        rank.wait_steps(since[rank.rank] + 50)  # a second more of training
        assert rank.terminate() == 0
    for proxy in proxies:
        assert proxy.terminate() == 0
    for rank in ranks:
        found = checked(proxies[rank.rank // 2]).ranks[rank.rank].marks
        assert max(steps_in(found)) <= since[rank.rank], "steps after all was off"
        assert newest(proxies[rank.rank // 2], rank.rank, "communication") == off[rank.rank]


def test_contract_kinds_one_by_one(stage, manager, proxy):
    """`taskd switch` has kinds, MSPTI (contract 4.2) has domains."""
    rank = Trainer(stage, 0, proxy)
    manager.wait_attached([0])
    rank.wait_steps(1)
    before = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        code, answer = manager.switch(f"{kind}=on")
        assert code == 0 and answer["wanted"] == {**ALL_OFF, kind: "on"}, answer
        wait_until(lambda: proxy.counts(0)[kind] > before[kind] + 3, f"marks of {kind}")
        code, answer = manager.switch("all=off")
        assert code == 0 and answer["applied"] == 1, answer
        made = rank.steps()
        rank.wait_steps(made + 60)  # all that was on is in the files by then
        now = proxy.counts(0)
        assert {k: n for k, n in now.items() if n != before.get(k, 0)} == {kind: now[kind]}, f"while only {kind} was on"
        before = now
    assert all(m.id < FIRST_OWN_ID for m in checked(proxy).ranks[0].marks)


def test_contract_full_profiling_is_reported_and_waited_for(stage, manager, proxy):
    """contract 4.2: a second subscriber gets result 2."""
    ranks = [Trainer(stage, rank, proxy) for rank in range(4)]
    ranks[2].set("other", 1)
    manager.wait_attached(range(4))
    for rank in ranks:
        rank.wait_steps(1)
    code, answer = manager.switch("all=on", "--timeout", "20")
    assert code == 1 and answer["applied"] == 3, answer
    assert [r["state"] for r in answer["ranks"]] == ["applied", "applied", "failed", "applied"]
    assert answer["ranks"][2]["reason"].startswith("not applied: ")
    assert "MSPTI" in answer["ranks"][2]["reason"]
    wait_until(lambda: all(proxy.counts(r)["step"] > 10 for r in (0, 1, 3)), "the other ranks have steps")
    assert proxy.counts(2)["step"] == 0, "these marks belong to the full profiling"

    ranks[2].set("other", 0)
    manager.wait_applied(ALL_ON, range(4))
    wait_until(lambda: proxy.counts(2)["step"] > 10, "it was tried again")
    code, answer = manager.switch("all=on")
    assert code == 0 and answer["applied"] == 4, answer
    assert checked(proxy).ok


def test_contract_training_goes_on_while_the_proxy_is_stopped(stage, manager, recording, proxy):
    """contract 4.7 holds the training thread once 100 buffers are out. Ours goes on and counts what it loses."""
    rank = Trainer(stage, 0, proxy, rate=200)
    manager.wait_applied(ALL_ON, [0])
    wait_until(lambda: any(m.source == check_marks.DEVICE for m in checked(proxy).ranks[0].marks)
               if 0 in checked(proxy).ranks else False, "MSPTI's lines")
    proxy.child.send_signal(signal.SIGSTOP)
    marks = CAPACITY * 5 // 4 // 1000 * 1000
    rank.set("burst", marks)
    wait_until(lambda: rank.require_alive() and rank.burst() == marks, "the burst is over while the ring is not read")
    made = rank.steps()
    rank.wait_steps(made + 20)
    proxy.child.send_signal(signal.SIGCONT)
    wait_until(lambda: manager.rank_status().get(0, {}).get("lost", 0) > marks - CAPACITY, "the loss is reported")
    made = rank.steps()
    rank.wait_steps(made + 50)
    assert rank.terminate() == 0, rank.log()
    assert proxy.terminate() == 0
    # Whole ranges were lost, or their ends; what is there is in order.
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    steps = steps_in(report.ranks[0].marks)
    assert steps == sorted(set(steps)) and steps[-1] == rank.steps() - 1
    assert sum(m.name == "burst" for m in report.ranks[0].marks) < marks


def test_contract_a_proxy_that_is_killed_loses_and_doubles_nothing(stage, manager, recording):
    """Lines of one id (contract 4.5) are joined over two lives of the proxy: MSPTI's device lines come last."""
    proxy = stage.proxy(manager)
    rank = Trainer(stage, 0, proxy)
    manager.wait_applied(ALL_ON, [0])
    for _ in range(3):
        made = rank.steps()
        rank.wait_steps(made + 60)
        proxy.kill()
        rank.wait_steps(made + 90)
        proxy = stage.proxy(manager)
    made = rank.steps()
    rank.wait_steps(made + 60)
    assert rank.terminate() == 0, rank.log()
    assert proxy.terminate() == 0
    marks = checked(proxy).ranks[0].marks
    assert steps_in(marks) == list(range(rank.steps()))
    by_id = {}
    for mark in marks:
        if mark.id < FIRST_OWN_ID:
            by_id.setdefault(mark.id, []).append((mark.flag, mark.source))
    for flags in by_id.values():
        assert flags in ([(2, 0), (4, 0)], [(16, 0), (32, 0), (16, 1), (32, 1)]), flags


@pytest.mark.parametrize("ending,code,whole", [("", 0, True), ("exit", 0, True), ("fork", 0, True), ("init again", 0, True),
                                               ("_exit", 0, False), ("kill", -signal.SIGKILL, False)])
def test_contract_ends(stage, manager, recording, proxy, ending, code, whole):
    """contract 4.8 leaves the last marks in MSPTI's buffers; ours are in the files after a normal exit. Nothing crashes
    or hangs at any."""
    rank = Trainer(stage, 0, proxy, count=200, rate=500, ending=ending)
    assert rank.wait() == code, rank.log()
    wait_until(lambda: manager.rank_status().get(0, {"attached": False})["attached"] is False, "the rank is gone")
    assert proxy.terminate() == 0
    marks = checked(proxy).ranks[0].marks
    assert any(m.source == check_marks.DEVICE for m in marks)
    steps = steps_in(marks)
    assert steps == list(range(len(steps)))
    if whole:
        last = 199 if ending in ("", "exit") else 200
        assert steps[-1] == last and len(steps) == rank.steps()
        ends = [m for m in marks if m.source == check_marks.HOST and not m.domain]
        starts = [m for m in marks if m.source == check_marks.HOST and m.domain and m.name != "waits"]
        assert len(ends) == len(starts), "an end is missing"
    assert rank.log() == "", "it complained"


def test_contract_a_library_that_lacks_a_function_is_named(stage, manager, recording, proxy):
    """contract 4.1 lists nine functions. Without all of them there is no MSPTI, and our own marks go on."""
    folder = os.path.join(stage.folder, "broken")
    os.mkdir(folder)
    os.symlink(MSTX, os.path.join(folder, "libmspti.so"))
    rank = Trainer(stage, 0, proxy, Way(harness.LIBRARY, library_path=folder, mstx=""))
    manager.wait_applied(ALL_ON, [0])
    wait_until(lambda: all(proxy.counts(0)[kind] > 0 for kind in KINDS), "our own marks")
    code, answer = manager.switch("all=on")
    assert code == 0 and answer["applied"] == 1
    assert rank.terminate() == 0
    lines = set(rank.log().splitlines())
    assert len(lines) == 1 and lines.pop().startswith("taskd: libmspti.so has no function msptiActivityEnable"), rank.log()
