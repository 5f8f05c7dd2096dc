"""What a test needs that a machine may lack, and what its skip says."""
import importlib.util

import pytest

NO_TORCH = "Debian 12's PyTorch is not installed: apt-get install python3-torch"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=NO_TORCH)
