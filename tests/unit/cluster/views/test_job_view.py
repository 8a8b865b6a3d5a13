"""The view of a job: what is shown when there is little room."""

import pytest

from cluster.views.job_rows import SMALLEST_WINDOW, render_view
from job_events import bar, line, speed, state, warnings, worker
from train.follow.events import Event
from train.follow.progress import Progress


@pytest.mark.parametrize("ranks", [1, 64])
@pytest.mark.parametrize(("columns", "lines"), [(10, 1), (10, 24), (200, 24)])
@pytest.mark.parametrize("drawn", [False, True])
def test_the_view_fits_every_window(ranks: int, columns: int, lines: int, *, drawn: bool) -> None:
    progress = Progress()
    progress.take(warnings("2 workers trained 2 separate models"))
    progress.take(state("running"))
    for rank in range(ranks):
        progress.take(speed(rank, 20, 1000.0 + rank))
        progress.take(bar("outer: 50%|\ninner: 10%|" * drawn, rank))
    rows = render_view(progress, title="job mnist", now=110.0, columns=columns, lines=lines)
    assert max(len(row.text) for row in rows) < columns
    assert any("[worker" in row.text for row in rows) == (drawn and lines >= SMALLEST_WINDOW)
    assert len(rows) <= max(1, lines - 2)
    assert rows[-1].text.startswith("job mnist"[: columns - 1])


def test_bars_of_each_rank() -> None:
    """With little room, only the innermost."""
    progress = Progress()
    progress.take(state("running"))
    for rank in range(4):
        progress.take(bar("Epoch 3:  40%|##  | 40/100 [00:04<00:06]\ninner: 10%|", rank))

    def shown(lines: int) -> list[str]:
        rows = render_view(progress, title="job x", now=110.0, columns=100, lines=lines)
        return [row.text for row in rows if row.text.startswith("[")] + [row.text for row in rows if "bars" in row.text]

    assert shown(32)[:2] == [
        "[worker 0 node-0] Epoch 3:  40%|##  | 40/100 [00:04<00:06]",
        "[worker 0 node-0] inner: 10%|",
    ]
    assert len(shown(32)) == 8
    assert shown(16) == [f"[worker {rank} node-{rank}] inner: 10%|" for rank in range(4)]
    assert shown(8) == ["[worker 0 node-0] inner: 10%|", "and 3 more bars"]
    table = render_view(progress, title="job x", now=110.0, columns=100, lines=32)
    assert table[1].text.split() == ["0", "node-0", "3", "40", "8", "s"]
    for rank in range(4):
        progress.take(bar("", rank) if rank else Event(kind="process", at=110.0, process=worker(0, exit_code=0)))
    assert shown(32) == []


def test_with_little_room_the_silent_and_the_slow_are_shown() -> None:
    progress = Progress()
    progress.take(state("running"))
    for rank in range(64):
        rate = 500.0 if rank == 60 else 1000.0 - rank
        progress.take(speed(rank, 20, rate, at=102.0 if rank == 5 else 110.0))
    rows = render_view(progress, title="job mnist", now=111.0, columns=100, lines=14)
    assert [row.text.split()[0] for row in rows[1:-2]] == ["0", "1", "5", "60"]
    assert "9 s" in rows[3].text
    assert rows[-2].text == "and 60 more"


def test_a_hanging_job_shows_for_how_long_until_it_continues() -> None:
    progress = Progress()
    progress.take(state("running"))
    progress.take(Event(kind="message", at=200.0, text="no worker", stalled_since=140.0))
    progress.take(Event(kind="message", at=205.0, text="something else"))

    def shown() -> str:
        return render_view(progress, title="job x", now=260.0, columns=80, lines=24)[-1].text

    assert shown() == "job x: running 2 min 40 s, no progress for 2 min 0 s"
    progress.take(Event(kind="message", at=210.0, text="again", stalled_since=0.0))
    assert shown() == "job x: running 2 min 40 s"


def test_ranks_show_how_far_they_are() -> None:
    progress = Progress(epochs=4)
    progress.take(state("running"))
    progress.take(line("Epoch[0] Batch [0-20]\tSpeed: 100 samples/sec\taccuracy=0.5", at=110.0))
    progress.take(line("Epoch[1] Batch [0-20]\tSpeed: 100 samples/sec\taccuracy=0.6", at=170.0))

    def shown(columns: int) -> list[str]:
        return [row.text for row in render_view(progress, title="job x", now=171.0, columns=columns, lines=24)]

    assert shown(80)[1].endswith("0.6  ██░░░░░░░░ left 02:59")
    assert shown(80)[-1] == "job x: running 1 min 11 s, 100 samples/s, 1 worker, epoch 1, left 02:59"
    assert "█" not in "".join(shown(50))
