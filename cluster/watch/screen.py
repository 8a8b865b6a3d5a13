"""The screen of `cluster watch`: nodes, ranks, curves and the log of a job, and its keys."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Label, Log, Sparkline, Static

from cluster.views.job_rows import Row, Style, render_bars, render_columns, render_ranks, render_status
from cluster.views.terminal import escape_line
from cluster.watch.model import MOST_LINES, WatchedJob, find_rows
from node.protocol import JobState
from node.samples import Sample
from train.follow.progress import render_rate, render_value

DRAW_EVERY_S = 0.25
GIB = 1 << 30
MOST_CURVES = 4
MOST_RANKS = 1000
MOST_BARS = 8
STYLES: dict[Style, str] = {"": "", "bold": "bold", "dim": "dim", "slow": "$warning"}
END_STYLES = {"done": "bold $success", "failed": "bold $error", "stopped": "bold $warning"}


class Question(ModalScreen[bool]):
    """A question in the middle of the screen; y means yes, and any other key no."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yields the text."""
        yield Label(self._text, markup=False)

    def on_key(self, event: Key) -> None:
        """Removes the question."""
        event.stop()
        self.dismiss(event.key == "y")


class Curve(Vertical):
    """A curve with its newest value, name and range. Hidden while it has fewer than two points."""

    def __init__(self) -> None:
        self.title, self.plot = Static(markup=False), Sparkline(summary_function=statistics.fmean)
        super().__init__(self.title, self.plot)

    def show(self, name: str, points: list[float]) -> None:
        """Draws the points; the oldest is on the left."""
        self.display = len(points) > 1
        if self.display:
            render = render_rate if name.endswith("/s") else render_value
            title = f"{render(points[-1])} {name}  ({render(min(points))} to {render(max(points))})"
            self.title.update(Content(title))
            self.plot.data = points


class WatchScreen(App[BaseException | None]):
    """Shows a job until the user leaves. Returns KeyboardInterrupt after Ctrl-C, or why the job cannot be followed."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]  # noqa: RUF012 - textual's type is no ClassVar of a tuple
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high"), (40, "-high -tall")]  # noqa: RUF012 - as above
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f,slash", "filter", "Filter", key_display="f"),
        Binding("r", "switch", "Ranks/log"),
        Binding("s", "stop", "Stop"),
        Binding("q", "leave", "Leave"),
        Binding("ctrl+c", "leave(True)", show=False, priority=True),
        Binding("escape", "log", "Back to the log", show=False),
    ]

    def __init__(self, job: WatchedJob) -> None:
        super().__init__()
        self._job = job
        self._shown = 0  # of the model's `added` lines
        self._state: JobState | None = None
        self.status = Static(id="status", markup=False)
        self.ranks, self.nodes = Static(markup=False), Static(markup=False)
        self.rank_box, self.node_box = VerticalScroll(self.ranks, id="ranks"), VerticalScroll(self.nodes, id="nodes")
        self.curves = [Curve() for _ in range(MOST_CURVES)]
        self.lines = Log(id="log", max_lines=MOST_LINES)
        self.filter = Input(id="filter", placeholder="show only lines with this text, or of the rank with this number")

    def compose(self) -> ComposeResult:
        """Yields the parts of the screen from top to bottom."""
        yield self.status
        yield Container(self.rank_box, self.node_box, id="tables")
        yield Horizontal(*self.curves, id="curves")
        yield self.lines
        yield self.filter
        yield Footer()

    def on_mount(self) -> None:
        """Starts the threads and the clock."""
        self.animation_level = "none"
        self.lines.anchor()
        self.lines.focus()
        self.run_worker(self._run_follow, thread=True)
        self.run_worker(self._job.sample, thread=True)
        self.set_interval(DRAW_EVERY_S, self.draw)

    def _run_follow(self) -> None:
        try:
            self._job.follow()
        except BaseException as error:  # noqa: BLE001 - the command raises it once the terminal is restored
            self.call_from_thread(self.exit, error)

    def draw(self) -> None:
        """Draws what has changed."""
        job = self._job
        with job.lock:
            self._draw_status()
            self._draw_tables()
            values = job.values
            for curve, (name, points) in zip(self.curves, job.curves.items(), strict=False):
                curve.show(name, [*points, values.get(name, points[-1])])
            new = min(job.added - self._shown, len(job.lines))
            rows = list(job.lines)[len(job.lines) - new :]
            self._shown = job.added
            state, self._state = self._state, job.progress.state
        if state != self._state:
            self.refresh_bindings()  # an ended job cannot be stopped
        if found := find_rows(rows, self.filter.value):  # to write nothing would scroll to the end, too
            self.lines.write_lines(found)

    def _draw_status(self) -> None:
        progress = self._job.progress
        text = render_status(progress, title=self._job.title, now=self._job.now, most=self.size.width - 3)
        rows = [Content.styled(text, END_STYLES.get(progress.state, "bold"))]
        result = progress.result
        reasons = filter(None, (result.error, result.cause) if result is not None else ())
        rows.extend(Content.styled(escape_line(why), "$error") for why in reasons)
        straggler = self._job.straggler
        if straggler is not None and progress.ended_at is None:
            rows.append(Content.styled(escape_line(f"slow: {straggler.why}"), "$warning"))
        rows += [Content.styled(f"warning: {escape_line(text)}", "$warning") for text in progress.warnings]
        self.status.update(Content("\n").join(rows))

    def _draw_tables(self) -> None:
        job, progress = self._job, self._job.progress
        most = self.rank_box.scrollable_content_region.width
        rows = render_bars(progress.ranks, most=most, room=MOST_BARS)
        if any(rank.has_report for rank in progress.ranks):
            rows = (*render_ranks(progress, now=job.now, most=most, room=MOST_RANKS), *rows)
        _fill(self.rank_box, self.ranks, rows)
        most = self.node_box.scrollable_content_region.width
        _fill(self.node_box, self.nodes, render_nodes(job.samples.values(), most=most))

    def on_input_changed(self) -> None:
        """Shows the log anew, with the new filter."""
        self.lines.clear()
        self._shown = 0
        self.draw()

    def on_input_submitted(self) -> None:
        """Keeps the filter."""
        self.filter.display = bool(self.filter.value)
        self.lines.focus()

    def action_filter(self) -> None:
        """Shows the line for the filter."""
        self.filter.display = True
        self.filter.focus()

    def action_log(self) -> None:
        """Goes back to the log, without a filter."""
        self.filter.value = ""
        self.filter.display = False
        self.lines.focus()

    def action_switch(self) -> None:
        """Goes to the ranks, or back to the log: the arrow keys scroll it."""
        (self.rank_box if self.lines.has_focus else self.lines).focus()

    @work
    async def action_stop(self) -> None:
        """Stops the job, after a question."""
        question = f"Stop {self._job.title}?\n\ny: stop it    any other key: let it run"
        if await self.push_screen_wait(Question(question)):
            self.run_worker(self._job.stop, thread=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Whether a key does something."""
        return action != "stop" or self._job.progress.ended_at is None

    def action_leave(self, interrupted: bool = False) -> None:  # noqa: FBT001, FBT002 - textual passes it
        """Leaves; the job runs on."""
        self.exit(KeyboardInterrupt() if interrupted else None)

    def on_unmount(self) -> None:
        """Ends the threads."""
        self._job.left.set()


def _fill(box: VerticalScroll, table: Static, rows: Iterable[Row]) -> None:
    shown = [Content.styled(escape_line(row.text), STYLES[row.style]) for row in rows]
    box.display = bool(shown)
    table.update(Content("\n").join(shown))


# -- the table of nodes ------------------------------------------------------------------------------------------------


def _share(used: float, total: float) -> str:
    return f"{used / GIB:.1f} of {total / GIB:.0f} GiB" if total else ""


NODE_COLUMNS: Mapping[str, Callable[[Sample], str]] = {
    "node": lambda node: node.host[:20],
    "cpu": lambda node: f"{node.cpu:.0f} %",
    "memory": lambda node: _share(node.memory, node.memory_total),
    "gpu": lambda node: " ".join("?" if gpu.use is None else f"{gpu.use:.0f} %" for gpu in node.gpus),
    "gpu memory": lambda node: _share(
        sum(gpu.memory or 0.0 for gpu in node.gpus), sum(gpu.memory_total or 0.0 for gpu in node.gpus)
    ),
    "received": lambda node: f"{node.received / 1e6:.1f} MB/s",
    "sent": lambda node: f"{node.sent / 1e6:.1f} MB/s",
    "": lambda node: ", ".join(f"gpu {gpu.index} throttled: {gpu.throttled}" for gpu in node.gpus if gpu.throttled),
}


def render_nodes(samples: Iterable[Sample], *, most: int) -> tuple[Row, ...]:
    """Renders a header and a row per node; leaves out the columns that do not fit into `most` characters."""
    nodes = sorted(samples, key=lambda sample: (len(sample.host), sample.host))
    columns = {title: [render(node) for node in nodes] for title, render in NODE_COLUMNS.items()}
    return render_columns(columns, most, drop=[*columns][:0:-1], left=("node", "")) if nodes else ()
