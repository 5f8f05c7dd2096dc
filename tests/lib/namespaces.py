"""Machines of a job on one computer: network namespaces with host names, /etc/hosts and sshd of their own, behind bridges.

    with namespaces.Rig(folder, ["worker-0", "worker-1"]) as rig:
        rig.start_sshd()
        process = rig.run(rig.nodes[0], ["ssh", "worker-1", "hostname"], rig.ssh_environment())

Each node has one interface, `eth0`, and an address in 10.77.0.0/16 that only the rig knows: traffic cannot leave it, and several rigs can
stand beside each other. With `tors` the nodes hang on ToR bridges, whose uplinks to the spine can be limited and count their bytes.
File systems are shared, apart from `private` folders. Needs root: `missing_privilege` is the reason why it cannot be, for a test to skip.
"""
import json
import os
import re
import secrets
import shutil
import signal
import subprocess

import deadlines
import harness
import pytest

SSHD = "/usr/sbin/sshd"
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21
NETNS_CONFIG = "/etc/netns"
# taskd-<pid of the owner>-<random>-<node>: what a killed owner left behind can be recognised and removed.
NAME = re.compile(r"taskd-(\d+)-[0-9a-f]{6}-\w+")


def missing_privilege():
    """Why this process cannot make network namespaces; None if it can."""
    if os.geteuid() != 0:
        return f"network namespaces need root; this is user {os.geteuid()}"
    with open("/proc/self/status", encoding="utf-8") as status:
        effective = int(re.search(r"CapEff:\s*(\w+)", status.read())[1], 16)
    for name, bit in (("CAP_NET_ADMIN", CAP_NET_ADMIN), ("CAP_SYS_ADMIN", CAP_SYS_ADMIN)):
        if not effective & 1 << bit:
            return f"network namespaces need {name}"
    # Containers may refuse the mounts that `ip netns` makes, whatever the capabilities.
    name = f"taskd-{os.getpid()}-{secrets.token_hex(3)}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@pytest.fixture
def make_rig(tmp_path):
    """make_rig(names, **options): a Rig that ends with the test, also with a failed one."""
    reason = missing_privilege()
    if reason:
        pytest.skip(reason)
    rigs = []

    def make(names, **options):
        rigs.append(Rig(tmp_path, names, **options))
        return rigs[-1]
    yield make
    for rig in rigs:
        rig.close()
        rig.print_logs()  # pytest shows it when the test failed


def _ip(*arguments, batch=None):
    command = ["ip", *arguments] + (["-batch", "-"] if batch else [])
    done = deadlines.run(command, input="\n".join(batch or []), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _pids(namespace):
    """Processes whose network is this namespace, orphans included."""
    done = deadlines.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


def _kill_all(namespace):
    def none_left():
        pids = _pids(namespace)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not [pid for pid in pids if _runs(pid)]
    harness.wait_until(none_left, f"the processes in {namespace} end")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _remove(namespace):
    _kill_all(namespace)
    deadlines.run(["ip", "netns", "del", namespace], capture_output=True)
    shutil.rmtree(os.path.join(NETNS_CONFIG, namespace), ignore_errors=True)


def remove_abandoned():
    """Takes away what owners that are no more (killed by a time limit) could not."""
    for line in _ip("netns", "list").splitlines():
        match = NAME.fullmatch(line.split()[0])
        if match and not os.path.exists(f"/proc/{match[1]}"):
            _remove(match[0])


class Node:
    def __init__(self, rig, index, name):
        self.index = index
        self.name = name
        self.namespace = f"{rig.prefix}-n{index}"
        self.address = f"10.77.{index // 250}.{index % 250 + 1}"
        self.folder = os.path.join(rig.folder, f"node{index}")
        self.private = {}  # mount point -> folder of this node


class Rig:
    """`names`: host names, one a node. `tors`: ToR of each node (numbers from 0); without it all are on one bridge.
    `rate`: limit of each uplink, either way, in tc's words ("200mbit"). `aliases`: {name: more names of that node}.
    `private`: folders that each node has for itself, empty at first; they hide what lies there outside. Their mount points must exist
    already, or are made in the shared file system and removed at the end."""

    def __init__(self, folder, names, tors=None, rate=None, aliases=None, private=()):
        remove_abandoned()
        self.prefix = f"taskd-{os.getpid()}-{secrets.token_hex(3)}"
        self.folder = os.path.join(str(folder), self.prefix)
        self.fabric = f"{self.prefix}-fabric"
        self.tors = list(tors) if tors else [0] * len(names)
        self.nodes = [Node(self, index, name) for index, name in enumerate(names)]
        self.processes = []
        self.ssh_port = None
        self._made_folders = []
        try:
            os.makedirs(self.folder)
            for node in self.nodes:
                os.makedirs(node.folder)
                self._make_private(node, private)
            self._make_network(rate)
            self.write_hosts(aliases or {})
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _make_private(self, node, mount_points):
        for point in mount_points:
            missing = []
            parent = point
            while not os.path.isdir(parent):
                missing.append(parent)
                parent = os.path.dirname(parent)
            os.makedirs(point, exist_ok=True)
            self._made_folders += missing
            node.private[point] = os.path.join(node.folder, point.strip("/").replace("/", "_"))
            os.makedirs(node.private[point])

    def _make_network(self, rate):
        for namespace in [self.fabric, *(node.namespace for node in self.nodes)]:
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        tors = range(max(self.tors) + 1)
        batch = ["link add spine type bridge", "link set spine up"]
        for tor in tors:
            # Leaving uplink<n> is the way up, leaving downlink<n> the way down.
            batch += [f"link add tor{tor} type bridge", f"link set tor{tor} up",
                      f"link add uplink{tor} type veth peer name downlink{tor}",
                      f"link set uplink{tor} master tor{tor} up", f"link set downlink{tor} master spine up"]
        for node in self.nodes:
            batch += [f"link add port{node.index} type veth peer name eth0 netns {node.namespace}",
                      f"link set port{node.index} master tor{self.tors[node.index]} up"]
        _ip("-n", self.fabric, batch=batch)
        for node in self.nodes:
            _ip("-n", node.namespace, batch=[f"addr add {node.address}/16 dev eth0", "link set eth0 up"])
        if rate:
            limits = [f"qdisc add dev {link}{tor} root tbf rate {rate} burst 256k latency 200ms"
                      for tor in tors for link in ("uplink", "downlink")]
            deadlines.run(["tc", "-n", self.fabric, "-batch", "-"], input="\n".join(limits), text=True, check=True)

    def write_hosts(self, aliases=None, nodes=None):
        """/etc/hosts of every node, in place: running processes see it. `nodes`: only these are in it."""
        lines = ["127.0.0.1 localhost"]
        for node in self.nodes if nodes is None else nodes:
            lines.append(" ".join([node.address, node.name, *(aliases or {}).get(node.name, ())]))
        for node in self.nodes:
            folder = os.path.join(NETNS_CONFIG, node.namespace)
            os.makedirs(folder, exist_ok=True)
            # A name that is not in hosts is unknown at once: nothing answers there.
            for name, text in (("hosts", "\n".join(lines) + "\n"), ("resolv.conf", "nameserver 127.0.0.1\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)

    def command(self, node, argv):
        """The command line that is `argv` on that node, in one process: its pid is argv's."""
        script = 'hostname "$0"; '
        script += "".join(f"mount --bind '{folder}' '{point}'; " for point, folder in node.private.items())
        return ["ip", "netns", "exec", node.namespace, "unshare", "--uts", "sh", "-ec", script + 'exec "$@"', node.name,
                *map(str, argv)]

    def run(self, node, argv, environment=None, name=None):
        """Starts argv on that node; it ends with the rig. `environment`: on top of a clean one."""
        name = f"{node.name}.{name or os.path.basename(str(argv[0]))}"
        process = harness.Process(name, self.command(node, argv), harness.clean_environment(**(environment or {})), node.folder)
        self.processes.append(process)
        return process

    def finish(self, node, argv, environment=None, timeout_s=harness.PATIENCE_S):
        """argv on that node to its end: subprocess's result, with text output."""
        return deadlines.run(self.command(node, argv), timeout_s, env=harness.clean_environment(**(environment or {})), cwd=node.folder,
                             stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def pids(self, node):
        return _pids(node.namespace)

    def kill(self, node):
        """The node dies: every process on it, by SIGKILL."""
        _kill_all(node.namespace)

    def cut(self, node):
        """Pulls the node's cable; `mend` puts it back."""
        _ip("-n", self.fabric, "link", "set", f"port{node.index}", "down")

    def mend(self, node):
        _ip("-n", self.fabric, "link", "set", f"port{node.index}", "up")

    def uplink_bytes(self):
        """[(sent up, sent down) of each ToR] since the rig was made."""
        sent = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in json.loads(_ip("-n", self.fabric, "-s", "-j", "link"))}
        return [(sent[f"uplink{tor}"], sent[f"downlink{tor}"]) for tor in range(max(self.tors) + 1)]

    # ---- ssh

    def make_keys(self):
        """A client's key pair, a host key for each node, and an ssh configuration that knows all of them."""
        known = []
        self.client_key = os.path.join(self.folder, "client_key")
        for path in [self.client_key, *(os.path.join(node.folder, "host_key") for node in self.nodes)]:
            deadlines.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path], check=True, stdin=subprocess.DEVNULL)
        for node in self.nodes:
            with open(os.path.join(node.folder, "host_key.pub"), encoding="utf-8") as key:
                known.append(f"{node.name},{node.address},[{node.name}]:*,[{node.address}]:* {' '.join(key.read().split()[:2])}\n")
        known_hosts = os.path.join(self.folder, "known_hosts")
        with open(known_hosts, "w", encoding="utf-8") as file:
            file.writelines(known)
        self.ssh_config = os.path.join(self.folder, "ssh_config")
        with open(self.ssh_config, "w", encoding="utf-8") as file:
            file.write(f"IdentityFile {self.client_key}\nIdentitiesOnly yes\nUserKnownHostsFile {known_hosts}\n"
                       "StrictHostKeyChecking yes\nBatchMode yes\nLogLevel ERROR\n")
        self.ssh = os.path.join(self.folder, "bin", "ssh")
        os.makedirs(os.path.dirname(self.ssh))
        with open(self.ssh, "w", encoding="utf-8") as file:
            # ssh takes the first -p that it reads: one of the caller's goes first.
            file.write(f'#!/bin/sh\nexec /usr/bin/ssh -F "{self.ssh_config}" "$@"\n')
        os.chmod(self.ssh, 0o755)

    def sshd_config(self, node, port):
        """Text of a configuration for that node's sshd; `make_keys` was called. `port` may be a place holder."""
        return (f"Port {port}\nHostKey {os.path.join(node.folder, 'host_key')}\nAuthorizedKeysFile {self.client_key}.pub\n"
                "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
                # No outermost shell: bash would read the .bashrc of whoever runs the tests, which may have things to say.
                "SetEnv SHLVL=1\n")

    def start_sshd(self, port=22, nodes=None):
        """sshd on each node (or on `nodes`), accepting when this returns."""
        if self.ssh_port is None:
            self.make_keys()
            with open(self.ssh_config, "a", encoding="utf-8") as file:
                file.write(f"Port {port}\n")
        self.ssh_port = port
        os.makedirs("/run/sshd", exist_ok=True)  # sshd insists on it
        for node in self.nodes if nodes is None else nodes:
            path = os.path.join(node.folder, "sshd_config")
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.sshd_config(node, port))
            sshd = self.run(node, [SSHD, "-D", "-e", "-f", path])

            def listens(node=node, sshd=sshd):
                sshd.require_alive()
                return "LISTEN" in self.finish(node, ["ss", "-Hltn", f"sport = :{port}"]).stdout
            harness.wait_until(listens, f"sshd of {node.name} listens on port {port}")

    def ssh_environment(self):
        """`ssh` is one that gets in everywhere, for people and for both MPIs; Open MPI stays inside the rig."""
        return {"PATH": f"{os.path.dirname(self.ssh)}:{os.environ['PATH']}", "OMPI_MCA_plm_rsh_agent": self.ssh,
                "HYDRA_LAUNCHER_EXEC": self.ssh, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_oob_tcp_if_include": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_plm_rsh_no_tree_spawn": "true"}

    def close(self):
        for process in self.processes:
            process.kill()
        for namespace in [*(node.namespace for node in self.nodes), self.fabric]:
            _remove(namespace)
        for folder in self._made_folders:
            try:
                os.rmdir(folder)
            except OSError:
                pass  # another rig uses it

    def print_logs(self):
        for process in self.processes:
            print(f"--- {process.name} (pid {process.pid}, code {process.child.returncode})\n{process.log()[-2000:]}")
