"""The tasks of a Slurm step, played on this machine: processes with the variables that srun gives them. What is real is all
that they start. Nodes are called n1, n2, ...; their tasks meet on loopback."""
import itertools
import json
import os
import re

import harness

_jobs = itertools.count(os.getpid() % 100_000 * 1000)  # no two tests meet at one port by their step's name


class Step:
    """`tasks_per_node`: as [3, 1]. `step`: several of one job may run at once."""

    def __init__(self, jobs, tasks_per_node, job=None, step=0, **environment):
        self.jobs = jobs
        self.tasks_per_node = tasks_per_node
        self.job = job or next(_jobs)
        self.step = step
        self.environment = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", **environment}
        self.tasks = []

    def size(self):
        return sum(self.tasks_per_node)

    def variables(self, rank):
        node, local_rank = 0, rank
        while local_rank >= self.tasks_per_node[node]:
            local_rank -= self.tasks_per_node[node]
            node += 1
        nodes = len(self.tasks_per_node)
        return {
            "SLURM_JOB_ID": self.job, "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": self.step, "SLURM_NODEID": node,
            "SLURM_STEP_NODELIST": f"n[1-{nodes}]" if nodes > 1 else "n1", "SLURM_STEP_NUM_NODES": nodes,
            "SLURM_STEP_NUM_TASKS": self.size(), "SLURM_NTASKS": self.size(), "SLURM_PROCID": rank,
            "SLURM_LOCALID": local_rank, "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, self.tasks_per_node)),
            "SLURMD_NODENAME": f"n{node + 1}", **self.environment}

    def launch(self, *command, mode="slurm", options=(), **arguments):
        """All tasks. Without `command`: ranks of launchers.RANK, for which `arguments` may have an action."""
        for rank in range(self.size()):
            options_of_all = ("--mode", mode, *options, "--", *(command or (harness.PYTHON, self.jobs.script)))
            if command:
                process = self.jobs.launch(f"task{self.step}.{rank}", *options_of_all[:-1], script=options_of_all[-1],
                                           environment=self.variables(rank), **arguments)
            else:
                process = self.jobs.launch(f"task{self.step}.{rank}", *options_of_all[:-1], environment=self.variables(rank),
                                           **arguments)
            self.tasks.append(process)
        return self

    def codes(self):
        return [task.wait(timeout_s=60) for task in self.tasks]

    def plan(self, rank=0, *options):
        done = self.jobs.stage.run("run", "--mode", "slurm", "--dry-run", "--json", *options, "--", "x",
                                   environment=harness.clean_environment(**self.variables(rank)))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def lines(self):
        """What each task has said, without times, and without the port for health, of which two nodes have one here."""
        return [[re.sub(r"^\d\S+ (info|warning) ", r"\1 ", line) for line in task.log().splitlines()
                 if "LISTEN: 127.0.0.1:9602" not in line] for task in self.tasks]

