"""Numbers over time, thinned while they are read. Pure."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

MOST_POINTS = 200
BINS = 120


class Point(Struct, frozen=True, gc=False):
    """The mean, the least and the greatest of some values. at: the time of the last one, in seconds since the epoch."""

    at: float
    value: float
    low: float
    high: float
    count: int = 1


class Curve:
    """A number over time: each value, or at least MOST_POINTS points with the means of their neighbours."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.points: list[Point] = []
        for point in points:
            self._add(point)

    def add(self, at: float, value: float) -> None:
        """Adds a finite value. Times do not decrease."""
        self._add(Point(at, value, value, value))

    def _add(self, point: Point) -> None:
        self.points.append(point)
        if len(self.points) >= 2 * MOST_POINTS:
            self.points = [merge(self.points[start : start + 2]) for start in range(0, len(self.points), 2)]

    @property
    def is_thinned(self) -> bool:
        """Whether a point stands for several values."""
        return any(point.count > 1 for point in self.points)

    @property
    def mean(self) -> float | None:
        """The mean of all values; None without values."""
        return merge(self.points).value if self.points else None

    @property
    def last(self) -> float | None:
        """The newest value; None without values."""
        return self.points[-1].value if self.points else None

    def resample(self, start: float, end: float) -> list[float | None]:
        """The means in BINS bins of equal length; a bin without values has the one before, up to the last value."""
        bins: dict[int, list[Point]] = {}
        for point in self.points:
            bins.setdefault(find_bin(point.at, start, end), []).append(point)
        found: list[float | None] = [None] * BINS
        for number in range(max(bins, default=-1) + 1):
            found[number] = merge(bins[number]).value if number in bins else (found[number - 1] if number else None)
        return found


def merge(points: Sequence[Point]) -> Point:
    """One point for several. Pure."""
    count = sum(point.count for point in points)
    return Point(
        points[-1].at,
        sum(point.value * point.count for point in points) / count,
        min(point.low for point in points),
        max(point.high for point in points),
        count,
    )


def find_bin(at: float, start: float, end: float) -> int:
    """The number of the bin of a time. Pure."""
    share = (at - start) / (end - start) if end > start else 0.0
    return min(max(int(share * BINS), 0), BINS - 1)


def find_middle(number: int, start: float, end: float) -> float:
    """The time in the middle of a bin. Pure."""
    return start + (number + 0.5) / BINS * (end - start)


def combine(
    curves: Sequence[Curve], start: float, end: float, of: Callable[[Sequence[float]], float]
) -> tuple[Point, ...]:
    """One curve for several, with the least and the greatest of them. of: such as sum or the mean. Pure."""
    if len(curves) == 1:
        return tuple(curves[0].points)
    rows = zip(*(curve.resample(start, end) for curve in curves), strict=True)
    points = []
    for number, row in enumerate(rows):
        values = [value for value in row if value is not None]
        if values:
            at = find_middle(number, start, end)
            points.append(Point(at, of(values), min(values), max(values), len(values)))
    return tuple(points)
