"""Replacing attributes of torch, and putting them back."""
import functools
import inspect

from taskd.python.utils.log import run_log

_applied = []  # (owner, name, original, replacement)


def wrap(owner, name, make):
    """owner.name becomes make(original), which keeps the original's name, signature and documentation.

    Does nothing where owner has no such attribute or has been wrapped before, also below somebody else's wrapper.
    """
    original = inspect.getattr_static(owner, name, None)
    if original is None or getattr(original, "__taskd_hook__", False):
        return
    replacement = functools.wraps(original)(make(original))
    replacement.__taskd_hook__ = True
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


def quietly(function, *arguments):
    """For what runs beside training: an error is one line in the log. Returns the result, None after an error."""
    try:
        return function(*arguments)
    except Exception as error:
        run_log.error("taskd.torch: %s: %s", getattr(function, "__name__", "hook"), error)
        return None
