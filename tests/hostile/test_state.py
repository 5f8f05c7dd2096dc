"""The manager's state folder: shared, foreign, full of links, and on storage that hangs."""
import os
import subprocess

import harness
import pytest
from deadlines import HANG_S
from harness import wait_until

STRANGER = 2002


def start(stage, state_dir, **arguments):
    """A manager that is not expected to run: (exit code, its output)."""
    process = stage.manager(name="refused", state_dir=str(state_dir), wait=False, **arguments)
    return process.wait(), process.log()


def refusal(stage, state_dir, **arguments):
    code, log = start(stage, state_dir, **arguments)
    assert code == 2, log
    lines = log.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_second_manager_on_the_folder_is_refused(stage, manager):
    manager.modify(step="on")
    for job in (manager.job, "default/other"):
        line = refusal(stage, manager.state_dir, job=job)
        assert f"(pid {manager.pid})" in line and manager.state_dir in line
    assert manager.get()[1]["step"] == "on"
    # Who was killed has left it.
    manager.kill()
    again = stage.manager(name="again", state_dir=manager.state_dir)
    assert again.get()[1]["step"] == "on"


@pytest.mark.root("makes files of another user")
def test_what_belongs_to_somebody_else_is_refused(stage, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}" in refusal(stage, foreign)
    assert not any(foreign.iterdir()), "nothing was left there"
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "manager.db").touch(mode=0o600)
    os.chown(mine / "manager.db", STRANGER, STRANGER)
    assert str(mine / "manager.db") in refusal(stage, mine)


def test_what_others_can_write_is_refused(stage, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert "others can write" in refusal(stage, folder)
    folder.chmod(0o700)
    (folder / "manager.db").touch()
    (folder / "manager.db").chmod(0o666)
    assert "others can write" in refusal(stage, folder)


@pytest.mark.parametrize("name", ["manager.db", "manager.db-journal", "manager.lock"])
def test_links_and_fifos_are_refused(stage, tmp_path, name):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    target = tmp_path / "target"
    target.write_text("precious")
    (folder / name).symlink_to(target)
    assert str(folder / name) in refusal(stage, folder)
    assert target.read_text() == "precious"
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert str(folder / name) in refusal(stage, folder)


@pytest.fixture
def freezing(tmp_path):
    """A small file system of our own that can be made to hang: (its folder, freeze, thaw)."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    mounted = False
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True)
        mounted = True
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of our own here: {error}")
    frozen = []

    def freeze():
        subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
        frozen.append(True)

    def thaw():
        if frozen:
            frozen.pop()
            subprocess.run(["fsfreeze", "-u", str(folder)], check=True)

    yield folder, freeze, thaw
    thaw()
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_state_folder_that_hangs_does_not_stop_a_switch(stage, freezing):
    folder, freeze, thaw = freezing
    manager = stage.manager(state_dir=str(folder / "state"))
    proxy = stage.proxy(manager)
    rank = stage.rank(0, proxy)
    manager.wait_attached([0])
    assert manager.switch("step=on", "--timeout", "20")[0] == 0
    freeze()
    try:
        for i in range(20):
            code, answer = manager.switch("step=" + ("on" if i % 2 else "off"), "fp=on", "--timeout", "20")
            assert code == 0 and answer["applied"] == 1, answer
        assert manager.modify(dataloader="on", timeout_s=HANG_S) == 200
        assert "is not kept yet" in manager.log()
    finally:
        thaw()
    wait_until(lambda: "is kept again" in manager.log(), "the state is kept again")
    wanted = manager.get()[1]
    assert wanted["step"] == "on" and wanted["dataloader"] == "on"
    manager.kill()
    again = stage.manager(name="again", state_dir=manager.state_dir)
    assert again.get()[1] == wanted
    rank.require_alive()


def test_a_state_folder_that_hangs_does_not_stop_the_end(stage, freezing):
    folder, freeze, thaw = freezing
    manager = stage.manager(state_dir=str(folder / "state"))
    freeze()
    try:
        assert manager.modify(step="on", timeout_s=HANG_S) == 200
        manager.child.send_signal(harness.signal.SIGTERM)
        # A thread that the kernel keeps in a write cannot be ended by anybody; all else is over.
        wait_until(lambda: not answers(manager), "the manager no longer answers")
    finally:
        thaw()
    assert manager.wait() == 0


def answers(manager):
    try:
        return manager.get(timeout_s=1)[0] is not None
    except harness.grpc.RpcError:
        return False
