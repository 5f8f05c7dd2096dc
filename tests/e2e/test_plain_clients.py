"""gRPC's own client against the calls in plain text: ClusterD's at the manager, health at the manager and at a proxy."""
import threading

import grpc
import harness
import pytest
import stubs
from deadlines import HANG_S
from harness import JOB, wait_until

CALLS = 100
EXPIRES_S = 2  # the deadline of calls that have to run into it; a slow machine lets it pass before their first answer


@pytest.fixture
def trace(manager):
    with grpc.insecure_channel(manager.address) as channel:
        yield stubs.profiling()[1].TrainingDataTraceStub(channel)


@pytest.fixture(params=["manager", "proxy"])
def health(request, stage):
    manager = stage.manager()
    server = manager if request.param == "manager" else stage.proxy(manager)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel, stubs.health()[1].HealthStub(channel), server


def code_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def get(job=JOB):
    return stubs.profiling()[0].DataStatusReq(jobNsName=job)


def test_calls_one_after_the_other_on_one_connection(trace):
    messages = stubs.profiling()[0]
    for number in range(CALLS):
        value = "on" if number % 2 else "off"
        request = messages.DataTypeReq(jobNsName=JOB, profilingSwitch=messages.ProfilingSwitch(CommunicationOperator=value))
        assert trace.ModifyTrainingDataTraceSwitch(request, timeout=HANG_S).code == 200
        assert trace.GetTrainingDataTraceSwitch(get(), timeout=HANG_S).profilingSwitch.CommunicationOperator == value


def test_many_calls_at_once_on_one_connection(trace):
    """More than a connection may have: the client waits by itself."""
    calls = [trace.GetTrainingDataTraceSwitch.future(get(), timeout=HANG_S) for _ in range(CALLS)]
    assert {call.result().code for call in calls} == {200}


def test_long_names_come_back(trace):
    job = "n/" + "x" * 510
    assert trace.GetTrainingDataTraceSwitch(get(job), timeout=HANG_S).code == 404
    assert job in trace.GetTrainingDataTraceSwitch(get(job), timeout=HANG_S).message


def test_what_is_too_big_or_compressed_is_refused(manager, trace):
    assert code_of(lambda: trace.GetTrainingDataTraceSwitch(get("n/" + "x" * 100_000), timeout=HANG_S)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert code_of(lambda: trace.GetTrainingDataTraceSwitch(get("n/" + "x" * 5000), timeout=HANG_S, compression=grpc.Compression.Gzip)) == (
        grpc.StatusCode.UNIMPLEMENTED)
    # That ends the connection; the client makes another one by itself.
    assert code_of(lambda: trace.GetTrainingDataTraceSwitch(get(), timeout=HANG_S, metadata=[("x", "y" * 20_000)])) == (
        grpc.StatusCode.UNAVAILABLE)
    assert trace.GetTrainingDataTraceSwitch(get(), timeout=HANG_S, wait_for_ready=True).code == 200
    with grpc.insecure_channel(manager.address) as channel:
        garbage = channel.unary_unary("/TrainingDataTrace/GetTrainingDataTraceSwitch")
        assert code_of(lambda: garbage(b"\xff\xff", timeout=HANG_S)) == grpc.StatusCode.INVALID_ARGUMENT


def test_a_subscriber_sees_every_change_however_many(manager, trace):
    messages = stubs.profiling()[0]
    stream = trace.SubscribeDataTraceSwitch(messages.ProfilingClientInfo(jobId=harness.TASK), timeout=HANG_S)
    seen = []

    def read():
        for message in stream:
            seen.append(message.profilingSwitch.CommunicationOperator)
            if len(seen) > 300:
                return
    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: seen, "the present state")
    expected = ["off"]
    for number in range(300):
        expected.append("off" if number % 2 else "on")
        request = messages.DataTypeReq(jobNsName=JOB, profilingSwitch=messages.ProfilingSwitch(CommunicationOperator=expected[-1]))
        assert trace.ModifyTrainingDataTraceSwitch(request, timeout=HANG_S).code == 200
    reader.join(HANG_S)
    assert seen == expected
    other = trace.SubscribeDataTraceSwitch(messages.ProfilingClientInfo(jobId="another"), timeout=HANG_S)
    assert code_of(lambda: next(other)) == grpc.StatusCode.NOT_FOUND
    assert "another" in other.details() and "'" in other.details()


def test_health_as_probes_ask_for_it(health):
    channel, stub, server = health
    messages = stubs.health()[0]
    for _ in range(3):
        assert stub.Check(messages.HealthCheckRequest(), timeout=HANG_S).status == messages.HealthCheckResponse.SERVING
    assert code_of(lambda: stub.Check(messages.HealthCheckRequest(service="other"), timeout=HANG_S)) == grpc.StatusCode.NOT_FOUND
    unknown = stub.Watch(messages.HealthCheckRequest(service="other"), timeout=HANG_S)
    assert next(unknown).status == messages.HealthCheckResponse.SERVICE_UNKNOWN
    watch = stub.Watch(messages.HealthCheckRequest())
    assert next(watch).status == messages.HealthCheckResponse.SERVING
    reflection = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    assert code_of(lambda: reflection(b"", timeout=HANG_S)) in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
    server.terminate()
    assert code_of(lambda: next(watch)) == grpc.StatusCode.UNAVAILABLE


def test_deadlines_and_cancelled_calls_give_their_place_back(health):
    _, stub, _ = health
    messages = stubs.health()[0]
    for _ in range(20):  # a connection has eight places
        watch = stub.Watch(messages.HealthCheckRequest(), timeout=HANG_S)
        assert next(watch).status == messages.HealthCheckResponse.SERVING
        watch.cancel()
    watches = [stub.Watch(messages.HealthCheckRequest(), timeout=EXPIRES_S) for _ in range(8)]
    for watch in watches:
        assert code_of(lambda: list(watch)) == grpc.StatusCode.DEADLINE_EXCEEDED
    assert stub.Check(messages.HealthCheckRequest(), timeout=HANG_S).status == messages.HealthCheckResponse.SERVING
