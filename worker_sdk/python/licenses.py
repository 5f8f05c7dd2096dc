"""The license texts of what is linked into `taskd`, as the Debian packages that brought it state them.

Prints the list: component, version, file. Or writes the texts to a folder, or prints a bill of materials (SPDX 2.3, JSON).
"""
import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys

# The component; its package, as a regular expression where the name has a version in it; its static libraries, none where
# headers are all there is; its license as SPDX calls it. tests/python/test_wheel.py holds it against what the program is linked with.
LINKED = (
    ("Abseil", "libabsl-dev", r"absl_\w+", "Apache-2.0"),
    ("Boost", r"libboost1\.\d+-dev", r"boost_\w+", "BSL-1.0"),
    ("c-ares", "libc-ares-dev", r"cares", "MIT"),
    ("CLI11", "libcli11-dev", None, "BSD-3-Clause"),
    ("fmt", "libfmt-dev", r"fmt", "MIT"),
    ("GCC runtime", r"gcc-\d+-base", r"stdc\+\+|gcc|gcc_eh|atomic", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("glibc", "libc6-dev", r"c|m|pthread|dl|rt", "LGPL-2.1-or-later"),
    ("gRPC", "libgrpc-dev", r"grpc|grpc\+\+|grpc\+\+_reflection|gpr|upb|address_sorting", "Apache-2.0"),
    ("jemalloc", "libjemalloc-dev", r"jemalloc_pic", "BSD-2-Clause"),
    ("JSON for Modern C++", "nlohmann-json3-dev", None, "MIT"),
    ("nghttp2", "libnghttp2-dev", r"nghttp2", "MIT"),
    ("OpenSSL", "libssl-dev", r"ssl|crypto", "Apache-2.0"),
    ("Protobuf", "libprotobuf-dev", r"protobuf", "BSD-3-Clause"),
    ("RE2", "libre2-dev", r"re2", "BSD-3-Clause"),
    ("spdlog", "libspdlog-dev", r"spdlog", "MIT"),
    ("SQLite", "libsqlite3-dev", r"sqlite3", "blessing"),
    ("zlib", "zlib1g-dev", r"z", "Zlib"),
    ("Zstandard", "libzstd-dev", r"zstd", "BSD-3-Clause"),
)
_INDEX = """TaskD is under the Apache License 2.0 (LICENSE). Its program `taskd` contains these components, taken from Debian.
What Debian says of each is in the file named; the licenses that those files only name are in common-licenses.

"""


def component_of(library):
    """Whose static library lib<library>.a is; None: it is not known."""
    return next((name for name, _, libraries, _ in LINKED if libraries and re.fullmatch(libraries, library)), None)


def _installed(sysroot):
    """{package: version} of this machine, or of a folder that deploy/sysroot.sh made."""
    if sysroot:
        with open(os.path.join(sysroot, ".packages"), encoding="utf-8") as packages:
            lines = packages.read().splitlines()
    else:
        lines = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"], check=True, capture_output=True,
                               text=True).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


def _packages(sysroot):
    """[(component, package, version, license)]; package and version are None where Debian's package is missing."""
    installed = _installed(sysroot)
    for component, pattern, _, license_name in LINKED:
        # Of several versions beside each other the newest is the one that the compiler takes.
        packages = sorted((p for p in installed if re.fullmatch(pattern, p)), key=lambda p: [int(n) for n in re.findall(r"\d+", p)])
        yield (component, packages[-1], installed[packages[-1]], license_name) if packages else (component, None, None, license_name)


def collect(sysroot, common="/usr/share/common-licenses"):
    """[(file name, bytes)] for a folder of licenses. Raises LookupError naming all that are missing."""
    missing, index, named, files = [], [], set(), []
    for component, package, version, _ in _packages(sysroot):
        path = os.path.join(sysroot or "/", "usr/share/doc", package or "", "copyright")
        if not package or not os.path.isfile(path):
            missing.append(f"{component} ({path if package else 'no such package'})")
            continue
        with open(path, "rb") as file:
            text = file.read()
        name = component.replace(" ", "-") + ".txt"
        files.append((name, text))
        index.append(f"{component:<20} {version:<28} {name}\n")
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


def bill_of_materials(version, architecture, seconds, sysroot):
    """An SPDX document of the program: the same components and versions as collect()'s list. LookupError as there."""
    distribution = {"x86_64": "amd64", "aarch64": "arm64"}[architecture]
    name = f"taskd-{version}-linux-{architecture}"
    packages = [{"SPDXID": "SPDXRef-taskd", "name": "taskd", "versionInfo": version, "licenseDeclared": "Apache-2.0"}]
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-taskd")]
    for component, package, package_version, license_name in _packages(sysroot):
        if not package:
            raise LookupError(f"no package of {component}")
        identifier = "SPDXRef-" + re.sub("[^A-Za-z0-9.-]+", "-", component)
        location = f"pkg:deb/debian/{package.replace('+', '%2B')}@{package_version.replace('+', '%2B')}?arch={distribution}"
        packages.append({"SPDXID": identifier, "name": component, "versionInfo": package_version, "supplier": "Organization: Debian",
                         "licenseDeclared": license_name, "externalRefs": [
                             {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": location}]})
        relationships.append(("SPDXRef-taskd", "STATIC_LINK", identifier))
    for package in packages:
        package.update(downloadLocation="NOASSERTION", filesAnalyzed=False, licenseConcluded="NOASSERTION", copyrightText="NOASSERTION")
    digest = hashlib.sha256(json.dumps(packages).encode()).hexdigest()[:16]
    created = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
            "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest}",
            "creationInfo": {"created": created, "creators": ["Tool: taskd-licenses.py"]}, "packages": packages,
            "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
                              for one, kind, other in relationships]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sysroot", default="", help="where the libraries came from that were linked in; empty: this machine")
    parser.add_argument("--out", help="the folder to write the texts to")
    parser.add_argument("--bill", metavar="VERSION-ARCHITECTURE", help="print the bill of materials; SOURCE_DATE_EPOCH is its time")
    options = parser.parse_args()
    if options.bill:
        version, _, architecture = options.bill.rpartition("-")
        bill = bill_of_materials(version, architecture, int(os.environ["SOURCE_DATE_EPOCH"]), options.sysroot)
        print(json.dumps(bill, indent=1))
        return
    texts = collect(options.sysroot)
    if not options.out:
        print(texts[0][1].decode()[len(_INDEX):], end="")
        return
    for name, text in texts:
        path = os.path.join(options.out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text)


if __name__ == "__main__":
    try:
        main()
    except LookupError as error:
        sys.exit(f"licenses.py: {error}")
