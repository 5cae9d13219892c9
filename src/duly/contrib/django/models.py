"""
The model of a job for Django's admin.  There is no table: jobs are in the queue.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager):
    """
    Finds nothing, and asks no database: commands such as dumpdata go over every model.
    """

    def get_queryset(self) -> Any:
        """
        Return no rows.
        """
        return super().get_queryset().none()


class Job(models.Model):
    """
    Represents jobs where Django needs a model: in the index of the admin, and for permissions.
    """

    key = models.CharField(primary_key=True, max_length=301)

    objects = NoRows()

    class Meta:
        """
        The permissions are duly.view_job, to see the list, and duly.change_job, to cancel and requeue.
        """

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change")
        verbose_name = "job"

    def __str__(self) -> str:
        return str(self.key)
