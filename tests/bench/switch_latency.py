#!/usr/bin/python3
"""Time from the request over gRPC until every rank of a node has acknowledged: switch_latency.py [--switches N] [--ranks R]

Starts a manager, a proxy and R ranks that mark 1,000 times a second each, and switches all kinds on and off by
taskd.v1.Control/SetSwitch over one connection. Beside it, in the same run, the bare round trip of a call that does nothing with ranks.
"""
import argparse
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import harness  # noqa: E402
from deadlines import HANG_S  # noqa: E402
import stubs  # noqa: E402
import grpc  # noqa: E402


def percentiles(values):
    values = sorted(values)
    return {p: values[min(len(values) - 1, int(len(values) * p / 100))] for p in (50, 99, 100)}


def show(what, values_ms):
    found = percentiles(values_ms)
    print(f"{what:<44} p50 {found[50]:7.2f} ms   p99 {found[99]:7.2f} ms   max {found[100]:7.2f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switches", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    arguments = parser.parse_args()
    messages, services = stubs.control()
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        stage = harness.Stage(folder)
        try:
            manager = stage.manager()
            proxy = stage.proxy(manager)
            for rank in range(arguments.ranks):
                stage.rank(rank, proxy, rate=100, pattern="training")
            manager.wait_attached(range(arguments.ranks))
            whole, per_rank, bare = [], [], []
            with manager.secure_channel() as channel:
                control = services.ControlStub(channel)
                trace = stubs.profiling()
                for number in range(arguments.switches):
                    on = number % 2 == 0
                    began = time.perf_counter()
                    reply = control.SetSwitch(messages.SetSwitchRequest(
                        job=harness.JOB, step=on, save_checkpoint=on, fp=on, dataloader=on, communication=on), timeout=HANG_S)
                    whole.append((time.perf_counter() - began) * 1e3)
                    if reply.applied != arguments.ranks:
                        print(f"switch {number}: only {reply.applied} of {arguments.ranks} ranks applied it", file=sys.stderr)
                        return 1
                    per_rank += [answer.ms for answer in reply.ranks]
                    began = time.perf_counter()
                    trace[1].TrainingDataTraceStub(channel).GetTrainingDataTraceSwitch(
                        trace[0].DataStatusReq(jobNsName=harness.JOB), timeout=HANG_S)
                    bare.append((time.perf_counter() - began) * 1e3)
        finally:
            stage.close()
    print(f"{arguments.switches} switches, 1 node, {arguments.ranks} ranks, all acknowledged")
    show("request to answer with all acknowledgements", whole)
    show("request to a rank's acknowledgement", per_rank)
    show("bare gRPC round trip (Get), for comparison", bare)
    return 0


if __name__ == "__main__":
    sys.exit(main())
