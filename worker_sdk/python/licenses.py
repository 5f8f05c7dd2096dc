"""The license texts of what is linked into `taskd`, as the Debian packages that brought it state them.

python3 licenses.py [SYSROOT]     prints the list: component, version, file
"""
import os
import re
import subprocess
import sys

# The component; its package, as a regular expression where the name has a version in it; its static libraries, none where
# headers are all there is. tests/python/test_wheel.py holds it against what the program is linked with.
LINKED = (
    ("Abseil", "libabsl-dev", r"absl_\w+"),
    ("Boost", r"libboost1\.\d+-dev", r"boost_\w+"),
    ("c-ares", "libc-ares-dev", r"cares"),
    ("CLI11", "libcli11-dev", None),
    ("fmt", "libfmt-dev", r"fmt"),
    ("GCC runtime", r"gcc-\d+-base", r"stdc\+\+|gcc|gcc_eh|atomic"),
    ("glibc", "libc6-dev", r"c|m|pthread|dl|rt"),
    ("gRPC", "libgrpc-dev", r"grpc|grpc\+\+|grpc\+\+_reflection|gpr|upb|address_sorting"),
    ("jemalloc", "libjemalloc-dev", r"jemalloc_pic"),
    ("JSON for Modern C++", "nlohmann-json3-dev", None),
    ("nghttp2", "libnghttp2-dev", r"nghttp2"),
    ("OpenSSL", "libssl-dev", r"ssl|crypto"),
    ("Protobuf", "libprotobuf-dev", r"protobuf"),
    ("RE2", "libre2-dev", r"re2"),
    ("spdlog", "libspdlog-dev", r"spdlog"),
    ("SQLite", "libsqlite3-dev", r"sqlite3"),
    ("zlib", "zlib1g-dev", r"z"),
    ("Zstandard", "libzstd-dev", r"zstd"),
)
_INDEX = """TaskD is under the Apache License 2.0 (LICENSE). Its program `taskd` contains these components, taken from Debian.
What Debian says of each is in the file named; the licenses that those files only name are in common-licenses.

"""


def component_of(library):
    """Whose static library lib<library>.a is; None: it is not known."""
    return next((name for name, _, libraries in LINKED if libraries and re.fullmatch(libraries, library)), None)


def _installed(sysroot):
    """{package: version} of this machine, or of a folder that deploy/sysroot.sh made."""
    if sysroot:
        with open(os.path.join(sysroot, ".packages"), encoding="utf-8") as packages:
            lines = packages.read().splitlines()
    else:
        lines = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"], check=True, capture_output=True,
                               text=True).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


def collect(sysroot, common="/usr/share/common-licenses"):
    """[(file name, bytes)] for a folder of licenses. Raises LookupError naming all that are missing."""
    installed = _installed(sysroot)
    missing, index, named, files = [], [], set(), []
    for component, pattern, _ in LINKED:
        # Of several versions beside each other the newest is the one that the compiler takes.
        packages = sorted((p for p in installed if re.fullmatch(pattern, p)), key=lambda p: [int(n) for n in re.findall(r"\d+", p)])
        path = os.path.join(sysroot or "/", "usr/share/doc", packages[-1] if packages else pattern, "copyright")
        if not packages or not os.path.isfile(path):
            missing.append(f"{component} ({path})")
            continue
        with open(path, "rb") as file:
            text = file.read()
        name = component.replace(" ", "-") + ".txt"
        files.append((name, text))
        index.append(f"{component:<20} {installed[packages[-1]]:<28} {name}\n")
        named.update(n.decode() for n in re.findall(rb"common-licenses/([\w-]+(?:\.\d+)*)", text))
    for name in sorted(named):
        path = os.path.join(common, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                files.append((f"common-licenses/{name}.txt", file.read()))
        else:
            missing.append(path)
    if missing:
        raise LookupError("no license text of " + ", ".join(missing))
    return [("README.txt", (_INDEX + "".join(index)).encode())] + files


if __name__ == "__main__":
    try:
        print(collect(*sys.argv[1:2] or [""])[0][1].decode()[len(_INDEX):], end="")
    except LookupError as error:
        sys.exit(f"licenses.py: {error}")
