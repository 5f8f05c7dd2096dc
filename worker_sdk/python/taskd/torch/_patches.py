"""Replacing attributes of torch, and putting them back; and keeping what replaces them out of torch.compile's sight."""
import functools
import inspect
import sys
import types

from taskd.python.utils.log import run_log

_MAX_SAID = 100

_applied = []  # (owner, name, original, replacement)
_said = set()  # errors that the log has
_dynamo = None  # torch._C._dynamo.eval_frame, where there is torch.compile


def wrap(owner, name, make):
    """owner.name becomes make(original), which keeps the original's name, signature and documentation.

    Does nothing where owner has no such attribute or has been wrapped before, also below somebody else's wrapper.
    """
    original = inspect.getattr_static(owner, name, None)
    if original is None or getattr(original, "__taskd_hook__", False):
        return
    replacement = functools.wraps(original)(make(original))
    replacement.__taskd_hook__ = True
    if isinstance(original, types.FunctionType):
        # Dynamo traces this one in place of ours, as it does for its own wrappers.
        replacement._torchdynamo_inline = original
    replace(owner, name, original, replacement)


def replace(owner, name, original, replacement):
    setattr(owner, name, replacement)
    _applied.append((owner, name, original, replacement))


def undo():
    """What somebody else has wrapped since then stays; its hook is silent, because the gate is closed."""
    while _applied:
        owner, name, original, replacement = _applied.pop()
        if inspect.getattr_static(owner, name, None) is replacement:
            setattr(owner, name, original)


def hide_from_dynamo(torch):
    """What torch.compile makes of a program is the same with these hooks and without.

    No frame of this package is compiled: where Dynamo comes upon one it runs it as it is, and looks at what that calls. It is
    told so by the code objects, as importing torch._dynamo takes seconds.
    """
    global _dynamo
    dynamo = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if dynamo is None:
        return
    _dynamo = dynamo
    skip = getattr(dynamo, "skip_code", None)
    if skip is None:
        strategy = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT)

        def skip(code):
            dynamo.set_code_exec_strategy(code, strategy)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "taskd":
            for code in _codes_of(module):
                skip(code)


def _codes_of(owner):
    """Code objects of the functions of a module or class, with those inside of them."""
    for value in list(vars(owner).values()):
        if isinstance(value, types.FunctionType):
            yield from _codes_inside(value.__code__)
        elif isinstance(value, type) and value.__module__.partition(".")[0] == "taskd":
            yield from _codes_of(value)


def _codes_inside(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_inside(constant)


def quietly(function, *arguments):
    """For what runs beside training: an error is one line in the log, once. Returns the result, None after an error."""
    # What it calls of Python's library would be compiled, in a program that is.
    callback = _dynamo.set_eval_frame(None) if _dynamo is not None else None
    try:
        return function(*arguments)
    except Exception as error:
        said = "taskd.torch: %s: %s: %s" % (getattr(function, "__name__", "hook"), type(error).__name__, error)
        if said not in _said and len(_said) < _MAX_SAID:
            _said.add(said)
            run_log.error("%s", said)
        return None
    finally:
        if callback is not None:
            _dynamo.set_eval_frame(callback)
