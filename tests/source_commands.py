#!/usr/bin/python3
"""Writes FOLDER/compile_commands.json with a command for each source of a build that compiles several as one.

    tests/source_commands.py BUILD FOLDER        e.g. build/release build/tidy

clang-tidy and clangd look for a source's own command there. What the build generated (protoc's headers) stays in BUILD.
"""
import json
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)


def source_commands(commands):
    for command in commands:
        path = command["file"]
        if not re.search(r"/Unity/unity_\d+_\w+\.\w+$", path):
            yield command
            continue
        for source in INCLUDE.findall(pathlib.Path(path).read_text(encoding="utf-8")):
            own = {**command, "file": source, "command": command["command"].replace(path, source)}
            own.pop("output", None)  # of all of them
            yield own


def main():
    if len(sys.argv) != 3:
        print(__doc__.rstrip(), file=sys.stderr)
        return 2
    build, folder = map(pathlib.Path, sys.argv[1:])
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(list(source_commands(commands)), indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
