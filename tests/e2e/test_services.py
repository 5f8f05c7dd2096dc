"""Who watches the daemons: what they report to a service manager, deploy/systemd, and the health check of deploy/Containerfile."""
import glob
import json
import os
import re
import shutil
import socket

import deadlines
import harness
import pytest
import stubs
from ports import free_port

UNITS = sorted(glob.glob(os.path.join(stubs.REPOSITORY, "deploy", "systemd", "*.service")))


@pytest.fixture
def notified(tmp_path):
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(deadlines.HANG_S)
        yield bound


def start(stage, tmp_path, port, *words):
    environment = harness.clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"))
    command = [harness.TASKD, *words, "--listen", f"127.0.0.1:{port}"]
    return stage._add(harness.Process(words[0], command, environment, str(tmp_path)))


@pytest.mark.parametrize("words", [["store"], ["manager", "--http", "127.0.0.1:0"]])
def test_a_service_reports_its_state(stage, tmp_path, notified, words):
    port = free_port()
    service = start(stage, tmp_path, port, *words)
    assert notified.recv(100) == b"READY=1"
    with socket.create_connection(("127.0.0.1", port), deadlines.HANG_S):
        pass
    assert service.terminate() == 0
    assert notified.recv(100) == b"STOPPING=1"


def test_a_manager_that_has_a_parent_reports_to_it_alone(stage, tmp_path, notified):
    service = start(stage, tmp_path, free_port(), "manager", "--http", "127.0.0.1:0", "--exit-on-stdin-eof")
    assert service.wait() == 0
    notified.setblocking(False)
    with pytest.raises(BlockingIOError):
        notified.recv(100)


def test_systemd_takes_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    names = []
    for unit in UNITS:
        with open(unit, encoding="utf-8") as file:
            text = file.read()
        # systemd looks the program up in /usr/local/bin and /usr/bin. The pages are installed with it.
        assert re.findall(r"^ExecStart=(.*)$", text, re.M) == [f"taskd {re.search('taskd-(.*)@', unit)[1]}"]
        text = text.replace("ExecStart=taskd ", f"ExecStart={harness.TASKD} ").replace("Documentation=", "#")
        names.append(os.path.basename(unit).replace("@", "@train"))
        (tmp_path / names[-1]).write_text(text, encoding="utf-8")
    assert names == ["taskd-manager@train.service", "taskd-store@train.service"]
    verified = deadlines.run(["systemd-analyze", "verify", *names], cwd=tmp_path, capture_output=True, text=True,
                             env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_a_container_knows_whether_it_is_healthy(stage, tmp_path):
    with open(os.path.join(stubs.REPOSITORY, "deploy", "Containerfile"), encoding="utf-8") as file:
        command = json.loads(re.search(r"^HEALTHCHECK .*\\\n +CMD (.*)$", file.read(), re.M)[1])
    http = f"127.0.0.1:{free_port()}"
    command = [word.replace("127.0.0.1:9603", http) for word in command]
    assert http in command[-1]
    assert deadlines.run(command, capture_output=True).returncode == 1
    stage.manager(http=http)
    assert deadlines.run(command, capture_output=True).returncode == 0
