"""
Fixtures of tests of frameworks.
"""

from __future__ import annotations

from tests.contrib.django_project import interpreter, project  # noqa: F401  # what pytest finds here, it uses
