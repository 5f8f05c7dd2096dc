#!/usr/bin/python3
"""What looking at a large job costs. viewers.py [--ranks N] [--steps N] [--seconds S] [--rounds N]

Fills the history of a manager with the steps of a simulated job, as fast as it takes them; then the job goes on with 1 step a second, and 0, 1
and 50 viewers, one after the other in each round, ask as the page does: the heat map once, then /api/v1/live each second. Printed: CPU time
of the manager for each number of viewers, and what 1 and 50 add to 0 of the same round; its memory; bytes and times of the page's answers, of
/metrics and of `taskd status`; and, where tests/run.sh has fetched playwright-core, the time until a browser has drawn the heat map.

All of it shares this machine's CPUs, simulated proxies and viewers too; only the manager's CPU time is counted.
"""
import argparse
import gzip
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import manager_scale
from deadlines import HANG_S  # of tests/lib, which manager_scale can import
from manager_scale import ROOT, cpu_s, memory_mib, percentile

VIEWERS = (0, 1, 50)
ASK_S = 1  # the page asks once a second


class Viewer(threading.Thread):
    """Asks as the page does."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.done, self.bytes, self.times_ms = job, threading.Event(), 0, []

    def ask(self, connection, path):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.job.view_token}"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]}")
        self.times_ms.append((time.perf_counter() - began) * 1e3)
        self.bytes += len(body)
        return body

    def run(self):
        connection = http.client.HTTPConnection(self.job.http, timeout=HANG_S)
        self.ask(connection, "/api/v1/heatmap?value=own_time")
        while not self.done.wait(ASK_S):
            self.ask(connection, "/api/v1/live?value=own_time")
        connection.close()


def look(job, viewers, seconds):
    """CPU s/s of the manager with so many viewers, once each has the whole picture."""
    threads = [Viewer(job) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    while not all(thread.times_ms for thread in threads):
        time.sleep(0.1)
        if any(not thread.is_alive() for thread in threads):
            raise RuntimeError("a viewer has ended")
    time.sleep(1)
    began, cpu = time.monotonic(), cpu_s(job.manager.pid)
    time.sleep(seconds)
    cpu = (cpu_s(job.manager.pid) - cpu) / (time.monotonic() - began)
    for thread in threads:
        thread.done.set()
    for thread in threads:
        thread.join()
    return cpu, [ms for thread in threads for ms in thread.times_ms[1:]]


def show_answer(job, path, times=20):
    viewer, sizes = Viewer(job), []
    connection = http.client.HTTPConnection(job.http, timeout=HANG_S)
    for _ in range(times):
        time.sleep(0.6)  # a rendering is shared for 0.5 s: each is a new one
        body = viewer.ask(connection, path)
        sizes.append(len(body))
    print(f"{path:<32} {max(sizes):>9} bytes ({len(gzip.compress(body)):>7} gzip)   p50 {percentile(viewer.times_ms, 50):6.1f} ms   "
          f"max {max(viewer.times_ms):6.1f} ms", flush=True)


def show_status(job, times=10):
    walls, cpu = [], cpu_s(job.manager.pid)
    for _ in range(times):
        began = time.perf_counter()
        text = subprocess.run([job.program, "status", "--manager", job.address], env=job.environment, capture_output=True, text=True,
                              check=True).stdout
        walls.append((time.perf_counter() - began) * 1e3)
    print(f"taskd status: {text.count(chr(10))} lines, p50 {percentile(walls, 50):.0f} ms, max {max(walls):.0f} ms; the manager and its job spend "
          f"{(cpu_s(job.manager.pid) - cpu) / times * 1e3:.0f} ms of CPU meanwhile", flush=True)


def show_browser(job, times=5):
    os.environ.setdefault("TASKD_BUILD_DIR", os.path.join(ROOT, "build", "release"))
    sys.path[:0] = [os.path.join(ROOT, "tests", "browser"), os.path.join(ROOT, "tests", "lib")]
    import browser as driver
    if driver.missing():
        print(f"no browser: {driver.missing()}")
        return
    drawn = """new Promise(done => { const look = () => {
        const canvas = document.querySelector("#heatmap");
        const context = canvas?.width > 300 && canvas.getContext("2d");
        if (context && context.getImageData(canvas.width - 20, 20, 1, 1).data[3] === 255) {
          const loaded = performance.getEntries().filter(one => one.transferSize);
          done([performance.now(), loaded.reduce((sum, one) => sum + one.transferSize, 0)]);
        } else requestAnimationFrame(look); }; look(); })"""
    found = []
    for _ in range(times):
        browser = driver.Browser()
        try:
            browser.open(f"http://{job.http}/?token={job.view_token}")
            found.append(browser.evaluate(drawn))
        finally:
            browser.close()
    print(f"a browser has drawn the heat map after {', '.join(f'{ms:.0f}' for ms, _ in found)} ms, with {max(size for _, size in found) / 1e6:.2f} MB "
          "over the wire")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16384, help="a multiple of 64; 8 on a node")
    parser.add_argument("--steps", type=int, default=300, help="that are in the history before anybody looks")
    parser.add_argument("--seconds", type=int, default=15, help="of each look")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--taskd", default=os.path.join(ROOT, "build", "release", "bin", "taskd"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        job = manager_scale.Job(arguments.taskd, folder, arguments.ranks, 1, fill_steps=arguments.steps)
        try:
            time.sleep(3)
            print(f"{arguments.ranks} ranks, {arguments.steps} steps before; manager RSS {memory_mib(job.manager.pid, 'VmRSS'):.0f} MiB, "
                  f"VmHWM {memory_mib(job.manager.pid, 'VmHWM'):.0f} MiB", flush=True)
            found = {viewers: [] for viewers in VIEWERS}
            answers = []
            for _ in range(arguments.rounds):
                for viewers in VIEWERS:
                    cpu, times_ms = look(job, viewers, arguments.seconds)
                    found[viewers].append(cpu)
                    answers += times_ms
            for viewers, cpus in found.items():
                added = [cpu - none for cpu, none in zip(cpus, found[0])]
                print(f"{viewers:>3} viewers: manager {', '.join(f'{cpu:.3f}' for cpu in cpus)} CPU s/s"
                      + (f"; more than without: median {statistics.median(added):+.3f}" if viewers else ""), flush=True)
            print(f"/api/v1/live as viewers saw it: p50 {percentile(answers, 50):.1f} ms, p99 {percentile(answers, 99):.1f} ms", flush=True)
            for path in ("/api/v1/live?value=own_time", "/api/v1/heatmap?value=own_time", "/metrics", "/report.html", "/api/v1/status"):
                show_answer(job, path)
            show_status(job)
            show_browser(job)
            print(f"manager at the end: RSS {memory_mib(job.manager.pid, 'VmRSS'):.0f} MiB, VmHWM {memory_mib(job.manager.pid, 'VmHWM'):.0f} MiB")
        finally:
            job.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
