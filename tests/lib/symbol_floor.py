#!/usr/bin/env python3
"""Whether a shared library can be loaded beside a glibc as old as 2.17: what it needs, read from the file itself.

    symbol_floor.py [--readelf PROGRAM] LIBRARY...     exit 1 with a line for each thing that is too new
"""
import argparse
import re
import subprocess
import sys

FLOOR = (2, 17)
# libc itself, the two that had part of it up to glibc 2.33, and the dynamic linker (arm64's canary lies in it).
LIBRARIES = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

# Where functions lay up to glibc 2.33. A library that does not name these two loads today, and not there.
LIBPTHREAD = re.compile(r"pthread_(?!attr_(destroy|init|[gs]et(detachstate|inheritsched|scope|sched\w+))$|cond(attr)?_(broadcast|destroy|init|signal|timedwait|wait)$|equal$|exit$"
                        r"|[gs]etschedparam$|mutex_(destroy|init|lock|unlock)$|self$|setcancel\w+$)|sem_")
LIBDL = re.compile(r"dl(?!_iterate_phdr)")


def too_new(version):
    """Also what is no release of glibc: GLIBC_PRIVATE, GLIBC_ABI_DT_RELR (2.36), another library's version."""
    release = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
    return release is None or (int(release[1]), int(release[2])) > FLOOR


def problems(dynamic, versions, symbols):
    """From what `readelf -W` prints with -d, -V and --dyn-syms."""
    found = [f"needs the library {name}" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
             if name not in LIBRARIES]
    if not re.search(r"\(NEEDED\).*\[libc\.so\.6\]", dynamic):
        found.append("does not need libc.so.6: this is no list of what a library needs")
    for library, lay_there in (("libdl.so.2", LIBDL), ("libpthread.so.0", LIBPTHREAD)):
        users = sorted(name for name in set(re.findall(r" UND (\w+)@GLIBC", symbols)) if lay_there.match(name))
        if users and not re.search(rf"\(NEEDED\).*\[{re.escape(library)}\]", dynamic):
            found.append(f"does not name {library}, where an old glibc has {', '.join(users)}")
    needs = versions.partition("Version needs section")[2]
    for version in sorted(set(re.findall(r"Name: (\S+) +Flags:", needs))):
        if too_new(version):
            users = sorted(set(re.findall(rf" UND (\S+)@{re.escape(version)}(?: |$)", symbols, re.MULTILINE)))
            found.append(f"needs {version}" + (f" for {', '.join(users)}" if users else ""))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    options = parser.parse_args()
    failed = False
    for library in options.libraries:
        printed = [subprocess.run([options.readelf, "-W", option, library], stdout=subprocess.PIPE, check=True,
                                  universal_newlines=True).stdout for option in ("-d", "-V", "--dyn-syms")]
        found = problems(*printed)
        for problem in found:
            print(f"{library}: {problem}", file=sys.stderr)
        failed = failed or bool(found)
        if not found:
            print(f"{library}: needs nothing above glibc {FLOOR[0]}.{FLOOR[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
