"""What a page is made of, and how numbers are written on it. Pure."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from msgspec import Struct

from cluster.report.charts import draw_curves, draw_heat_map, make_series
from cluster.report.curves import Curve, Point
from train.follow.progress import render_rate, render_value

MOST_LINES = 8  # single curves in a figure; of more, only the outermost are drawn, and the area of all


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
    together_label: str = "mean",
) -> Figure:
    """A curve for each rank or node, and one for all together; of many, the highest, the lowest and the area of all."""
    shown = dict(curves) if len(curves) <= MOST_LINES else _find_outermost(curves)
    lines = [(f"s{number}", label, curve.points) for number, (label, curve) in enumerate(shown.items())]
    rows = [(label, curve.points) for label, curve in curves.items()]
    if together and len(shown) < len(curves):
        lines.insert(0, ("band", f"all {len(curves)} {what}s", list(together)))
    if together and len(curves) != 1:
        lines.append(("all", together_label, list(together)))
        rows.append((together_label, list(together)))
    series = [make_series(*line, span[0]) for line in lines if line[2]]
    legend = [one[:2] for one in series] if curves else []
    cells = [_summarize(label, points) for label, points in rows if points]
    text = "; ".join(f"{label}: from {first} to {last}" for label, first, last, *_ in cells[:MOST_LINES])
    svg = draw_curves(series, title=title, text=text, length_s=span[1] - span[0], render=render_number)
    head = (what, "first", "last", "least", "greatest", "mean")
    return Figure(title=title, svg=svg, legend=legend, table=Table(caption=title, head=head, rows=cells))


def _find_outermost(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    ordered = sorted(curves.items(), key=lambda item: item[1].mean or 0.0)
    return dict([*ordered[:2], *ordered[-2:]])


def _summarize(label: str, points: Sequence[Point]) -> tuple[str, ...]:
    least, greatest = min(point.low for point in points), max(point.high for point in points)
    values = (points[0].value, points[-1].value, least, greatest, Curve(points).mean)
    return (label, *map(render_number, values))


def make_heat_figure(title: str, rows: Mapping[str, Sequence[float | None]], *, length_s: float) -> Figure:
    """A heat map of rank by time."""
    means: dict[str, list[float]] = {label: [v for v in row if v is not None] for label, row in rows.items()}
    text = f"{len(rows)} ranks; the paler, the less"
    svg, low, high = draw_heat_map(rows, title=title, text=text, length_s=length_s)
    legend = [("heat0", render_number(low)), ("heat7", render_number(high))]
    table = Table(
        caption=title,
        head=("rank", "mean", "least", "greatest"),
        rows=[
            (label, *(render_number(of(values)) for of in (lambda v: sum(v) / len(v), min, max)))
            for label, values in means.items()
            if values
        ],
    )
    return Figure(title=title, svg=svg, legend=legend, table=table)
