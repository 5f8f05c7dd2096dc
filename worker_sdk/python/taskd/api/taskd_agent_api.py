"""The agent: what a launcher lets the manager do with the training processes of its node."""
from taskd.python.framework.agent import operators
from taskd.python.framework.common import type as keys
from taskd.python.utils import check, recovery
from taskd.python.utils.log import never_raises

__all__ = ["init_taskd_agent", "start_taskd_agent", "register_func"]

_framework = None
_cls = None


@never_raises
def init_taskd_agent(config: dict = {}, cls=None) -> bool:
    """Opens the line on which the manager asks for registered functions, through this node's proxy.

    config: Framework ("PyTorch", the default, or "MindSpore"); UpstreamAddr, UpstreamPort and ServerRank of older programs
    are checked and have no effect, because the proxy is found by its UNIX socket (TASKD_SOCKET). cls: for PyTorch the
    elastic agent whose run method start_taskd_agent calls. What the environment asks for and there is not (recovery of
    processes, elastic training) is one warning.
    """
    global _framework, _cls
    if not isinstance(config, dict):
        raise ValueError(f"config is {config!r}; it must be a dict")
    framework = config.get(keys.CONFIG_FRAMEWORK_KEY, keys.PYTORCH)
    if framework not in (keys.PYTORCH, keys.MINDSPORE):
        raise ValueError(f"Framework is {framework!r}; it must be {keys.PYTORCH!r} or {keys.MINDSPORE!r}")
    for key, rule in ((keys.CONFIG_UPSTREAMIP_KEY, check.host), (keys.CONFIG_UPSTREAMPORT_KEY, check.port),
                      (keys.CONFIG_SERVERRANK_KEY, check.number_text)):
        if key in config:
            rule(key, config[key])
    recovery.say_what_will_not_happen()
    operators.listen()
    _framework, _cls = framework, cls
    return True


def start_taskd_agent():
    """Runs the agent until training has ended and returns the framework's own result.

    PyTorch: calls run() of the `cls` given to init_taskd_agent. MindSpore: starts and watches the workers through the
    registered functions, see MSRunPlugin.start. False before init_taskd_agent, and where there is nothing to run. Errors
    of the training itself pass through: they are the launcher's result.
    """
    if _framework == keys.MINDSPORE:
        from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin

        return MSRunPlugin().start()
    run = getattr(_cls, "run", None)
    return run() if callable(run) else _refuse()


@never_raises
def _refuse():
    raise RuntimeError("start_taskd_agent: init_taskd_agent has not succeeded, or its cls has no run method")


@never_raises
def register_func(operator: str, func) -> bool:
    """Keeps a function that the manager may ask for: KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST, MONITOR, RESTART."""
    operators.register(operator, func)
    return True
