"""Numbers over time, thinned while they are read. Pure."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec import Struct

MOST_POINTS = 200
BINS = 120
MOST_TRIMMED = 6  # of the bins


class Point(Struct, frozen=True, gc=False):
    """The mean, the least and the greatest of some values. at: the time of the last one, in seconds since the epoch."""

    at: float
    value: float
    low: float
    high: float
    count: int = 1


class Summary(NamedTuple):
    """The main numbers of one curve, or of several together."""

    first: float
    last: float
    least: float
    greatest: float
    mean: float


class Curve:
    """A number over time: each value, or at least MOST_POINTS points with the means of their neighbours."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.points: list[Point] = []
        for point in points:
            self._add(point)

    def add(self, at: float, value: float) -> None:
        """Adds a finite value. A time before that of the last one, by a clock that was set back, counts as the last."""
        at = max(at, self.points[-1].at) if self.points else at
        self._add(Point(at, value, value, value))

    def _add(self, point: Point) -> None:
        if len(self.points) == 2 * MOST_POINTS:  # the first and the last point stay single values
            pairs = (self.points[start : start + 2] for start in range(1, len(self.points), 2))
            self.points = [self.points[0], *map(merge, pairs)]
        self.points.append(point)

    @property
    def _apart(self) -> float:
        """The time between its points on average."""
        return (self.points[-1].at - self.points[0].at) / max(len(self.points) - 1, 1)

    @property
    def mean(self) -> float:
        """The mean over the time; 0 without values.

        Not that of the points: the first part of a long log has more of them.
        """
        if not self.points:
            return 0.0
        bins = self.resample(self.points[0].at - self._apart, self.points[-1].at)
        return fmean(value for value in bins if value is not None)

    @property
    def summary(self) -> Summary:
        """Its main numbers; it has values."""
        low, high = min(point.low for point in self.points), max(point.high for point in self.points)
        return Summary(self.points[0].value, self.points[-1].value, low, high, self.mean)

    def resample(self, start: float, end: float) -> list[float | None]:
        """The means in BINS bins of equal length.

        A bin without values has the next one, because a report is about the time before. The first and the last value
        reach as far as values are apart on average.
        """
        found: list[float | None] = [None] * BINS
        if not self.points:
            return found
        bins: dict[int, list[Point]] = {}
        for point in self.points:
            bins.setdefault(find_bin(point.at, start, end), []).append(point)
        value = self.points[-1].value
        first, last = self.points[0].at - self._apart, self.points[-1].at + self._apart
        for number in range(find_bin(last, start, end), find_bin(first, start, end) - 1, -1):
            value = merge(bins[number]).value if number in bins else value
            found[number] = value
        return found


def merge(points: Sequence[Point]) -> Point:
    """One point for several. Pure."""
    count = sum(point.count for point in points)
    value = sum(point.value * point.count for point in points) / count
    low, high = min(point.low for point in points), max(point.high for point in points)
    return Point(points[-1].at, value, low, high, count)


def find_bin(at: float, start: float, end: float) -> int:
    """The number of the bin of a time. Pure."""
    share = (at - start) / (end - start) if end > start else 0.0
    return min(max(int(share * BINS), 0), BINS - 1)


def combine(
    curves: Sequence[Curve], start: float, end: float, of: Callable[[Sequence[float]], float]
) -> tuple[Point, ...]:
    """One curve for several, with points where they have some. Pure. of: sum, or the mean."""
    if len(curves) == 1:
        return tuple(curves[0].points)
    points = []
    for number, row in enumerate(zip(*(curve.resample(start, end) for curve in curves), strict=True)):
        values = [value for value in row if value is not None]
        if values:
            at, value = start + (number + 0.5) / BINS * (end - start), of(values)  # the middle of the bin
            points.append(Point(at, value, value, value, len(values)))
    reported = {find_bin(point.at, start, end) for curve in curves for point in curve.points}
    shown = _trim(points)
    return tuple(point for point in shown if find_bin(point.at, start, end) in reported) or tuple(shown)


def _trim(points: list[Point]) -> list[Point]:
    """Leaves out a few points at both ends, of the time in which some ranks report, and others not yet or no more."""
    most = max((point.count for point in points), default=0)
    whole = [number for number, point in enumerate(points) if point.count == most]
    first, last = (whole[0], whole[-1] + 1) if whole else (0, 0)
    return points[first if first <= MOST_TRIMMED else 0 : last if len(points) - last <= MOST_TRIMMED else None]
