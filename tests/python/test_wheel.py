"""The wheel and the archive: they install without any index, in every kind of place, and what they bring works from there."""
import email
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import conftest
from deadlines import wait_child

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(REPOSITORY, "worker_sdk", "python")
sys.path.insert(0, PACKAGING)
import licenses  # noqa: E402

ARCHITECTURE = os.uname().machine
with open(os.path.join(REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as lists:
    VERSION = re.search(r"^project\(taskd VERSION ([\d.]+)", lists.read(), re.M)[1]


def cached(name):
    """A variable of CMake's in the build that is tested."""
    with open(os.path.join(conftest.BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        found = re.search(rf"^{name}:\w+=(.*)$", cache.read(), re.M)
    return found[1] if found else ""


def pack(out, program=None, platform=None, sysroot="", url="", package=None, **environment):
    """Runs make_wheel.py on what is built."""
    platform = platform or f"{'manylinux2014' if cached('TASKD_STATIC') == 'ON' else 'linux'}_{ARCHITECTURE}"
    return subprocess.run([sys.executable, os.path.join(PACKAGING, "make_wheel.py"), "--version", VERSION, "--platform", platform,
                           "--package", package or os.path.join(conftest.BUILD, "python", "taskd"), "--sysroot", sysroot, "--url", url,
                           "--share", os.path.join(conftest.BUILD, "share"),
                           "--program", program or os.path.join(conftest.BUILD, "bin", "taskd"), "--out", str(out)],
                          check=False, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """(wheel, archive)"""
    if not os.access(os.path.join(conftest.BUILD, "bin", "taskd"), os.X_OK):
        pytest.skip("taskd is not built")
    made = pack(tmp_path_factory.mktemp("dist"))
    assert made.returncode == 0, made.stderr
    return made.stdout.split()


@pytest.fixture
def wheel(packed):
    return packed[0]


@pytest.fixture
def archive(packed):
    return packed[1]


def test_installs_and_works(world, wheel):
    assert re.fullmatch(rf"taskd-{re.escape(VERSION)}-py3-none-(many)?linux(2014)?_{ARCHITECTURE}\.whl", os.path.basename(wheel))
    with zipfile.ZipFile(wheel) as file:
        listed = set(file.namelist())
    assert {"taskd/bin/taskd", "taskd/_mstx.abi3.so", "taskd/python/cython_api/libs/libtaskd.so", "taskd_torch.pth"} <= listed
    assert not any("__pycache__" in name for name in listed)
    target = world.path("site")
    install = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", target, wheel],
                             capture_output=True, text=True, env=world.environment, check=False)
    assert install.returncode == 0, install.stderr
    assert os.access(os.path.join(target, "taskd", "bin", "taskd"), os.X_OK)
    for name in ("man/man1/taskd-run.1", "bash-completion/completions/taskd"):
        assert os.path.isfile(os.path.join(target, "share", name))
    output = world.run(f"""
import os, sys
import taskd
assert taskd.__file__.startswith({target!r}), taskd.__file__
from taskd import mstx
from taskd.api import *
from taskd.python.utils import daemon
assert mstx.backend == "extension" and init_taskd_worker(0) and start_taskd_worker()
assert daemon.program() == os.path.join({target!r}, "taskd", "bin", "taskd")
print("fine")
""", PYTHONPATH=target)
    assert output.endswith("fine\n")
    for command in (["bin/taskd", "run"], ["bin/torch_npu_run"]):
        script = world.write("rank.py", "import os, sys; print(os.environ['RANK'], sys.executable, *sys.argv[1:])")
        ran = subprocess.run([os.path.join(target, command[0]), *command[1:], "--standalone", "--no-taskd", script, "--x", "1"],
                             env={**world.environment, "PYTHONPATH": target}, cwd=world.folder, capture_output=True, text=True,
                             check=False)
        assert (ran.returncode, ran.stdout) == (0, f"0 {sys.executable} --x 1\n"), ran.stderr
    help_text = subprocess.run([os.path.join(target, "bin", "taskd"), "--help"], env={**world.environment, "PYTHONPATH": target},
                               capture_output=True, text=True, check=False)
    assert help_text.returncode == 0 and "proxy" in help_text.stdout


# ---- Where it is installed

CHECKS = """
import ctypes, os, subprocess, sys
import taskd
from taskd import mstx
from taskd.python.cython_api import cython_api
site = os.path.dirname(os.path.dirname(taskd.__file__))
assert site.startswith(ROOT), site
assert cython_api.LIBRARY_PATH == os.path.join(site, "taskd/python/cython_api/libs/libtaskd.so")
assert mstx.backend == "extension", mstx.backend
environment = dict(os.environ, LD_PRELOAD=cython_api.LIBRARY_PATH)
maps = subprocess.run([sys.executable, "-S", "-c", "print(open('/proc/self/maps').read())"], env=environment, check=True,
                      stdout=subprocess.PIPE).stdout.decode()
assert cython_api.LIBRARY_PATH in maps
# The line in the .pth file is read by the start of an interpreter, here as in a rank of a job.
environment = dict(os.environ, RANK="0", TASKD_TORCH="1")
loaded = subprocess.run([sys.executable, "-c", "import sys; print('taskd' in sys.modules)"], env=environment, check=True,
                        stdout=subprocess.PIPE).stdout.decode()
assert loaded == PTH, loaded
version = subprocess.run([os.path.join(SCRIPTS, "taskd"), "--version"], check=True, stdout=subprocess.PIPE).stdout.decode()
assert taskd.__version__ in version, version
print("fine")
"""


class Place:
    """Somewhere that pip installs to."""

    def __init__(self, world, root, python=sys.executable, scripts="bin", options=(), pth=True, prefix=(), own_pip=False):
        self.root = root  # everything is installed below it
        self.python = python
        # The pip of this Python works on other ones too, but not on much newer ones.
        self._pip = [python, "-m", "pip"] if own_pip else [sys.executable, "-m", "pip", "--python", python]
        self.scripts = os.path.join(root, scripts)
        self.options = list(options)  # of pip install
        self.pth = pth
        self.prefix = list(prefix)  # of every command
        self.environment = {**world.environment, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                            "PIP_ROOT_USER_ACTION": "ignore", "HOME": world.path("home"), "PYTHONPATH": ""}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip compiles is part of what it must remove

    def run(self, *command, check=True):
        done = subprocess.run([*self.prefix, *command], env=self.environment, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pip(self, *arguments):
        return self.run(*self._pip, *arguments)

    def install(self, wheel):
        self.pip("install", "--no-index", *self.options, wheel)

    def check(self):
        code = f"ROOT, SCRIPTS, PTH = {self.root!r}, {self.scripts!r}, {str(self.pth)!r} + '\\n'\n" + CHECKS
        assert self.run(self.python, "-B", "-c", code) == "fine\n"

    def files(self):
        return {os.path.join(folder, name) for folder, _, names in os.walk(self.root) for name in names}


def venv(root, *options, python=sys.executable):
    subprocess.run([python, "-m", "venv", *options, root], check=True)
    return root


def virtual_environment(world):
    root = venv(world.path("venv"), "--without-pip")
    return Place(world, root, python=f"{root}/bin/python")


def moved_prefix(world):
    """As conda's: an interpreter of its own that is not where it was made."""
    root = world.path("opt/env")
    os.makedirs(world.path("opt"))
    os.rename(venv(world.path("made"), "--without-pip", "--copies"), root)
    assert not os.path.islink(f"{root}/bin/python3")
    return Place(world, root, python=f"{root}/bin/python3")


def user(world):
    return Place(world, world.path("home/.local"), options=["--user"])


def target(world):
    # Python reads .pth files in its own folders only, and PYTHONPATH names none of these.
    place = Place(world, world.path("target"), options=["--target", world.path("target")], pth=False)
    place.environment["PYTHONPATH"] = place.root
    return place


def own_prefix(world):
    root = world.path("prefix")
    place = Place(world, root, options=["--prefix", root], scripts="local/bin", pth=False)
    place.environment["PYTHONPATH"] = f"{root}/local/lib/python3.{sys.version_info.minor}/dist-packages"
    if not os.path.exists("/usr/lib/python3/dist-packages"):
        pytest.skip("the layout of --prefix is that of Debian's Python here")
    return place


def system(world):
    """The machine's own Python, whose /usr/local is a folder of this test in a mount namespace."""
    root = world.path("local")
    os.makedirs(root)
    prefix = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c",
              f'mount --bind {root} /usr/local && exec "$@"', "sh"]
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    place = Place(world, "/usr/local", prefix=prefix)
    place.files = lambda: {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}
    return place


@pytest.mark.parametrize("make", [virtual_environment, moved_prefix, user, target, own_prefix, system])
def test_place(world, wheel, make):
    place = make(world)
    before = place.files()
    place.install(wheel)
    assert place.files() > before
    place.check()
    if "--target" in place.options:
        return  # pip has no way back from there but `rm -r`
    place.pip("uninstall", "-y", "taskd")
    assert place.files() == before


def test_pth_of_a_target_folder_works_where_the_folder_is_a_site_folder(world, wheel):
    """What docs/install.md says of --target."""
    place = target(world)
    place.install(wheel)
    place.environment.update(PYTHONPATH="", RANK="0", TASKD_TORCH="1")
    code = f"import site, sys; site.addsitedir({place.root!r}); print('taskd' in sys.modules)"
    assert place.run(sys.executable, "-B", "-c", code) == "True\n"


def interpreter(minor):
    """A CPython 3.<minor> of this machine that works, or None."""
    named = [shutil.which(f"python3.{minor}", path="/usr/bin:/usr/local/bin"),
             *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python3.{minor}")), *glob.glob(f"/opt/*/bin/python3.{minor}")]
    for python in filter(None, named):
        if subprocess.run([python, "-c", "import ctypes, ensurepip, venv"], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.mark.parametrize("minor", range(7, 14))
def test_interpreter(world, wheel, minor):
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} with pip here")
    root = venv(world.path("venv"), python=python)
    place = Place(world, root, python=f"{root}/bin/python", own_pip=True)
    place.install(wheel)
    place.check()


# ---- deploy/Containerfile, as far as it goes without a container

def stages():
    """[(its FROM, [its other instructions])] of deploy/Containerfile."""
    with open(os.path.join(REPOSITORY, "deploy", "Containerfile"), encoding="utf-8") as file:
        text = re.sub(r"^#.*\n", "", file.read(), flags=re.M).replace("\\\n", " ")
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("FROM "):
            found.append((line[5:], []))
        elif found:
            found[-1][1].append(line)
    return found


def test_container_build_takes_the_architecture_of_the_image(world):
    """The last command of the build stage, with a wheels.sh that only says how it was called."""
    origin, instructions = stages()[0]
    assert "--platform=${BUILDPLATFORM}" in origin, "the compiler runs on the machine that builds"
    os.makedirs(world.path("deploy"))
    world.write("deploy/wheels.sh", "#!/bin/sh\necho $*\n", 0o755)
    said = [subprocess.run(["sh", "-c", instructions[-1].removeprefix("RUN ")], env={**os.environ, "TARGETARCH": target},
                           cwd=world.folder, capture_output=True, text=True, check=False).stdout for target in ("amd64", "arm64", "riscv64")]
    assert said == ["--arch x86_64\n", "--arch aarch64\n", ""]


def test_container_installs_the_wheel_and_nothing_else(world, wheel):
    """The command of the final stage, in a virtual environment where the image would be."""
    origin, instructions = stages()[-1]
    assert origin == "${BASE}"
    copy, run = [line for line in instructions if re.match("RUN|COPY|ADD", line)]
    assert copy == "COPY --from=build /src/dist/taskd-*.whl /tmp/taskd/"
    install, program = re.fullmatch(r"RUN (.*) && rm -r /tmp/taskd && (.*)", run).groups()  # the wheel does not stay
    command = f"{install} && {program}"
    assert not re.search(r"\b(apt|apt-get|apk|dnf|yum)\b|https?:", command)
    place = virtual_environment(world)
    subprocess.run([f"{place.root}/bin/python3", "-m", "ensurepip"], check=False, capture_output=True)
    if subprocess.run([f"{place.root}/bin/python3", "-m", "pip", "--version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no virtual environment with a pip of its own here (Debian: python3-venv)")
    place.environment["PATH"] = f"{place.root}/bin:{os.environ['PATH']}"
    said = place.run("sh", "-c", command.replace("/tmp/taskd", os.path.dirname(wheel)))
    assert VERSION in said.splitlines()[-1]
    place.check()


# ---- What is in it

def test_archive_works_where_it_is_unpacked(world, archive):
    with tarfile.open(archive) as file:
        for member in file:
            assert (member.uid, member.gid) == (0, 0) and member.mode in (0o644, 0o755)
        file.extractall(world.folder)
    top = world.path(f"taskd-{VERSION}-linux-{ARCHITECTURE}")
    assert sorted(os.listdir(top)) == ["LICENSE", "bin", "lib", "licenses", "python", "share"]
    assert VERSION in subprocess.run([f"{top}/bin/taskd", "--version"], check=True, capture_output=True, text=True).stdout
    script = world.write("rank.py", "import os; print(os.environ['LD_PRELOAD'])")
    ran = subprocess.run([f"{top}/bin/taskd", "run", "--standalone", script], env=world.environment, cwd=world.folder,
                         capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"{top}/lib/libtaskd.so\n"), ran.stderr
    assert world.run("from taskd import mstx; from taskd.python.utils import daemon; print(mstx.backend, daemon.program())",
                     PYTHONPATH=f"{top}/python") == f"extension {top}/python/taskd/bin/taskd\n"


def test_same_bytes_twice(packed, tmp_path):
    again = pack(tmp_path, TZ="Asia/Tokyo", LC_ALL="C")
    assert again.returncode == 0, again.stderr
    for first, second in zip(packed, again.stdout.split(), strict=True):
        with open(first, "rb") as one, open(second, "rb") as two:
            assert hashlib.sha256(one.read()).hexdigest() == hashlib.sha256(two.read()).hexdigest(), first


def test_time_is_the_one_that_is_given(tmp_path, packed):
    wheel, archive = pack(tmp_path, SOURCE_DATE_EPOCH="1700000000").stdout.split()
    with zipfile.ZipFile(wheel) as file:
        assert {entry.date_time for entry in file.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    with tarfile.open(archive) as file:
        assert {entry.mtime for entry in file} == {1700000000}


def test_no_build_paths(wheel):
    paths = [os.fsencode(path) for path in (REPOSITORY, conftest.BUILD, cached("CMAKE_SYSROOT")) if path]
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            data = file.read(name)
            assert not [path for path in paths if path in data], name


def test_stacks_can_name_what_is_loaded_into_ranks(world, wheel):
    """The names of a library's own functions are in .symtab, which the program, in which nobody looks for them, has not."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(world.folder)

    def symbols(path):
        return subprocess.run(["nm", world.path(path)], check=True, capture_output=True, text=True).stdout
    assert re.search(r" t .*OnStackSignal", symbols("taskd/python/cython_api/libs/libtaskd.so"))
    assert symbols("taskd/bin/taskd") == ""


def test_licenses(wheel, archive):
    """Every static library that the program is linked with is of a component whose license text is in the wheel."""
    with zipfile.ZipFile(wheel) as file:
        texts = {name.partition("/licenses/")[2]: file.read(name).decode() for name in file.namelist() if "/licenses/" in name}
        metadata = file.read(f"taskd-{VERSION}.dist-info/METADATA").decode()
    assert set(re.findall("^License-File: (.*)$", metadata, re.M)) == set(texts)
    assert "Apache License" in texts["LICENSE"]
    index = texts["README.txt"]
    for component, _, _, _ in licenses.LINKED:
        (name,) = re.findall(rf"^{re.escape(component)} +\S+ +(\S+)$", index, re.M)
        assert len(texts[name]) > 500
        for common in re.findall(r"/usr/share/common-licenses/([\w-]+(?:\.\d+)*)", texts[name]):
            assert texts[f"common-licenses/{common}.txt"]
    with tarfile.open(archive) as file:
        assert {name.partition("/licenses/")[2] for name in file.getnames()} >= set(texts) - {"LICENSE"}
    commands = subprocess.run(["ninja", "-C", conftest.BUILD, "-t", "commands", "bin/taskd"], check=True, capture_output=True, text=True)
    # Shared libraries stand for their archives where the program is static. Relative paths are what is built here.
    link = commands.stdout.splitlines()[-1].split()
    libraries = {found[1] for found in (re.fullmatch(r"(?:/.*/lib|-l)([^/]+?)(?:\.a|\.so[.\d]*)?", word) for word in link) if found}
    assert libraries >= {"grpc++", "protobuf", "sqlite3"}
    assert not [library for library in libraries if not licenses.component_of(library)]


def test_metadata(tmp_path, wheel):
    """What a package index shows of it. The text is below the fields, and so is no field."""
    with zipfile.ZipFile(wheel) as file:
        fields = email.message_from_bytes(file.read(f"taskd-{VERSION}.dist-info/METADATA"))
    assert (fields["Name"], fields["Version"], fields["Requires-Python"]) == ("taskd", VERSION, ">=3.7")
    assert fields["Description-Content-Type"] == "text/markdown" and fields.get_payload().startswith("# TaskD\n")
    assert "Operating System :: POSIX :: Linux" in fields.get_all("Classifier")
    assert fields["Project-URL"] is None
    made = pack(tmp_path, url="https://taskd.example.com")
    with zipfile.ZipFile(made.stdout.split()[0]) as file:
        fields = email.message_from_bytes(file.read(f"taskd-{VERSION}.dist-info/METADATA"))
    assert fields["Project-URL"] == "Homepage, https://taskd.example.com"


def test_modules_that_a_build_folder_has_kept_are_not_packed(tmp_path, wheel):
    package = tmp_path / "taskd"
    shutil.copytree(os.path.join(conftest.BUILD, "python", "taskd"), package, symlinks=True)
    (package / "removed_long_ago.py").touch()
    made = pack(tmp_path / "dist", package=str(package))
    with open(made.stdout.split()[0], "rb") as again, open(wheel, "rb") as first:
        assert again.read() == first.read()


def test_a_missing_license_is_an_error(tmp_path, packed):
    """In a tree of packages that has the version of everything and the text of nothing but zlib."""
    packages = "".join(f"{re.sub(r'.d[+]', '1', pattern)} 1\n" for _, pattern, _, _ in licenses.LINKED)
    (tmp_path / ".packages").write_text(packages.replace("\\.", "."))
    os.makedirs(tmp_path / "usr/share/doc/zlib1g-dev")
    (tmp_path / "usr/share/doc/zlib1g-dev/copyright").write_text("zlib's")
    made = pack(tmp_path / "dist", sysroot=str(tmp_path))
    assert made.returncode == 1
    (line,) = made.stderr.splitlines()
    assert "no license text of Abseil" in line and "OpenSSL" in line and "zlib" not in line
    assert not os.path.exists(tmp_path / "dist")


@pytest.mark.parametrize("program, why", [("/bin/ls", "ls: it needs libc.so.6")])
def test_the_tag_is_not_given_to_what_needs_more(tmp_path, packed, program, why):
    made = pack(tmp_path, program=program, platform=f"manylinux2014_{ARCHITECTURE}")
    assert made.returncode == 1 and why in made.stderr and "it needs the system's loader" in made.stderr
    assert os.listdir(tmp_path) == []


# ---- Its parts by themselves

@pytest.mark.parametrize("named, python", [({}, sys.executable), ({"PYTHON_EXEC": "/opt/python"}, "/opt/python")])
def test_module_run_becomes_the_program(world, named, python):
    world.environment["TASKD_BIN"] = world.write("fake", """#!/bin/sh
echo "$$ $PYTHON_EXEC $@"
exit 7
""", 0o755)
    child = world.start(sys.executable, "-m", "taskd.run", "--nnodes=1", "train.py", "--a b", **named)
    assert wait_child(child) == 7
    assert world.output() == f"{child.pid} {python} run --nnodes=1 train.py --a b\n"


def test_pth_imports_the_package_only_where_it_is_needed(world):
    line = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker_sdk", "python", "taskd_torch.pth")
    code = f"import sys\nexec(open({line!r}).read())\nprint('taskd' in sys.modules, 'torch' in sys.modules)"
    assert world.run(code, TASKD_TORCH="1", RANK="0").split() == ["True", "False"]
    assert world.run(code, TASKD_RUN_COOKIE="c0ffee", RANK="0").split() == ["True", "False"]
    # Its rank may come as late as with init_process_group.
    assert world.run(code, TASKD_TORCH="1").split() == ["True", "False"]
    assert world.run(code, TASKD_RUN_COOKIE="c0ffee").split() == ["False", "False"]
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        assert world.run(code, TASKD_RUN_COOKIE="c0ffee", **{name: "0"}).split() == ["True", "False"]
    assert world.run(code, RANK="0", SLURM_PROCID="0").split() == ["False", "False"]
    assert world.run(code, TASKD_TORCH="1", RANK="0", PYTHONPATH="/nonexistent").split() == ["False", "False"]
