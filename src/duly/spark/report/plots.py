"""
The pictures of a report, drawn without a screen.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import colors, dates, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.axes import Axes

#: Told apart also by who sees few colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
INK, GRID = "#1d2530", "#dfe3e8"
WIDTH, HEIGHT, DPI = 6.4, 3.6, 160  #: few and large: text is still readable on a phone
TOPICS = 6  #: lines that one picture can carry; the rest is summed up
STYLE: Any = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8a94a0",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


class Picture:
    """
    A figure on its way to becoming a PNG.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure
        self.png = b""

    def finish(self) -> None:
        """
        Draw it.
        """
        out = io.BytesIO()
        # Without the version of the library in it: the same figures make the same file.
        self._figure.savefig(out, format="png", metadata={"Software": None})
        self.png = out.getvalue()


@contextmanager
def _picture(height: float = HEIGHT) -> Iterator[tuple[Picture, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        picture = Picture(figure)
        yield picture, figure.subplots()
        picture.finish()


def ms_text(value: float, _: Any = None) -> str:
    """
    A number of milliseconds, short.
    """
    for limit, unit, size in ((1_000, "ms", 1), (60_000, "s", 1_000), (3_600_000, "min", 60_000)):
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 3_600_000:.3g} h"


def on_time_curve(curve: pd.DataFrame, slo_ms: int) -> bytes:
    """
    Which share of jobs had begun within which time.
    """
    with _picture() as (picture, axes):
        late = curve["lateness_ms"].clip(lower=1)
        axes.plot(late, curve["share"] * 100, color=COLOURS[0], linewidth=2.2)
        axes.fill_between(late, curve["share"] * 100, color=COLOURS[0], alpha=0.10)
        axes.axvline(slo_ms, color=COLOURS[1], linestyle="--", linewidth=1.4)
        axes.text(
            slo_ms,
            3,
            f" on time: ≤ {ms_text(slo_ms)}",
            color=COLOURS[1],
            ha="left",
            va="bottom",
            fontsize=9.5,
        )
        axes.set_xscale("log")
        # From 1 ms on, and always wide enough to show where the goal is.
        axes.set_xlim(1, max(10, slo_ms * 20, float(late.max()) * 1.2))
        axes.set_ylim(0, 101)
        axes.xaxis.set_major_formatter(ms_text)
        axes.set_xlabel("started within, after it was due")
        axes.set_ylabel("jobs, %")
    return picture.png


def heat_map(heat: pd.DataFrame) -> bytes:
    """
    How late it was, by day and hour.
    """
    table = heat.pivot_table(index="date", columns="hour", values="p99_ms").reindex(columns=range(24))
    with _picture(height=max(2.0, min(7.0, 1.3 + 0.28 * len(table)))) as (picture, axes):
        low = max(1.0, float(heat["p99_ms"].min()))
        norm = colors.LogNorm(low, max(low * 10, float(heat["p99_ms"].max())))
        values = table.clip(lower=low).to_numpy(dtype=float)
        axes.grid(visible=False)
        mesh = axes.pcolormesh(values, norm=norm, cmap="YlOrRd", edgecolors="white", linewidth=1)
        every = max(1, len(table) // 16)
        axes.set_yticks(
            [at + 0.5 for at in range(0, len(table), every)], [str(day) for day in table.index[::every]]
        )
        axes.set_xticks([at + 0.5 for at in range(0, 24, 3)], [f"{at:02d}" for at in range(0, 24, 3)])
        axes.invert_yaxis()
        axes.set_xlabel("hour of the day, UTC")
        bar = axes.figure.colorbar(mesh, ax=axes, format=ms_text)
        bar.ax.minorticks_off()
        bar.set_label("p99 lateness")
    return picture.png


def due_forecast(forecast: pd.DataFrame) -> bytes:
    """
    What is due when, by topic, and what is left over.
    """
    with _picture() as (picture, axes):
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
            axes.step(backlog.index, backlog, where="post", color=INK, linewidth=1.6, label="left over")
        _dates(axes)
        axes.set_ylabel("jobs due")
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0))
    return picture.png


def failures_bars(failures: pd.DataFrame) -> bytes:
    """
    The most frequent signatures.
    """
    top = failures.head(10).iloc[::-1]
    names = [
        _short(f"{topic}: {signature or 'no reason'}")
        for topic, signature in zip(top["topic"], top["signature"], strict=True)
    ]
    with _picture(height=1.4 + 0.34 * len(top)) as (picture, axes):
        at = range(len(top))
        axes.barh(at, top["retried"], color=COLOURS[4], label="retried")
        axes.barh(at, top["buried"], left=top["retried"], color=COLOURS[1], label="dead")
        axes.set_yticks(at, names, fontsize=9)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("failed runs")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
    return picture.png


def retries_lines(retries: pd.DataFrame) -> bytes:
    """
    Which share of runs had to be repeated, by hour.
    """
    hours = retries.groupby("hour")[["runs", "retried", "crashed"]].sum()
    with _picture() as (picture, axes):
        for colour, marker, name in zip(COLOURS[1:3], "os", ("retried", "crashed"), strict=True):
            share = (hours[name] / hours["runs"].where(hours["runs"] > 0)).fillna(0) * 100
            # Marks tell the lines apart without colours, as long as there is room for them.
            size = 4 if len(hours) <= 48 else 0
            axes.plot(
                hours.index, share, color=colour, marker=marker, markersize=size, linewidth=1.6, label=name
            )
        axes.set_ylim(bottom=0)
        _dates(axes)
        axes.set_ylabel("of all runs, %")
        axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))
    return picture.png


def _dates(axes: Axes) -> None:
    locator = dates.AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _largest(table: pd.DataFrame) -> pd.DataFrame:
    """
    The largest columns, and the others as one.
    """
    order = table.sum().sort_values(ascending=False).index
    kept = table[list(order[:TOPICS])].copy()
    if len(order) > TOPICS:
        kept["others"] = table[list(order[TOPICS:])].sum(axis=1)
    return kept


def _short(text: str, width: int = 44) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
