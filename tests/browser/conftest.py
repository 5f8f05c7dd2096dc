import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from browser import Browser, missing  # noqa: E402
from fixtures import manager, stage  # noqa: E402, F401


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests."""
    if missing():
        pytest.skip(missing())
    # Names of strangers lead here, as after DNS rebinding.
    browser = Browser("--host-resolver-rules=MAP *.example 127.0.0.1", "--no-proxy-server")
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    """A page of its own for each test."""
    chromium.renew()
    return chromium
