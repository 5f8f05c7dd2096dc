"""gRPC stubs made from the .proto files, as anybody with protoc makes them.

`profiling()` is what a ClusterD user has: proto/profiling.proto and nothing else. `control()` is TaskD's own interface.
"""
import atexit
import functools
import importlib
import os
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTO = os.path.join(REPOSITORY, "proto")


def _generate(*protos):
    folder = tempfile.mkdtemp(prefix="taskd-stubs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    plugin = shutil.which("grpc_python_plugin")
    subprocess.run(
        ["protoc", f"--proto_path={PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}",
         f"--plugin=protoc-gen-grpc_python={plugin}", *protos], check=True)
    sys.path.insert(0, folder)
    return folder


@functools.cache
def profiling():
    """(messages, services) of ClusterD's TrainingDataTrace."""
    _generate("profiling.proto")
    return importlib.import_module("profiling_pb2"), importlib.import_module("profiling_pb2_grpc")


@functools.cache
def health():
    """(messages, services) of grpc.health.v1.Health."""
    _generate("health.proto")
    return importlib.import_module("health_pb2"), importlib.import_module("health_pb2_grpc")


@functools.cache
def pubfault():
    """(messages, services) of ClusterD's PubFault."""
    _generate("pubfault.proto")
    return importlib.import_module("pubfault_pb2"), importlib.import_module("pubfault_pb2_grpc")


@functools.cache
def nvsentinel():
    """(messages, services) of NVSentinel's PlatformConnector."""
    _generate("nvsentinel.proto")
    return importlib.import_module("nvsentinel_pb2"), importlib.import_module("nvsentinel_pb2_grpc")


@functools.cache
def _taskd_v1():
    folder = _generate(*(f"taskd/v1/{name}.proto" for name in ("switch", "fold", "node", "supervision", "control", "diagnosis", "job_link", "route_agreement")))
    for package in ("taskd", "taskd/v1"):
        open(os.path.join(folder, package, "__init__.py"), "w", encoding="utf-8").close()


def _of_taskd_v1(name):
    _taskd_v1()
    return importlib.import_module(f"taskd.v1.{name}_pb2"), importlib.import_module(f"taskd.v1.{name}_pb2_grpc")


# (messages, services) of TaskD's own interfaces. Not in a process that imports the package `taskd`: the names clash.
def control():
    return _of_taskd_v1("control")


def diagnosis():
    return _of_taskd_v1("diagnosis")


def node():
    return _of_taskd_v1("node")


def supervision():
    return _of_taskd_v1("supervision")


def job_link():
    return _of_taskd_v1("job_link")


def route_agreement():
    return _of_taskd_v1("route_agreement")
