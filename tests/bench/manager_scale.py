#!/usr/bin/python3
"""A manager of a large job: how long a switch takes, and what the manager costs. manager_scale.py [--ranks N] [--switches N] [--seconds S]

Starts a manager and one `taskd simulate`, whose proxies (8 ranks each, unless --ranks-per-node) connect as real ones do, report their ranks every second, and answer
as if their ranks switched at once; --shared 1 gives each its own connection, too, as real ones have it. First the job stands still and is switched on and off with `taskd switch`, one after the other: the manager's own time from the request to
the last rank's acknowledgement, and the time of the whole command. Then it runs with 1 step a second: CPU time and memory of the manager, also
for each step of a rank that came (a machine that is too slow for the job gets fewer than it should), and how long the last folds waited
until they were judged, as the manager says it every two seconds. Only the first steps are simulated, and come again afterwards; what differs in
them between ranks lasts then, so the diagnosis has more to look at than in a real job.

Whatever protects the connections protects these: the job has a token, and all parts get it as those of a real job do.
All of it shares this machine's CPUs, the simulated proxies too; their CPU time is reported beside the manager's.
"""
import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
import deadlines  # noqa: E402
from ports import free_port  # noqa: E402

JOB = "bench/scale"
DEADLINE_S = 600
FIRST_STEPS = 3  # beyond those that are simulated: groups are sent once, and the job is learned


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def show(what, values_ms):
    print(f"{what:<52} p50 {percentile(values_ms, 50):8.1f} ms   p99 {percentile(values_ms, 99):8.1f} ms   "
          f"max {max(values_ms):8.1f} ms", flush=True)


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid, field):
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith(field + ":")).split()[1]) / 1024


class Job:
    """A manager, and simulated proxies at `rate` steps a second, after `fill_steps` as fast as it takes them."""

    def __init__(self, program, folder, ranks, rate, fill_steps=0, simulate=None, shared=64, ranks_per_node=8, distinct_steps=32):
        self.program, self.ranks = program, ranks
        simulate = simulate or program
        self.address = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("TASKD_", "MINDX_", "POD_IP"))}
        self.environment.update(TASKD_TOKEN=secrets.token_hex(32), XDG_RUNTIME_DIR=folder)
        self.view_token = subprocess.run([program, "token"], env=self.environment, capture_output=True, text=True,
                                         check=True).stdout.strip()
        self.log = open(os.path.join(folder, f"log-{rate}"), "w")
        self.pieces = []
        self.began = time.monotonic()
        try:
            self.manager = self.start("manager", "--listen", self.address, "--http", self.http, "--job", JOB,
                                      "--state-dir", os.path.join(folder, f"state-{rate}"),
                                      "--switch-file", os.path.join(folder, "no-switch-file"))
            self.wait(lambda: socket.create_connection(("127.0.0.1", int(self.address.rsplit(":", 1)[1])), deadlines.HANG_S).close() or True)
            if fill_steps > 0:
                subprocess.run([simulate, "simulate", "--ranks", str(ranks), "--tp", "8", "--pp", "8", "--steps", str(fill_steps), "--manager",
                                self.address], env=self.environment, stdout=self.log, stderr=self.log, check=True)
                self.began = time.monotonic()
            self.proxies = self.start("simulate", "--ranks", str(ranks), "--tp", "8", "--pp", "8", "--steps", "1000000",
                                      "--rate", str(rate), "--nodes-per-connection", str(shared), "--ranks-per-node", str(ranks_per_node),
                                      "--distinct-steps", str(distinct_steps), "--manager", self.address, program=simulate)
            self.wait(lambda: self.switch(True)[0] == ranks)
            self.connected_s = time.monotonic() - self.began
        except BaseException:
            self.close()
            raise

    def start(self, *arguments, program=None):
        piece = subprocess.Popen([program or self.program, *arguments], env=self.environment, stdout=self.log, stderr=self.log)
        self.pieces.append(piece)
        return piece

    def wait(self, condition, pause_s=0.05):
        while True:
            for piece in self.pieces:
                if piece.poll() is not None:
                    raise RuntimeError(f"{piece.args[1]} ended with {piece.returncode}: {open(self.log.name).read()[-2000:]}")
            try:
                if condition():
                    return
            except OSError:
                pass
            if time.monotonic() - self.began > DEADLINE_S:
                raise RuntimeError(f"not ready after {DEADLINE_S} s: {open(self.log.name).read()[-2000:]}")
            time.sleep(pause_s)

    def metrics(self):
        request = urllib.request.Request(f"http://{self.http}/metrics", headers={"Authorization": f"Bearer {self.view_token}"})
        with urllib.request.urlopen(request, timeout=deadlines.HANG_S) as reply:
            lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def switch(self, on):
        """How many ranks applied it, the manager's time until the last of them did, and that of the command."""
        began = time.perf_counter()
        done = subprocess.run([self.program, "switch", "--manager", self.address, "--json", "--timeout", "60", f"all={'on' if on else 'off'}"],
                              env=self.environment, stdout=subprocess.PIPE, stderr=self.log)
        wall_ms = (time.perf_counter() - began) * 1e3
        reply = json.loads(done.stdout) if done.stdout else {}
        ranks = reply.get("ranks", [])
        return reply.get("applied", 0), max((rank["ms"] for rank in ranks), default=0), wall_ms

    def close(self):
        for piece in reversed(self.pieces):
            piece.terminate()
        for piece in self.pieces:
            try:
                deadlines.wait_child(piece)
            except subprocess.TimeoutExpired:
                piece.kill()
                piece.wait()
        self.log.close()


def measure_switches(program, folder, ranks, switches, **proxies):
    job = Job(program, folder, ranks, 0.001, **proxies)
    try:
        acknowledged, command = [], []
        cpu = cpu_s(job.manager.pid)
        for number in range(switches):
            applied, last_ms, wall_ms = job.switch(number % 2 == 1)
            if applied != ranks:
                raise RuntimeError(f"switch {number}: only {applied} of {ranks} ranks applied it")
            acknowledged.append(last_ms)
            command.append(wall_ms)
        cpu = cpu_s(job.manager.pid) - cpu
        print(f"{switches} switches, {-(-ranks // proxies.get('ranks_per_node', 8))} nodes, {ranks} ranks, all acknowledged; all connected after {job.connected_s:.1f} s")
        show("request at the manager to the last acknowledgement", acknowledged)
        show("the whole command `taskd switch --json`", command)
        print(f"CPU of the manager for one switch: {cpu / switches * 1e3:.1f} ms; VmHWM {memory_mib(job.manager.pid, 'VmHWM'):.0f} MiB")
        return {"acknowledged_ms": acknowledged, "command_ms": command, "connected_s": job.connected_s,
                "cpu_ms": cpu / switches * 1e3, "hwm_mib": memory_mib(job.manager.pid, "VmHWM")}
    finally:
        job.close()


def measure_cost(program, folder, ranks, seconds, rate, **proxies):
    job = Job(program, folder, ranks, rate, **proxies)
    try:
        job.wait(lambda: job.metrics()["taskd_folds_received_total"] >= (FIRST_STEPS + proxies["distinct_steps"]) * ranks, 2)
        before, lags_s = job.metrics(), []
        began, manager, proxies = time.monotonic(), cpu_s(job.manager.pid), cpu_s(job.proxies.pid)
        while time.monotonic() < began + seconds:
            time.sleep(min(2, max(0.1, began + seconds - time.monotonic())))
            lags_s.append(job.metrics()["taskd_diagnosis_lag_seconds"])
        passed = time.monotonic() - began
        manager = (cpu_s(job.manager.pid) - manager) / passed
        proxies = (cpu_s(job.proxies.pid) - proxies) / passed
        after = job.metrics()
        folds = after["taskd_folds_received_total"] - before["taskd_folds_received_total"]
        judging_s = after["taskd_diagnosis_busy_seconds_total"] - before["taskd_diagnosis_busy_seconds_total"]
        found = {"cpu": manager, "proxies_cpu": proxies, "hwm_mib": memory_mib(job.manager.pid, "VmHWM"),
                 "rss_mib": memory_mib(job.manager.pid, "VmRSS"), "folds": folds, "us_a_fold": manager * passed / folds * 1e6,
                 "judging_us_a_fold": judging_s / folds * 1e6, "lag_s": lags_s}
        print(f"{ranks} ranks at {rate:g} step/s for {passed:.0f} s: manager {manager:.3f} CPU s/s, VmHWM {found['hwm_mib']:.0f} MiB, "
              f"RSS {found['rss_mib']:.0f} MiB; all simulated proxies together {proxies:.3f} CPU s/s", flush=True)
        print(f"{folds:.0f} steps of single ranks came: {found['us_a_fold']:.2f} us of the manager's CPU each, judging took {found['judging_us_a_fold']:.2f} us "
              f"of time each; {found['hwm_mib'] * 1024 / ranks:.1f} KiB a rank; lag p50 {percentile(lags_s, 50) * 1e3:.0f} ms, max {max(lags_s) * 1e3:.0f} ms",
              flush=True)
        return found
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16384, help="a multiple of 64")
    parser.add_argument("--switches", type=int, default=50, help="0: do not switch")
    parser.add_argument("--seconds", type=int, default=30, help="of the run with steps; 0: none")
    parser.add_argument("--rate", type=float, default=1, help="steps a second; fewer where the machine cannot simulate as many")
    parser.add_argument("--taskd", default=os.path.join(ROOT, "build", "release", "bin", "taskd"))
    parser.add_argument("--simulate", help="the program of the simulated proxies, where that is another one")
    parser.add_argument("--shared", type=int, default=64, help="simulated proxies on one connection; real ones have a connection each")
    parser.add_argument("--ranks-per-node", type=int, default=8, help="more where there are fewer descriptors than nodes: one peer may have half")
    parser.add_argument("--distinct-steps", type=int, default=32, help="then they come again: to simulate one takes ten times what the manager does")
    parser.add_argument("--json", help="also write all numbers here")
    arguments = parser.parse_args()
    found, proxies = {}, {"simulate": arguments.simulate, "shared": arguments.shared, "ranks_per_node": arguments.ranks_per_node, "distinct_steps": arguments.distinct_steps}
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        if arguments.switches > 0:
            found["switch"] = measure_switches(arguments.taskd, folder, arguments.ranks, arguments.switches, **proxies)
        if arguments.seconds > 0:
            found["cost"] = measure_cost(arguments.taskd, folder, arguments.ranks, arguments.seconds, arguments.rate, **proxies)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
