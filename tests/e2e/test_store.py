"""`taskd store` towards clients of every dialect, at a root and through tiers: what PyTorch's own server does.

SET, APPEND, MULTI_SET and QUEUE_PUSH have no reply. Where another client is to see one, its sender asks something after it: then it is done.
"""
import concurrent.futures
import socket
import struct

import pytest
import tcpstore
from deadlines import HANG_S
from harness import wait_until
from stores import SERVED_BY, World
from tcpstore import PrefixStore, QueueEmpty, StoreClosed, StoreTimeout, i64, text, texts, u64

DIALECTS = ("1.x", "2.1", "2.x")
# How long a client waits for keys that do not come. A client whose keys come waits longer, since the machine may be slow.
SHORT_S = 0.1


# Every dialect at a root; through tiers an old and a new one, the others only with the slow tests.
PLACES = [("root", dialect) for dialect in DIALECTS] + [("tiers", "1.x"), ("tiers of tiers", "2.x")]
SLOW_PLACES = [(shape, dialect) for shape in World.SHAPES for dialect in DIALECTS if (shape, dialect) not in PLACES]


@pytest.fixture(params=PLACES + [pytest.param(place, marks=pytest.mark.slow) for place in SLOW_PLACES],
                ids=lambda place: "-".join(place))
def place(request):
    return request.param


@pytest.fixture
def shape(place):
    return place[0]


@pytest.fixture
def dialect(place):
    return place[1]


@pytest.fixture
def world(stage, shape, dialect):
    world = World(stage, shape, SERVED_BY[dialect])
    yield world
    world.close()


@pytest.fixture
def connect(world, dialect):
    """connect(PLACE, ...): a client of this test's dialect."""
    return lambda place=0, **arguments: world.client(place, dialect, **arguments)


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        yield pool.submit


def extended(dialect):
    if dialect == "1.x":
        pytest.skip("not in 1.x")


def only_2x(dialect):
    if dialect != "2.x":
        pytest.skip("only in 2.x")


def times_out(call, *arguments):
    with pytest.raises(StoreTimeout):
        call(*arguments)


# Keys and values.

def test_add_counts_and_keys_are_counted(connect):
    store = connect(world_size=1)
    assert store.num_keys() == 1  # init/
    assert [store.add("key", n) for n in (1, 2, 3)] == [1, 3, 6]
    assert store.get("key") == b"6"
    for n in (1, 2, 3, 4, 5, 6):
        store.add("key3", n)
    assert connect(1).get("key3") == b"21"
    for key in ("key0", "key1", "key2"):
        store.set(key, "value")
    assert store.num_keys() == 6


def test_add_reads_and_goes_below_zero(connect):
    store = connect()
    assert store.add("new", 0) == 0
    assert store.get("new") == b"0"
    assert store.add("new", -7) == -7
    assert connect(1).get("new") == b"-7"
    store.set("text", "41")
    store.num_keys()
    assert connect(1).add("text", 1) == 42


def test_set_get_overwrite_delete(connect):
    store, other = connect(), connect(1)
    for key, value in (("key0", b"value0"), ("-key3", b"value3"), ("", b"no name"), ("k\0\n/", b"\0\xff"), ("empty", b"")):
        store.set(key, value)
        assert store.get(key) == value
        assert other.get(key) == value
    assert store.num_keys() == 5
    store.set("key0", "again")
    assert store.get("key0") == b"again"
    assert store.delete_key("key0") is True
    assert store.delete_key("key0") is False
    assert store.num_keys() == 4
    assert other.delete_key("never") is False


def test_compare_set(connect):
    store, other = connect(), connect(1)
    assert store.compare_set("key", "wrong", "new") == b"wrong"
    assert store.check(["key"]) is False
    assert store.compare_set("key", "", "first") == b"first"
    assert other.compare_set("key", "wrong", "new") == b"first"
    assert other.get("key") == b"first"
    assert other.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"
    assert store.compare_set("key", "", "third") == b"second"


def test_check(connect):
    store = connect()
    assert store.check(["a"]) is False
    store.set("a", "1")
    assert store.check(["a"]) is True
    assert store.check(["a", "b"]) is False
    store.add("b", 1)
    assert connect(1).check(["a", "b", "a"]) is True
    assert store.check([]) is True
    store.delete_key("a")
    assert store.check(["a"]) is False


def test_prefixes_nest(connect):
    store = connect()
    inner = PrefixStore("a", PrefixStore("b", store))
    inner.set("k", "v")
    assert connect(1).get("b/a/k") == b"v"
    assert inner.add("n", 2) == 2
    assert inner.compare_set("k", "v", "w") == b"w"
    assert inner.delete_key("k") is True
    assert inner.check(["n"]) is True
    assert store.get("b/a/n") == b"2"


def test_clone_sees_what_the_first_wrote(connect):
    store = connect()
    store.set("foo", "bar")
    with store.clone() as clone:
        assert clone.get("foo") == b"bar"
        clone.set("foo", "baz")
        assert store.get("foo") == b"baz"


def test_clients_one_after_the_other(connect):
    for index in range(5):
        store = connect(index, world_size=5)
        store.set(f"key{index}", str(index))
        assert store.get(f"key{index}") == str(index).encode()
        assert store.compare_set("shared", str(index - 1) if index else "", str(index)) == str(index).encode()
        store.close()
    last = connect()
    assert last.num_keys() == 7
    last.wait_for_workers(5, timeout_s=HANG_S)


def test_counts_workers(connect):
    host = connect(world_size=2)
    with pytest.raises(StoreTimeout, match="1/2 clients joined"):
        host.wait_for_workers(2, timeout_s=SHORT_S)
    connect(1, world_size=2)
    host.wait_for_workers(2, timeout_s=HANG_S)


# Several values at once.

def test_append(connect, dialect):
    extended(dialect)
    store = connect()
    store.append("new", "po")
    store.append("new", "tato")
    store.num_keys()
    assert connect(1).get("new") == b"potato"
    store.set("old", "po")
    store.append("old", "")
    store.append("old", "tato")
    assert store.get("old") == b"potato"
    prefixed = PrefixStore("p", store)
    prefixed.append("k", "x")
    assert connect(1).get("p/k") == b"x"


def test_multi_set_and_get(connect, dialect):
    extended(dialect)
    store, other = connect(), connect(1)
    store.multi_set(["a", "b", "c"], ["1", "", "3"])
    assert other.multi_get(["c", "a", "b", "a"]) == [b"3", b"1", b"", b"1"]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    assert store.num_keys() == 3
    other.timeout_s = SHORT_S
    times_out(other.multi_get, ["a", "missing"])
    other.timeout_s = HANG_S
    assert other.multi_get(["a"]) == [b"1"]


# Waiting.

@pytest.mark.parametrize("timeout_s", [0.25, SHORT_S])
def test_a_time_out_leaves_the_connection_usable(connect, timeout_s):
    store, other = connect(timeout_s=timeout_s, reply_timeout_s=HANG_S), connect(1)
    times_out(store.get, "the_key")
    store.reply_timeout_s = store.timeout_s = HANG_S
    store.set("other", "value")
    assert store.get("other") == b"value"
    # The wait is over: what it waited for brings nothing that a later request would take for its reply.
    other.set("the_key", "late")
    assert store.get("the_key") == b"late"
    assert store.num_keys() == 2
    assert store.add("n", 5) == 5
    assert store.nothing_to_read()


def test_get_of_a_deleted_key_times_out(connect):
    store, other = connect(), connect(1)
    store.set("key", "value")
    assert other.get("key") == b"value"
    assert store.delete_key("key") is True
    other.timeout_s = SHORT_S
    times_out(other.get, "key")
    times_out(other.wait, ["key"])


def test_wait_for_keys_that_are_there(connect):
    store = connect()
    store.set("a", "1")
    store.wait(["a"])
    store.wait(["a", "a"])
    store.wait([])
    times_out(store.wait, ["a", "bad"], SHORT_S)


@pytest.mark.parametrize("release", ["set", "add 0", "compare_set", "append", "multi_set"])
def test_waiters_are_released(world, connect, dialect, threads, release):
    if release in ("append", "multi_set"):
        extended(dialect)
    waiters = [connect(place) for place in range(2 * len(world.places))]
    waits = [threads(waiter.wait, ["p/there", "p/key"]) for waiter in waiters]
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] >= 2, "two clients wait at each")
    store = PrefixStore("p", connect())
    store.set("there", "")
    {"set": lambda: store.set("key", "v"), "add 0": lambda: store.add("key", 0),
     "compare_set": lambda: store.compare_set("key", "", "v"), "append": lambda: store.append("key", "v"),
     "multi_set": lambda: store.multi_set(["x", "key"], ["", "v"])}[release]()
    for wait in waits:
        wait.result(HANG_S)
    for waiter in waiters:
        assert waiter.get("p/key") == (b"0" if release == "add 0" else b"v")
        assert waiter.nothing_to_read()
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] == 0, "nobody waits")


def test_a_key_that_came_counts_even_if_it_goes_again(connect, world, threads):
    waiter = connect()
    wait = threads(waiter.wait, ["a", "b", "b"])
    world.places[0].wait_stats(lambda stats: stats["waiting"] == 1, "it waits")
    other = connect()  # at the same place, so that its requests come after the WAIT
    other.set("a", "1")
    assert other.delete_key("a") is True
    other.set("b", "1")
    wait.result(HANG_S)


def test_waiter_that_dies_is_forgotten(connect, world):
    waiters = [connect(place) for place in range(len(world.places))]
    for waiter in waiters:
        waiter.send("WAIT", texts(["/key"]))
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] >= 1, "it waits")
    for index, waiter in enumerate(waiters):
        if index % 2 == 0:  # with RST
            waiter.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        waiter.close()
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] == 0, "nobody waits")
    # These take the numbers of the descriptors that were closed.
    fresh = [connect(place) for place in range(len(world.places))]
    fresh[0].set("key", "value")
    for client in fresh:
        assert client.get("key") == b"value"
        assert client.nothing_to_read()


@pytest.mark.parametrize("shape", World.SHAPES)
def test_old_client_gives_up_without_a_word(stage, shape):
    world = World(stage, shape)
    store, other = world.client(0, "1.x"), world.client(1, "1.x")
    for _ in range(3):
        times_out(store.wait, ["key"], SHORT_S)
        assert store.check(["key"]) is False
    other.set("key", "value")
    assert store.get("key") == b"value"
    assert store.num_keys() == 1
    assert store.nothing_to_read()
    world.close()


def test_cancel_is_always_answered(connect, dialect):
    extended(dialect)
    store, other = connect(), connect(1)
    store.cancel_wait()  # of nothing
    store.set("there", "1")
    store.send("WAIT", texts(["/there"]))
    store.cancel_wait()
    store.wait(["there"])
    store.cancel_wait()
    for _ in range(20):
        store.send_bytes(store.bytes_of("WAIT", texts(["/key"])) + store.bytes_of("CANCEL_WAIT"))
        assert store.read(1) == bytes([tcpstore.WAIT_CANCELED])
    other.set("key", "value")
    assert store.get("key") == b"value"
    assert store.num_keys() == 2
    assert store.nothing_to_read()


# A client's set meets another's cancel: whichever was first, the stream stays in step.
def test_set_against_cancel(connect, dialect):
    extended(dialect)
    waiter, setter = connect(), connect(1)
    for number in range(100):
        key = f"key{number}"
        waiter.send("WAIT", texts(["/" + key]))
        setter.set(key, str(number))
        waiter.cancel_wait()
        assert waiter.get(key) == str(number).encode()
    assert waiter.num_keys() == 100
    assert waiter.nothing_to_read()


# Order.

def test_own_writes_are_read_in_order(connect):
    store = connect()
    for number in range(200):
        store.set("key", str(number))
        assert store.get_now("key") == str(number).encode()
        assert store.add("n", 1) == number + 1
        assert store.add("n", 0) == number + 1


def test_what_was_written_before_a_counter_is_seen_after_it(connect):
    writer, reader = connect(), connect(1)
    for number in range(1, 101):
        writer.set("data", str(number))
        writer.add("counter", 1)
        wait_until(lambda: reader.add("counter", 0) == number, "the counter's next value")
        assert reader.get("data") == str(number).encode()


def test_overwrite_and_delete_are_seen_everywhere(connect, world):
    clients = [connect(place) for place in range(len(world.places))]
    for number in range(20):
        writer = clients[number % len(clients)]
        # A reply means that it is done: no client may read the old value from now on.
        assert writer.delete_key("key") is (number > 0)
        assert [client.check(["key"]) for client in clients] == [False] * len(clients)
        assert writer.compare_set("key", "", f"{number}") == f"{number}".encode()
        assert [client.get("key") for client in clients] == [f"{number}".encode()] * len(clients)
        writer.set("key", f"again{number}")
        writer.num_keys()
        assert [client.get_now("key") for client in clients] == [f"again{number}".encode()] * len(clients)


# Bytes.

def test_every_byte_alone(connect, dialect):
    store = connect()
    operations = [(("SET", text("/a"), text("b")), b""), (("GET", text("/a")), text("b")),
                  (("ADD", text("/n"), i64(2)), i64(2)), (("CHECK", texts(["/a", "/n"])), b"\0"),
                  (("WAIT", texts(["/a"])), b"\0"), (("COMPARE_SET", text("/a"), text("b"), text("c")), text("c")),
                  (("DELETE_KEY", text("/a")), i64(1)), (("GETNUMKEYS",), i64(1))]
    if dialect != "1.x":
        operations += [(("APPEND", text("/n"), text("0")), b""), (("MULTI_GET", texts(["/n", "/n"])), text("20") * 2),
                       (("MULTI_SET", u64(1), text("/z"), text("y")), b""), (("CANCEL_WAIT",), b"\1")]
    if dialect == "2.x":
        operations += [(("PING", struct.pack("=I", 7)), struct.pack("=I", 7)), (("QUEUE_PUSH", text("/q"), text("i")), b""),
                       (("QUEUE_LEN", text("/q")), i64(1)), (("QUEUE_POP", text("/q")), i64(1) + text("i")),
                       (("BARRIER", text("/x"), i64(1)), b"\0")]
    for (name, *parts), reply in operations:
        for byte in store.bytes_of(name, *parts):
            store.send_bytes(bytes([byte]))
        assert store.read(len(reply)) == reply, name
    # And all in one piece, but for WAIT: an old client that asks something else has given it up.
    again = connect()
    for key in ("n", "x", "z"):
        again.delete_key(key)
    operations = [operation for operation in operations if operation[0][0] != "WAIT"]
    again.send_bytes(b"".join(again.bytes_of(name, *parts) for (name, *parts), _ in operations))
    wanted = b"".join(reply for _, reply in operations)
    assert again.read(len(wanted)) == wanted


def test_half_a_request_holds_up_nobody(connect):
    slow, other = connect(), connect()
    request = slow.bytes_of("SET", text("/key"), text("value"))
    for split in range(1, len(request)):
        slow.send_bytes(request[:split])
        other.set("key", "old")
        assert other.add("n", 1) == split
        slow.send_bytes(request[split:])
        assert slow.get("key") == b"value"


@pytest.mark.parametrize("key_bytes,value_bytes", [(8 * 1024 - 1, 1), (3, 8 * 1024 * 1024)])
def test_big_keys_and_values(connect, key_bytes, value_bytes):
    key, value = "k" * key_bytes, bytes(range(256)) * (value_bytes // 256) + b"." * (value_bytes % 256)
    connect().set(key, value)
    assert connect(1).get(key) == value
    # Twice: maybe from a copy.
    assert connect(1).get(key) == value


def test_many_keys_in_one_request(connect, dialect):
    extended(dialect)
    keys = [f"key{number}" for number in range(20000)]
    store, other = connect(), connect(1)
    store.multi_set(keys, keys)
    assert store.num_keys() == len(keys)
    assert other.check(keys) is True
    assert other.multi_get(keys) == [key.encode() for key in keys]


# Only 2.2 and later.

def test_ping(connect, dialect):
    only_2x(dialect)
    store = connect()
    for nonce in (0, 1, 0xFFFFFFFF):
        store.ping(nonce)


def test_queue_is_one(connect, dialect):
    only_2x(dialect)
    store, other = connect(), connect(1)
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == other.queue_len("q") == 2
    assert other.queue_pop("q") == b"1"
    store.queue_push("q", "")
    assert [store.queue_pop("q", block=False), other.queue_pop("q")] == [b"2", b""]
    with pytest.raises(QueueEmpty):
        store.queue_pop("q", block=False)
    other.timeout_s = SHORT_S
    times_out(other.queue_pop, "q")
    assert other.queue_len("never") == 0
    # Queues are no keys.
    store.queue_push("q", "x")
    assert other.num_keys() == 0
    assert other.list_keys() == []


def test_one_push_releases_one_popper(connect, world, dialect, threads):
    only_2x(dialect)
    poppers = [connect(number) for number in range(2 * len(world.places))]
    pops = [threads(popper.queue_pop, "q") for popper in poppers]
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] >= 2, "two clients wait at each")
    store = connect(1)
    got = []
    for number in range(len(poppers)):
        assert sum(pop.done() for pop in pops) == number
        store.queue_push("q", str(number))
        wait_until(lambda: sum(pop.done() for pop in pops) > number, "one more got an element")
        assert store.queue_len("q") == 0
    got = sorted(pop.result() for pop in pops)
    assert got == sorted(str(number).encode() for number in range(len(poppers)))


def test_a_popper_that_gave_up_takes_nothing(connect, world, dialect, threads):
    only_2x(dialect)
    gone, stays = connect(timeout_s=SHORT_S), connect(1)
    pop = threads(stays.queue_pop, "q")
    world.places[1 % len(world.places)].wait_stats(lambda stats: stats["waiting"] == 1, "it waits")
    times_out(gone.queue_pop, "q")
    connect().queue_push("q", "element")
    assert pop.result(HANG_S) == b"element"


def test_list_keys(connect, dialect):
    only_2x(dialect)
    store = connect(world_size=1)
    store.multi_set(["a", "b/c"], ["1", "2"])
    store.delete_key("never")
    assert sorted(connect(1).list_keys()) == ["a", "b/c"]
    store.send("LIST_KEYS")
    assert sorted(store.read_text() for _ in range(store.read_i64())) == [b"/a", b"/b/c", b"init/"]


def test_barrier(connect, world, dialect, threads):
    only_2x(dialect)
    count = 3 * len(world.places)
    clients = [connect(number) for number in range(count)]
    barriers = [threads(client.barrier, "x", count) for client in clients[1:]]
    for place in world.places:
        place.wait_stats(lambda stats: stats["waiting"] >= 2, "all but one have come")
    assert not any(barrier.done() for barrier in barriers)
    clients[0].barrier("x", count)
    for barrier in barriers:
        barrier.result(HANG_S)
    connect().barrier("alone", 1)
    times_out(clients[0].barrier, "nobody else", 2, SHORT_S)
    clients[0].set("a", "b")
    assert clients[0].get("a") == b"b"


# All together.

@pytest.mark.parametrize("shape", World.SHAPES)
def test_all_dialects_share_one_store(stage, shape):
    world = World(stage, shape)
    clients = [world.client(place, dialect) for place in range(len(world.places)) for dialect in DIALECTS]
    for number, writer in enumerate(clients):
        writer.set("key", str(number))
        assert writer.add("n", 1) == number + 1  # and the write before it is done
        assert [client.get("key") for client in clients] == [str(number).encode()] * len(clients)
    old, new = world.client(0, "1.x"), world.client(1, "2.x")
    assert old.delete_key("key") is True
    assert new.check(["key"]) is False
    # MULTI_GET of a client whose release is unknown means 2.1, and from then on so do the numbers that are ambiguous.
    middle = world.client(0, "2.1")
    middle.multi_set(["a", "b"], ["1", "2"])
    assert middle.multi_get(["b", "a"]) == [b"2", b"1"]
    middle.append("a", "1")
    assert middle.delete_key("b") is True
    assert old.get("a") == b"11"
    assert new.check(["b"]) is False
    world.close()


def test_watch_key_is_not_ignored(stage):
    world = World(stage)
    watcher, other = world.client(0, "1.x", timeout_s=HANG_S), world.client(0, "1.x")
    watcher.send("WATCH_KEY", text("/key"))
    try:
        assert watcher.read(1) == b"\3"  # it is served
    except StoreClosed:
        pass  # it is refused
    assert other.add("n", 1) == 1
    world.close()
