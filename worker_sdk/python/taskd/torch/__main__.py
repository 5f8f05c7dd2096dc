"""python -m taskd.torch SCRIPT ARGS: runs a script as `python SCRIPT ARGS` would, with the marks of taskd.torch."""
import os
import runpy
import sys

import taskd.torch


def main():
    if len(sys.argv) < 2:
        print("usage: python -m taskd.torch SCRIPT [ARGS...]", file=sys.stderr)
        return 2
    script = sys.argv[1]
    taskd.torch.enable()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
