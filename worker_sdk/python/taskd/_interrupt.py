"""Ctrl-C in a job of many ranks: of equal tracebacks of KeyboardInterrupt one rank of a node prints its own.

The rank that creates a folder named after the traceback, in the launcher's folder for stacks, prints it. A traceback that
differs is printed as well: it shows where that rank was.
"""
import os
import sys

_previous = None


def arm():
    """Does nothing where the program has a hook of its own, or sets one later."""
    global _previous
    if _previous is None and sys.excepthook is sys.__excepthook__:
        _previous = sys.excepthook
        sys.excepthook = _hook


def _hook(kind, value, trace):
    if kind is not KeyboardInterrupt or _is_first(value, trace):
        _previous(kind, value, trace)


def _is_first(value, trace):
    try:
        import hashlib
        import traceback

        text = "".join(traceback.format_exception(type(value), value, trace))
        name = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        os.mkdir(os.path.join(os.environ["TASKD_STACK_DIR"], f"{name}.interrupted"), 0o700)
    except FileExistsError:
        return False
    except Exception:
        pass
    return True
