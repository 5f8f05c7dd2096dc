"""Peers of the manager that come and go, say more than they should, or nothing at all: memory is bounded, and `taskd status`
and `taskd switch` go on working."""
import contextlib

import grpc
import pytest
import stubs
from deadlines import HANG_S
from harness import peak_bytes, wait_until
from streams import Stream

MIB = 1 << 20
RANKS = 4096  # of one node, the most
MAX_RANKS = 131072  # of all


@pytest.fixture
def peer(manager):
    """A channel to the manager each time that it is called."""
    channels = []

    def dial():
        channel = manager.secure_channel(options=[("grpc.max_receive_message_length", -1)])
        channels.append(channel)
        return channel

    yield dial
    for channel in channels:
        channel.close()


def delimited(number, content):
    """A field of a message with `content`."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7f | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def node_messages(node, first_rank, count=RANKS, identity="a"):
    messages, _ = stubs.node()
    hello = messages.NodeMessage(hello=messages.NodeHello(node_rank=node, identity=identity, host="host"))
    ranks = messages.NodeMessage()
    for rank in range(first_rank, first_rank + count):
        ranks.ranks.ranks.add(rank=rank, pid=1, attached=True, reason="x" * 200)
    return [hello.SerializeToString(), ranks.SerializeToString()]


@pytest.mark.parametrize("alone", [True, False])
def test_nodes_that_come_and_go_are_bounded(stage, manager, peer, alone):
    """Two hundred nodes of 4,096 ranks each, one after the other."""
    before = peak_bytes(manager)
    channel = peer()
    messages = stubs.node()[0]
    one = node_messages(0, 0)[1]
    for node in range(200):
        hello = messages.NodeMessage(hello=messages.NodeHello(node_rank=node, identity=str(node)))
        stream = Stream(channel, "/taskd.v1.NodeLink/Connect", [hello.SerializeToString(), one], alone=alone)
        stream.next()
        wait_until(lambda: f"node {node} connected" in manager.log(), "it is connected")
        stream.end()
        stream.code()
    assert peak_bytes(manager) - before < 300 * MIB
    status = manager.status()
    assert sum(len(node["ranks"]) for node in status["nodes"]) <= MAX_RANKS
    assert manager.switch("step=on", "--timeout", "1")[1]["total"] <= MAX_RANKS


def test_status_and_switch_of_all_ranks_that_there_can_be(stage, manager, peer):
    channel = peer()
    nodes = MAX_RANKS // RANKS
    streams = [Stream(peer(), "/taskd.v1.NodeLink/Connect", node_messages(node, node * RANKS), alone=True)
               for node in range(nodes // 2)]
    streams += [Stream(channel, "/taskd.v1.NodeLink/Connect", node_messages(node, node * RANKS))
                for node in range(nodes // 2, nodes)]
    try:
        wait_until(lambda: sum(len(node["ranks"]) for node in manager.status()["nodes"]) == MAX_RANKS, "all are known",
                   interval_s=0.5)
        assert [node["node"] for node in manager.status()["nodes"]] == list(range(nodes))
        code, answer = manager.switch("step=on", "--timeout", "1")
        assert code == 1 and answer["total"] == MAX_RANKS and answer["applied"] == 0
        assert [rank["rank"] for rank in answer["ranks"]] == list(range(MAX_RANKS))
        assert stage.run("status", "--manager", manager.address).returncode == 0
        # One more is too many while they are all here.
        for alone in (True, False):
            late = Stream(peer(), "/taskd.v1.NodeLink/Connect", node_messages(nodes, MAX_RANKS, 1), alone=alone)
            assert late.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("wire, code", [
    (delimited(5, b"\x12\0" * 2_000_000), "RESOURCE_EXHAUSTED"), (delimited(5, b"\x0a\x02\x12\0" * 1_000_000), "RESOURCE_EXHAUSTED"),
    (delimited(2, b"\x0a\0" * 2_000_000), "INVALID_ARGUMENT"), (delimited(3, b"\x12\0" * 2_000_000), "RESOURCE_EXHAUSTED"),
    (b"\x7a\0" * 2_000_000, "RESOURCE_EXHAUSTED")], ids=["steps", "groups", "ranks", "answers", "unknown"])
def test_messages_of_empty_parts_take_no_memory(manager, peer, wire, code, alone):
    """Two bytes each in the message, hundreds once they are built. Sixteen streams at once."""
    messages = stubs.node()[0]
    before = peak_bytes(manager)
    streams = []
    for node in range(16):
        hello = messages.NodeMessage(hello=messages.NodeHello(node_rank=node, identity="a")).SerializeToString()
        streams.append(Stream(peer(), "/taskd.v1.NodeLink/Connect", [hello, wire], alone=alone))
    for stream in streams:
        assert stream.code() == grpc.StatusCode[code]
    assert peak_bytes(manager) - before < 300 * MIB


def test_unary_calls_of_empty_parts_take_no_memory(manager, peer):
    before = peak_bytes(manager)
    for method, wire in (("/taskd.v1.Supervision/Report", b"\x12\0" * 2_000_000),
                         ("/taskd.v1.Control/GetStatus", b"\x7a\0" * 2_000_000),
                         ("/TrainingDataTrace/GetTrainingDataTraceSwitch", b"\x7a\0" * 2_000_000)):
        calls = [peer().unary_unary(method).future(wire, timeout=HANG_S) for _ in range(16)]
        assert [call.exception().code() for call in calls] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 16
    assert peak_bytes(manager) - before < 300 * MIB


def test_joins_of_large_addresses_are_refused(manager, peer):
    messages = stubs.job_link()[0]
    before = peak_bytes(manager)
    channel = peer()
    streams = []
    for index in range(100):
        join = messages.JoinJob(index=index, nodes=100, name="n", run_id=str(index), plan="mpi", addresses=["x" * 4_000_000])
        streams.append(Stream(channel, "/taskd.v1.JobLink/Join", [messages.NodeReport(join=join).SerializeToString()]))
        answer = messages.JobNotice.FromString(streams[-1].next())
        assert "are more than 256" in answer.refused
    for stream in streams:
        stream.close()
    assert peak_bytes(manager) - before < 150 * MIB


def test_all_nodes_of_a_job_behind_one_address_get_in(manager):
    """At once, with a handshake each, as gRPC's clients do it."""
    as_nodes = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000), ("grpc.min_reconnect_backoff_ms", 5000)]
    with contextlib.ExitStack() as open_:
        channels = [open_.enter_context(manager.secure_channel(options=as_nodes)) for _ in range(500)]
        for ready in [grpc.channel_ready_future(channel) for channel in channels]:
            ready.result(HANG_S)
        assert manager.status()


def test_streams_that_say_nothing_are_ended(manager, peer):
    channel = peer()
    streams = [Stream(channel, method, []) for method in ("/taskd.v1.JobLink/Join", "/taskd.v1.RouteAgreement/Agree",
                                                          "/taskd.v1.NodeLink/Connect") for _ in range(20)]
    streams += [Stream(peer(), "/taskd.v1.NodeLink/Connect", alone=True) for _ in range(20)]
    assert {stream.code() for stream in streams} == {grpc.StatusCode.DEADLINE_EXCEEDED}
