"""The manager's HTTP against clients that are slow, silent, endless or wrong: probes are answered, memory stays bounded."""
import errno
import os
import re
import resource
import select
import socket

import harness
import pytest
from deadlines import Deadline, HANG_S
from harness import peak_bytes, thread_count, wait_until

MIB = 1 << 20
PROBE_S = 5.0  # a probe's own patience; an HTTP server that is starved answers later, or never
PACE_S = 1  # between the bytes of a slow client


@pytest.fixture
def http(manager):
    """(host, port) of a manager's HTTP, which answers a probe at the end of each test as at its start."""
    host, port = manager.http.rsplit(":", 1)
    address = (host, int(port))
    wait_until(lambda: probe(address), "HTTP answers")
    yield address
    assert probe(address)
    manager.require_alive()


def connect(address):
    return socket.create_connection(address, HANG_S)


def read_all(connection):
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def ask(address, request):
    """The whole answer to raw bytes, until the manager closes."""
    with connect(address) as connection:
        try:
            connection.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(connection)


def probe(address):
    """As a kubelet does it: in time, or it counts as failed."""
    deadline = Deadline(PROBE_S)
    answer = ask(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return not deadline.is_over() and answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nok\n")


def code(answer):
    match = re.match(rb"HTTP/1\.[01] (\d\d\d) ", answer)
    return int(match[1]) if match else None


def is_closed(connection):
    """The other side has ended it; nothing is left to be read."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(0):
        return False
    try:
        return connection.recv(65536) == b""
    except OSError:
        return True


@pytest.mark.parametrize("line", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500_000,
                                  b"GET /" + b"a" * 3_000_000, b"\r\n" * 1_000_000,
                                  b"GET / HTTP/1.1\r\nA: " + b"b" * 3_000_000],
                         ids=["fields", "target", "nothing", "field"])
def test_endless_headers_take_no_memory(manager, http, line):
    before, threads = peak_bytes(manager), thread_count(manager)
    sent = 0
    with connect(http) as connection:
        try:
            for _ in range(20):
                connection.sendall(line)
                sent += len(line)
        except OSError as error:
            assert error.errno in (errno.EPIPE, errno.ECONNRESET)
        else:
            raise AssertionError(f"{sent} bytes of one request were taken")
    assert peak_bytes(manager) - before < 16 * MIB and thread_count(manager) < threads + 40


def test_too_long_a_request_is_told_so(http):
    assert code(ask(http, b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000 + b"\r\n\r\n")) == 431
    assert code(ask(http, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: " + b"b" * 7000 + b"\r\n\r\n")) == 200


@pytest.mark.parametrize("first", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nA: b\r\n",
                                   b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["silent", "line", "header", "idle"])
def test_slow_and_idle_clients_do_not_starve_a_probe(manager, http, first):
    threads, crowd = thread_count(manager), []
    try:
        for _ in range(1000):
            crowd.append(connect(http))
            crowd[-1].sendall(first)
        outlived = 0
        for _ in range(20):
            crowd.append(connect(http))
            crowd[-1].sendall(first)
            assert probe(http)
            outlived += is_closed(crowd[-1])
        assert outlived == 0, "probes are answered, but only after the others' time-outs"
        assert thread_count(manager) < threads + 40
        # At most so many are kept; the oldest had to go.
        wait_until(lambda: sum(is_closed(one) for one in crowd) >= 1000 - 128, "the oldest connections are closed")
    finally:
        for one in crowd:
            one.close()


def test_those_who_do_not_read_do_not_starve_a_probe(manager, http):
    before, threads = peak_bytes(manager), thread_count(manager)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    crowd = []
    try:
        for _ in range(300):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.settimeout(HANG_S)
            one.connect(http)
            one.setblocking(False)
            try:
                for _ in range(10):
                    one.send(request)
            except BlockingIOError:
                pass
            crowd.append(one)
        assert probe(http)
        assert peak_bytes(manager) - before < 32 * MIB and thread_count(manager) < threads + 40
    finally:
        for one in crowd:
            one.close()


def test_a_slow_request_is_ended(http):
    """A byte a second is progress only for who sends it."""
    with connect(http) as connection:
        connection.settimeout(PACE_S)
        deadline = Deadline()
        while not deadline.is_over():
            try:
                connection.send(b"G")
                if connection.recv(1000) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError(f"still open after {deadline.timeout_s:g} s")


def test_pipelined_requests_are_answered_in_order(http):
    answer = ask(http, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\n"
                       b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                       b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"404", b"200", b"200"]
    assert b"# HELP" not in answer, "HEAD has no body, and nothing is answered after the close"
    many = 2000
    answer = ask(http, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * (many - 1) +
                 b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == many


@pytest.mark.parametrize("target", [b"/healthz/", b"//healthz", b"/./healthz", b"/x/../healthz", b"/%68ealthz", b"/healthz%00",
                                    b"/../../etc/passwd", b"/..%2f..%2fetc%2fpasswd", b"/etc/passwd", b"/healthz;x", b"/HEALTHZ",
                                    b"/metrics.", b"/app.js/", b"/api/v1", b"/api/v1/", b"/api/v1/rank/1/2", b"/vendor/", b"/\xff\xfe"])
def test_only_exact_paths_exist(http, target):
    assert code(ask(http, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) in (400, 404)


@pytest.mark.parametrize("request_bytes, expected", [
    (b"GET /healthz?x=y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {200}),
    (b"GET /healthz HTTP/1.0\r\n\r\n", {200}),
    (b"HEAD /healthz HTTP/1.0\r\n\r\n", {200}),
    (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", {405}),
    (b"PUT /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", {405}),
    (b"DELETE / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {405}),
    (b"BREW /pot HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {405}),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {405}),
    (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", {413}),
    (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", {413}),
    (b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", {400}),
    (b"GET /healthz HTTP/1.1\r\nContent-Length: -1\r\n\r\n", {400}),
    (b"GET http://elsewhere/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {400, 404}),
    (b"GET * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {400}),
    (b"GET /healthz HTTP/9.9\r\n\r\n", {400, 505}),
    (b"GET /hea\0lthz HTTP/1.1\r\n\r\n", {400}),
    (b"GET /healthz HTTP/1.1\r\nA: b\0c\r\n\r\n", {400}),
    (b"GET /healthz HTTP/1.1\r\nA\0: b\r\n\r\n", {400}),
    (b"\0\0\0\0\r\n\r\n", {400}),
    (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", {400}),
    (b"GET  HTTP/1.1\r\n\r\n", {400}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), {400}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
])
def test_what_is_wrong_is_refused_and_ends(http, request_bytes, expected):
    answer = ask(http, request_bytes)
    assert code(answer) in expected, answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows a refused request is not read as another one"


def test_headers_that_keep_browsers_safe(http):
    answer = ask(http, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").lower()
    for header in (b"x-content-type-options: nosniff", b"x-frame-options: deny", b"content-security-policy: default-src 'self'",
                   b"cache-control: no-store"):
        assert header in answer


def test_accepting_goes_on_when_there_are_descriptors_again(manager, http):
    """Descriptors run out with HTTP's own connections; what is accepted meanwhile waits and is answered afterwards."""
    _, hard = resource.prlimit(manager.pid, resource.RLIMIT_NOFILE)
    in_use = len(os.listdir(f"/proc/{manager.pid}/fd"))
    crowd = []
    try:
        resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, (in_use + 10, hard))
        for _ in range(100):
            crowd.append(connect(http))
        wait_until(lambda: "cannot accept connections" in manager.log(), "it says that it cannot accept")
        cpu = manager_cpu(manager)
        for one in crowd:
            one.close()
        wait_until(lambda: probe(http), "a probe is answered again")
        assert manager_cpu(manager) - cpu < 2, "it spins"
    finally:
        for one in crowd:
            one.close()
        resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, (hard, hard))


def manager_cpu(manager):
    with open(f"/proc/{manager.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


HOSTS = [(b"127.0.0.1:9603", 200), (b"localhost", 200), (b"[::1]:9603", 200), (socket.gethostname().encode(), 200),
         (b"viewer.example.com:9603", 200),  # which the operator has listed
         (b"rebound.example.com", 403), (b"rebound.example.com:9603", 403), (b"somewhere", 403), (b"[::1].evil.com", 403),
         (b"[::1].evil.com:9603", 403), (b"127.0.0.1.evil.com", 403), (b"localhost.evil.com", 403)]


@pytest.mark.parametrize("mode", ["own user", "anyone"])
def test_a_foreign_name_that_leads_here_shows_nothing(stage, mode):
    """DNS rebinding: the browser of somebody who may see the job has a stranger's page open, whose name now leads here."""
    manager = stage.manager(flags=["--http-host", "other.example.com,viewer.example.com",
                                   *(["--allow-plaintext"] if mode == "anyone" else [])])
    host, port = manager.http.rsplit(":", 1)
    for name, expected in HOSTS:
        for path in (b"/", b"/metrics", b"/api/v1/status"):
            answer = ask((host, int(port)), b"GET " + path + b" HTTP/1.1\r\nHost: " + name + b"\r\nConnection: close\r\n\r\n")
            assert code(answer) == expected, (name, path, answer[:100])
            assert expected == 200 or b"--http-host" in answer
    assert probe((host, int(port)))


def test_looking_is_not_commanding(stage):
    """What lets one in over HTTP is made of the secret, and opens nothing else; the secret itself is not for plain HTTP."""
    secret = "the-jobs-secret"
    environment = harness.clean_environment(TASKD_TOKEN=secret)
    manager = stage.manager(environment=environment, wait=False)
    wait_until(lambda: manager.require_alive() and "answers gRPC" in manager.log(), "the manager is ready")
    host, port = manager.http.rsplit(":", 1)
    shown = stage.run("ui", "--manager", manager.address, environment=environment).stdout.strip()
    view = harness.view_token(secret)
    assert shown == f"http://{manager.http}/?token={view}" and secret not in shown

    def get(token, query=b""):
        header = b"Authorization: Bearer " + token.encode() + b"\r\n" if token else b""
        return ask((host, int(port)), b"GET /metrics" + query + b" HTTP/1.1\r\nHost: any.example.com\r\nConnection: close\r\n" +
                   header + b"\r\n")
    assert code(get(view)) == 200
    assert code(get("")) == code(get("x")) == 401
    for answer in (get(secret), get("", b"?token=" + secret.encode())):
        assert code(answer) == 401 and b"taskd token" in answer.split(b"\r\n\r\n", 1)[1]

    # It is not the secret of a TLS connection.
    done = stage.run("status", "--manager", manager.address, environment=harness.clean_environment(TASKD_TOKEN=view))
    assert done.returncode == 1, done
    # A browser gets a cookie of its own, which is the token neither.
    answer = ask((host, int(port)), b"GET /?token=" + view.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1:" + port.encode() +
                 b"\r\nConnection: close\r\n\r\n")
    assert code(answer) == 303
    cookie = re.search(rb"Set-Cookie: (taskd_" + port.encode() + rb"=[0-9a-f]+); Path=/; HttpOnly; SameSite=Strict\r\n", answer)
    assert cookie and view.encode() not in cookie[1] and secret.encode() not in answer
