"""What MindSpore's msrun calls once it has handed its workers to TaskD."""
import time

from taskd.python.framework.agent import operators
from taskd.python.utils.log import never_raises, run_log

MONITOR_INTERVAL_S = 1.0
_ALL = [-1]


class MSRunPlugin:
    """msrun registers its functions here and then calls start() in place of starting and joining its workers itself."""

    @never_raises
    def register_callbacks(self, operator, func):
        """operator: one of operators.OPERATORS. The registry is that of taskd.api.register_func."""
        operators.register(operator, func)
        return True

    def start(self):
        """Starts the workers and returns True when all have ended with 0.

        As soon as one fails the others are killed and RuntimeError is raised, so that msrun does not end as if training
        had succeeded; also where a function is missing or the workers cannot start. The functions are msrun's own:
        START_ALL_WORKER() gives 0; MONITOR([-1]) gives {local rank: {"pid", "status", "global_rank"}} with status None
        while it runs, else its exit code; KILL_WORKER([-1]). Meanwhile the manager may call them too.
        """
        start, monitor, kill = (operators.registered(o) for o in ("START_ALL_WORKER", "MONITOR", "KILL_WORKER"))
        if start is None or monitor is None or kill is None:
            raise RuntimeError("MSRunPlugin.start: START_ALL_WORKER, MONITOR and KILL_WORKER must be registered before")
        _listen()
        code = start()
        if code not in (None, 0):
            kill(_ALL)
            raise RuntimeError(f"MSRunPlugin.start: START_ALL_WORKER gave {code!r}; 0 was expected")
        while True:
            states = {rank: info.get("status") for rank, info in monitor(_ALL).items()}
            failed = {rank: status for rank, status in states.items() if status not in (None, 0)}
            if failed:
                run_log.error("MSRunPlugin: workers failed (local rank: exit code) %s; the others are killed", failed)
                kill(_ALL)
                raise RuntimeError(f"training failed; workers (local rank: exit code) {failed}")
            if all(status == 0 for status in states.values()):
                return True
            time.sleep(MONITOR_INTERVAL_S)


@never_raises
def _listen():
    operators.listen()
    return True
