"""`forward`, `dataloader` and `save_checkpoint`."""
import sys
import threading
import weakref

from taskd.torch import _amount, _gate, _imports, _patches
from taskd.torch._steps import state as steps

_inside_module = False  # only the outermost call counts
# Modules that are models of their own; and those inside one, or without parameters (a loss). The latter may well be called
# outside of their model, when activations are computed again for the backward pass: that is no forward.
_models = weakref.WeakSet()
_no_models = weakref.WeakSet()


def _is_model(module):
    if module in _models:
        return True
    if module in _no_models:
        return False
    if next(iter(module.parameters()), None) is None:
        _no_models.add(module)
        return False
    for inner in module.modules():
        _models.discard(inner)
        _no_models.add(inner)
    _no_models.discard(module)
    _models.add(module)
    return True


def _forward_start(module, args, kwargs):
    if not module.training or not _is_model(module):
        return 0
    if steps.counts_forwards:
        steps.forward(module)
    if not _gate.kinds() & _gate.FORWARD:
        return 0
    steps.begin_first()
    _patches.quietly(_amount.of_forward, args, kwargs)
    return _gate.range_start("forward")


def _make_call(original):
    def __call__(self, *args, **kwargs):
        global _inside_module
        if _inside_module or not (_gate.kinds() & _gate.FORWARD or steps.counts_forwards):
            return original(self, *args, **kwargs)
        _inside_module = True
        range_id = 0
        try:
            range_id = _patches.quietly(_forward_start, self, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            _inside_module = False
            if range_id:
                _gate.range_end(range_id)

    return __call__


def _marked_by_torch_npu(owner, name):
    """torch_npu puts its own marks around these, on top of ours."""
    return _gate.on_npu() and getattr(vars(owner)[name], "__module__", "").startswith("torch_npu")


def _make_next(original):
    def __next__(self):
        _patches.quietly(steps.batch, self._dataset)
        if not _gate.kinds() & _gate.DATALOADER:
            return original(self)
        if _marked_by_torch_npu(sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter, "__next__"):
            return original(self)
        steps.begin_first()
        range_id = _gate.range_start("dataloader")
        try:
            return original(self)
        except StopIteration:
            _patches.quietly(steps.data_ended, self._dataset)
            raise
        finally:
            _gate.range_end(range_id)

    return __next__


_saving = threading.local()


def _make_save(original):
    def save(*args, **kwargs):
        if not _gate.kinds() & _gate.SAVE_CHECKPOINT or getattr(_saving, "inside", False) or (
                _marked_by_torch_npu(sys.modules["torch.serialization"], "save")):
            return original(*args, **kwargs)
        _saving.inside = True
        range_id = _gate.range_start("save_checkpoint")
        try:
            return original(*args, **kwargs)
        finally:
            _saving.inside = False
            _gate.range_end(range_id)

    return save


def _install_checkpoint(package):
    saver = sys.modules.get(package.__name__ + ".state_dict_saver")
    for name in ("save", "async_save", "save_state_dict"):
        wrap_export(saver, package, name, _make_save)


def _install_safetensors(module):
    """Only some of its modules have each function; save_model calls save_file."""
    if hasattr(module, "save_file"):
        _patches.wrap(module, "save_file", _make_save)


def wrap_export(module, package, name, make):
    """A function of a module, and the same one under the name by which its package shows it."""
    original = getattr(module, name, None)
    if original is None:
        return
    _patches.wrap(module, name, make)
    if getattr(package, name, None) is original:
        _patches.replace(package, name, original, getattr(module, name))



def install(torch):
    _amount.install(torch)
    _patches.wrap(torch.nn.Module, "__call__", _make_call)
    wrap_export(sys.modules["torch.serialization"], torch, "save", _make_save)
    _imports.when_imported("torch.utils.data.dataloader",
                           lambda module: _patches.wrap(module._BaseDataLoaderIter, "__next__", _make_next))
    for name in ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"):
        _imports.when_imported(name, _install_checkpoint)
    for name in ("safetensors.torch", "safetensors.numpy"):
        _imports.when_imported(name, _install_safetensors)
