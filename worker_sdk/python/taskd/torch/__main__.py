"""python -m taskd.torch SCRIPT ARGS: runs a script as `python SCRIPT ARGS` would, with the marks of taskd.torch.
python -m taskd.torch -m MODULE ARGS: the same of a module, as `python -m MODULE ARGS` would.
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
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    is_module = words[:1] == ["-m"]
    if words == ["-m"] or (words and words[0].startswith("-") and not is_module):
        print("taskd.torch: %r: a script, or -m and a module, is needed" % words[0], file=sys.stderr)
        return 2
    taskd.torch.enable()
    if not words:
        say_coverage()
        return 0
    if is_module:
        module = words[1]
        del sys.argv[:2]
        runpy.run_module(module, run_name="__main__", alter_sys=True)  # sys.path[0] is the working folder already
        return 0
    script = words[0]
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
