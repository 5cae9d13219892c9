"""
Jobs in Django's admin: a list to read, and the actions cancel and requeue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.http import urlencode

from duly.contrib.django import get_app
from duly.contrib.django.models import Job
from duly.errors import Conflict, DulyError, JobNotFound
from duly.job import JobKey, JobState

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

PAGE = 50
MOST_LOOKS = 300  #: for one page; a namespace has up to 256 shards


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """
    The jobs of one state at a time, as the queue lists them.
    """

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002  # Django names it
        """
        Refuse: jobs are enqueued by code.
        """
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002  # as above
        """
        Refuse: a job that is cancelled is kept for a while.
        """
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """
        Show a page of jobs, or do what was asked for with those that were chosen.
        """
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            if not self.has_change_permission(request):
                raise PermissionDenied
            self._act(request)
            return HttpResponseRedirect(request.get_full_path())
        context = {
            **self.admin_site.each_context(request),
            **self._listed(request),
            "title": "Jobs",
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/duly/job/change_list.html", context)

    def _listed(self, request: HttpRequest) -> dict[str, Any]:
        chosen = request.GET.get("state", "")
        state = JobState[chosen] if chosen in JobState.__members__ else JobState.scheduled
        topic = request.GET.get("topic") or None
        found: dict[str, Any] = {"state": state.name, "topic": topic, "states": list(JobState.__members__)}
        views, cursor = get_app().sync.views(), request.GET.get("cursor") or None
        jobs: list[Any] = []
        try:
            # A shard has a page of its own, which may be empty while others are not.
            for _ in range(MOST_LOOKS):
                page = views.page(state, topic, cursor=cursor, limit=PAGE - len(jobs))
                jobs, cursor = jobs + page.jobs, page.cursor
                if cursor is None or len(jobs) >= PAGE:
                    break
            found |= {"jobs": jobs, "topics": views.topics()}
        except DulyError as error:
            self.message_user(request, str(error), messages.ERROR)
        if cursor is not None:
            found["next"] = urlencode({"state": state.name, "topic": topic or "", "cursor": cursor})
        return found

    def _act(self, request: HttpRequest) -> None:
        """
        Cancel or requeue, one job after the other: each may be in another state by now.
        """
        action, done, left = request.POST.get("action"), 0, 0
        if action not in ("cancel", "requeue"):
            self.message_user(request, "choose an action: cancel or requeue", messages.ERROR)
            return
        try:
            for key in request.POST.getlist("job"):
                is_done = _act_on(JobKey.of(key), action)
                done, left = done + is_done, left + (not is_done)
        except DulyError as error:
            self.message_user(request, f"{error}; jobs done before: {done}", messages.ERROR)
            return
        word, why = ("cancelled", "ended") if action == "cancel" else ("requeued", "not ended")
        if done:
            self.message_user(request, f"jobs {word}: {done}", messages.SUCCESS)
        if left:
            self.message_user(request, f"jobs that have {why}, or are gone: {left}", messages.WARNING)
        if not done + left:
            self.message_user(request, "choose at least one job", messages.WARNING)


def _act_on(key: JobKey, action: str) -> bool:
    """
    Return whether a job could be cancelled or requeued.
    """
    job = get_app().sync.job(*key)
    try:
        if action == "cancel":
            # One that has ended keeps its state, and cancelling twice is no news.
            return not job.get().state.ended and job.cancel() is JobState.cancelled
        job.requeue()
    except (Conflict, JobNotFound):
        return False
    return True
