"""TaskD: marks of a training job, recorded at almost no cost and switched while it runs."""
import os as _os

__version__ = "0.1.0"

# One way in for programs that nobody edits: with TASKD_TORCH=1 any import of this package, also the one that the wheel's
# taskd_torch.pth does at start-up, arms the marks for PyTorch. It does not import torch.
if _os.environ.get("TASKD_TORCH") == "1":
    from taskd.torch import enable as _enable

    _enable()

# Under a launcher that serves the store any import lets PyTorch reach it, also a PyTorch without libuv.
if _os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
    from taskd.torch import _rendezvous

    _rendezvous.arm()

# With the launcher's folder for stacks any import says where the program's Python is when it hangs or is interrupted.
if _os.environ.get("TASKD_STACK_DIR"):
    from taskd import _interrupt, _stacks

    _stacks.arm()
    _interrupt.arm()
