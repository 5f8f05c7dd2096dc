from taskd.api import init_taskd_manager, start_taskd_manager
import os

job_id = os.getenv("MINDX_TASK_ID")
node_nums = 2  # nodes of the job
proc_per_node = 2  # training processes of a node
init_taskd_manager({"job_id": job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
