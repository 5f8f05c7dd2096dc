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
def control():
    """(messages, services) of taskd.v1.Control. Not in a process that imports the package `taskd`: the names clash."""
    folder = _generate("taskd/v1/switch.proto", "taskd/v1/node.proto", "taskd/v1/control.proto")
    for package in ("taskd", "taskd/v1"):
        open(os.path.join(folder, package, "__init__.py"), "w", encoding="utf-8").close()
    return importlib.import_module("taskd.v1.control_pb2"), importlib.import_module("taskd.v1.control_pb2_grpc")
