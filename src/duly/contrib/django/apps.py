"""
What stands in INSTALLED_APPS.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DulyConfig(AppConfig):
    """
    Imports the module ``jobs`` of every installed app, where handlers are.
    """

    name = "duly.contrib.django"
    label = "duly"
    verbose_name = "duly"

    def ready(self) -> None:
        """
        Look for handlers.
        """
        autodiscover_modules("jobs")
