"""
The fixtures that users of duly get, whether or not the plugin is installed as one here.
"""

from __future__ import annotations

from duly.testing.plugin import (  # noqa: F401  # what pytest finds here, it uses
    duly,
    duly_app,
    duly_for,
    duly_server,
    pytest_pyfunc_call,
    pytest_runtest_teardown,
)
