"""A true PyTorch job under TaskD: deploy/quickstart/train.py on two nodes with two ranks each, one of which may be slow."""
import json
import os
import re
import shutil

import harness
import stubs

RANKS = range(4)
SCRIPT = os.path.join(stubs.REPOSITORY, "deploy", "quickstart", "train.py")


class Training:
    def __init__(self, stage, manager):
        self.stage = stage
        self.manager = manager
        self.stop_file = os.path.join(stage.folder, "stop")
        self.trouble_file = os.path.join(stage.folder, "trouble")
        self.proxies = [stage.proxy(manager, node=node) for node in (0, 1)]
        environment = {
            "MINDX_TASK_ID": harness.TASK, "WORLD_SIZE": len(RANKS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": harness.free_port(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1, "WORK": stage.folder,
            "STOP_FILE": self.stop_file, "TROUBLE_FILE": self.trouble_file, "PYTHONPATH": harness.PYTHON_PACKAGE,
            "PYTHONDONTWRITEBYTECODE": 1,
            "LD_PRELOAD": os.path.join(harness.PYTHON_PACKAGE, "taskd", "python", "cython_api", "libs", "libtaskd.so")}
        self.ranks = []
        for rank in RANKS:
            own = {"RANK": rank, "LOCAL_RANK": rank % 2, "TASKD_SOCKET": self.proxies[rank // 2].socket,
                   "TASKD_PROFILING_DIR": self.proxies[rank // 2].profiling_dir}
            process = harness.Process(f"train{rank}", [harness.PYTHON, SCRIPT],
                                      harness.clean_environment(**environment, **own), stage.folder)
            stage.processes.append(process)
            self.ranks.append(process)

    def require_alive(self):
        for process in self.ranks:
            process.require_alive()

    def trouble(self, cause, rank):
        """From now on this rank is slow, by this cause: "compute" or "dataloader"."""
        with open(self.trouble_file + ".new", "w", encoding="ascii") as file:
            file.write(f"{cause} {rank}")
        os.rename(self.trouble_file + ".new", self.trouble_file)

    def no_trouble(self):
        os.unlink(self.trouble_file)

    def since(self, cause, rank):
        """The first step in which it was slow; None before that."""
        found = re.search(rf"^rank {rank} step (\d+) trouble: {cause}$", self.ranks[rank].log(), re.M)
        return int(found[1]) if found else None

    def diagnose(self):
        """What `taskd diagnose --json` prints now."""
        self.require_alive()
        done = self.stage.run("diagnose", "--manager", self.manager.address, "--json")
        assert done.returncode == 0, f"taskd diagnose: code {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def finish(self):
        with open(self.stop_file, "w", encoding="ascii"):
            pass
        for process in self.ranks:
            assert process.wait(timeout_s=60) == 0, process.log()[-3000:]

    def gather(self, folder):
        """The mark files of all ranks below one folder. Only once the proxies have ended: then they are whole."""
        for proxy in self.proxies:
            shutil.copytree(proxy.task_dir, folder, dirs_exist_ok=True)
