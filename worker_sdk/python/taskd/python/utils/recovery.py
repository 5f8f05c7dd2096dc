"""What MindCluster's TaskD does when a job has a fault, and TaskD does not (docs/install.md). Who asks for it is told once."""
import os

from taskd.python.utils.log import run_log

_VARIABLES = ("PROCESS_RECOVER", "ENABLE_RESTART_FAULT_PROCESS", "TASKD_PROCESS_ENABLE")
_said = False


def say_what_will_not_happen():
    """One warning in a process whose environment asks for process recovery, elastic training or MindIO's high availability."""
    global _said
    asked = [f"{name}=on" for name in _VARIABLES if os.environ.get(name) == "on"]
    if os.environ.get("HIGH_AVAILABILITY"):
        asked.append(f"HIGH_AVAILABILITY={os.environ['HIGH_AVAILABILITY']}")
    if asked and not _said:
        _said = True
        run_log.warning("not supported, and will not happen: recovery of processes (%s); a worker that fails ends its round, "
                        "and torchrun's --max-restarts or the scheduler starts the next one", ", ".join(asked))


def variables_of(config):
    """What a manager's configuration asks for, as the variables by which `taskd manager` knows it."""
    return {variable: "on" for key, variable in (("fault_recover", "PROCESS_RECOVER"), ("taskd_enable", "TASKD_PROCESS_ENABLE"))
            if config.get(key) == "on"}
