"""
What stands in INSTALLED_APPS.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.utils.module_loading import autodiscover_modules

from duly.contrib.django.checks import check_deployment, check_settings

BACKEND = "duly.contrib.django.tasks.DulyBackend"


class DulyConfig(AppConfig):
    """
    Imports the module ``jobs`` of every installed app, where handlers are.
    """

    name = "duly.contrib.django"
    label = "duly"
    verbose_name = "duly"

    def ready(self) -> None:
        """
        Look for handlers, and register checks.
        """
        checks.register(check_settings, "duly")
        checks.register(check_deployment, "duly", deploy=True)
        autodiscover_modules("jobs")
        add_task_backends()


def add_task_backends() -> None:
    """
    Make the backends for tasks that are ours, so that a worker knows their queues.
    """
    said: Any = getattr(settings, "TASKS", {})
    aliases = [alias for alias, params in said.items() if params.get("BACKEND") == BACKEND]
    if aliases:
        from duly.contrib.django.tasks import task_backends  # noqa: PLC0415  # a package that need not be there

        for alias in aliases:
            task_backends()[alias]
