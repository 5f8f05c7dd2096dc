"""Marks for PyTorch programs that nobody edits: step, forward, dataloader, save_checkpoint and communication.

Any of these arms them:

    import taskd.torch; taskd.torch.enable()              a line in the script
    torchrun ... -m taskd.torch train.py ARGS             nothing in the script, taskd in PYTHONPATH
    TASKD_TORCH=1 torchrun ... train.py                   nothing at all, taskd installed from its wheel

It neither imports torch nor slows a program that does not: the hooks come when the program has imported torch. What is
switched off costs a hook little, and nothing is formatted. torch.distributed's init_process_group also does what
init_taskd_worker does, unless the program did. What each mark means is written in the modules: _steps, _local, _collectives,
_work, _groups. Where communication is seen depends on what the torch has (_points): coverage() says so in the program, and
`python -m taskd.torch` without a script for the torch that is installed. Works from torch 1.13 on.
"""
from taskd.python.utils.log import never_raises

__all__ = ["enable", "disable", "step", "work", "coverage"]

_enabled = False


@never_raises
def enable() -> bool:
    """Arms the marks. A second call changes nothing."""
    global _enabled
    if not _enabled:
        from taskd.torch import _imports

        _enabled = True
        _imports.when_imported("torch", _install)
    return True


@never_raises
def disable() -> bool:
    """Takes the hooks away again. A DistributedDataParallel that already has ours keeps it, without marks."""
    global _enabled
    if _enabled:
        from taskd.torch import _amount, _gate, _imports, _patches, _rendezvous, _steps

        _enabled = False
        _gate.close_gate()
        _imports.forget()
        _rendezvous.arm()
        _patches.undo()
        _steps.reset()
        _amount.reset()
    return True


def step(number=None):
    """The program says itself where steps are; from the first call on optimizers do not.

    A call ends the step before and begins the next, numbered one more than the last or as given. As `with step():` it also
    ends it. Never raises.
    """
    from taskd.torch import _patches, _steps

    return _patches.quietly(_steps.explicit_step, number) or _steps.Step()


def work(amount):
    """How much there is to do in the present step: tokens, elements, a number from 0 on, the same kind of number on all ranks.

    Several calls in a step add up. Where the program does not say it, the shapes of what the model is called with do; from the
    first call on only the program does. Not a tensor: its value would have to be waited for. Never raises: an amount that is
    below 0, infinite or no number is a line of the log, and not used.
    """
    from taskd.torch import _amount, _patches

    _patches.quietly(_amount.work, amount)


def coverage():
    """What is marked here: {"communication": how it is seen, None: not at all; "not_marked": {what: why}; "steps": what ends
    them, None before the second one}."""
    from taskd.torch import _points, _steps

    return {"communication": _points.point, "not_marked": dict(_points.left_out), "steps": _steps.state.source}


def _install(torch):
    from taskd.torch import _gate, _imports, _local, _patches, _points, _steps  # noqa: F401  _points: to be hidden

    _gate.open_gate()
    _patches.quietly(_patches.hide_from_dynamo, torch)
    _patches.quietly(_steps.install, torch)
    _patches.quietly(_local.install, torch)
    if not torch.distributed.is_available():
        return
    _imports.when_imported("torch.distributed.distributed_c10d", _on_distributed)


def _on_distributed(c10d):
    from taskd.torch import _groups, _local, _patches, _points, _steps

    _groups.install(c10d, _local.wrap_export)
    _steps.install_distributed(c10d, _local.wrap_export)
    _patches.quietly(_points.install, c10d)
