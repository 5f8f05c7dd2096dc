"""`step N`: from the end of one optimizer step to the end of the next.

N counts from 0 and goes on while recording is off, so that all ranks mean the same step by the same number. Step 0 begins
with the first forward or batch, so that starting up is no part of it. A step that a GradScaler leaves out (overflow) is one.

Where several optimizers step in one iteration, the first of them counts; should it stop stepping while another steps twice,
that one counts from then on. With a new batch of the same data set there is a new iteration: so optimizers that take turns,
a batch each, all count. Without a DataLoader nothing tells turns from several optimizers in one iteration, and
taskd.torch.step() has to.

In a program without any optimizer a step is from one batch of a data set to the next, and where there is no DataLoader
either, from one forward of the first model to the next.
"""
import sys
import weakref

from taskd.torch import _gate, _groups, _imports, _patches

# The communicators of some backends get their names with their first use; by then all have been used.
_REWRITE_GROUPS_AT_STEP = 5
_STEPS_ARE_OVER = "steps are over"  # marks/step_name.h: nobody is ended for a hang from here on


class _Steps:
    def __init__(self):
        self.number = 0
        self.range_id = 0
        self.explicit = False
        self.source = None  # what ends steps, in words
        self.has_optimizer = False  # one was made, or has stepped
        self.counting = None  # weak reference to the optimizer, or the model, that counts
        self.read = None  # id of the data set of the last batch
        self.counted_with = None  # and of that before the last end of a step
        self.others = weakref.WeakSet()  # optimizers that stepped since it did
        self.new_batch = False  # of counted_with, since then
        self.stepping = False  # inside an outermost optimizer step
        self.counts_forwards = True  # while there is neither an optimizer nor a batch
        self.over = False  # the step loop has been left

    def begin(self):
        self.over = False
        if _gate.kinds() & _gate.STEP:
            self.range_id = _gate.range_start("step %d" % self.number)

    def end(self):
        if self.range_id:
            _gate.range_end(self.range_id)
            self.range_id = 0

    def begin_first(self):
        """A forward or a batch; called only while something is recorded."""
        if self.number == 0 and self.range_id == 0 and not self.explicit:
            self.begin()

    def next(self, source):
        self.source = source
        self.new_batch = False
        self.end()
        self.number += 1
        self.begin()
        if self.number == _REWRITE_GROUPS_AT_STEP:
            _groups.changed()

    def optimizer_made(self):
        if not self.has_optimizer:
            self.has_optimizer, self.counts_forwards, self.counting = True, False, None

    def optimizer_stepped(self, optimizer):
        if self.explicit:
            return
        self.optimizer_made()
        counting = self.counting() if self.counting is not None else None
        if counting is not optimizer:
            if counting is not None and not self.new_batch and optimizer not in self.others:
                self.others.add(optimizer)
                return
            self.counting = weakref.ref(optimizer)
        self.others.clear()
        self.counted_with = self.read
        self.next("steps of " + type(optimizer).__name__)

    def batch(self, dataset):
        """Before a batch is fetched."""
        self.counts_forwards = False
        read, self.read = self.read, id(dataset)
        if self.counted_with not in (None, self.read):
            if self.has_optimizer or read != self.read:
                return
        elif self.counted_with is not None and not (self.explicit or self.has_optimizer):
            self.next("batches, as there is no optimizer")
        self.counted_with = self.read
        self.new_batch = True
        self.over = False

    def data_ended(self, dataset):
        """Where it is trained on, no step follows, unless another epoch begins. Nor does one after an evaluation that follows."""
        if self.over or self.counted_with == id(dataset):
            self.loop_left()

    def loop_left(self):
        if self.source is not None:
            self.over = True
            _gate.mark(_STEPS_ARE_OVER)

    def forward(self, model):
        """Before a forward of a model, while counts_forwards."""
        if self.counting is None:
            self.counting = weakref.ref(model)
        elif self.counting() is model:
            self.next("forwards, as there is neither an optimizer nor a DataLoader")


state = _Steps()


class Step:
    """What taskd.torch.step() gives: ends the step at the end of a `with`, else the next call does."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        _patches.quietly(state.end)
        return False


def explicit_step(number=None):
    if not state.explicit:
        state.source = "the program"
        state.counts_forwards = False
        # An explicit first step is step 0 unless the caller says otherwise.
        state.explicit, state.number = True, -1
    state.end()
    state.number = state.number + 1 if number is None else int(number)
    state.begin()
    return Step()


def _make_step(original):
    def step(self, *args, **kwargs):
        # Only the outermost: a class may call its parent's step, an optimizer may be built on another.
        if state.stepping:
            return original(self, *args, **kwargs)
        state.stepping = True
        try:
            result = original(self, *args, **kwargs)
        finally:
            state.stepping = False
        _patches.quietly(state.optimizer_stepped, self)
        return result

    return step


def _make_scaler_step(original):
    def step(self, optimizer, *args, **kwargs):
        if state.stepping:
            return original(self, optimizer, *args, **kwargs)
        state.stepping = True
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            state.stepping = False
        _patches.quietly(state.optimizer_stepped, optimizer)
        return result

    return step


def _make_init(original):
    def __init__(self, *args, **kwargs):
        # Before the original, which wraps the class's step for the profiler and keeps a wrapped step's attributes.
        _patches.quietly(_wrap_class, type(self))
        state.optimizer_made()
        original(self, *args, **kwargs)

    return __init__


def _wrap_class(cls):
    for base in cls.__mro__:
        if "step" in vars(base):
            _patches.wrap(base, "step", _make_step)
            return


def _make_destroy(original):
    def destroy_process_group(*args, **kwargs):
        _patches.quietly(_before_destroy, *args, **kwargs)
        return original(*args, **kwargs)

    return destroy_process_group


def _before_destroy(group=None):
    """A job that takes all of its groups away has no step to come, unless it makes others."""
    if _groups.name_of(group) == _groups.DEFAULT_GROUP:
        state.loop_left()


def install_distributed(c10d, wrap_export):
    wrap_export(c10d, sys.modules["torch.distributed"], "destroy_process_group", _make_destroy)


def install(torch):
    optimizer = torch.optim.Optimizer
    _patches.wrap(optimizer, "__init__", _make_init)
    found = [optimizer]
    while found:  # optimizers that exist already
        cls = found.pop()
        found += cls.__subclasses__()
        if cls is not optimizer and "step" in vars(cls):
            _patches.wrap(cls, "step", _make_step)
    for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
        _imports.when_imported(name, _wrap_scaler)


def _wrap_scaler(module):
    _patches.wrap(module.GradScaler, "step", _make_scaler_step)


def reset():
    state.end()
    state.__init__()
