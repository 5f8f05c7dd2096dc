"""A real Slurm on one computer: a login node and four nodes, each a set of namespaces (network, PIDs, mounts, host name) of its own.

    with SlurmRig() as rig:
        done = rig.login(["srun", "-N3", "taskd", "run", "train.py"])
        rig.lose_power(2)

Commands run as `alice`, an ordinary user, in `rig.work`, a folder that all nodes share, with the built program in PATH and the package in
the user's site-packages. Nodes have /tmp, /run and /dev/shm of their own. Nothing of it reaches another network: the bridge has no
uplink. Needs root and Debian's slurmctld, slurmd, slurm-client and munge: `missing()` is the reason why it cannot be.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import deadlines
import harness
import namespaces
from deadlines import wait_until

NODES = (1, 2, 3, 4)
USER_ID = 2001
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "setpriv", "nsenter")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SITE_PACKAGES = f".local/lib/python3.{sys.version_info[1]}/site-packages"  # of Debian's Python, which runs this

# KillWait is so long that no rank of a starved machine is still ending when Slurm's SIGKILL comes. taskd's shutdown time-out is
# KillWait less 10 s: a test that waits for taskd's SIGKILL sets TASKD_SHUTDOWN_TIMEOUT or --shutdown-timeout.
CONFIGURATION = """
ClusterName=rig
SlurmctldHost=login(10.98.0.1)
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
KillWait=120
MinJobAge=300
SchedulerParameters=batch_sched_delay=1,sched_interval=2,preempt_youngest_first
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
NodeName=n[1-4] NodeAddr=10.98.0.[11-14] CPUs=64 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""

# What every machine of the rig has for itself, in its own mount namespace. The shared munge socket is the login node's. All of /etc is a
# copy: a mount on single files of it would vanish when the host's are replaced.
OWN_MOUNTS = """
mount --make-rprivate /
mkdir -p $RIG/munge
[ $1 = login ] || mount --bind /run/munge $RIG/munge
mount -t tmpfs tmpfs /tmp -o mode=1777
mount -t tmpfs tmpfs /run -o mode=755
mkdir -p /run/munge
[ $1 = login ] || mount --bind $RIG/munge /run/munge
mount -t tmpfs tmpfs /dev/shm -o mode=1777,size=512m
mount -t tmpfs tmpfs /var/spool -o mode=755
mkdir -p /var/spool/slurmd
cp -a /etc /run/etc
cp $RIG/etc/hosts $RIG/etc/passwd $RIG/etc/group /run/etc/
rm -rf /run/etc/resolv.conf /run/etc/slurm
: > /run/etc/resolv.conf
cp -r $RIG/etc/slurm /run/etc/slurm
mount --bind /run/etc /etc
ip link set lo up
"""
LOGIN = OWN_MOUNTS + """
hostname login
ip link add bridge type bridge && ip address add 10.98.0.1/24 dev bridge && ip link set bridge up
head -c 128 /dev/urandom > /run/munge.key && chmod 600 /run/munge.key && chmod 755 /run/munge
munged --force --key-file=/run/munge.key --socket=/run/munge/munge.socket --pid-file=/run/munge/pid --log-file=/run/munge/log \
  --seed-file=/run/munge/seed
slurmctld -D > $RIG/log/slurmctld.out 2>&1 &
touch $RIG/log/ready-login
exec sleep infinity
"""
NODE = OWN_MOUNTS + """
hostname $1
until ip link set $2 name eth0 2> /dev/null; do sleep 0.05; done
ip address add $3/24 dev eth0 && ip link set eth0 up
slurmd -D -N $1 > $RIG/log/slurmd-$1.out 2>&1 &
touch $RIG/log/ready-$1
exec sleep infinity
"""


def missing():
    """Why there can be no rig here; None if there can."""
    for program in PROGRAMS:
        if not shutil.which(program, path=PATH):
            return f"Debian's {program} is not installed"
    return namespaces.missing_privilege()


class SlurmRig:
    def __init__(self):
        # Not below /tmp or /run, which are private in each node.
        self.folder = tempfile.mkdtemp(prefix="taskd-slurm-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)
        self.work = os.path.join(self.folder, "work")
        self.home = os.path.join(self.folder, "home")
        self.bin = os.path.join(self.folder, "bin")
        self.environment = {}  # for everything that runs, on top of its own
        self._pids = {}  # machine -> its first process

    def __enter__(self):
        try:
            self._lay_out()
            self._start("login", LOGIN, ["login"])
            for node in NODES:
                self.power_on(node)
            self._wait_free()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for pid in self._pids.values():  # the first process of a PID namespace takes all others with it
            _kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lay_out(self):
        for name in ("log", "state", "work", "home", "bin", "lib", "etc/slurm"):
            os.makedirs(os.path.join(self.folder, name))
        self._write("etc/slurm/slurm.conf", CONFIGURATION.format(folder=self.folder))
        self._write("etc/slurm/cgroup.conf", "CgroupAutomount=no\n")
        self._write("etc/hosts", "127.0.0.1 localhost\n10.98.0.1 login\n" +
                    "".join(f"{_address(node)} n{node} n{node}-ib0\n" for node in NODES))
        for name, line in (("passwd", f"alice:x:{USER_ID}:{USER_ID}::{self.home}:/bin/bash\n"), ("group", f"alice:x:{USER_ID}:\n")):
            with open(f"/etc/{name}", encoding="utf-8") as file:
                self._write(f"etc/{name}", "".join(one for one in file if not one.startswith("alice:")) + line)
        shutil.copy(harness.TASKD, self.bin)
        for library in ("libtaskd.so", "libnccl-profiler-taskd.so"):
            shutil.copy(os.path.join(harness.BUILD, "lib", library), os.path.join(self.folder, "lib"))
        packages = os.path.join(self.home, SITE_PACKAGES)
        shutil.copytree(os.path.join(harness.PYTHON_PACKAGE, "taskd"), os.path.join(packages, "taskd"))
        shutil.copy(os.path.join(harness.stubs.REPOSITORY, "worker_sdk", "python", "taskd_torch.pth"), packages)
        for root in (self.work, self.home):
            for folder, _, files in os.walk(root):
                for path in (folder, *(os.path.join(folder, name) for name in files)):
                    os.chown(path, USER_ID, USER_ID)

    def _write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def _start(self, name, script, arguments, inside=()):
        """Starts a machine; its first process, as seen from here."""
        ready = os.path.join(self.folder, "log", f"ready-{name}")
        with open(os.path.join(self.folder, "log", f"{name}.out"), "wb") as log:
            outer = subprocess.Popen(
                [*inside, "unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script, name,
                 *arguments], env={"RIG": self.folder, "PATH": PATH}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        child = wait_until(lambda: _child_named(outer.pid, "bash"), f"{name} has a first process")
        self._pids[name] = child
        return ready, child

    def _enter(self, machine):
        return ["nsenter", "-t", str(self._pids[machine]), "--mount", "--uts", "--ipc", "--net", "--pid"]

    def power_on(self, node):
        name = f"n{node}"
        wait_until(lambda: os.path.exists(os.path.join(self.folder, "log", "ready-login")), "the login node is up")
        outside = ["nsenter", "-t", str(self._pids["login"]), "--net"]
        subprocess.run([*outside, "ip", "link", "delete", f"v{node}"], capture_output=True, check=False)
        ready, pid = self._start(name, NODE, [name, f"w{node}", _address(node)],
                                 ["nsenter", "-t", str(self._pids["login"]), "--mount", "--uts", "--ipc", "--net"])
        subprocess.run([*outside, "ip", "link", "add", f"v{node}", "type", "veth", "peer", "name", f"w{node}"], check=True)
        subprocess.run([*outside, "ip", "link", "set", f"w{node}", "netns", str(pid)], check=True)
        subprocess.run([*outside, "ip", "link", "set", f"v{node}", "master", "bridge", "up"], check=True)
        wait_until(lambda: os.path.exists(ready), f"{name} is up")

    def lose_power(self, node):
        """The link goes first: nobody hears of it by a closed connection."""
        subprocess.run(["nsenter", "-t", str(self._pids["login"]), "--net", "ip", "link", "set", f"v{node}", "down"], check=True)
        _kill(self._pids.pop(f"n{node}"))

    def _command(self, command, machine, environment):
        variables = {"HOME": self.home, "USER": "alice", "LOGNAME": "alice", "LANG": "C.UTF-8", "PATH": f"{self.bin}:{PATH}",
                     "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **self.environment, **(environment or {})}
        return [*self._enter(machine), "setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups", "env", "-i",
                *(f"{name}={value}" for name, value in variables.items()), "bash", "-c", 'cd "$0" && exec "$@"', self.work, *command]

    def login(self, command, machine="login", environment=None, timeout_s=120):
        """Runs a command to its end, as alice."""
        return deadlines.run(self._command(command, machine, environment), timeout_s, capture_output=True, text=True,
                             stdin=subprocess.DEVNULL)

    def start(self, command, machine="login", environment=None):
        """The same, beside the test; it ends with the rig. Its output goes to files: `.out`, `.err`."""
        paths = [tempfile.mkstemp(dir=os.path.join(self.folder, "log"))[1] for _ in range(2)]
        with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            child = subprocess.Popen(self._command(command, machine, environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        child.paths = paths
        return child

    def root(self, machine, script):
        """A line of shell as root, on one machine."""
        subprocess.run([*self._enter(machine), "sh", "-c", script], check=True)

    def allocation(self, nodes, *options):
        """A job without steps, for `srun --jobid`; its number."""
        number = self.batch(f"#!/bin/bash\n#SBATCH -N{nodes} --ntasks-per-node=1 --output=/dev/null\nexec sleep 300\n", *options)
        self.wait_for_state(number, "RUNNING")
        return number

    def batch(self, script, *options):
        """Submits a batch script; the job's number."""
        with tempfile.NamedTemporaryFile("w", dir=self.home, suffix=".sbatch", delete=False) as file:
            file.write(script)
        os.chmod(file.name, 0o755)
        path = file.name
        done = self.login(["sbatch", "--parsable", *options, path])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number):
        """The words of `scontrol show job` as a dictionary."""
        shown = self.login(["scontrol", "show", "job", number, "-o"]).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def state(self, number):
        return self.job(number).get("JobState", "")

    def wait_for_state(self, number, *states, timeout_s=60):
        return wait_until(lambda: self.state(number) if self.state(number) in states else None,
                          f"job {number} is {' or '.join(states)}", timeout_s, 0.2)

    def output(self, number):
        """What the batch script and its steps wrote."""
        path = os.path.join(self.work, f"slurm-{number}.out")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def processes(self, node):
        """Command lines of alice's processes on a node, but zombies."""
        listed = subprocess.run([*self._enter(f"n{node}"), "ps", "-u", str(USER_ID), "-o", "stat=,args="], capture_output=True, text=True,
                                check=False)
        return [line.split(None, 1)[1] for line in listed.stdout.splitlines() if not line.startswith("Z")]

    def _wait_free(self):
        wait_until(lambda: self.login(["sinfo", "-h", "-p", "main", "-o", "%t %D"]).stdout.strip() == f"idle {len(NODES)}",
                   "all nodes are idle", 120, 0.2)

    def end_all(self):
        self.login(["scancel", "--user=alice"])
        self.wait_idle()
        self._wait_free()

    def wait_idle(self):
        """Until nothing of alice's runs on any node."""
        for node in NODES:
            if f"n{node}" in self._pids:
                wait_until(lambda node=node: not self.processes(node), f"nothing is left on n{node}")


def output_of(child):
    """stdout and stderr so far of what `SlurmRig.start` started."""
    texts = []
    for path in child.paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    return texts


def _address(node):
    return f"10.98.0.{10 + node}"


def _child_named(pid, name):
    """The child of unshare, once it is that program: before that it is unshare's own fork."""
    def is_named(child):
        with open(f"/proc/{child}/comm", encoding="utf-8") as file:
            return file.read().strip() == name
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            children = [int(child) for child in file.read().split()]
        for child in children:
            if is_named(child):
                return child
        for child in children:  # nsenter --pid and unshare --fork may each be a generation
            found = _child_named(child, name)
            if found:  # or one that it has forked meanwhile, for a command of its script
                return child if is_named(child) else found
    except OSError:
        pass
    return None


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
