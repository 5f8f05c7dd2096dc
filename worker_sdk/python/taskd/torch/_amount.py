"""How much work a step is: taken from the shapes of what the outermost forward is called with, or said by the program.

Never from values: nothing here waits for a device. What is counted are elements, of all tensors together; a mask over pairs
of positions (B, 1, S, S) counts as the S * B positions that it is for. Batches of one shape everywhere are equal work
whatever is counted, and ragged ones differ by it.
"""
from collections import UserDict

from taskd.torch import _gate

_MAX_TENSORS = 64
_MAX_DEPTH = 4

_said_by_program = False  # from then on shapes say nothing
_tensor = ()  # torch.Tensor


def _elements(value, depth, left):
    """(elements, tensors that may still be looked at)"""
    if isinstance(value, _tensor):
        count = value.numel()
        if type(count) is not int:  # of a shape that is not known yet, inside a trace
            return 0, left - 1
        if value.dim() == 4:
            _, heads, rows, columns = value.shape
            if heads == 1 and rows == columns and rows > 1:
                count //= rows
        return count, left - 1
    if depth == 0:
        return 0, left
    if isinstance(value, (dict, UserDict)):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 0, left
    total = 0
    for item in value:
        if left <= 0:
            break
        count, left = _elements(item, depth - 1, left)
        total += count
    return total, left


def of_forward(args, kwargs):
    """Before an outermost forward that is marked."""
    if _said_by_program or not _gate.kinds() & _gate.OTHER:
        return
    total, left = _elements(args, _MAX_DEPTH, _MAX_TENSORS)
    if kwargs:
        total += _elements(kwargs, _MAX_DEPTH, left)[0]
    if total > 0:
        _gate.mark('{"work": %d}' % total)


def work(amount):
    global _said_by_program
    _said_by_program = True
    # A tensor's number would have to be waited for.
    if isinstance(amount, _tensor) or not hasattr(amount, "__float__"):
        raise TypeError("work is a number that the program has, not %s" % type(amount).__name__)
    try:
        usable = 0 <= float(amount) < float("inf")
    except OverflowError:  # an int beyond any float
        usable = False
    if not usable:
        raise ValueError("work(%.40s): the amount of work is a finite number from 0 on; it is not used" % (amount,))
    if not _gate.kinds() & _gate.OTHER:
        return
    _gate.mark('{"work": %r}' % (amount if type(amount) is int else float(amount)))


def install(torch):
    global _tensor
    _tensor = torch.Tensor


def reset():
    global _said_by_program
    _said_by_program = False
