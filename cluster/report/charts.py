"""Draws curves and heat maps as SVG without scripts, styles, addresses or ids: the page's CSS colours them. Pure."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

import pygal
from markupsafe import Markup
from pygal.style import Style

from cluster.report.curves import BINS, Point, merge

# pygal's hook for packages with maps has the protocol of Python 2: each import that finds nothing would warn of it.
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

WIDTH, HEIGHT = 560, 240
FONT = 16  # the largest that the page's CSS uses, for the space beside the axes
MOST_LABELS = 6
DAY_S = 86400
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, DAY_S // 2, DAY_S)
LEVELS = 8  # of a heat map's colours
LABEL_WIDTH = 96
CELL = (WIDTH - LABEL_WIDTH) / BINS
MOST_TALL = 24  # rows of a heat map that are as tall as their labels
PALEST = 0.7  # of the greatest value, or less: small differences have similar colours
_ATTRIBUTE = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\d+\.\d)\d+")


def draw_curves(
    curves: Mapping[str, Sequence[Point]],
    *,
    title: str,
    text: str,
    span: tuple[float, float],
    render: Callable[[float], str],
    from_zero: bool = False,
) -> Markup:
    """Curves over time. curves: by their classes in the page's CSS. title, text: what a screen reader says.

    span: when the axis of time begins and ends. render: writes a value. from_zero: the axis of values includes 0, so
    that CPU use between 99.9 and 100 % does not look like a fall.
    """
    start, length_s = span[0], span[1] - span[0]
    chart = pygal.XY(
        js=[],
        css=[],
        no_prefix=True,
        disable_xml_declaration=True,
        show_legend=False,
        show_dots=False,
        width=WIDTH,
        height=HEIGHT,
        margin=6,
        max_scale=MOST_LABELS,
        x_labels=find_ticks(length_s),
        x_value_formatter=render_clock,
        value_formatter=render,
        xrange=(0, max(length_s, 1e-3)),
        include_x_axis=from_zero,
        style=Style(label_font_size=FONT, major_label_font_size=FONT),
    )
    for kind, points in curves.items():
        # Lines that arrive together have one time: their mean is drawn.
        moments = [merge(list(together)) for _, together in groupby(points, lambda point: point.at)]
        placed = [(point.at - start, point.value) for point in moments]
        # A single point becomes a short line, so that it can be seen.
        chart.add(kind, placed if len(placed) > 1 else [(placed[0][0] + length_s / 100, placed[0][1]), *placed])
    return _clean(chart.render_tree(), list(curves), title=title, text=text)


def _clean(svg: ET.Element, kinds: Sequence[str], *, title: str, text: str) -> Markup:
    """Keeps the axes and the curves of pygal's drawing, without its background, scripts and styles."""
    root = _root(WIDTH, HEIGHT, title, text)
    for plot in svg.findall(".//g[@class='plot']"):
        for number, kind in enumerate(kinds):
            for path in plot.iterfind(f"g[@class='series serie-{number} color-{number}']/path"):
                path.set("class", f"curve {kind}")
        ET.SubElement(root, "g", {"transform": plot.get("transform", "")}).extend(plot.findall("g"))
    return _write(root)


def draw_heat_map(
    rows: Mapping[str, Sequence[float | None]], *, title: str, text: str, length_s: float
) -> tuple[Markup, float, float]:
    """Values of BINS bins by row, from the palest to the strongest colour; also the values of these two."""
    values = [value for row in rows.values() for value in row if value is not None]
    high = max(values)
    low = min(*values, PALEST * high)
    tall = 16 if len(rows) <= MOST_TALL else 8
    height = tall * len(rows) + 24
    root = _root(WIDTH, height, title, text)
    paths: dict[int, list[str]] = {}
    every = 1 if tall == 16 else -(-len(rows) // MOST_TALL)
    for number, (label, row) in enumerate(rows.items()):
        if number % every == 0:
            attributes = {"x": str(LABEL_WIDTH - 6), "y": str(number * tall + 12), "class": "row"}
            ET.SubElement(root, "text", attributes).text = label[:14]
        x = float(LABEL_WIDTH)
        for level, stretch in groupby(find_level(value, low, high) for value in row):
            width = CELL * len(list(stretch))
            if level is not None:
                piece = f"M{x:.1f} {number * tall + 1}h{width:.1f}v{tall - 1}h-{width:.1f}z"
                paths.setdefault(level, []).append(piece)
            x += width
    for level, pieces in sorted(paths.items()):
        ET.SubElement(root, "path", {"class": f"heat{level}", "d": "".join(pieces)})
    for tick in find_ticks(length_s):
        x = LABEL_WIDTH + (WIDTH - LABEL_WIDTH) * tick / max(length_s, 1e-3)
        attributes = {"x": f"{x:.1f}", "y": str(height - 6), "class": "tick"}
        ET.SubElement(root, "text", attributes).text = render_clock(tick)
    return _write(root), low, high


def find_level(value: float | None, low: float, high: float) -> int | None:
    """The colour of a value. Pure."""
    if value is None:
        return None
    return min(int((value - low) / (high - low) * LEVELS), LEVELS - 1) if high > low else LEVELS - 1


def find_ticks(length_s: float) -> list[float]:
    """The times to name on an axis of this length. Pure."""
    days = int(length_s // (MOST_LABELS * DAY_S)) + 1
    step = next((step for step in STEPS_S if length_s / step < MOST_LABELS), days * DAY_S)
    return [float(at) for at in range(0, int(length_s) + 1, step)]


def render_clock(seconds: float) -> str:
    """A time since the start: "0:20", "1:05:00". Pure."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _root(width: float, height: float, title: str, text: str) -> ET.Element:
    root = ET.Element("svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": title})
    ET.SubElement(root, "title").text = title
    ET.SubElement(root, "desc").text = text
    return root


def _write(root: ET.Element) -> Markup:
    """The text of a drawing, with one decimal in its coordinates."""
    text = _ATTRIBUTE.sub(lambda found: _LONG_NUMBER.sub(r"\1", found[0]), ET.tostring(root, encoding="unicode"))
    return Markup(text)  # noqa: S704 - ElementTree has escaped it
