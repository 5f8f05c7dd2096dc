"""TaskD's public functions. Each returns a bool, logs what went wrong in one line, and never raises."""
from taskd.api.taskd_agent_api import init_taskd_agent, register_func, start_taskd_agent
from taskd.api.taskd_manager_api import init_taskd_manager, start_taskd_manager
from taskd.api.taskd_proxy_api import destroy_taskd_proxy, init_taskd_proxy
from taskd.api.taskd_worker_api import destroy_taskd_worker, init_taskd_worker, start_taskd_worker

__all__ = [
    "init_taskd_worker", "start_taskd_worker", "destroy_taskd_worker",
    "init_taskd_manager", "start_taskd_manager",
    "init_taskd_proxy", "destroy_taskd_proxy",
    "init_taskd_agent", "start_taskd_agent", "register_func",
]
