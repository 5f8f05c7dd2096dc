"""The PyTorch of this machine, unmodified, against `taskd store`.

Its import costs a second or more, so each rank is a fork of this process, which has imported it and has used nothing of it.
"""
import os
import signal
import subprocess
import sys
import time
import traceback

import harness
import pytest
from harness import wait_until
from needs import NO_TORCH
from stores import World

torch = pytest.importorskip("torch.distributed", reason=NO_TORCH)

STORE_SCRIPT = '''
import datetime, sys, torch.distributed as dist
ports = [int(port) for port in sys.argv[1:]]

def connect(index, seconds=60, **arguments):
    return dist.TCPStore("127.0.0.1", ports[index % len(ports)], timeout=datetime.timedelta(seconds=seconds), **arguments)

store = connect(0, world_size=2, is_master=False)
other = connect(1, world_size=2, is_master=False)
assert store.num_keys() == 1
store.set("key0", "value0")
assert other.get("key0") == b"value0"
assert [store.add("key", n) for n in (1, 2, 3)] == [1, 3, 6]
assert other.get("key") == b"6"
assert other.compare_set("key0", "wrong", "x") == b"value0"
assert other.compare_set("key0", "value0", "value1") == b"value1"
assert store.get("key0") == b"value1"
assert store.compare_set("missing", "expected", "x") == b"expected"
assert store.num_keys() == 3
assert store.delete_key("key0") is True
assert other.delete_key("key0") is False
assert store.num_keys() == 2
inner = dist.PrefixStore("a", dist.PrefixStore("b", store))
inner.set("k", "v")
assert other.get("b/a/k") == b"v"
inner.wait(["k"], datetime.timedelta(seconds=10))

# A time-out leaves the connection usable.
hasty = connect(0, world_size=2, is_master=False)
for wait in (lambda: hasty.get("never"), lambda: hasty.wait(["never", "key"], datetime.timedelta(milliseconds=100))):
    hasty.set_timeout(datetime.timedelta(milliseconds=200))
    try:
        wait()
        raise SystemExit("it did not time out")
    except RuntimeError as error:
        assert "imeout" in str(error), error
    hasty.set_timeout(datetime.timedelta(seconds=60))
    hasty.set("after", "1")
    assert hasty.get("after") == b"1"
store.set("never", "late")
assert hasty.get("never") == b"late"
assert hasty.get("after") == b"1"

big = b"x" * (8 << 20)
store.set("big", big)
assert other.get("big") == big
print("done", flush=True)
'''

RANK_SCRIPT = '''
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=100))
rank, size = dist.get_rank(), dist.get_world_size()
for round in range(3):
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    assert tensor.item() == size * (size + 1) / 2, tensor
    dist.barrier()
group = dist.new_group(list(range(0, size, 2)))
if rank % 2 == 0:
    tensor = torch.tensor([1.0])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == (size + 1) // 2
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert [o["rank"] for o in objects] == list(range(size))
print("done", rank, flush=True)
dist.destroy_process_group()
'''

RPC_SCRIPT = '''
import os, torch.distributed as dist, torch.distributed.rpc as rpc
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="env://")
options = rpc.TensorPipeRpcBackendOptions(init_method="env://", _transports=["uv"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
assert rpc.rpc_sync(f"worker{(rank + 1) % size}", divmod, args=(7, 2)) == (3, 1)
rpc.shutdown()
print("done", rank, flush=True)
'''


class Fork:
    """As subprocess.Popen, of a process that runs a script's text."""

    def __init__(self, script, environment, arguments, log_path):
        self.returncode = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid != 0:
            return
        code = 1
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream, fd in enumerate([os.open(os.devnull, os.O_RDONLY), log, log]):
                os.dup2(fd, stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["rank", *arguments]
            exec(compile(script, "rank", "exec"), {"__name__": "__main__"})  # pylint: disable=exec-used
            code = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Rank(harness.Process):
    def __init__(self, stage, name, script, environment, *arguments):  # pylint: disable=super-init-not-called
        self.name = name
        self.log_path = os.path.join(stage.folder, f"{name}.{time.monotonic_ns()}.log")
        environment = harness.clean_environment(**environment)
        self.child = Fork(script, environment, arguments, self.log_path)
        self.pid = self.child.pid
        stage.processes.append(self)

    def log(self):
        return super().log() if os.path.exists(self.log_path) else ""


@pytest.fixture(params=World.SHAPES)
def world(stage, request):
    return World(stage, request.param)


def finish(process):
    assert process.wait(timeout_s=100) == 0, process.log()[-3000:]
    assert "done" in process.log()


def start_ranks(stage, script, places, size, attempt=0):
    """Each rank's MASTER_PORT is a place's, as on a node of its own."""
    return [Rank(stage, f"rank{rank}", script, dict(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=places[rank % len(places)].port, RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank,
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=attempt, GLOO_SOCKET_IFNAME="lo",
        TP_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1)) for rank in range(size)]


def test_torch_store(stage, world):
    finish(Rank(stage, "store", STORE_SCRIPT, {}, *(str(place.port) for place in world.places)))


@pytest.mark.parametrize("size", [1, 5])
def test_process_group(stage, world, size):
    for rank in start_ranks(stage, RANK_SCRIPT, world.places, size):
        finish(rank)
    if size > 1:
        # Each node's ranks wait for the same keys.
        assert all(tier.stats()["requests"] > 0 for tier in world.tiers[:2])


def test_process_group_and_rpc_on_one_store(stage):
    world = World(stage, "tiers")
    for rank in start_ranks(stage, RPC_SCRIPT, world.places, 2):
        finish(rank)


# A job's second try meets the first one's keys on the store, under another prefix.
def test_two_tries_on_one_store(stage):
    world = World(stage, "tiers")
    for attempt in range(2):
        for rank in start_ranks(stage, RANK_SCRIPT, world.places, 2, attempt):
            finish(rank)


WAIT_SCRIPT = '''
import datetime, signal, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, False, timeout=datetime.timedelta(seconds=100))
signal.signal(signal.SIGUSR1, lambda *_: None)
print("waits", flush=True)
print(store.get("key"), "done", flush=True)
'''


def test_signal_during_wait(stage, world):
    process = Rank(stage, "waiter", WAIT_SCRIPT, {}, str(world.places[0].port))
    wait_until(lambda: process.require_alive() and "waits" in process.log(), "it is about to wait", timeout_s=60)
    world.places[0].wait_stats(lambda stats: stats["waiting"] == 1, "it waits")
    for _ in range(3):
        process.child.send_signal(signal.SIGUSR1)
    world.client(1).set("key", "value")
    finish(process)
    assert "b'value'" in process.log()


def test_lost_store_is_an_error(stage, world):
    process = Rank(stage, "waiter", WAIT_SCRIPT, {}, str(world.places[0].port))
    wait_until(lambda: process.require_alive() and "waits" in process.log(), "it is about to wait", timeout_s=60)
    world.places[0].wait_stats(lambda stats: stats["waiting"] == 1, "it waits")
    world.root.kill()
    assert process.wait() != 0
    assert "RuntimeError" in process.log()
