"""The variables of MindCluster's that say where this package's log goes."""
import os
import re

import pytest

LOG_PY = """
from taskd.python.utils.log import run_log
run_log.debug("a detail"); run_log.info("a fact"); run_log.warning("a worry"); run_log.error("a failure")
"""
LINES = ["a detail", "a fact", "a worry", "a failure"]


def those_in(text):
    return [line for line in LINES if line in text]


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("variables,on_stderr", [
    ({}, LINES[2:]),  # as of any library: what Python shows by itself
    ({"TASKD_LOG_STDOUT": "True"}, LINES[1:]),
    ({"TASKD_LOG_STDOUT": "False"}, []),
    ({"TASKD_STD_LOG_LEVEL": "DEBUG"}, LINES),
    ({"TASKD_STD_LOG_LEVEL": "WARNING"}, LINES[2:]),
    ({"TASKD_STD_LOG_LEVEL": "ERROR"}, LINES[3:]),
    ({"TASKD_STD_LOG_LEVEL": "DEBUG", "TASKD_LOG_STDOUT": "False"}, []),
    ({"TASKD_STD_LOG_LEVEL": "LOUD"}, LINES[1:]),
])
def test_stderr(world, variables, on_stderr):
    """contract: §1.6, DEBUG/INFO/WARNING/ERROR, INFO where it is not said; True/False, True."""
    output = world.run(LOG_PY, **variables)
    assert those_in(output) == on_stderr
    assert ("TASKD_STD_LOG_LEVEL is 'LOUD'" in output) == ("LOUD" in variables.values())
    assert sorted(os.listdir(world.folder)) == ["output", "script0.py"], "a file that nobody asked for"


@pytest.mark.parametrize("level,in_file", [(None, LINES[1:]), ("DEBUG", LINES), ("ERROR", LINES[3:])])
def test_file(world, level, in_file):
    """contract: §1.6, $TASKD_LOG_PATH/taskd.log; upstream makes the folder with 0750 and the file with 0640."""
    variables = {"TASKD_FILE_LOG_LEVEL": level} if level else {}
    output = world.run("import os; os.umask(0)" + LOG_PY, TASKD_LOG_PATH=world.path("a/logs"), TASKD_LOG_STDOUT="False", **variables)
    assert output == ""
    path = world.path("a/logs/taskd.log")
    assert those_in(text_of(path)) == in_file
    assert os.stat(path).st_mode & 0o777 == 0o640 and os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o750


def test_the_usual_folder(world):
    """contract: §1.6, ./taskd_log/; here only where one of both variables asks for a file."""
    world.run(LOG_PY, TASKD_FILE_LOG_LEVEL="INFO")
    assert those_in(text_of(world.path("taskd_log/taskd.log"))) == LINES[1:]


def test_a_program_with_its_own_logging_shows_each_line_once(world):
    output = world.run("import logging; logging.basicConfig(format='OWN %(message)s')" + LOG_PY, TASKD_LOG_PATH=world.path("logs"))
    assert [output.count(line) for line in LINES] == [0, 1, 1, 1] and output.count("OWN") == 3
    assert those_in(text_of(world.path("logs/taskd.log"))) == LINES[1:]


def test_a_full_file_is_put_aside(world):
    """contract: §1.6; upstream names them taskd-<UTC to the ms>.log and keeps 30."""
    world.run("""
from taskd.python.utils import _log_variables
one, other = _log_variables.LogFile("logs", 8), _log_variables.LogFile("logs/", 8)
for i in range(40):
    one.write(b"1234567\\n")
other.write(b"56\\n")
other.write(b"7\\n")
one.write(b"8\\n")
""")
    names = sorted(os.listdir(world.path("logs")))
    aside = [name for name in names if re.fullmatch(r"taskd-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}\.log", name)]
    assert names == aside + ["taskd.log"] and 1 <= len(aside) <= 30
    assert text_of(world.path("logs/taskd.log")) == "56\n7\n8\n"
    assert all(os.stat(world.path(f"logs/{name}")).st_mode & 0o777 == 0o400 for name in aside)


SQUASHED = "import ctypes; ctypes.CDLL(None).setfsuid(2002); "  # as where a server makes every file of root's a stranger's


@pytest.mark.parametrize("owner,folder_mode,before,is_taken", [
    (0, 0o777, "", True), (2002, 0o777, "", False), (2002, 0o1777, "", False), (2002, 0o755, "", True),
    (2002, 0o777, SQUASHED, True)])
def test_whose_files_are_appended_to(world, owner, folder_mode, before, is_taken):
    """In a folder like /tmp another user may have made it, to read what is logged."""
    if os.geteuid() != 0:
        pytest.skip("this is not root")
    os.mkdir(world.path("logs"))
    world.write("logs/taskd.log", "first\n", 0o666)
    os.chown(world.path("logs/taskd.log"), owner, owner)
    os.chmod(world.path("logs"), folder_mode)
    os.chmod(world.folder, 0o755)
    output = world.run("from taskd.python.utils import files, _log_variables; import logging; " + before +
                       "_log_variables.LogFile('logs').write(b'second\\n')" if before else
                       "from taskd.python.utils.log import run_log; run_log.warning('second')", TASKD_LOG_PATH=world.path("logs"))
    assert ("no log file" in output) != is_taken, output
    assert ("second" in text_of(world.path("logs/taskd.log"))) == is_taken


@pytest.mark.parametrize("link", ["logs", "logs/taskd.log"])
def test_links_are_refused(world, link):
    """contract: §1.6; upstream refuses them too."""
    os.mkdir(world.path("theirs"))
    if link == "logs":
        os.symlink(world.path("theirs"), world.path("logs"))
    else:
        os.mkdir(world.path("logs"))
        os.symlink(world.path("theirs/file"), world.path(link))
    output = world.run(LOG_PY, TASKD_LOG_PATH=world.path("logs"))
    assert output.count("no log file") == 1 and those_in(output) == LINES[1:]
    assert os.listdir(world.path("theirs")) == []


def test_nobody_waits_for_the_file(world):
    """The disk hangs: 1,000 lines wait, and the process ends all the same."""
    world.run("""
import threading
from taskd.python.utils import _log_variables
_log_variables.LogFile.write = lambda self, data: threading.Event().wait()
""" + LOG_PY + "for i in range(5000): run_log.info('a line')", TASKD_LOG_PATH=world.path("logs"), TASKD_LOG_STDOUT="False")


def test_what_is_not_written_is_counted(world):
    world.run("""
import os, time
from taskd.python.utils.log import run_log
with open("logs", "w"): pass
run_log.info("lost")
run_log.handlers[-1].flush()
os.unlink("logs")
run_log.info("found")
""", TASKD_LOG_PATH=world.path("logs"), TASKD_LOG_STDOUT="False")
    assert re.search(r"^\d lines could not be written here\n.* found\n", text_of(world.path("logs/taskd.log")), re.M)


def test_a_record_is_one_line_and_a_forked_child_logs(world):
    world.run(LOG_PY + """
import os
run_log.error("one\\ntwo\\x1b[2J")
if os.fork() == 0:
    run_log.error("of the child")
    run_log.handlers[-1].flush()
    os._exit(0)
os.wait()
""", TASKD_LOG_PATH=world.path("logs"))
    text = text_of(world.path("logs/taskd.log"))
    assert re.search(r"^\S+ ERROR taskd\[\d+\]: one\\ntwo\\x1b\[2J$", text, re.M) and text.count("of the child") == 1
