"""What every hook asks first. Kept in one place so that disable() silences hooks that others have wrapped since."""
import sys

from taskd import mstx

STEP = mstx.KIND_STEP
SAVE_CHECKPOINT = mstx.KIND_SAVE_CHECKPOINT
FORWARD = mstx.KIND_FORWARD
DATALOADER = mstx.KIND_DATALOADER
COMMUNICATION = mstx.KIND_COMMUNICATION
OTHER = mstx.KIND_OTHER

range_start = mstx.range_start
range_end = mstx.range_end
mark = mstx.mark


def _nothing():
    return 0


kinds = _nothing  # bits of the kinds that are recorded now


def open_gate():
    global kinds
    kinds = mstx.enabled_kinds


def close_gate():
    global kinds
    kinds = _nothing


def on_npu():
    """With torch_npu, libmspti may take our marks, and it believes in streams; and torch_npu marks by itself."""
    return "torch_npu" in sys.modules
