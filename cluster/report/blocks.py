"""What a page is made of, and how numbers are written on it. Pure."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from msgspec import Struct

from cluster.report.charts import draw_curves, draw_heat_map
from cluster.report.curves import Curve, Point, Summary
from train.follow.progress import render_rate, render_value

MOST_LINES = 8  # single curves in a figure; of more, only the outermost are drawn


class Table(Struct, frozen=True, kw_only=True):
    """A table whose first column has its rows' headings."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Figure(Struct, frozen=True, kw_only=True):
    """A drawing with its legend, (class in the CSS, label), and a table of its main numbers."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, str]]
    table: Table


class Section(Struct, frozen=True, kw_only=True):
    """A part of the page with a heading."""

    title: str
    text: str = ""
    facts: Mapping[str, str] = {}
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    bar: Sequence[tuple[str, float, str]] = ()  # states: name, share, duration


def render_number(value: float | None) -> str:
    """A number with few digits: "0.9798", "7.56 k"."""
    if value is None:
        return "-"
    return render_rate(value) if value >= 10_000 else render_value(value)


def make_curves_figure(
    title: str,
    curves: Mapping[str, Curve],
    *,
    span: tuple[float, float],
    together: Sequence[Point] = (),
    what: str = "rank",
    summaries: Mapping[str, Summary] | None = None,
) -> Figure:
    """A curve for each rank or node, and one for all together; of many, only the two highest and the two lowest.

    summaries: the rows of the table, if they are not those of the curves.
    """
    shown = dict(curves) if len(curves) <= MOST_LINES else _find_outermost(curves)
    lines = [(f"s{number}", label, curve.points) for number, (label, curve) in enumerate(shown.items())]
    if len(curves) != 1:
        lines.append(("all", "together", list(together)))
    drawn = {kind: points for kind, _, points in lines if points}
    legend = [(kind, label) for kind, label, _ in lines if kind in drawn] if curves else []
    summaries = summaries or {label: curve.summary for label, curve in curves.items() if curve.points}
    cells = [(label, *map(render_number, summary)) for label, summary in summaries.items()]
    text = "; ".join(f"{label}: from {first} to {last}" for label, first, last, *_ in cells[:MOST_LINES])
    svg = draw_curves(drawn, title=title, text=text, span=span, render=render_number, from_zero=what == "node")
    head = (what, "first", "last", "least", "greatest", "mean")
    return Figure(title=title, svg=svg, legend=legend, table=Table(caption=title, head=head, rows=cells))


def _find_outermost(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    ordered = sorted(curves.items(), key=lambda item: item[1].mean)
    return dict([*ordered[:2], *ordered[-2:]])


def make_heat_figure(title: str, curves: Mapping[str, Curve], *, span: tuple[float, float]) -> Figure:
    """A heat map of rank by time."""
    text = f"{len(curves)} ranks; the paler, the less"
    bins = {label: curve.resample(*span) for label, curve in curves.items()}
    svg, low, high = draw_heat_map(bins, title=title, text=text, length_s=span[1] - span[0])
    legend = [("heat0", render_number(low)), ("heat7", render_number(high))]
    head = ("rank", "mean", "least", "greatest")
    summaries = {label: curve.summary for label, curve in curves.items()}
    rows = [(label, *map(render_number, (one.mean, one.least, one.greatest))) for label, one in summaries.items()]
    return Figure(title=title, svg=svg, legend=legend, table=Table(caption=title, head=head, rows=rows))
