"""Libraries that load beside an old glibc and such as do not, as readelf prints them."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import symbol_floor  # noqa: E402


def needed(*libraries):
    return "".join(f" 0x0000000000000001 (NEEDED)             Shared library: [{name}]\n" for name in libraries)


def versions(*names):
    lines = "".join(f"  0x00{i + 1}0:   Name: {name}  Flags: none  Version: {i + 2}\n" for i, name in enumerate(names))
    return ("Version definition section '.gnu.version_d' contains 1 entry:\n"
            "  000000: Rev: 1  Flags: none  Index: 1  Cnt: 1  Name: GLIBC_2.99\n\n"
            "Version needs section '.gnu.version_r' contains 1 entry:\n"
            f"  000000: Version: 1  File: libc.so.6  Cnt: {len(names)}\n{lines}")


def symbols(*names):
    return "".join(f"     {i}: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND {name} (2)\n"
                   for i, name in enumerate(names))


def test_a_library_that_needs_old_things_only():
    assert symbol_floor.problems(
        needed("libdl.so.2", "libpthread.so.0", "libc.so.6", "ld-linux-aarch64.so.1"),
        versions("GLIBC_2.2.5", "GLIBC_2.3.4", "GLIBC_2.14", "GLIBC_2.17"),
        symbols("dlopen@GLIBC_2.2.5", "pthread_create@GLIBC_2.2.5", "memcpy@GLIBC_2.14")) == []


@pytest.mark.parametrize("version", ["GLIBC_2.18", "GLIBC_2.34", "GLIBC_3.0", "GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR",
                                     "GLIBCXX_3.4", "GCC_3.0"])
def test_a_version_above_the_floor(version):
    assert symbol_floor.problems(
        needed("libc.so.6"), versions("GLIBC_2.17", version), symbols(f"foo@{version}", "bar@GLIBC_2.17")
    ) == [f"needs {version} for foo"]


def test_a_version_that_no_symbol_names():
    assert symbol_floor.problems(needed("libc.so.6"), versions("GLIBC_ABI_DT_RELR"), "") == ["needs GLIBC_ABI_DT_RELR"]


@pytest.mark.parametrize("library", ["libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpython3.11.so.1.0"])
def test_another_library(library):
    assert symbol_floor.problems(needed("libc.so.6", library), versions("GLIBC_2.17"), "") == [
        f"needs the library {library}"]


@pytest.mark.parametrize("library, name", [("libdl.so.2", "dlopen"), ("libdl.so.2", "dladdr"),
                                           ("libpthread.so.0", "pthread_create"), ("libpthread.so.0", "pthread_sigmask"),
                                           ("libpthread.so.0", "pthread_attr_setstacksize"),
                                           ("libpthread.so.0", "sem_wait")])
def test_a_function_that_an_old_libc_does_not_have_itself(library, name):
    printed = versions("GLIBC_2.17"), symbols(f"{name}@GLIBC_2.17")
    assert symbol_floor.problems(needed("libc.so.6"), *printed) == [
        f"does not name {library}, where an old glibc has {name}"]
    assert symbol_floor.problems(needed("libc.so.6", library), *printed) == []


def test_functions_that_libc_always_had():
    names = ("dl_iterate_phdr", "pthread_mutex_lock", "pthread_self", "pthread_attr_init", "pthread_attr_setdetachstate",
             "pthread_cond_wait", "pthread_setcancelstate")
    printed = versions("GLIBC_2.17"), symbols(*(f"{name}@GLIBC_2.17" for name in names))
    assert symbol_floor.problems(needed("libc.so.6"), *printed) == []


def test_what_is_no_library_is_not_passed():
    assert symbol_floor.problems("", "", "") == ["does not need libc.so.6: this is no list of what a library needs"]
