"""docs/security-model.md: tokens, TLS, and addresses other than loopback."""
import os
import subprocess

import grpc
import harness
import pytest
import stubs
from harness import JOB, wait_until

TOKEN = "correct-horse-battery"
METADATA_KEY = "authorization"


def bearer(token):
    return ((METADATA_KEY, f"Bearer {token}"),)


def code_of(call):
    try:
        call()
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


@pytest.fixture
def guarded(stage):
    """A manager with a token."""
    manager = stage.manager(environment=harness.clean_environment(TASKD_TOKEN=TOKEN), wait=False)
    wait_until(lambda: manager.require_alive() and
               stage.run("status", "--manager", manager.address, environment=manager.environment).returncode == 0,
               "status with the token")
    return manager


def test_every_call_needs_the_token(guarded):
    right = bearer(TOKEN)
    messages = stubs.profiling()[0]
    control, _ = stubs.control()
    before = guarded.call("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName=JOB), metadata=right)

    def raw(method, request):
        def call(metadata):
            with grpc.insecure_channel(guarded.address) as channel:
                channel.unary_unary(method)(request.SerializeToString(), timeout=5, metadata=metadata)
        return call

    switch = messages.ProfilingSwitch(Step="on")
    calls = [raw("/TrainingDataTrace/ModifyTrainingDataTraceSwitch",
                 messages.DataTypeReq(jobNsName=JOB, profilingSwitch=switch)),
             raw("/TrainingDataTrace/GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName=JOB)),
             raw("/taskd.v1.Control/SetSwitch", control.SetSwitchRequest(job=JOB, step=True)),
             raw("/taskd.v1.Control/GetStatus", control.GetStatusRequest()),
             raw("/taskd.v1.Control/CallAgents", control.CallAgentsRequest(operator="MONITOR"))]
    for call in calls:
        assert code_of(lambda: call(())) == grpc.StatusCode.UNAUTHENTICATED
        for wrong in ("", TOKEN[:-1], TOKEN + "x", "x"):
            assert code_of(lambda: call(bearer(wrong))) in (grpc.StatusCode.PERMISSION_DENIED,
                                                            grpc.StatusCode.UNAUTHENTICATED)
    for stream, payload in (("/TrainingDataTrace/SubscribeDataTraceSwitch", messages.ProfilingClientInfo(jobId=harness.TASK)),):
        with grpc.insecure_channel(guarded.address) as channel:
            assert code_of(lambda: next(channel.unary_stream(stream)(payload.SerializeToString(), timeout=5))) == (
                grpc.StatusCode.UNAUTHENTICATED)
    assert guarded.call("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName=JOB), metadata=right) == before


def test_a_proxy_needs_the_token(stage, guarded):
    wrong = stage.proxy(guarded, node=1, environment=harness.clean_environment(TASKD_TOKEN="x", MINDX_TASK_ID=harness.TASK))
    right = stage.proxy(guarded, node=0, environment=harness.clean_environment(TASKD_TOKEN=TOKEN, MINDX_TASK_ID=harness.TASK))
    stage.rank(0, right, rate=100)
    stage.rank(1, wrong, rate=100)
    guarded.wait_attached([0])
    code, answer = guarded.switch("all=on")
    assert code == 0 and [r["rank"] for r in answer["ranks"]] == [0]
    wait_until(lambda: "PERMISSION_DENIED" in wrong.log() or "token" in wrong.log(), "the refused proxy says why")
    for process in (guarded, right, wrong):
        assert TOKEN not in process.log()


def test_taskd_switch_without_the_token(stage, guarded):
    done = stage.run("switch", "--manager", guarded.address, "--job", JOB, "all=on")
    assert done.returncode == 1 and "token" in done.stderr.lower()


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])
@pytest.mark.parametrize("role", ["manager", "proxy"])
def test_other_addresses_need_protection(stage, role, address):
    port = harness.free_port()
    flags = {"manager": ["--state-dir", os.path.join(stage.folder, "state"), "--http", f"127.0.0.1:{harness.free_port()}"],
             "proxy": ["--socket", os.path.join(stage.folder, "p.sock"), "--profiling-dir", stage.folder]}[role]
    done = stage.run(role, "--listen", f"{address}:{port}", *flags)
    assert done.returncode == 2 and "--allow-plaintext" in done.stderr and address in done.stderr


def test_allow_plaintext_is_said_loudly(stage):
    port = harness.free_port()
    process = harness.Process("open", [harness.TASKD, "manager", "--listen", f"0.0.0.0:{port}", "--allow-plaintext", "--http",
                                       f"127.0.0.1:{harness.free_port()}", "--state-dir",
                                       os.path.join(stage.folder, "state")], harness.clean_environment(), stage.folder)
    stage.processes.append(process)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=harness.PATIENCE_S)
    assert "plain" in process.log().lower() and "warn" in process.log().lower()


def test_token_lets_other_addresses_be_used(stage):
    port = harness.free_port()
    process = harness.Process("guarded", [harness.TASKD, "manager", "--listen", f"0.0.0.0:{port}", "--http",
                                          f"127.0.0.1:{harness.free_port()}", "--state-dir",
                                          os.path.join(stage.folder, "state")],
                              harness.clean_environment(TASKD_TOKEN=TOKEN), stage.folder)
    stage.processes.append(process)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=harness.PATIENCE_S)


def openssl(*arguments, cwd):
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


def make_ca(folder):
    os.makedirs(folder)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
            "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)


def make_tls_dir(ca, folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "ext"), "w", encoding="utf-8") as file:
        file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=taskd", "-keyout",
            "tls.key", "-out", "tls.csr", cwd=folder)
    openssl("x509", "-req", "-in", "tls.csr", "-CA", f"{ca}/ca.crt", "-CAkey", f"{ca}/ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "ext", "-out", "tls.crt", cwd=folder)
    with open(f"{ca}/ca.crt", "rb") as source, open(os.path.join(folder, "ca.crt"), "wb") as target:
        target.write(source.read())
    return folder


def test_mutual_tls(stage):
    ca, other_ca = os.path.join(stage.folder, "ca"), os.path.join(stage.folder, "other-ca")
    make_ca(ca)
    make_ca(other_ca)
    ours = make_tls_dir(ca, os.path.join(stage.folder, "tls"))
    theirs = make_tls_dir(other_ca, os.path.join(stage.folder, "other-tls"))
    manager = stage.manager(flags=["--tls-dir", ours], environment=harness.clean_environment(TASKD_TLS_DIR=ours), wait=False)

    def status(tls_dir):
        flags = ["--tls-dir", tls_dir] if tls_dir else []
        return stage.run("status", "--manager", manager.address, *flags, timeout_s=40)

    wait_until(lambda: manager.require_alive() and status(ours).returncode == 0, "status over TLS")
    assert status(None).returncode == 1
    assert status(theirs).returncode == 1
    proxy = stage.proxy(manager, flags=["--tls-dir", ours])
    stage.rank(0, proxy, rate=100)
    manager.wait_attached([0])
    code, answer = manager.switch("all=on")
    assert code == 0 and answer["applied"] == 1
    done = stage.run("manager", "--listen", f"127.0.0.1:{harness.free_port()}", "--tls-dir", other_ca, "--state-dir",
                     os.path.join(stage.folder, "other"))
    assert done.returncode == 2 and "tls.crt" in done.stderr
