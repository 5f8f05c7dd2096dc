#!/usr/bin/python3
"""Records a true PyTorch job as test data: record.py OUT.tar.xz [--slow compute:2@25] [--steps 60]"""
import argparse
import json
import os
import re
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lib"))
import harness  # noqa: E402
from training import RANKS, Training  # noqa: E402


def anonymous(entry):
    entry.uname = entry.gname = ""
    entry.uid = entry.gid = 0
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--slow", help="CAUSE:RANK@STEP: from about this step on")
    parser.add_argument("--steps", type=int, default=60, help="about how many")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage = harness.Stage(folder)
        try:
            manager = stage.manager()
            manager.all_on()
            training = Training(stage, manager)

            def reached(step):
                return training.diagnose()["steps"]["last"] >= step

            if arguments.slow:
                cause, rank, step = re.fullmatch(r"(\w+):(\d+)@(\d+)", arguments.slow).groups()
                harness.wait_until(lambda: reached(int(step)), f"step {step}", 120, 0.05)
                training.trouble(cause, int(rank))
            harness.wait_until(lambda: reached(arguments.steps), f"step {arguments.steps}", 120, 0.05)
            training.finish()
            if arguments.slow:
                print(f"rank {rank} is slow since step {training.since(cause, int(rank))}")
            for proxy in training.proxies:
                proxy.terminate()
            marks = os.path.join(folder, "marks")
            training.gather(marks)
            for rank in RANKS:  # the two nodes of this machine as two machines
                with open(os.path.join(marks, str(rank), ".rank.json"), "w", encoding="ascii") as file:
                    json.dump({"node": rank // 2, "host": f"host-{rank // 2}", "local_rank": rank % 2}, file)
            with tarfile.open(arguments.out, "w:xz") as archive:
                archive.add(marks, ".", filter=anonymous)
        finally:
            stage.close()
    print(f"{arguments.out}: {os.path.getsize(arguments.out)} bytes")


if __name__ == "__main__":
    main()
