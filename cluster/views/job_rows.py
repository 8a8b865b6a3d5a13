"""The view of a running job as rows of text: one per rank, if they fit, and one for all ranks. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from cluster.views.layout import cut, render_table
from foundation.durations import render_rounded
from provision.model import count
from train.follow.goals import Goal
from train.follow.progress import Progress, RankProgress, render_rate, render_value

Style = Literal["", "bold", "dim", "slow"]
LEFT = ("node", "", "epochs")  # columns that are not aligned to the right
LONGEST_NAME = 20
SHORTEST_TITLE = 12  # of a job whose name would hide its state
SMALLEST_WINDOW = 8  # lines; a smaller window shows only the row for all ranks
BARS_SHARE = 4  # of the window's lines: at most one in so many has a progress bar
GOAL_CELLS = 10  # of the bar that shows how many epochs are done
SILENT_S = 5.0  # a rank that printed something more recently is not shown as silent


class Row(Struct, frozen=True, kw_only=True):
    """A line of the view, never wider than the window."""

    text: str
    style: Style = ""


def render_view(progress: Progress, *, title: str, now: float, columns: int, lines: int) -> tuple[Row, ...]:
    """Renders the rows of the view, for a window of the given columns and lines.

    now: the time by the log's clock, in seconds since the epoch.
    """
    most = columns - 1  # a full line would wrap in some terminals
    rows = bars = render_bars(progress.ranks, most=most, room=lines // BARS_SHARE) if lines >= SMALLEST_WINDOW else ()
    room = min(max(2, lines // 2 - 3), lines - 5 - len(bars) - bool(progress.warnings))
    if lines >= SMALLEST_WINDOW and room > 1 and any(rank.has_report for rank in progress.ranks):
        rows = (*render_ranks(progress, now=now, most=most, room=room), *bars)
    if lines >= SMALLEST_WINDOW and progress.warnings:
        rows = (*rows, Row(text=f"warning: {'; '.join(progress.warnings)}"[:most], style="slow"))
    return (*rows, Row(text=render_status(progress, title=title, now=now, most=most), style="bold"))


def render_bars(ranks: Sequence[RankProgress], *, most: int, room: int) -> tuple[Row, ...]:
    """Renders the current progress bars of all ranks; of several bars of a rank, only the last if not all fit."""
    drawn = [rank for rank in ranks if rank.bar]
    rows = [f"[{rank.process.tag}] {text}" for rank in drawn for text in rank.bar]
    if len(rows) > room:
        rows = [f"[{rank.process.tag}] {rank.bar[-1]}" for rank in drawn]
    if len(rows) > room:
        rows = [*rows[: room - 1], f"and {len(rows) - room + 1} more bars"]
    return tuple(Row(text=cut(text, most)) for text in rows)


def render_ranks(progress: Progress, *, now: float, most: int, room: int) -> tuple[Row, ...]:
    """Renders a header and a row per rank; the silent and the slow ranks first if not all fit."""
    ranks = progress.ranks
    slow = progress.stragglers
    shown = choose_ranks(ranks, room, slow, now=now)
    styles: list[Style] = ["slow" if rank.process.number in slow else "dim" if rank.has_ended else "" for rank in shown]
    fixed = {
        "rank": [_known(rank.process.rank) or "?" for rank in shown],
        "node": [rank.process.host[:LONGEST_NAME] for rank in shown],
        "epoch": [_known(rank.epoch) for rank in shown],
        "batch": [_known(rank.batch) for rank in shown],
        "samples/s": ["" if rank.speed is None else render_rate(rank.speed) for rank in shown],
        "": [_note(rank, slow) for rank in shown],
    }
    last = {
        "silent": [_silence(rank, now) for rank in shown],
        "epochs": [render_goal(rank.find_goal(progress.epochs, now=now)) for rank in shown],
    }
    metrics: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for rank in shown for name in rank.metrics if name not in {*fixed, *last}):
        metrics[name[:LONGEST_NAME]] = [
            render_value(rank.metrics[name]) if name in rank.metrics else "" for rank in shown
        ]
    titles = [*metrics]
    drop = (*titles[:0:-1], "silent", "epochs", *titles[:1], "node", "batch", "epoch", "", "samples/s")
    rows = render_columns({**fixed, **metrics, **last}, most, drop=drop, left=LEFT, styles=styles)
    if len(shown) < len(ranks):
        return (*rows, Row(text=f"and {len(ranks) - len(shown)} more"[:most], style="dim"))
    return rows


def render_columns(
    columns: Mapping[str, Sequence[str]], most: int, *, drop: Sequence[str], left: Collection[str],
    styles: Sequence[Style] = (),
) -> tuple[Row, ...]:  # fmt: skip
    """Renders a header and a row per cell of the columns that have text and fit.

    columns: the cells, by title. drop: as for render_table. left: titles of columns that are not aligned to the right.
    styles: of the rows after the header.
    """
    kept = {title: cells for title, cells in columns.items() if any(cells)}
    cells = [tuple(kept), *zip(*kept.values(), strict=True)]
    header, *texts = render_table(cells, columns=most, drop=drop, right={*kept}.difference(left)).split("\n")
    rows = (Row(text=text[:most], style=styles[at] if styles else "") for at, text in enumerate(texts))
    return (Row(text=header[:most], style="dim"), *rows)


def choose_ranks(
    ranks: Sequence[RankProgress], room: int, slow: frozenset[int], *, now: float
) -> tuple[RankProgress, ...]:
    """Returns all ranks if they fit, otherwise the running ones that are silent or slow first, in the same order.

    Not the slowest ones: others would be shown at each drawing while all have about the same speed.
    """
    if len(ranks) <= room:
        return tuple(ranks)

    def key(position: int) -> tuple[bool, bool, bool]:
        rank = ranks[position]
        return rank.has_ended, now - rank.received_at <= SILENT_S, rank.process.number not in slow

    return tuple(ranks[position] for position in sorted(sorted(range(len(ranks)), key=key)[:room]))


def render_goal(goal: Goal | None) -> str:
    """Renders how far a rank is as a bar, and the time left: "███░░░░░░░ left 03:33"; "" without a goal."""
    if goal is None:
        return ""
    done = int(goal.share * GOAL_CELLS + 1e-9)
    bar = "█" * done + "░" * (GOAL_CELLS - done)
    return f"{bar} left {_clock(goal.left_s)}" if goal.left_s else bar


def _clock(seconds: float) -> str:
    minutes, s = divmod(max(0, round(seconds)), 60)
    return f"{minutes:02}:{s:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{s:02}"


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


def _silence(rank: RankProgress, now: float) -> str:
    silence_s = now - rank.received_at
    return render_rounded(silence_s) if silence_s > SILENT_S and not rank.has_ended else ""


def _note(rank: RankProgress, slow: frozenset[int]) -> str:
    code = rank.process.exit_code
    if code is None:
        return "slow" if rank.process.number in slow else ""
    return "ended" if code == 0 else f"exit {code}"


def render_status(progress: Progress, *, title: str, now: float, most: int) -> str:
    """Renders the state of the job, then as many other facts as fit, the most important first."""
    began = progress.began_at
    state = progress.state if began is None else f"{progress.state} {render_rounded(now - began)}"
    room = most - len(state) - 2
    if len(title) > room >= SHORTEST_TITLE:
        title = f"{title[: room - 3]}..."
    text = f"{title}: {state}"[:most]
    for words in _describe_all(progress, now=now):
        if len(text) + len(words) + 2 <= most:
            text += f", {words}"
    return text


def render_summary(progress: Progress) -> str | None:
    """Renders an ended job in one line: "12.3 k samples/s, 4 workers, epoch 9, 45 s"; None without reports."""
    if not any(rank.has_report for rank in progress.ranks):
        return None
    took = [] if progress.duration_s is None else [render_rounded(progress.duration_s)]
    return ", ".join([*_describe_all(progress, now=progress.now), *took])


def _describe_all(progress: Progress, *, now: float) -> list[str]:
    words = []
    if progress.stalled_since is not None:
        words.append(f"no progress for {render_rounded(now - progress.stalled_since)}")
    workers = count(len(progress.ranks), "worker")
    if not progress.ranks:
        return words
    if progress.speed is None:
        words.append(workers)
    else:
        reporting = sum(rank.speed is not None for rank in progress.ranks)
        of = f"{reporting} of " if reporting < len(progress.ranks) else ""
        words += [f"{render_rate(progress.speed)} samples/s", f"{of}{workers}"]
    if progress.stragglers:
        words.append(f"{len(progress.stragglers)} slow")
    if progress.epoch is not None:
        words.append(f"epoch {progress.epoch}")
    goals = [rank.find_goal(progress.epochs, now=now) for rank in progress.ranks]
    left_s = max((goal.left_s for goal in goals if goal is not None and goal.left_s), default=None)
    if left_s is not None and progress.ended_at is None:
        words.append(f"left {_clock(left_s)}")
    words += [f"{name} {render_value(value)}" for name, value in progress.metrics.items()]
    return words
