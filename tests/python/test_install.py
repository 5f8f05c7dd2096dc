"""`cmake --install`, what C programs find there (pkg-config and a CMake package), and the Debian package of it."""
import os
import re
import shutil
import subprocess

import pytest

import conftest

PROGRAM = """
#include <taskd/taskd.h>
int main(void) { return taskd_worker_init(3, 0, 0) == 0 && taskd_worker_destroy() == 0 ? 0 : 1; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(taskd REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE taskd::taskd)
"""


def done(*command, **environment):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    needs("cmake")
    if not os.path.isdir(os.path.join(conftest.BUILD, "share", "man")):
        pytest.skip("completion and man pages are not built")
    folder = tmp_path_factory.mktemp("prefix")
    done("cmake", "--install", conftest.BUILD, "--prefix", folder, "--strip")
    return folder


@pytest.fixture
def source(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    return tmp_path


def test_nothing_else_is_installed(prefix):
    assert sorted(os.listdir(prefix)) == ["bin", "include", "lib", "share"]
    assert sorted(os.listdir(prefix / "bin")) == ["taskd"]
    assert sorted(os.listdir(prefix / "include" / "taskd")) == ["taskd.h"]
    assert sorted(os.listdir(prefix / "lib")) == ["cmake", "libnccl-profiler-taskd.so", "libtaskd.so", "pkgconfig", "systemd"]
    assert sorted(os.listdir(prefix / "lib" / "systemd" / "system")) == ["taskd-manager@.service", "taskd-store@.service"]
    assert sorted(os.listdir(prefix / "share")) == ["bash-completion", "doc", "fish", "man", "zsh"]
    assert done(prefix / "bin" / "taskd", "--version").startswith("taskd ")


def test_man_finds_the_pages_beside_path(prefix):
    needs("man")
    path = f"{prefix / 'bin'}:{os.environ['PATH']}"
    assert done("man", "-w", "taskd-run", PATH=path).strip() == str(prefix / "share" / "man" / "man1" / "taskd-run.1")


def test_pkg_config(prefix, source):
    needs("pkg-config", "cc")
    flags = done("pkg-config", "--cflags", "--libs", "taskd", PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig")).split()
    done("cc", "-Wall", "-Werror", "-o", source / "program", source / "program.c", *flags)
    done(source / "program", LD_LIBRARY_PATH=str(prefix / "lib"))


def test_cmake_package(prefix, source):
    needs("cc")
    done("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    done("cmake", "--build", source / "build")
    done(source / "build" / "program")


# ---- The Debian package

@pytest.fixture(scope="module")
def package(tmp_path_factory, prefix):  # noqa: ARG001  (what it needs)
    needs("cpack", "dpkg-deb")
    folder = tmp_path_factory.mktemp("package")
    done("cpack", "--config", os.path.join(conftest.BUILD, "CPackConfig.cmake"), "-B", folder, SOURCE_DATE_EPOCH="1700000000")
    (path,) = folder.glob("taskd_*.deb")
    return path


def test_the_package_has_what_is_installed(prefix, package, tmp_path):
    done("dpkg-deb", "--extract", package, tmp_path)
    elsewhere = {"share/zsh/site-functions/_taskd": "share/zsh/vendor-completions/_taskd"}  # Debian's zsh looks there
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), prefix)
            path = elsewhere.get(path, path + ".gz" if "share/man/" in path else path)
            assert (tmp_path / "usr" / path).is_file(), path
    assert sorted(os.listdir(tmp_path)) == ["usr"]
    assert "OpenSSL" in (tmp_path / "usr/share/doc/taskd/copyright").read_text(encoding="utf-8")
    assert (tmp_path / "usr/share/doc/taskd/licenses/OpenSSL.txt").is_file()
    fields = done("dpkg-deb", "--field", package, "Package", "Version", "Depends")
    assert re.fullmatch(r"Package: taskd\nVersion: [\d.]+\nDepends: libc6 \(>= 2\.17\)\n", fields)
    owners = {(line.split()[1], line.split()[0][1:]) for line in done("dpkg-deb", "--contents", package).splitlines()}
    assert owners == {("root/root", "rwxr-xr-x"), ("root/root", "rw-r--r--")}


def test_the_package_is_reproducible(package, tmp_path):
    done("cpack", "--config", os.path.join(conftest.BUILD, "CPackConfig.cmake"), "-B", tmp_path, SOURCE_DATE_EPOCH="1700000000")
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


# In a copy of this machine's root that nobody keeps. dpkg -L names what is to be gone.
IN_AN_OVERLAY = """
mount -t tmpfs tmpfs "$1" && mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay overlay -o lowerdir=/,upperdir="$1"/upper,workdir="$1"/work "$1"/root || exit 77
cp "$2" "$1"/root/taskd.deb
mount -t tmpfs tmpfs "$1"/root/run
mount --rbind /dev "$1"/root/dev
exec chroot "$1"/root bash -ec '
  ! dpkg-query -W taskd || exit 77
  dpkg -i /taskd.deb >/dev/null
  taskd --version
  dpkg -V taskd
  ! command -v man >/dev/null || [ "$(man -w taskd-run)" = /usr/share/man/man1/taskd-run.1.gz ]
  ! command -v zsh >/dev/null || [ "$(zsh -c "autoload -Uz compinit && compinit -u -D && echo \\$_comps[taskd]")" = _taskd ]
  dpkg -L taskd >/tmp/files
  dpkg -r taskd >/dev/null
  ! dpkg-query -W taskd
  while read -r path; do [ -d "$path" ] || [ ! -e "$path" ] || echo "left: $path"; done </tmp/files
  [ ! -e /usr/share/doc/taskd ]'
"""


def test_the_package_installs_and_is_removed_cleanly(package, tmp_path):
    needs("unshare", "dpkg")
    if os.geteuid() != 0:
        pytest.skip("this is not root")
    ran = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-ec", IN_AN_OVERLAY, "bash", tmp_path, package],
                         capture_output=True, text=True, check=False)
    if ran.returncode == 77 or "unshare failed" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.fullmatch(r"taskd [\d.]+\n", ran.stdout)
