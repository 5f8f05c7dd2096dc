"""`taskd run` by torchrun's ways to start it: `python -m taskd.run ARGS`, and `torch_npu_run ARGS` where the wheel is installed."""
from taskd.python.utils import daemon


def main():
    daemon.run_program("run")


if __name__ == "__main__":
    main()
