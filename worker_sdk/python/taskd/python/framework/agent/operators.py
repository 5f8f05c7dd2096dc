"""The functions that an agent lends to the manager, and the line to the node's proxy on which it asks for them.

Bytes on that line: worker_sdk/include/taskd/hello.h. A request's args may hold "args" (a list) and "kwargs" (an object);
the function is called with them, without any if args is absent or empty. The answer's message is the function's result:
"" for None, a str as it is, anything else as JSON. "declined": true says that there is no such function here.
"""
import json
import os
import socket
import struct
import threading
import time

from taskd._own_user import is_own_user_or_root
from taskd.python.utils.log import run_log

OPERATORS = ("KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR", "RESTART")

_MAGIC = 0x4C484454
_VERSION = 1
_ROLE_AGENT = 2
_HELLO = struct.Struct("=IHHiiII40x")
_REPLY = struct.Struct("=IHH56s")
_LENGTH = struct.Struct("=I")
_PEER = struct.Struct("iII")
_MAX_FRAME_BYTES = 64 * 1024
_MAX_MESSAGE_CHARS = 8 * 1024  # stays below a frame however it is escaped
_HANDSHAKE_TIMEOUT_S = 5.0
_RETRY_S = 1.0
_RETRY_REFUSED_S = 60.0

_functions = {}
_lock = threading.Lock()
_thread = None


def register(operator, function):
    """Raises ValueError: no such operator, or not a function. A later function replaces an earlier one."""
    if operator not in OPERATORS:
        raise ValueError(f"operator is {operator!r}; it must be one of {', '.join(OPERATORS)}")
    if not callable(function):
        raise ValueError(f"func is {function!r}; it must be callable")
    _functions[operator] = function


def registered(operator):
    """The function, or None."""
    return _functions.get(operator)


def listen():
    """Keeps a line to the proxy from now on, in a thread that ends with the process. A second call changes nothing."""
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_serve_for_ever, name="taskd-agent", daemon=True)
            _thread.start()


def _serve_for_ever():
    said = None
    while True:
        pause = _RETRY_S
        try:
            _serve_once()
            said = None
        except PermissionError as error:  # refused: asking soon again will not help
            pause = _RETRY_REFUSED_S
            run_log.error("agent: %s", error)
        except Exception as error:  # no proxy yet, or it went away
            if str(error) != said:
                said = str(error)
                run_log.info("agent: no line to the proxy (%s), trying again", said)
        time.sleep(pause)


def _serve_once():
    from taskd.api.taskd_proxy_api import socket_path

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_HANDSHAKE_TIMEOUT_S)
        line.connect(socket_path())
        _, uid, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if not is_own_user_or_root(uid):
            raise PermissionError(f"the socket's owner has uid {uid}; it must be this user or root")
        line.sendall(_HELLO.pack(_MAGIC, _VERSION, _ROLE_AGENT, -1, -1, os.getpid(), 0))
        magic, version, status, message = _REPLY.unpack(_receive(line, _REPLY.size))
        if magic != _MAGIC or version != _VERSION or status != 0:
            text = message.split(b"\0", 1)[0].decode("utf-8", "replace")
            raise PermissionError(f"the proxy refused this agent (version {version}, status {status}): {text}")
        line.settimeout(None)
        while True:
            (length,) = _LENGTH.unpack(_receive(line, _LENGTH.size))
            if length > _MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes; at most {_MAX_FRAME_BYTES} are allowed")
            answer = json.dumps(_answer(json.loads(_receive(line, length)))).encode()
            line.sendall(_LENGTH.pack(len(answer)) + answer)


def _receive(line, size):
    received = b""
    while len(received) < size:
        part = line.recv(size - len(received))
        if not part:
            raise ConnectionError("closed by the proxy")
        received += part
    return received


def _answer(request):
    """Runs one request; never raises, the answer says what went wrong."""
    identity = request.get("id") if isinstance(request, dict) else None
    try:
        operator = request["operator"]
        function = _functions.get(operator)
        if function is None:  # another agent of the node may have one: the launcher, or a plug-in
            return {"id": identity, "ok": False, "declined": True, "message": f"no function is registered for {operator!r}"}
        arguments = request.get("args") or {}
        if not isinstance(arguments, dict) or not set(arguments) <= {"args", "kwargs"}:
            raise ValueError('args must be an object with "args" and "kwargs" only')
        result = function(*arguments.get("args", []), **arguments.get("kwargs", {}))
        message = "" if result is None else result if isinstance(result, str) else json.dumps(result, default=str)
        return {"id": identity, "ok": True, "message": message[:_MAX_MESSAGE_CHARS]}
    except BaseException as error:  # a callback may also call sys.exit
        text = f"{type(error).__name__}: {error}"
        run_log.error("agent: request %r failed: %s", identity, text)
        return {"id": identity, "ok": False, "message": text[:_MAX_MESSAGE_CHARS]}


def _forget_in_forked_child():
    global _thread, _lock
    _thread = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_forked_child)
