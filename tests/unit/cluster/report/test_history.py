"""What a report knows of a job, from the lines of its log."""

from collections.abc import Iterator

import pytest

from cluster.report.curves import Curve, Point
from cluster.report.history import ERROR_LINES, History
from node.job.scalars import SPEED
from report_logs import START, begin, entry, read, speed


def points(history: History, rank: int, name: str) -> list[tuple[float, float]]:
    return [(point.at - START, point.value) for point in history.ranks[f"rank {rank}"].curves[name].points]


def test_the_ranks_of_several_attempts_have_one_curve() -> None:
    history = read(*begin(2), speed(1, 0, 10), speed(2, 1, 20), *begin(2, first=5), speed(9, 5, 30), speed(9, 6, 40))
    assert list(history.ranks) == ["rank 0", "rank 1"]
    assert [value for _, value in points(history, 0, SPEED)] == [10, 30]


@pytest.mark.parametrize(
    ("times", "filled"),
    [
        ([50], range(60, 61)),
        ([40, 50], range(36, 73)),  # each report is of the 10 s before it, and the next one would be 10 s after it
        (range(0, 101, 10), range(120)),
        ([], range(0)),
    ],
)
def test_the_time_that_reports_are_about(times: list[float], filled: range) -> None:
    curve = Curve(Point(at, at, at, at) for at in times)
    found = curve.resample(0, 100)
    assert [number for number, value in enumerate(found) if value is not None] == list(filled)
    assert {value for value in found if value is not None} == set(times)


def test_the_first_error_has_its_own_process_last_lines() -> None:
    lines = [entry(1 + n, p=n % 2, line=f"line {n}") for n in range(100)]
    ends = [entry(200, p=1, exit=3), entry(201, p=0, exit=1)]
    history = read(*begin(2), *lines, *ends)
    history.note_culprit(1)  # by the record of a job that runs again after an error; else the result names it
    assert history.first_error is not None
    assert history.first_error.process.exit_code == 3
    assert history.first_error.lines == tuple(f"line {n}" for n in range(1, 100, 2))[-ERROR_LINES:]


def test_a_launcher_that_the_supervisor_ended_is_no_event() -> None:
    launcher = entry(0, p=9, role="launcher", host="node-0")
    history = read(launcher, *begin(1), entry(5, state="ending"), entry(6, p=9, exit=1))
    assert [text for *_, text in history.marks] == ["starting", "running", "ending"]


def test_marks_on_the_axis_of_time() -> None:
    history = read(
        *begin(1),
        entry(1, warnings=["2 workers train 2 models"]),
        entry(2, warnings=["2 workers train 2 models"]),
        entry(3, message="node-1 is about to be interrupted"),
        entry(4, result={"state": "done", "exit_code": 0}),
        entry(5, message="after the end"),
    )
    assert [(kind, text) for _, kind, text in history.marks] == [
        ("state", "starting"),
        ("state", "running"),
        ("warning", "2 workers train 2 models"),
        ("message", "node-1 is about to be interrupted"),
        ("state", "done"),
    ]


def test_all_ranks_are_read_that_print_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs do whose output is buffered."""
    monkeypatch.setattr("cluster.report.history.EXACT_LINES", 1000)
    history = read(*begin(8), *(speed(n / 100, n // 100 % 8, 100) for n in range(40_000)))
    assert history.examined < 10_000
    for rank in range(8):
        seen = {int(at / 10) for at, _ in points(history, rank, SPEED)}
        assert len(seen) > 30, rank


def test_a_rank_that_seldom_reports_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one whose lines are passed over."""
    monkeypatch.setattr("cluster.report.history.EXACT_LINES", 1000)
    history = read(*begin(2), *(speed(n, int(n % 1000 == 999), 100) for n in range(60_000)))
    assert len(points(history, 1, SPEED)) == 60
    assert history.examined < 10_000


def long_log(each: int, tested: str) -> Iterator[bytes]:
    """Two ranks; one line in a thousand has the result of a validation: tested."""
    yield from begin(2)
    for step in range(each):
        for rank in range(2):
            if step % 1000 == 999:
                yield entry(step, p=rank, line=tested.format(step // 1000))
            else:
                yield speed(step, rank, 100 + rank)
    yield entry(each, p=0, line="RuntimeError: CUDA out of memory")
    yield entry(each, p=0, exit=1)
    yield entry(each, result={"state": "failed", "exit_code": 1, "culprit": 0})


@pytest.mark.parametrize(
    ("tested", "name"),
    [
        ("Epoch[{}] Validation-accuracy=0.5", "validation-accuracy"),
        ("step {}: train loss 2.5, val loss 2.6", "validation-loss"),
        ("Epoch {} val_loss: 2.6", "validation-loss"),
    ],
)
def test_of_a_long_log_a_part_is_read(monkeypatch: pytest.MonkeyPatch, tested: str, name: str) -> None:
    """Its means, rare numbers, error and result are those of the whole."""
    each = 10_000
    monkeypatch.setattr("cluster.report.history.EXACT_LINES", each // 10)
    history = read(*long_log(each, tested))
    assert history.lines == 2 * each + 1
    assert history.examined < each
    for rank in range(2):
        curves = history.ranks[f"rank {rank}"].curves
        assert curves[SPEED].mean == pytest.approx(100 + rank)
        assert each - curves[SPEED].points[-1].at + START < each / 100
        assert sum(point.count for point in curves[name].points) == each // 1000
    assert history.first_error.lines[-1] == "RuntimeError: CUDA out of memory"
    assert history.result.exit_code == 1


def test_a_rank_of_two_processes_ends_nothing() -> None:
    history = read(*begin(2), *(entry(1, p=number, rank=rank) for number, rank in ((0, 7), (1, 7), (0, 8), (1, 9))))
    assert list(history.ranks) == ["rank 8", "rank 9"]


def test_a_clock_that_was_set_back() -> None:
    history = read(*begin(1), *(speed(100 - at, 0, 100.0) for at in range(50)))
    assert {at for at, _ in points(history, 0, SPEED)} == {100.0}
