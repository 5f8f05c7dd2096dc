"""Puts the staged package and the program into a wheel, with nothing but the standard library.

A wheel is a zip file with a list of its own contents. Its binaries need no Python in particular (ctypes, and an extension of
the stable ABI), so its tag is py3-none and the platform.
"""
import argparse
import base64
import hashlib
import os
import sysconfig
import zipfile

METADATA = """Metadata-Version: 2.1
Name: taskd
Version: {version}
Summary: Daemon of a distributed training job: marks, switches and slow-node diagnosis
License: Apache-2.0
Requires-Python: >=3.7
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
# Of all files the same, so that the same sources give the same wheel.
TIMESTAMP = (2020, 1, 1, 0, 0, 0)


def package_files(package):
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "bin"))
        for name in sorted(names):
            if not name.endswith(".pyc"):
                path = os.path.join(folder, name)
                yield path, os.path.join("taskd", os.path.relpath(path, package))


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--version", "--package", "--program", "--out"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()

    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    info = f"taskd-{options.version}.dist-info"
    here = os.path.dirname(os.path.abspath(__file__))
    contents = [(name, open(path, "rb").read(), path.endswith(".so")) for path, name in package_files(options.package)]
    contents.append(("taskd/bin/taskd", open(options.program, "rb").read(), True))
    contents.append(("taskd_torch.pth", open(os.path.join(here, "taskd_torch.pth"), "rb").read(), False))
    for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("entry_points.txt", ENTRY_POINTS)):
        contents.append((f"{info}/{name}", text.format(version=options.version, tag=tag).encode(), False))
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data, _ in contents)
    contents.append((f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), False))

    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, f"taskd-{options.version}-{tag}.whl")
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data, executable in contents:
            entry = zipfile.ZipInfo(name, TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data)
    os.replace(path + ".new", path)
    print(path)


if __name__ == "__main__":
    main()
