"""Options and fixtures of the conformance suite, for the cases in this folder.

Each case is a fault that users of such servers have reported; the conformance suite judges the protocol, these judge
what goes wrong around it.

    pytest tests/cases --server-cmd ... --model-dir ... --model-name ...     (as tests/conformance; see its README)
"""

import importlib.util
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parent.parent / "conformance"
sys.path.insert(0, str(SUITE))
_spec = importlib.util.spec_from_file_location("conformance_conftest", SUITE / "conftest.py")
_suite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_suite)
globals().update({name: value for name, value in vars(_suite).items() if not name.startswith("__")})


@pytest.fixture(scope="module")
def other(make_api, opt):
    """Another account on the same server."""
    stranger = make_api(key=opt("other-api-key"))
    yield stranger
    stranger.close()
