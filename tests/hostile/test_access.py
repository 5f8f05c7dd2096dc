"""Who commands a job: nobody who was not let in, whoever answers at an address, whatever port is reached, whoever shares the
host. And a port that many knock at is not deaf afterwards."""
import json
import os
import signal
import socket
import ssl
import subprocess

import deadlines
import grpc
import harness
import pytest
from harness import wait_until
from launchers import OWN_PORTS
from strangers import LIB, STRANGER, VICTIM, host  # noqa: F401

root_only = pytest.mark.root("mounts, and processes of other users")

# A manager of the stranger's: whoever joins is ordered to run a command. In plain text, or by TLS with a key of its own; it
# asks for certificates and takes any, so that it receives what a victim sends.
FALSE_MANAGER = """
import concurrent.futures, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
import grpc, stubs
messages, services = stubs.job_link()

class JobLink(services.JobLinkServicer):
    def Join(self, reports, context):
        print("metadata", [value for _, value in context.invocation_metadata()], flush=True)
        for report in reports:
            print("heard", str(report).replace("\\n", " "), flush=True)
            yield messages.JobNotice(state=messages.JobState(first_joined=True, all_joined=True, all_ready=True))
            yield messages.JobNotice(remote=messages.RemoteCommand(id=1, start=sys.argv[3]))

server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
services.add_JobLinkServicer_to_server(JobLink(), server)
if sys.argv[4] == "tls":
    folder = sys.argv[5]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj", "/CN=taskd job", "-addext",
                    "subjectAltName=DNS:job.taskd", "-keyout", folder + "/key", "-out", folder + "/crt"], check=True)
    key, crt = open(folder + "/key", "rb").read(), open(folder + "/crt", "rb").read()
    server.add_secure_port(sys.argv[2], grpc.ssl_server_credentials([(key, crt)]))
else:
    server.add_insecure_port(sys.argv[2])
server.start()
print("ready", flush=True)
server.wait_for_termination()
"""


@root_only
@pytest.mark.parametrize("token", ["", "the-jobs-own-token"])
@pytest.mark.parametrize("speaks", ["plain", "tls"])
@pytest.mark.parametrize("mode", ["mpi", "horovod"])
def test_whoever_answers_at_the_managers_address_is_no_manager(host, mode, speaks, token):
    """The first to listen at 127.0.0.1:9601 used to run commands as the victim."""
    port = harness.free_port()
    host.sh(0, "mkdir -m 777 /tmp/open")
    mark = "/tmp/open/mark"
    # As root, so that it can read the tree: it is a stranger to the job all the same.
    command = host.command(0, harness.PYTHON, "-c", FALSE_MANAGER, LIB, f"127.0.0.1:{port}", f"touch {mark}", speaks, "/tmp/open")
    false = harness.Process("false manager", command, host.environment(), host.stage.folder)
    host.stage.processes.append(false)
    wait_until(lambda: false.require_alive() and "ready" in false.log(), "the false manager listens")
    extra = {"TASKD_TOKEN": token} if token else {}
    victim = host.start(VICTIM, "victim", "run", "--mode", mode, "--manager", f"127.0.0.1:{port}", "--wait-s", "4", "--",
                        "sh", "-c", "sleep 1000", NODE_LIST="localhost:1", INDEX="0", HOME="/tmp", **extra)
    assert victim.wait(timeout_s=60) != 0, victim.log()
    assert host.run(0, "test", "-e", mark).returncode != 0, f"the stranger's command ran\n{false.log()}"
    assert "heard" not in false.log() and "metadata" not in false.log(), "something was sent to a stranger"
    if token:
        assert token not in false.log() and token not in victim.log()
        assert speaks == "plain" or "TASKD_TOKEN" in victim.log(), victim.log()


CALLS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import grpc, stubs
from deadlines import HANG_S
messages, services = stubs.profiling()
control, controls = stubs.control()
with grpc.insecure_channel(sys.argv[2]) as channel:
    trace, own = services.TrainingDataTraceStub(channel), controls.ControlStub(channel)
    kill = control.CallAgentsRequest()
    setattr(kill, "operator", "KILL_WORKER")
    for name, call in (
            ("modify", lambda: trace.ModifyTrainingDataTraceSwitch(messages.DataTypeReq(
                jobNsName="default/mine", profilingSwitch=messages.ProfilingSwitch(Step="on")), timeout=HANG_S)),
            ("get", lambda: trace.GetTrainingDataTraceSwitch(messages.DataStatusReq(jobNsName="default/mine"), timeout=HANG_S)),
            ("status", lambda: own.GetStatus(control.GetStatusRequest(), timeout=HANG_S)),
            ("switch", lambda: own.SetSwitch(control.SetSwitchRequest(step=True), timeout=HANG_S)),
            ("kill", lambda: own.CallAgents(kill, timeout=HANG_S))):
        try:
            call()
            print(name, "OK", flush=True)
        except grpc.RpcError as error:
            print(name, error.code().name, flush=True)
"""


def calls(host, uid, address):
    """What the calls of a client in plain text end with, made by a process of that user. The stubs are root's to read."""
    become = f"import os; os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})\n"
    text = CALLS.replace("with grpc.insecure_channel", become + "with grpc.insecure_channel")
    done = host.run(0, harness.PYTHON, "-c", text, LIB, address, timeout_s=60)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@root_only
def test_loopback_is_a_boundary_between_users(host):
    _, address = host.manager(VICTIM, "mine", "--job", "default/mine")
    assert calls(host, STRANGER, address) == dict.fromkeys(("modify", "get", "status", "switch", "kill"), "UNAVAILABLE")
    for command in (["status"], ["switch", "step=on"], ["diagnose"]):
        done = host.run(STRANGER, "taskd", *command, "--manager", address)
        assert done.returncode == 1 and done.stdout == "" and "TASKD_TOKEN" in done.stderr, (command, done)
    status = json.loads(host.run(VICTIM, "taskd", "status", "--json").stdout)
    assert status["wanted"]["step"] == "off"
    # Its own user types what he always did, against ClusterD's service; TaskD's own is for its parts.
    own = calls(host, VICTIM, address)
    assert own == {"modify": "OK", "get": "OK", "status": "UNAUTHENTICATED", "switch": "UNAUTHENTICATED", "kill": "UNAUTHENTICATED"}
    assert json.loads(host.run(VICTIM, "taskd", "status", "--json").stdout)["wanted"]["step"] == "on"


def http_code(host, uid, port, path):
    """The status of a page for that user."""
    get = ("import sys,urllib.request,urllib.error\ntry:\n"
           f"  print(urllib.request.urlopen(sys.argv[1],timeout={deadlines.HANG_S}).status)\n"
           "except urllib.error.HTTPError as e:\n  print(e.code)\n")
    return host.run(uid, harness.PYTHON, "-c", get, f"http://127.0.0.1:{port}{path}").stdout.strip()


@root_only
def test_what_http_shows_is_for_the_jobs_user(host):
    port = harness.free_port()
    host.start(VICTIM, "mine", "manager", "--listen", f"127.0.0.1:{harness.free_port()}", "--http", f"127.0.0.1:{port}")
    def code(uid, path):
        return http_code(host, uid, port, path)
    wait_until(lambda: code(VICTIM, "/healthz") == "200", "HTTP answers")
    assert code(VICTIM, "/metrics") == "200" and code(0, "/metrics") == "200"
    assert code(STRANGER, "/healthz") == "200" and code(STRANGER, "/metrics") == "401"


def test_allow_plaintext_opens_clusterds_service_and_nothing_else(stage):
    manager = stage.manager(flags=["--allow-plaintext"], environment=harness.clean_environment(TASKD_TOKEN="token"), wait=False)
    wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    assert manager.modify(step="on") == 200
    done = stage.run("status", "--manager", manager.address, environment=harness.clean_environment(TASKD_TOKEN="wrong"))
    assert done.returncode == 1
    assert "plain" in manager.log().lower() and "warn" in manager.log().lower()



@pytest.mark.parametrize("limit", [300, 600])
def test_a_manager_hears_again_after_its_descriptors_ran_out(stage, limit):
    """gRPC's own listener stopped accepting for good."""
    # Both limits: it raises the soft one to the hard one.
    manager = stage.manager(wait=False, wrap=["prlimit", f"--nofile={limit}:{limit}"])
    wait_until(lambda: "answers gRPC" in manager.log(), "the manager is ready")
    flood = [socket.create_connection(("127.0.0.1", manager.port)) for _ in range(limit + 100)]
    for connection in flood:
        connection.close()
    wait_until(lambda: stage.run("status", "--manager", manager.address).returncode == 0, "status works again")
    assert manager.modify(step="on") == 200


def test_a_flood_that_speaks_leaves_room_for_the_jobs_own(stage, manager):
    """Connections that begin a TLS handshake and stop: they end by themselves, and the job's parts come in meanwhile."""
    hello = bytearray()
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname="job.taskd")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello += outgoing.read()
    flood = []
    for _ in range(500):
        connection = socket.create_connection(("127.0.0.1", manager.port))
        connection.sendall(hello)
        flood.append(connection)
    assert stage.run("status", "--manager", manager.address).returncode == 0
    for connection in flood:
        connection.close()


def test_plain_text_has_its_share_and_no_more(stage, manager):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    held = []
    for _ in range(400):
        connection = socket.create_connection(("127.0.0.1", manager.port))
        connection.sendall(preface)
        held.append(connection)
    assert stage.run("status", "--manager", manager.address).returncode == 0
    closed = 0
    for connection in held:
        connection.settimeout(deadlines.HANG_S)
        try:
            closed += connection.recv(1) == b""
        except ConnectionResetError:
            closed += 1
        except TimeoutError:
            pass
        connection.close()
    assert 400 - 128 <= closed < 400

    def answers():
        try:
            return manager.modify(step="on") == 200
        except grpc.RpcError:  # the manager has not seen all of them go
            return False
    wait_until(answers, "there is room again")


@pytest.mark.root("writes /etc/mpi/hostfile")
def test_with_ssh_nothing_obeys_remote_orders(stage):
    """A job with a secret whose nodes start their processes by ssh: `taskd rsh` runs nothing there."""
    port = harness.free_port()
    environment = harness.clean_environment(TASKD_TOKEN="secret", NODE_LIST="localhost:1", INDEX="0", HOME=stage.folder)
    node = stage._add(harness.Process("node", [harness.TASKD, "run", "--mode", "mpi", "--remote-start", "ssh", "--manager",
                                               f"127.0.0.1:{port}", "--", "sleep", "1000"], environment, stage.folder))
    wait_until(lambda: node.require_alive() and
               stage.run("status", "--manager", f"127.0.0.1:{port}", environment=environment).returncode == 0, "the manager is up")
    mark = os.path.join(stage.folder, "mark")
    done = wait_until(lambda: (lambda d: d if "--remote-start" in d.stderr else None)(deadlines.run(
        [harness.TASKD, "rsh", "localhost", "touch", mark], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env={**environment, "TASKD_MANAGER": f"127.0.0.1:{port}"}, check=False)), "the node has joined and refuses")
    assert done.returncode == 255 and not os.path.exists(mark)
    node.child.send_signal(signal.SIGTERM)
    node.wait()


# Whom a user namespace does not map, it shows as one user: 65534.
UNMAPPED = ("unshare", "--user")


def in_user_namespace(host, uid, name, *command):
    """A program of that user in a user namespace that maps nobody."""
    process = harness.Process(name, host.command(uid, *UNMAPPED, "/run/build/bin/taskd", *command), host.environment(),
                              host.stage.folder)
    host.stage.processes.append(process)
    return process


@root_only
def test_who_is_not_mapped_is_nobodys_own(host):
    """In there every user of the machine, the manager's own as well, has the manager's number."""
    port, http = harness.free_port(), harness.free_port()
    manager = in_user_namespace(host, VICTIM, "mine", "manager", "--job", "default/mine", "--listen", f"127.0.0.1:{port}", "--http",
                                f"127.0.0.1:{http}")
    wait_until(lambda: manager.require_alive() and "answers gRPC" in manager.log(), "the manager is ready")
    assert calls(host, STRANGER, f"127.0.0.1:{port}") == dict.fromkeys(("modify", "get", "status", "switch", "kill"),
                                                                       "UNAVAILABLE")
    assert http_code(host, STRANGER, http, "/healthz") == "200" and http_code(host, STRANGER, http, "/metrics") == "401"


@root_only
def test_a_folder_of_nobodys_is_no_folder_of_ones_own(host):
    """A stranger's folder has the same number there as the proxy's own."""
    host.sh(STRANGER, "mkdir -m 755 /tmp/theirs")
    done = host.run(VICTIM, *UNMAPPED, "/run/build/bin/taskd", "proxy", "--profiling-dir", "/tmp/profiling", "--listen", "127.0.0.1:0",
                    "--socket", "/tmp/theirs/p.sock")
    assert done.returncode == 2 and "'/tmp/theirs' belongs to user 65534" in done.stderr and "user namespace" in done.stderr, done


@root_only
def test_a_state_folder_of_nobodys_says_whose_it_is(host):
    """It is the user's own outside, and in there of the same number as the manager."""
    host.sh(VICTIM, "mkdir -m 700 /tmp/mine")
    done = host.run(VICTIM, *UNMAPPED, "/run/build/bin/taskd", "manager", "--job", "default/mine", "--listen", "127.0.0.1:0", "--http",
                    "127.0.0.1:0", "--state-dir", "/tmp/mine")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
    assert ("--state-dir: /tmp/mine belongs to user 65534, as this user namespace shows everybody whom it does not map, so it is "
            "nobody's own; run TaskD as a user whom the namespace maps") in done.stderr, done


@root_only
def test_the_user_nobody_is_a_user_where_everybody_is_mapped(host):
    """Kubernetes' runAsUser: 65534."""
    _, address = host.manager(65534, "mine", "--job", "default/mine")
    own = calls(host, 65534, address)
    assert own["modify"] == "OK" and own["get"] == "OK"
    assert calls(host, STRANGER, address)["modify"] == "UNAVAILABLE"
    assert json.loads(host.run(65534, "taskd", "status", "--json").stdout)["wanted"]["step"] == "on"
    done = host.run(65534, "taskd", "run", "--standalone", "--nproc-per-node=1", "--no-python", "taskd", "status",
                    PATH="/run/build/bin:/usr/bin:/bin", **OWN_PORTS)
    assert done.returncode == 0, done.stdout + done.stderr


@root_only
def test_a_user_who_is_mapped_is_own_in_a_user_namespace(host):
    """And a stranger, who is not, is nobody."""
    address = f"127.0.0.1:{harness.free_port()}"
    script = ("import ctypes, os, sys\nuid = os.getuid()\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\n"
              "open('/proc/self/uid_map', 'w').write(f'{uid} {uid} 1')\nos.execv(sys.argv[1], sys.argv[1:])\n")
    manager = harness.Process("mine", host.command(VICTIM, harness.PYTHON, "-c", script, "/run/build/bin/taskd", "manager", "--job",
                                                   "default/mine", "--listen", address, "--http", "127.0.0.1:0"),
                              host.environment(), host.stage.folder)
    host.stage.processes.append(manager)
    wait_until(lambda: manager.require_alive() and "answers gRPC" in manager.log(), "the manager is ready")
    assert calls(host, VICTIM, address)["modify"] == "OK"
    assert calls(host, STRANGER, address)["modify"] == "UNAVAILABLE"


SECRET = "3c9d6fca-the-jobs-secret"


def looks(host, pid):
    """What another process of the victim's can read of that one."""
    done = host.run(VICTIM, harness.PYTHON, "-c",
                    "import sys\nfor name in ('environ', 'maps', 'mem'):\n  try:\n    open(f'/proc/{sys.argv[1]}/{name}', 'rb').read(1)\n"
                    "    print(name)\n  except PermissionError:\n    pass\n  except OSError:\n    print(name)\n", str(pid))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def environ_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:  # as root
        return file.read()


def named(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")


def below(pid):
    """Its children and theirs."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = [int(child) for child in file.read().split()]
    return children + [grandchild for child in children for grandchild in below(child)]


@root_only
def test_daemons_keep_their_secrets_from_others_of_their_user(host):
    """Whoever runs as the job's user, a rank that was taken over above all, finds no secret in /proc."""
    manager, address = host.manager(VICTIM, "manager", TASKD_TOKEN=SECRET)
    host.sh(VICTIM, "mkdir -m 700 /tmp/mine")
    proxy = host.start(VICTIM, "proxy", "proxy", "--manager", address, "--profiling-dir", "/tmp/mine/profiling", "--listen",
                       "127.0.0.1:0", "--socket", "/tmp/mine/p.sock", TASKD_TOKEN=SECRET)
    store = host.start(VICTIM, "store", "store", "--listen", "127.0.0.1:0", TASKD_TOKEN=SECRET)
    for daemon in (manager, proxy, store):
        wait_until(lambda one=daemon: one.require_alive() and looks(host, one.pid) == [], f"{daemon.name} has closed")
        assert SECRET.encode() not in environ_of(daemon.pid)
    assert host.run(VICTIM, "taskd", "status", "--manager", address, TASKD_TOKEN=SECRET).returncode == 0


@root_only
def test_a_launcher_and_its_daemons_are_closed_and_its_ranks_open(host):
    """With the launcher's own secret, which no rank has in its environment, and with one of the operator's."""
    for token in ("", SECRET):
        host.sh(VICTIM, "rm -rf /tmp/mine; mkdir -m 700 /tmp/mine")
        extra = {**OWN_PORTS, **({"TASKD_TOKEN": token} if token else {})}
        job = host.start(VICTIM, "job", "run", "--standalone", "--nproc-per-node=1", "--no-python", "sh", "-c",
                         "ulimit -c > /tmp/mine/cores; tr '\\0' '\\n' < /proc/self/environ > /tmp/mine/rank; sleep 1000", **extra)
        wait_until(lambda: job.require_alive() and "RANK=0" in host.sh(VICTIM, "cat /tmp/mine/rank 2>/dev/null || true"),  # noqa: B023
                   "the rank runs")
        parts = {(named(pid) + [b""])[1].decode() if b"taskd" in named(pid)[0] else "rank": pid for pid in [job.pid, *below(job.pid)]}
        for part in ("run", "manager", "proxy"):
            wait_until(lambda: looks(host, parts[part]) == [], f"{part} has closed")  # noqa: B023
            assert b"TASKD_SECRET" not in environ_of(parts[part]) and (not token or token.encode() not in environ_of(parts[part]))
        assert "environ" in looks(host, parts["rank"])
        rank = host.sh(VICTIM, "cat /tmp/mine/rank")
        assert "TASKD_SECRET" not in rank and ("TASKD_TOKEN" in rank) == bool(token)
        assert host.run(VICTIM, "taskd", "status").returncode == 0
        assert job.terminate() != 0
