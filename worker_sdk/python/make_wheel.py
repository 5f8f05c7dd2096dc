"""Packs the staged package and the program: a wheel, and a tar.gz for those without pip, with nothing but the standard library.

A wheel is a zip file with a list of its own contents. Its binaries need no Python in particular (ctypes, and an extension of
the stable ABI), so its tag is py3-none and the platform. Both files are the same bytes whenever they are made of the same
files: times are those of the last commit (or SOURCE_DATE_EPOCH), the order is that of the names.
"""
import argparse
import base64
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import licenses

HERE = os.path.dirname(os.path.abspath(__file__))
METADATA = """Metadata-Version: 2.1
Name: taskd
Version: {version}
Summary: Daemon of a distributed training job: marks, switches and slow-node diagnosis
License: Apache-2.0
Keywords: distributed training,slow node,straggler,hang,diagnosis,torchrun,MindCluster
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Environment :: GPU
Classifier: Intended Audience :: Science/Research
Classifier: Intended Audience :: System Administrators
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Topic :: System :: Distributed Computing
Classifier: Topic :: System :: Monitoring
Requires-Python: >=3.7
Description-Content-Type: text/markdown
"""
WHEEL = """Wheel-Version: 1.0
Generator: taskd
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
taskd = taskd.python.utils.daemon:run_program
torch_npu_run = taskd.run:main
"""
LIBRARIES = ("libtaskd.so", "libnccl-profiler-taskd.so")
# manylinux2014's: what every image has by these names, and the newest glibc whose symbols may be asked of it.
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d|ld-linux[-\w]*\.so\.\d")
NEWEST_GLIBC = (2, 17)


def share_files(share):
    """Completion and man pages, as share/..."""
    for folder, folders, names in os.walk(share):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            yield path, os.path.join("share", os.path.relpath(path, share))


def package_files(package):
    """The staged package, without modules that the sources no longer have: a build folder keeps those."""
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "bin"))
        for name in sorted(names):
            path = os.path.join(folder, name)
            packed = os.path.join("taskd", os.path.relpath(path, package))
            if not name.endswith((".py", ".pyc")) or os.path.exists(os.path.join(HERE, packed)):
                yield path, packed


def read(path):
    with open(path, "rb") as file:
        return file.read()


def stripped(strip, path, *options):
    """The file without what only a debugger reads."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "stripped")
        subprocess.run([strip, *options, "-o", out, path], check=True)
        return read(out)


def broken_promises(path, is_program):
    """What keeps an ELF file from running wherever manylinux2014's tag says it does; empty if nothing does."""
    text = subprocess.run(["readelf", "--wide", "--dynamic", "--version-info", "--program-headers", "--file-header", path], check=True,
                          capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    broken = [f"it needs {name}" for name in needed if is_program or not SYSTEM_LIBRARIES.fullmatch(name)]
    if is_program and re.search(r"^ +INTERP ", text, re.M):
        broken.append("it needs the system's loader")
    if "AArch64" in text and re.search(r"^ +LOAD .* 0x\w{1,4}$", text, re.M):
        broken.append("it cannot be loaded where pages have 64 KiB")
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([\d.]+)", text)}
    broken += [f"it needs symbols of glibc {'.'.join(map(str, version))}" for version in sorted(versions) if version > NEWEST_GLIBC]
    return broken


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def source_time():
    """Seconds since 1970. A zip file knows none before 1980."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if not named:
        commit = subprocess.run(["git", "-C", HERE, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
        named = commit.stdout.strip() or "1577836800"
    return max(int(named), 315532800)


def replace(path, data):
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
    print(path)


def wheel_bytes(contents, info, tag, version, url, seconds):
    """`contents`: (name, data, executable)."""
    contents = sorted(contents)
    for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("entry_points.txt", ENTRY_POINTS)):
        text = text.format(version=version, tag=tag)
        if name == "METADATA":
            text += f"Project-URL: Homepage, {url}\n" if url else ""
            text += "".join(f"License-File: {n[len(info) + len('/licenses/'):]}\n" for n, _, _ in contents if n.startswith(info))
            text += "\n" + read(os.path.join(HERE, "description.md")).decode()
        contents.append((f"{info}/{name}", text.encode(), False))
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data, _ in contents)
    contents.append((f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), False))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data, executable in contents:
            entry = zipfile.ZipInfo(name, time.gmtime(seconds)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data)
    return out.getvalue()


def archive_bytes(top, contents, links, seconds):
    """`contents` as above, `links` name: target; all of it in the folder `top`."""
    entries = {name: (data, executable) for name, data, executable in contents}
    folders = {name[:at] for name in [*entries, *links] for at in range(len(name)) if name[at] == "/"}
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=seconds, filename="") as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted({"", *folders, *entries, *links}):
                entry = tarfile.TarInfo(f"{top}/{name}".rstrip("/"))
                entry.mtime = seconds
                data, executable = entries.get(name, (b"", True))
                entry.mode = 0o755 if executable else 0o644
                entry.size = len(data)
                if name in links:
                    entry.type, entry.linkname = tarfile.SYMTYPE, links[name]
                elif name not in entries:
                    entry.type = tarfile.DIRTYPE
                archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--version", "--package", "--program", "--share", "--out"):
        parser.add_argument(option, required=True)
    parser.add_argument("--platform", required=True, help="manylinux2014_ARCH, whose promises are checked, or linux_ARCH")
    parser.add_argument("--url", default="", help="where the project is at home")
    parser.add_argument("--strip", default="strip", help="of the binaries' architecture")
    parser.add_argument("--sysroot", default="", help="where the libraries came from that were linked in; empty: this machine")
    options = parser.parse_args()

    binaries = [(options.program, True)] + [(path, False) for path, _ in package_files(options.package) if path.endswith(".so")]
    if options.platform.startswith("manylinux"):
        broken = [f"{path}: {why}" for path, is_program in binaries for why in broken_promises(path, is_program)]
        if broken:
            sys.exit(f"make_wheel.py: not for {options.platform}: " + "; ".join(broken))
    try:
        texts = licenses.collect(options.sysroot)
    except LookupError as error:
        sys.exit(f"make_wheel.py: {error}")
    texts.append(("LICENSE", read(os.path.join(HERE, "..", "..", "LICENSE"))))

    # Of the program nothing is named at run time. The names in the libraries are in the stacks of the ranks.
    program = stripped(options.strip, options.program, "--strip-all")
    package = [(name, stripped(options.strip, path, "--strip-debug") if path.endswith(".so") else read(path), path.endswith(".so"))
               for path, name in package_files(options.package)]
    package.append(("taskd_torch.pth", read(os.path.join(HERE, "taskd_torch.pth")), False))

    share = [(name, read(path), False) for path, name in share_files(options.share)]
    if not share:
        sys.exit(f"make_wheel.py: no completion and man pages in {options.share}")

    os.makedirs(options.out, exist_ok=True)
    seconds = source_time()
    info = f"taskd-{options.version}.dist-info"
    tag = f"py3-none-{options.platform}"
    wheel = package + [("taskd/bin/taskd", program, True)] + [(f"{info}/licenses/{name}", text, False) for name, text in texts]
    wheel += [(f"taskd-{options.version}.data/data/{name}", data, False) for name, data, _ in share]
    replace(os.path.join(options.out, f"taskd-{options.version}-{tag}.whl"),
            wheel_bytes(wheel, info, tag, options.version, options.url, seconds))

    top = f"taskd-{options.version}-linux-{re.sub('^[a-z]+[0-9]*_', '', options.platform)}"
    archive = [("bin/taskd", program, True), *share]
    archive += [(f"python/{name}", data, executable) for name, data, executable in package]
    archive += [(f"lib/{library}", data, True) for library in LIBRARIES
                for name, data, _ in package if os.path.basename(name) == library]
    archive += [(name if name == "LICENSE" else f"licenses/{name}", text, False) for name, text in texts]
    replace(os.path.join(options.out, f"{top}.tar.gz"),
            archive_bytes(top, archive, {"python/taskd/bin/taskd": "../../../bin/taskd"}, seconds))


if __name__ == "__main__":
    main()
