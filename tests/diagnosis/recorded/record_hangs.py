#!/usr/bin/python3
"""Records dumps of PyTorch's flight recorder of jobs that hang, as test data: record_hangs.py OUT.tar.xz [--python COMMAND]

Of gloo: needs a PyTorch that records its operations, as 2.14 does and 2.6 does not. ../real/hung_job.py says what is wrong
with each.
"""
import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile

from record import anonymous, harness
import deadlines

JOB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "real", "hung_job.py")
HANGS = ("missing", "groups", "order", "group_order", "size", "pipeline", "healthy")
RANKS = 4


def record(how, folder, python):
    os.mkdir(folder)
    job = shutil.copy(JOB, os.path.join(folder, "train.py"))  # the path is in the dumps
    environment = {"WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": harness.free_port(), "GLOO_SOCKET_IFNAME": "lo",
                   "OMP_NUM_THREADS": 1, "USE_LIBUV": 0, "TORCH_FR_BUFFER_SIZE": 2000}
    ranks = [subprocess.Popen([*python, job, how, folder], stdout=sys.stderr, env=harness.clean_environment(**environment, RANK=rank))
             for rank in range(RANKS)]
    print(f"{how}: the ranks ended with", *(deadlines.wait_child(rank, 120) for rank in ranks))
    os.unlink(job)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--python", type=shlex.split, default=[harness.PYTHON], help="command that runs the ranks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for how in HANGS:
            record(how, os.path.join(folder, how), arguments.python)
        with tarfile.open(arguments.out, "w:xz") as archive:
            archive.add(folder, ".", filter=anonymous)
    print(f"{arguments.out}: {os.path.getsize(arguments.out)} bytes")


if __name__ == "__main__":
    main()
