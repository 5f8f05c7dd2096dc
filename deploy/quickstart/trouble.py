"""Makes a rank slow, for as long as the file TROUBLE_FILE asks for it: "compute 2" or "dataloader 1"."""
import os
import time

EXTRA_S = 0.1  # of each step


class Trouble:
    def __init__(self, rank):
        self._rank = rank
        self._cause = ""

    def look(self, step):
        """Between two steps: what `step`, the one that begins, has in store."""
        try:
            with open(os.environ["TROUBLE_FILE"], encoding="ascii") as file:
                cause, _, rank = file.read().partition(" ")
        except FileNotFoundError:
            cause, rank = "", ""
        if rank != str(self._rank):
            cause = ""
        if cause != self._cause:
            self._cause = cause
            print(f"rank {self._rank} step {step} trouble: {cause or 'none'}", flush=True)

    def compute(self):
        """Waits for an accelerator that is slower than the others'. It uses no CPU: on a busy machine it would wait for that."""
        if self._cause == "compute":
            time.sleep(EXTRA_S)

    def storage(self):
        """A batch that has to be waited for."""
        if self._cause == "dataloader":
            time.sleep(EXTRA_S)
