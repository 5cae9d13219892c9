"""
What was found, for readers and for programs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.peers.arithmetic import Figure, figure
from bench.peers.environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROFILES = ("default", "best")
SAME = 0.02  #: a ratio that is no further from 1 is a tie


@dataclass(frozen=True)
class Row:
    """
    One figure: what it is called, and which way is better.
    """

    measure: str
    key: str
    title: str
    unit: str
    more: bool  #: whether more is better


GROUPS: dict[str, tuple[Row, ...]] = {
    "Sending": (
        Row("bulk", "bulk", "bulk", "jobs/s", more=True),
        Row("single", "single", "one by one", "jobs/s", more=True),
    ),
    "Processing a backlog": (
        Row("process-1", "process_1", "one worker", "jobs/s", more=True),
        Row("process-2", "process_2", "two workers", "jobs/s", more=True),
    ),
    "Lateness at 1,000 jobs a second": (
        Row("late", "late_p50", "p50", "ms", more=False),
        Row("late", "late_p99", "p99", "ms", more=False),
        Row("late", "late_early", "started early", "jobs", more=False),
    ),
    "Lateness, sparse": (
        Row("sparse", "sparse_p50", "p50", "ms", more=False),
        Row("sparse", "sparse_p99", "p99", "ms", more=False),
        Row("sparse", "sparse_early", "started early", "jobs", more=False),
    ),
    "Cost for the server": (
        Row("bulk", "bulk_cpu", "CPU, sent in bulk", "µs/job", more=False),
        Row("single", "single_cpu", "CPU, sent one by one", "µs/job", more=False),
        Row("process-1", "process_cpu", "CPU, processed", "µs/job", more=False),
        Row("memory", "memory", "memory of a waiting job", "bytes", more=False),
        Row("idle", "idle", "an idle worker", "commands/s", more=False),
    ),
}

ROWS = tuple(row for rows in GROUPS.values() for row in rows)


class Findings:
    """
    Everything that a run found: rounds of figures, and what failed.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @classmethod
    def begin(cls, **about: Any) -> Findings:
        """
        Nothing found yet.
        """
        return cls({"about": about, "systems": {}})

    def add(self, system: str, profile: str, about: Mapping[str, Any]) -> None:
        """
        A system that takes part.
        """
        known = self.document["systems"].setdefault(
            system, {"about": _anywhere(dict(about)), "figures": {}, "failed": {}}
        )
        known["figures"][profile] = {}
        known["failed"][profile] = {}

    def note(self, system: str, profile: str, turn: int, figures: Mapping[str, float]) -> None:
        """
        Figures of one round.
        """
        for key, value in figures.items():
            self.document["systems"][system]["figures"][profile].setdefault(key, {})[str(turn)] = value

    def fail(self, system: str, profile: str, measure: str, why: str) -> None:
        """
        A measure that gave no figure.
        """
        self.document["systems"][system]["failed"][profile][measure] = why

    @property
    def systems(self) -> list[str]:
        return list(self.document["systems"])

    def name(self, system: str) -> str:
        return str(self.document["systems"][system]["about"]["name"])

    def values(self, system: str, profile: str, key: str) -> dict[int, float]:
        """
        A figure in each round.
        """
        figures = self.document["systems"].get(system, {}).get("figures", {}).get(profile, {})
        return {int(turn): value for turn, value in figures.get(key, {}).items()}

    def figure(self, system: str, profile: str, key: str) -> Figure | None:
        """
        The rounds of a figure, summed up and compared with duly's of the same profile.
        """
        values = self.values(system, profile, key)
        return figure(values, self.values("duly", profile, key)) if values else None

    def bounded(self, system: str, profile: str, row: Row) -> bool:
        """
        Return whether so many jobs had not started in the end that lateness is only a lower bound.
        """
        if row.unit != "ms":
            return False
        beyond = 1 - int(row.key[-2:]) / 100
        return any(
            share > beyond for share in self.values(system, profile, f"{row.measure}_unstarted").values()
        )

    def better(self) -> Iterator[tuple[str, str, Row, Figure]]:
        """
        Whatever is better than duly's figure of the same profile.
        """
        for profile in PROFILES:
            for row in ROWS:
                for system in self.systems:
                    found = self.figure(system, profile, row.key)
                    if system != "duly" and found is not None and beats(found, row):
                        yield system, profile, row, found

    def summed(self) -> dict[str, Any]:
        """
        The document with medians, extremes and ratios beside the rounds.
        """
        summary = {
            system: {
                profile: {
                    row.key: asdict(found)
                    for row in ROWS
                    if (found := self.figure(system, profile, row.key)) is not None
                }
                for profile in PROFILES
            }
            for system in self.systems
        }
        return self.document | {"summary": summary}


def beats(found: Figure, row: Row) -> bool:
    """
    Return whether a figure is better than duly's.
    """
    if found.ratio is None:
        return False
    return found.ratio > 1 + SAME if row.more else found.ratio < 1 - SAME


def short(value: float) -> str:
    """
    Three digits are enough.
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def cell(findings: Findings, system: str, profile: str, row: Row) -> str:
    """
    Median, extremes and ratio; in bold where it is better than duly's.
    """
    known = findings.document["systems"][system]
    found = findings.figure(system, profile, row.key)
    if found is None:
        return "failed" if row.measure in known["failed"].get(profile, {}) else ""
    words = ("≥ " if findings.bounded(system, profile, row) else "") + short(found.median)
    if short(found.least) != short(found.most):
        words += f" ({short(found.least)} to {short(found.most)})"
    if lack := known["about"].get("lacks", {}).get(row.key):
        words += f" ({lack})"
    if system != "duly" and found.ratio is not None:
        words += f", {short(found.ratio)}x"
    return f"**{words}**" if system != "duly" and beats(found, row) else words


def markdown(findings: Findings) -> str:
    """
    Tables for readers.
    """
    about = findings.document["about"]
    machine = about["machine"]
    lines = [
        "# duly beside others",
        "",
        f"{about['date']}, commit {machine['commit']}, {machine['cores']} cores ({machine['cpu']}), "
        f"Python {machine['python']}, load {machine['load']} at the start; {about['server']} with "
        + ", ".join(f"`{name} {value or repr('')}`" for name, value in about["options"].items())
        + f"; interleaved rounds: {about['rounds']}.",
        "",
        "A cell has the median, the least and the most of the rounds, and the ratio to duly's figure with",
        "the same kind of settings. Bold is better than duly by more than 2 %. ≥ is a lower bound: jobs had",
        "not started when the measure ended.",
    ]
    for profile in PROFILES:
        for heading, rows in GROUPS.items():
            if not any(
                findings.values(system, profile, row.key) for system in findings.systems for row in rows
            ):
                continue
            lines += ["", f"## {heading}: {profile} settings", ""]
            lines += [
                "| | " + " | ".join(f"{row.title}, {row.unit}" for row in rows) + " |",
                "|---" * (len(rows) + 1) + "|",
            ]
            lines += [
                f"| {findings.name(system)} | "
                + " | ".join(cell(findings, system, profile, row) for row in rows)
                + " |"
                for system in findings.systems
            ]
    lines += ["", "## Where others are better", ""]
    lines += [
        f"- {findings.name(system)}, {profile}: {group(row)}, {row.title}: {short(found.median)} {row.unit}, "
        f"{short(found.ratio or 0)}x duly's"
        for system, profile, row, found in findings.better()
    ] or ["Nowhere in this run."]
    lines += ["", "## What was measured", ""]
    for system in findings.systems:
        lines += _described(findings.document["systems"][system])
    return "\n".join(lines) + "\n"


def group(row: Row) -> str:
    """
    The heading above a figure.
    """
    return next(heading for heading, rows in GROUPS.items() if row in rows)


def _described(system: Mapping[str, Any]) -> list[str]:
    about = system["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [f"**{about['name']}** ({versions})", ""]
    for profile in PROFILES:
        links = ", ".join(about[profile]["links"])
        lines.append(f"- {profile}: {about[profile]['words']} ({links})")
    lines += [
        f"- bulk: {about['bulk']}",
        f"- delays: {about['delays']}",
        f"- a job whose worker is killed {about['crash']}",
    ]
    lines += [
        f"- failed, {profile}, {measure}: {why.splitlines()[0]}"
        for profile, failed in system["failed"].items()
        for measure, why in failed.items()
    ]
    return [*lines, ""]


def _anywhere(about: dict[str, Any]) -> dict[str, Any]:
    """
    The same without the folder of this checkout in commands: who repeats them has another.
    """
    commands = about.get("commands") or {}
    short = {
        name: words and [word.replace(f"{ROOT}/", "") for word in words] for name, words in commands.items()
    }
    return about | {"commands": short}
