"""python -m taskd.torch SCRIPT ARGS: runs a script as `python SCRIPT ARGS` would, with the marks of taskd.torch.
python -m taskd.torch: says what is marked with the PyTorch that is installed."""
import os
import runpy
import sys

import taskd.torch


def say_coverage():
    import torch
    import torch.distributed

    if torch.distributed.is_available():
        import torch.distributed.distributed_c10d  # noqa: F401

    said = taskd.torch.coverage()
    print("PyTorch", torch.__version__)
    print("communication:", said["communication"] or "not marked")
    for what, why in said["not_marked"].items():
        print(f"  not marked: {what}: {why}")
    print("steps: of the optimizer; without one batches, else forwards; taskd.torch.step() where a step is something else")


def main():
    taskd.torch.enable()
    if len(sys.argv) < 2:
        say_coverage()
        return 0
    script = sys.argv[1]
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
