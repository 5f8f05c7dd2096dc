"""`cmake --install`, and what C programs find there: pkg-config and a CMake package."""
import os
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
