"""The manager: one a job, on the node of rank 0."""
import os

from taskd.python.utils import check, daemon, recovery
from taskd.python.utils.log import never_raises, run_log

__all__ = ["init_taskd_manager", "start_taskd_manager"]

_arguments = None
_variables = None


@never_raises
def init_taskd_manager(config: dict) -> bool:
    """Takes the job's size. Nothing is started yet.

    config: job_id (str, or None where there is none), node_nums and proc_per_node (int, >= 1). fault_recover and taskd_enable
    "on", as PROCESS_RECOVER and others in the environment, ask for recovery of processes, which there is not: the manager says
    so in its log and in `taskd status`. plugin_dir, cluster_infos and other keys have no effect.
    Everything else comes from the environment: each flag of `taskd manager` as TASKD_<FLAG>, which also wins over config.
    """
    global _arguments, _variables
    _arguments = None
    if not isinstance(config, dict):
        raise ValueError(f"config is {config!r}; it must be a dict")
    job_id = config.get("job_id")
    if job_id is not None and not isinstance(job_id, str):
        raise ValueError(f"job_id is {job_id!r}; it must be a str")
    arguments = daemon.flag("--task-id", job_id or None)
    for key, name in (("node_nums", "--nodes"), ("proc_per_node", "--procs-per-node")):
        if key in config:
            arguments += daemon.flag(name, check.positive_int(key, config[key]))
    if os.environ.get("LOCAL_PROXY_ENABLE") == "on":
        arguments += daemon.flag("--listen", "127.0.0.1:9601")
    _arguments, _variables = arguments, recovery.variables_of(config)
    return True


@never_raises
def start_taskd_manager() -> bool:
    """Runs the manager and blocks until it has ended; it ends with this process. True if it ended with exit code 0."""
    if _arguments is None:
        raise RuntimeError("init_taskd_manager has not succeeded before")
    manager = daemon.Daemon("manager", *_arguments, *daemon.plaintext_flag(), variables=_variables)
    code = manager.wait()
    if code != 0:
        run_log.error("start_taskd_manager: the manager ended with exit code %d", code)
    return code == 0
