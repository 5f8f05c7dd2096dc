"""Many clients through many tiers: tickets, order, how much reaches the root, and who dies with whom."""
import concurrent.futures
import signal

import pytest
from deadlines import HANG_S
from harness import wait_until
from ports import free_port
from stores import StoreProcess, World
from tcpstore import StoreClosed, StoreTimeout, i64, text, texts

# A client learns within 2 s that its store is gone.
GONE_S = 5.0
# A client that gives up before its answer can come; a slow machine makes it give up, too.
IMPATIENT_S = 0.1


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        yield pool.submit


@pytest.fixture
def make_world(stage):
    worlds = []

    def make(shape):
        worlds.append(World(stage, shape))
        return worlds[-1]
    yield make
    for world in worlds:
        world.close()


def add_together(clients, amount):
    """All ask before anybody reads; the answers."""
    request = {client.dialect: client.bytes_of("ADD", text("/tickets"), i64(amount)) for client in clients}
    for client in clients:
        client.send_bytes(request[client.dialect])
    return [client.read_i64() for client in clients]


def check_tickets(clients, rounds):
    """Everybody's ticket is another one; who reads after that never sees less than its own."""
    for number in range(rounds):
        tickets = add_together(clients, 1)
        first = number * len(clients) + 1
        assert sorted(tickets) == list(range(first, first + len(clients)))
        assert all(seen >= ticket for seen, ticket in zip(add_together(clients, 0), tickets))
    assert clients[0].get("tickets") == str(rounds * len(clients)).encode()


@pytest.mark.parametrize("shape", World.SHAPES)
def test_tickets_are_a_permutation(make_world, shape):
    world = make_world(shape)
    check_tickets([world.client(number, ("1.x", "2.1", "2.x")[number % 3]) for number in range(48)], rounds=25)


@pytest.mark.slow
def test_tickets_of_a_hundred_tiers(stage, make_world):
    world = make_world("root")
    world.places = [world.store(f"tier{number}", world.root, flags=()) for number in range(100)]
    check_tickets([world.client(number) for number in range(6400)], rounds=10)


# A rank adds 1 and reads until all have: the last one must see the whole number, whoever else asks.
@pytest.mark.parametrize("shape", World.SHAPES)
def test_polled_barrier(make_world, threads, shape):
    world = make_world(shape)
    clients = [world.client(number, "1.x") for number in range(24)]

    def arrive(client, key):
        client.add(key, 1)
        wait_until(lambda: client.add(key, 0) == len(clients), "everybody has come", interval_s=0.001)

    for number in range(10):
        for arrival in [threads(arrive, client, f"barrier{number}") for client in clients]:
            arrival.result(HANG_S)


def test_waits_and_gets_of_a_node_are_one_at_the_root(make_world, threads):
    world = make_world("tiers")
    clients = [world.client(number % 2) for number in range(32)]
    owner = world.root.client()
    before = world.root.stats()["requests"]
    gets = [threads(client.get, "id") for client in clients]
    for tier in world.tiers:
        tier.wait_stats(lambda stats: stats["waiting"] == 16, "all of the node wait")
    owner.set("id", "x" * 128)
    assert [get.result(HANG_S) for get in gets] == [b"x" * 128] * len(clients)
    for client in clients:
        assert client.check(["id"]) is True
    served = world.root.stats()["requests"] - before
    # Of each node a WAIT, and where its answer does not bring the value a GET and a CHECK.
    assert served <= 1 + 3 * len(world.tiers), served
    owner.close()


def test_polls_of_a_missing_key_are_few_at_the_root(make_world):
    world = make_world("tiers")
    clients = [world.client(0) for _ in range(32)]
    before = world.root.stats()["requests"]
    for _ in range(10):
        for client in clients:
            client.send("CHECK", texts(["/exception_dump"]))
        assert {client.read_u8() for client in clients} == {1}
    assert world.root.stats()["requests"] - before <= 20
    world.client(1).set("exception_dump", "1")
    # Nobody read anything since: the writer had no reply, so wait until it is there.
    wait_until(lambda: world.client(2).check(["exception_dump"]), "the key is there")
    assert all(client.check(["exception_dump"]) for client in clients)


def test_statistics_of_a_tier(make_world):
    world = make_world("tiers")
    store = world.client(0)
    store.set("key", "x" * 1000)
    assert store.get("key") == b"x" * 1000
    tier, root = world.tiers[0].stats(), world.root.stats()
    assert tier["connections"] >= 1 and tier["requests"] >= 3
    assert tier["upstream_requests"] >= 2 and tier["upstream_bytes"] > 1000
    assert root["tiers"] == 2 and root["keys"] == 1
    assert root["upstream_requests"] == root["upstream_bytes"] == 0


# Deaths.

def wait_closed(client):
    """Until the server has ended the connection, without another byte."""
    def is_closed():
        try:
            client.read(1, timeout_s=0)
        except StoreTimeout:
            return False
        except StoreClosed:
            return True
        raise AssertionError("a byte came")
    wait_until(is_closed, "the client learns that its store is gone", GONE_S)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_dead_tier_takes_only_its_clients(make_world, how):
    world = make_world("tiers")
    mine, other, direct = world.client(0), world.client(1), world.client(2)
    waiting = world.client(0, "1.x")
    waiting.send("WAIT", texts(["/never"]))
    other.send("WAIT", texts(["/later"]))
    world.root.wait_stats(lambda stats: stats["waiting"] >= 1, "the wait has come up")
    world.tiers[0].child.send_signal(how)
    wait_closed(mine)
    wait_closed(waiting)
    direct.set("later", "1")
    assert other.read_u8() == 0
    assert other.get("later") == b"1"
    world.root.wait_stats(lambda stats: stats["tiers"] == 1 and stats["waiting"] == 0, "it is forgotten")
    # At once again on its port.
    world.tiers[0].wait()
    again = world.store("tier-a again", world.root, listen=world.tiers[0].address)
    with again.client() as client:
        assert client.get("later") == b"1"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_dead_root_takes_all_clients(stage, make_world, how):
    world = make_world("tiers of tiers")
    clients = [world.client(number, dialect) for number in range(len(world.places)) for dialect in ("1.x", "2.x")]
    for client in clients[::2]:
        client.send("WAIT", texts(["/never"]))
    world.root.wait_stats(lambda stats: stats["waiting"] >= 1, "the waits have come up")
    for client in clients[1::2]:
        client.set("key", "old")
        assert client.get("key") == b"old"
    world.root.child.send_signal(how)
    for client in clients:
        wait_closed(client)
    for tier in world.tiers:
        assert tier.alive()
    # A new root on the port: tiers serve it, and nothing of the old one.
    world.root.wait()
    world.root = world.store("root again", listen=world.root.address)
    for tier in world.tiers:
        with tier.client() as client:
            assert client.check(["key"]) is False
    with world.tiers[0].client() as writer:
        writer.set("key", "new")
        assert writer.get("key") == b"new"
        with world.tiers[1].client() as reader:
            assert reader.get("key") == b"new"


def test_a_tier_is_ready_before_its_root(stage, threads):
    port = free_port()
    tier = StoreProcess(stage.folder, upstream=f"127.0.0.1:{port}", name="tier")
    stage.processes.append(tier)
    client = tier.client(timeout_s=HANG_S, reply_timeout_s=HANG_S)
    tier.stats()  # it lives, and has nothing to say yet
    added = threads(client.add, "n", 5)
    with tier.client() as impatient:
        impatient.reply_timeout_s = IMPATIENT_S
        with pytest.raises(StoreTimeout):
            impatient.num_keys()
    assert not added.done()
    root = StoreProcess(stage.folder, listen=f"127.0.0.1:{port}", name="root")
    stage.processes.append(root)
    assert added.result(HANG_S) == 5
    client.close()


def test_a_chain_that_a_reader_does_not_drain(make_world):
    """A client that does not read holds up neither its tier nor the root."""
    world = make_world("tiers")
    stuck, good = world.client(0), world.client(0)
    stuck.set("big", b"x" * (1 << 20))
    stuck.send_bytes(stuck.bytes_of("GET", text("/big")) * 200)
    for number in range(50):
        assert good.add("n", 1) == number + 1
    for _ in range(200):
        assert len(stuck.read_text()) == 1 << 20
