"""Forwards with arguments of all kinds, for test_torch_work.py. Prints the work that was marked in each case, as JSON."""
import collections
import json

import taskd.torch
from taskd.torch import _gate, _patches

marks = []
_gate.mark = lambda message, stream=None, domain=None: marks.append(message)
_gate.range_start, _gate.range_end = (lambda message, stream=None, domain=None: 1), (lambda range_id: None)
taskd.torch.enable()

import torch  # noqa: E402

_gate.kinds = lambda: 0x3F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, *args, **kwargs):
        return self.inner(torch.zeros(2, 8))


class Values(torch.Tensor):
    """Whose values nobody may ask for."""

    def item(self):
        raise AssertionError("a value was read")

    __float__ = __int__ = __bool__ = tolist = item


found = collections.OrderedDict()


def case(name, function):
    marks.clear()
    function()
    found[name] = list(marks)


model = Model()
tokens = torch.zeros(4, 100, dtype=torch.long)
case("a tensor", lambda: model(tokens))
case("by name", lambda: model(input_ids=tokens, labels=tokens))
case("nested", lambda: model({"a": [tokens, (tokens, None)], "b": 7}, "text"))
case("a user's dictionary", lambda: model(collections.UserDict(ids=tokens)))
case("a mask over pairs", lambda: model(tokens, torch.ones(4, 1, 100, 100, dtype=torch.bool)))
case("a picture", lambda: model(torch.zeros(4, 3, 32, 32)))
case("values stay unread", lambda: model(torch.zeros(4, 8).as_subclass(Values)))
case("nothing with a shape", lambda: model(3, text="x"))
case("many", lambda: model([torch.zeros(1)] * 1000))
model.eval()
case("in evaluation", lambda: model(tokens))
model.train()
_gate.kinds = lambda: 0x10
case("only communication is on", lambda: (model(tokens), taskd.torch.work(5)))
_gate.kinds = lambda: 0x3F
taskd.torch.disable()
taskd.torch.enable()
_gate.kinds = lambda: 0x3F
case("enabled again", lambda: model(tokens))
case("said by the program", lambda: (taskd.torch.work(4096), taskd.torch.work(12.5), model(tokens)))
case("a tensor is no number", lambda: taskd.torch.work(torch.zeros(1)))
case("text is no number", lambda: taskd.torch.work("many"))
_patches._said.clear()
case("no work", lambda: [taskd.torch.work(amount) for amount in (0, -1, float("nan"), float("inf"), 10**400, -1)])
_gate.kinds = lambda: 0
case("marks are off", lambda: (taskd.torch.work(7), taskd.torch.work(-2)))
found["said"] = sorted(_patches._said)
print(json.dumps(found))
