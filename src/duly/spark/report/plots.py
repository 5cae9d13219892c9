"""
The pictures of a report, drawn without a screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import colors, dates, patheffects, ticker

from duly.spark.report.drawing import COLOURS, FILE, INK, PAPER, picture_for

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from duly.spark.report.drawing import Look

TOPICS = 6  #: colours that one picture can carry; the rest is summed up
BARS = 48  #: hours that can be told apart as bars; more are lines
LATE_MS = 10_000  #: the darkest of the heat map
#: Without its palest shades, which white paper swallows.
HEAT = colors.ListedColormap(mpl.colormaps["YlOrRd"].resampled(256)(range(30, 256)))
MARKED = (0.5, 0.99)  #: shares that are named on the curve


def ms_text(value: float, _: Any = None) -> str:
    """
    A number of milliseconds, short.
    """
    for limit, unit, size in ((1_000, "ms", 1), (60_000, "s", 1_000), (3_600_000, "min", 60_000)):
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 3_600_000:.3g} h"


def on_time_curve(curve: pd.DataFrame, slo_ms: int, look: Look = FILE) -> bytes:
    """
    Which share of jobs had begun within which time.
    """
    with picture_for(look) as (picture, axes):
        late = curve["lateness_ms"].clip(lower=1)
        axes.plot(late, curve["share"] * 100, color=COLOURS[0], linewidth=2.2)
        axes.fill_between(late, curve["share"] * 100, color=COLOURS[0], alpha=0.10)
        axes.axvline(slo_ms, color=COLOURS[1], linestyle="--", linewidth=1.4)
        axes.set_xscale("log")
        # From 1 ms on, and always wide enough to show where the goal is.
        widest = max(10.0, slo_ms * 20.0, float(late.max()) * 1.2)
        axes.set_xlim(1, widest)
        axes.set_ylim(0, 103)
        _label(axes, f"on time: ≤ {ms_text(slo_ms)}", slo_ms, 3, widest, COLOURS[1], up=2)
        for share in MARKED:
            [ms] = late[curve["share"] == share]
            axes.plot(ms, share * 100, "o", color=COLOURS[0], markersize=5)
            _label(axes, f"p{share * 100:.0f} {ms_text(ms)}", ms, share * 100, widest, INK, up=-12)
        axes.xaxis.set_major_formatter(ms_text)
        axes.xaxis.set_major_locator(ticker.LogLocator(numticks=4 if look.narrow else 7))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_xlabel("started within, after it was due")
        axes.set_ylabel("jobs, %")
    return picture.data


def heat_map(heat: pd.DataFrame, look: Look = FILE) -> bytes:
    """
    How late it was, by day and hour.
    """
    table = heat.pivot_table(index="date", columns="hour", values="p99_ms").reindex(columns=range(24))
    with picture_for(look, height=max(2.0, min(7.0, 1.3 + 0.28 * len(table)))) as (picture, axes):
        # The same scale on each page, unless it was worse: a colour means the same tomorrow.
        norm = colors.LogNorm(1, max(LATE_MS, float(heat["p99_ms"].max())))
        values = table.clip(lower=1).to_numpy(dtype=float)
        axes.grid(visible=False)
        mesh = axes.pcolormesh(values, norm=norm, cmap=HEAT, edgecolors=PAPER, linewidth=1)
        every = max(1, len(table) // 16)
        days = [str(day)[5:] if look.narrow else str(day) for day in table.index[::every]]
        axes.set_yticks([at + 0.5 for at in range(0, len(table), every)], days)
        hours = range(0, 24, 6 if look.narrow else 3)
        axes.set_xticks([at + 0.5 for at in hours], [f"{at:02d}" for at in hours])
        axes.invert_yaxis()
        axes.set_xlabel("hour of the day, UTC")
        bar = axes.figure.colorbar(mesh, ax=axes, format=ms_text)
        bar.ax.minorticks_off()
        bar.set_label("p99 lateness")
    return picture.data


def due_forecast(forecast: pd.DataFrame, look: Look = FILE) -> bytes:
    """
    What is due when, by topic, and what is left over.
    """
    with picture_for(look) as (picture, axes):
        by_topic = forecast.pivot_table(index="slice", columns="topic", values="due", aggfunc="sum").fillna(0)
        by_topic = _largest(by_topic)
        step = (by_topic.index[1] - by_topic.index[0]) if len(by_topic) > 1 else None
        width = step * 0.92 if step is not None else 0.0005
        below = 0 * by_topic.iloc[:, 0]
        for colour, topic in zip(COLOURS, by_topic.columns, strict=False):
            axes.bar(
                by_topic.index,
                by_topic[topic],
                bottom=below,
                width=width,
                align="edge",
                color=colour,
                label=topic,
            )
            below = below + by_topic[topic]
        backlog = forecast.groupby("slice")["backlog"].sum()
        if backlog.max() > 0:
            left = axes.plot(
                *(backlog.index if step is None else backlog.index + step / 2, backlog.where(backlog > 0)),
                *("D",),
                color=INK,
                markersize=5,
                label="left over at its end",
            )
            left[0].set_path_effects([patheffects.withStroke(linewidth=3, foreground=PAPER)])
        _dates(axes, look)
        axes.set_ylabel("jobs due")
        axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=7, integer=True))
        axes.set_xlabel("UTC")
        _legend(axes, look)
    return picture.data


def failures_bars(failures: pd.DataFrame, look: Look = FILE) -> bytes:
    """
    The most frequent signatures.
    """
    top = failures.head(10).iloc[::-1]
    with picture_for(look, height=1.3 + 0.48 * len(top)) as (picture, axes):
        at = range(len(top))
        axes.barh(at, top["retried"], height=0.42, color=COLOURS[4], label="retried")
        axes.barh(at, top["buried"], height=0.42, left=top["retried"], color=COLOURS[1], label="dead")
        # Above its bar a name has the whole width to itself.
        for row, (topic, signature) in enumerate(zip(top["topic"], top["signature"], strict=True)):
            name = look.cut(f"{topic}: {signature or 'no reason'}")
            axes.text(0, row + 0.27, name, transform=axes.transData, fontsize=9, va="bottom")
        axes.set_yticks([])
        axes.set_ylim(-0.4, len(top) - 0.2)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("failed runs")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=5, integer=True))
        axes.set_xlim(left=0)
        _legend(axes, look)
    return picture.data


def retries_shares(retries: pd.DataFrame, look: Look = FILE) -> bytes:
    """
    Which share of runs had to be repeated, by hour.
    """
    hours = retries.groupby("hour")[["runs", "retried", "crashed"]].sum()
    runs = hours["runs"].where(hours["runs"] > 0)
    shares = {name: (hours[name] / runs).fillna(0) * 100 for name in ("retried", "crashed")}
    with picture_for(look) as (picture, axes):
        if len(hours) <= BARS:
            hour, below = 1 / 24, 0 * runs.fillna(0)
            for colour, (name, share) in zip(COLOURS[1:3], shares.items(), strict=True):
                options: Any = {"width": hour * 0.92, "align": "edge", "color": colour, "label": name}
                axes.bar(hours.index, share, bottom=below, **options)
                below = below + share
            # A few hours stay narrow: there is nothing to see beside them.
            first, last = dates.date2num([hours.index[0], hours.index[-1]])  # type: ignore[no-untyped-call]  # as Matplotlib has it
            room = max(0.0, 6 * hour - (last - first)) / 2
            axes.set_xlim(first - room - hour / 2, last + room + 1.5 * hour)
        else:
            for colour, (name, share) in zip(COLOURS[1:3], shares.items(), strict=True):
                axes.plot(hours.index, share, color=colour, linewidth=1.6, label=name)
        axes.set_ylim(bottom=0)
        _dates(axes, look)
        axes.set_ylabel("of all runs, %")
        axes.set_xlabel("UTC")
        _legend(axes, look)
    return picture.data


def _label(axes: Axes, text: str, x: float, y: float, widest: float, colour: str, *, up: int) -> None:
    """
    Write beside a point, on the side that has room.
    """
    left = x * x > widest  # beyond the middle of an axis that begins at 1 and is logarithmic
    axes.annotate(
        text,
        (x, y),
        # To the left, a curve that rises comes down to it.
        xytext=(-6, min(up, 2 * up)) if left else (6, up),
        textcoords="offset points",
        ha="right" if left else "left",
        color=colour,
        fontsize=9.5,
    )


def _legend(axes: Axes, look: Look) -> None:
    # Below what it explains, bars first.
    found = sorted(
        zip(*axes.get_legend_handles_labels(), strict=True), key=lambda each: hasattr(each[0], "get_xydata")
    )
    handles, labels = zip(*found, strict=True)
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=2 if look.narrow else 4)


def _dates(axes: Axes, look: Look) -> None:
    most = 4 if look.narrow else 7
    locator = dates.AutoDateLocator(minticks=2, maxticks=most)  # type: ignore[no-untyped-call]  # as Matplotlib has it
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # as Matplotlib has it


def _largest(table: pd.DataFrame) -> pd.DataFrame:
    """
    The largest columns, and the others as one.
    """
    order = table.sum().sort_values(ascending=False).index
    kept = table[list(order[:TOPICS])].copy()
    if len(order) > TOPICS:
        kept["others"] = table[list(order[TOPICS:])].sum(axis=1)
    return kept
