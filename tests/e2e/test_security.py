"""docs/security-model.md: tokens, TLS, and addresses other than loopback."""
import os
import socket
import subprocess

import grpc
import harness
import pytest
import stubs
from deadlines import HANG_S
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


def calls_of(channel):
    """Everything that a client can ask, by name."""
    messages = stubs.profiling()[0]
    control, _ = stubs.control()

    def unary(method, request):
        return lambda metadata=(): channel.unary_unary(method)(request.SerializeToString(), timeout=HANG_S, metadata=metadata)
    clusterd = {name: unary(f"/TrainingDataTrace/{name}", request) for name, request in (
        ("ModifyTrainingDataTraceSwitch", messages.DataTypeReq(jobNsName=JOB,
                                                               profilingSwitch=messages.ProfilingSwitch(Step="on"))),
        ("GetTrainingDataTraceSwitch", messages.DataStatusReq(jobNsName=JOB)))}
    subscribe = messages.ProfilingClientInfo(jobId=harness.TASK).SerializeToString()
    clusterd["SubscribeDataTraceSwitch"] = lambda metadata=(): next(
        channel.unary_stream("/TrainingDataTrace/SubscribeDataTraceSwitch")(subscribe, timeout=HANG_S, metadata=metadata))
    own = {name: unary(f"/taskd.v1.Control/{name}", request) for name, request in (
        ("SetSwitch", control.SetSwitchRequest(job=JOB, step=True)), ("GetStatus", control.GetStatusRequest()),
        ("CallAgents", control.CallAgentsRequest(operator="KILL_WORKER")))}
    return clusterd, own


def test_with_a_token_plain_text_is_not_even_read(stage, guarded):
    """Also from the manager's own user and with the right token, which plain text would show to whoever listens."""
    before = guarded.status()["wanted"]
    for token in ("", TOKEN[:-1], TOKEN):
        with grpc.insecure_channel(guarded.address) as channel:
            clusterd, own = calls_of(channel)
            for name, call in {**clusterd, **own}.items():
                assert code_of(lambda: call(bearer(token))) == grpc.StatusCode.UNAVAILABLE, name
    assert guarded.status()["wanted"] == before
    with socket.create_connection(("127.0.0.1", guarded.port)) as connection:
        connection.settimeout(HANG_S)
        connection.sendall(b"P")
        try:
            assert connection.recv(1) == b"", "closed at the first byte"
        except ConnectionResetError:
            pass  # closed with that byte unread


def test_allow_plaintext_opens_clusterds_calls_to_everybody(stage):
    environment = harness.clean_environment(TASKD_TOKEN=TOKEN)
    manager = stage.manager(flags=["--allow-plaintext"], environment=environment)
    for token in ("", "wrong", TOKEN):
        with grpc.insecure_channel(manager.address) as channel:
            clusterd, own = calls_of(channel)
            for name, call in clusterd.items():
                assert code_of(lambda: call(bearer(token))) == grpc.StatusCode.OK, name
            for name, call in own.items():  # TaskD's own interfaces are not for plain text, whatever it brings along
                assert code_of(lambda: call(bearer(token))) == grpc.StatusCode.UNAUTHENTICATED, name


def test_another_secret_is_refused_in_the_handshake(guarded):
    for secret in ("", "x", TOKEN[:-1], TOKEN + "x"):
        with harness.secure_channel(guarded.address, secret) as channel:
            clusterd, own = calls_of(channel)
            for name, call in {**clusterd, **own}.items():
                assert code_of(call) == grpc.StatusCode.UNAVAILABLE, name
    with guarded.secure_channel() as channel:
        clusterd, own = calls_of(channel)
        for name, call in {**clusterd, **own}.items():
            assert code_of(call) == grpc.StatusCode.OK, name


def test_the_token_never_crosses_the_network(stage):
    """An impostor at the manager's address gets a TLS handshake, which reveals nothing of the token."""
    heard = bytearray()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        environment = harness.clean_environment(TASKD_TOKEN=TOKEN, MINDX_TASK_ID=harness.TASK)
        tools = [["status", "--manager", address], ["switch", "--manager", address, "--job", JOB, "all=on"],
                 ["diagnose", "--manager", address]]
        clients = [subprocess.Popen([harness.TASKD, *tool], env=environment, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL) for tool in tools]
        stage.proxy(address, environment=environment)
        for _ in range(len(tools) + 1):
            connection, _ = listener.accept()
            connection.settimeout(HANG_S)
            first = connection.recv(65536)
            assert first[:1] == b"\x16", first[:40]
            heard += first
            connection.close()
        for client in clients:
            client.kill()
            client.wait()
    assert heard and TOKEN.encode() not in heard


def test_a_proxy_needs_the_token(stage, guarded):
    wrong = stage.proxy(guarded, node=1, environment=harness.clean_environment(TASKD_TOKEN="x", MINDX_TASK_ID=harness.TASK))
    right = stage.proxy(guarded, node=0, environment=harness.clean_environment(TASKD_TOKEN=TOKEN, MINDX_TASK_ID=harness.TASK))
    stage.rank(0, right, rate=100)
    stage.rank(1, wrong, rate=100)
    guarded.wait_attached([0])
    code, answer = guarded.switch("all=on")
    assert code == 0 and [r["rank"] for r in answer["ranks"]] == [0]
    wait_until(lambda: "TASKD_TOKEN" in wrong.log(), "the refused proxy says why")
    for process in (guarded, right, wrong):
        assert TOKEN not in process.log()


def test_tools_of_the_managers_user_need_no_token_on_its_machine(stage, guarded):
    done = stage.run("switch", "--manager", guarded.address, "--job", JOB, "all=on")
    assert done.returncode == 0, done.stderr


def test_taskd_switch_without_the_token(stage, guarded):
    elsewhere = harness.clean_environment(XDG_RUNTIME_DIR=None, TASKD_TOKEN="wrong")
    done = stage.run("switch", "--manager", guarded.address, "--job", JOB, "all=on", environment=elsewhere)
    assert done.returncode == 1 and "TASKD_TOKEN" in done.stderr


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
        grpc.channel_ready_future(channel).result(timeout=HANG_S)
    assert "plain" in process.log().lower() and "warn" in process.log().lower()


def test_token_lets_other_addresses_be_used(stage):
    port = harness.free_port()
    process = harness.Process("guarded", [harness.TASKD, "manager", "--listen", f"0.0.0.0:{port}", "--http",
                                          f"127.0.0.1:{harness.free_port()}", "--state-dir",
                                          os.path.join(stage.folder, "state")],
                              harness.clean_environment(TASKD_TOKEN=TOKEN), stage.folder)
    stage.processes.append(process)
    with harness.secure_channel(f"127.0.0.1:{port}", TOKEN) as channel:
        grpc.channel_ready_future(channel).result(timeout=HANG_S)


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
    assert manager.log().count("--tls-dir without --tls-name: everybody with a certificate of ca.crt, whatever name it has, can join") == 1
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
