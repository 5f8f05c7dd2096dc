"""Variables that pods of MindCluster have: where logs go, and what is asked for that is not here."""
import glob
import os
import re

import harness
from launchers import OWN_PORTS


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_logs_of_a_job(stage):
    """contract: §1.6, manager.log, agent-{rank}.log, taskd-proxy-{rank}-{ts}.log in TASKD_LOG_PATH, each level by itself."""
    logs = os.path.join(stage.folder, "logs")
    done = stage.run("run", "--standalone", "--nproc-per-node=1", "--no-python", "true", timeout_s=60,
                     environment=harness.clean_environment(
                         TASKD_LOG_PATH=logs, TASKD_FILE_LOG_LEVEL="INFO", TASKD_STD_LOG_LEVEL="ERROR", PROCESS_RECOVER="on",
                         TASKD_PROFILING_DIR=stage.folder, TMPDIR=stage.folder, **OWN_PORTS))
    assert done.returncode == 0, done.stderr
    names = sorted(os.listdir(logs))
    assert names[:2] == ["agent-0.log", "manager.log"] and re.fullmatch(r"taskd-proxy-0-\d{10}\.log", names[2]), names
    assert len(names) == 3, names
    said = text_of(os.path.join(logs, "manager.log"))
    assert re.search(r"^20\S+ info manager: manager of job ", said, re.M), said
    assert said.count("not supported, and will not happen: ") == 1, said
    assert " warning " not in done.stderr and " info " not in done.stderr, done.stderr


def test_no_log_file_unless_asked_for(stage):
    """contract: §1.6 has ./taskd_log/ always; nobody's working folder is for that unless one of both variables is set."""
    for variables in ({}, {"TASKD_LOG_STDOUT": "False"}):
        done = stage.run("store", "--listen", "nowhere:1x", environment=harness.clean_environment(**variables))
        assert done.returncode == 2 and glob.glob(os.path.join(stage.folder, "*log*")) == []


def test_a_word_that_is_no_level_is_said(stage):
    """It silenced the log."""
    for variable in ("TASKD_LOG_LEVEL", "TASKD_STD_LOG_LEVEL"):
        done = stage.run("store", "--listen", "nowhere:1x", environment=harness.clean_environment(**{variable: "loud"}))
        assert f"warning store: {variable} is 'loud'; it must be " in done.stderr


def test_status_says_what_will_not_happen(stage):
    """contract: §1.6; upstream would recover."""
    manager = stage.manager(environment=harness.clean_environment(PROCESS_RECOVER="on", HIGH_AVAILABILITY="elastic-training"))
    asked = ["process-level rescheduling and online recovery (PROCESS_RECOVER=on)",
             "elastic training (HIGH_AVAILABILITY=elastic-training)"]
    assert manager.status()["not_supported"] == asked
    shown = stage.run("status", "--manager", manager.address).stdout
    assert f"not supported: {', '.join(asked)}\n" in shown
    assert stage.run("report", "--manager", manager.address, "-o", "report.html").returncode == 0
    assert asked[0] in text_of(os.path.join(stage.folder, "report.html"))
    assert manager.log().count("not supported, and will not happen") == 1
