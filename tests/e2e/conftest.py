import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from fixtures import freezing_disk, jobs, manager, proxy, pytest_runtest_makereport, pytest_runtest_setup, recording, stage  # noqa: E402, F401
