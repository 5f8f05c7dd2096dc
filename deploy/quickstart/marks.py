"""Reads mark files as anybody may: a JSON object a line (docs/formats.md)."""
import dataclasses
import json
import os
import re

# Kinds as people read them; communication is switched by itself.
KINDS = ("step", "forward", "dataloader", "checkpoint", "communication")
START, START_STREAM, END, END_STREAM = 2, 16, 4, 32


def kind_of(name, domain):
    if domain == "communication":
        return "communication"
    if re.fullmatch(r"step \d+", name):
        return "step"
    return {"forward": "forward", "dataloader": "dataloader", "save_checkpoint": "checkpoint"}.get(name, "other")


@dataclasses.dataclass
class RankMarks:
    counts: dict = dataclasses.field(default_factory=lambda: dict.fromkeys((*KINDS, "other"), 0))  # ranges that began, instants
    steps: list = dataclasses.field(default_factory=list)  # their numbers, in the order of the files
    open: set = dataclasses.field(default_factory=set)  # ids of ranges without an end

    def add(self, mark):
        if mark["Flag"] in (END, END_STREAM):
            self.open.discard(mark["Id"])
            return
        if mark["Flag"] in (START, START_STREAM):
            self.open.add(mark["Id"])
        kind = kind_of(mark["Name"], mark["Domain"])
        self.counts[kind] += 1
        if kind == "step":
            self.steps.append(int(mark["Name"].split()[1]))


def read_rank(folder):
    """What is in a rank's folder by now."""
    marks = RankMarks()
    for name in sorted(filter(str.isdigit, os.listdir(folder))):
        with open(os.path.join(folder, name), "rb") as file:
            for line in file.read().splitlines(keepends=True):
                if line.endswith(b"\n"):  # else it is being written
                    marks.add(json.loads(line))
    return marks


def read_task(folder):
    """{rank: RankMarks} of <profiling-dir>/<task>."""
    if not os.path.isdir(folder):
        return {}
    return {int(rank): read_rank(os.path.join(folder, rank)) for rank in os.listdir(folder) if rank.isdigit()}
