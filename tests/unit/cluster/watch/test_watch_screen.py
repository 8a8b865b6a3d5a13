"""The screen of `cluster watch`, driven by keys."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Label, Static

from cluster.app import App
from cluster.jobs import JobSources
from cluster.watch.model import LONGEST_LINE, WatchedJob
from cluster.watch.screen import Question, WatchScreen
from foundation.errors import ConnectError
from job_events import line, speed, state, warnings, worker
from job_records import make_running
from node.protocol import JobResult
from node.samples import GpuSample, ProcessSample, Sample
from train.follow.events import Event

HOSTILE = "\x1b]0;title\x07[bold red]markup[/] \x9b2J \x1b[31mred\x1b[0m \u202egnol"
FAILED = JobResult(state="failed", exit_code=3, error="worker 1 on node-1: \x1b[2J[red]exit code 3[/]", left={})


class Watched(WatchedJob):
    """A job without a cluster. called: set when it is stopped."""

    def __init__(self, app: App, name: str) -> None:
        record = make_running(1)
        super().__init__(app, JobSources(app), replace(record, spec=replace(record.spec, name=name)))
        self.called = threading.Event()
        self.to_do: Callable[[], None] = lambda: None  # of the thread that follows the job

    def follow(self) -> None:
        self.to_do()

    def stop(self) -> None:
        self.called.set()


Make = Callable[..., Watched]


@pytest.fixture
def job(app: App) -> Make:
    def make(*events: Event, name: str = "mnist") -> Watched:
        made = Watched(app, name)
        for event in events:
            made.take(event)
        return made

    return make


def running(batches: int = 5) -> list[Event]:
    reports = [speed(rank, 20 * at, 1000.0 + at, at=102.0 + at) for at in range(batches) for rank in range(2)]
    lines = [line(f"Epoch[0] Validation-accuracy=0.{at}", at % 2, at=110.0) for at in range(1, 10)]
    return [state("running"), *reports, *lines]


def drive(job: Watched, script: Callable[[WatchScreen, "Pilot[BaseException | None]"], Awaitable[None]]) -> WatchScreen:
    screen = WatchScreen(job)

    async def run() -> None:
        async with screen.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            screen.draw()
            await pilot.pause()
            await script(screen, pilot)

    asyncio.run(run())
    return screen


def text_of(widget: Static) -> str:
    return str(widget.render())


def box_of(screen: WatchScreen) -> str:
    """The text of the box above the screen."""
    return text_of(screen.screen.query_one(Label))


def shown(screen: WatchScreen) -> Sequence[str]:
    return screen.lines.lines


def test_everything_is_on_the_screen(job: Make) -> None:
    watched = job(*running())
    gpu = GpuSample(index=0, use=93.0, memory=1 << 30, memory_total=16 << 30)
    for at in range(0, 35, 5):
        busy = (ProcessSample(p=0, cpu=0.5), ProcessSample(p=1, cpu=0.9))
        hosts = ("node-0", ()), ("node-1", busy)
        watched.take_samples(
            [Sample(t=100.0 + at, host=host, over_s=5.0, cpu=50.0, gpus=(gpu,), processes=its) for host, its in hosts]
        )

    async def script(screen: WatchScreen, _: "Pilot[BaseException | None]") -> None:
        assert text_of(screen.status).startswith("job mnist: running")
        assert "slow: worker 1 on node-1 waits least" in text_of(screen.status)
        table = text_of(screen.ranks).splitlines()
        assert table[0].split() == ["rank", "node", "epoch", "batch", "samples/s", "accuracy", *table[0].split()[6:]]
        assert [row.split()[:4] for row in table[1:]] == [["0", "node-0", "0", "80"], ["1", "node-1", "0", "80"]]
        assert text_of(screen.nodes).splitlines()[2].split()[:5] == ["node-1", "50", "%", "93", "%"]
        curves = [text_of(curve.title) for curve in screen.curves if curve.display]
        assert curves[0].startswith("2.00 k samples/s  (")
        assert [title.split()[1] for title in curves[1:]] == ["accuracy", "cross-entropy", "validation-accuracy"]
        assert list(screen.curves[0].plot.data or ())[:2] == [2000.3, pytest.approx(2001.11)]
        assert shown(screen)[-1] == "[worker 1 node-1] Epoch[0] Validation-accuracy=0.9"
        assert screen.lines.region.height >= 7
        assert screen.lines.is_vertical_scroll_end
        for widget in screen.query("#ranks, #nodes, #curves, #log, Footer"):
            assert widget.region.right <= 80

    drive(watched, script)


def test_the_filter(job: Make) -> None:
    """A text, a rank; Enter keeps it, Escape removes it; new lines are filtered too."""
    watched = job(*running())

    async def script(screen: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        await pilot.press("f", *"y=0.3")
        assert shown(screen) == ["[worker 1 node-1] Epoch[0] Validation-accuracy=0.3"]
        await pilot.press("enter")
        assert screen.lines.has_focus
        watched.take(line("another", 0))
        watched.take(line("my Y=0.3", 0))
        screen.draw()
        assert shown(screen)[1:] == ["[worker 0 node-0] my Y=0.3"]
        await pilot.press("escape")
        assert len(shown(screen)) == 11
        assert not screen.filter.display
        await pilot.press("slash", "0", "enter")
        assert {row.split("]")[0] for row in shown(screen)} == {"[worker 0 node-0"}

    drive(watched, script)


def test_keys_between_ranks_and_log_and_resizing(job: Make) -> None:
    watched = job(*running())

    async def script(screen: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        await pilot.press("r")
        assert screen.rank_box.has_focus
        await pilot.press("r")
        assert screen.lines.has_focus
        await pilot.resize_terminal(20, 6)
        screen.draw()
        await pilot.pause()
        assert screen.query_one("Footer").region.bottom <= 6
        await pilot.press("s")
        assert isinstance(screen.screen, Question)
        watched.take(line("behind the box"))
        screen.draw()
        assert shown(screen)[-1] == "[worker 0 node-0] behind the box"
        await pilot.press("q")
        assert not isinstance(screen.screen, Question)
        assert screen.is_running

    drive(watched, script)


def test_hostile_text_is_inert(job: Make) -> None:
    """Escapes are shown, markup is not read, long lines are cut. Enter is not the answer that stops a job."""
    name = "[blink]loss\x1b"
    watched = job(*running(), line(HOSTILE), line("x" * 1_000_000), warnings(HOSTILE), name="\x1b[2J[red]x")
    watched.take(line("step 1 loss [bold]0.5"))
    watched.take(line("step 2 loss nan"))
    assert "loss" not in watched.values
    watched.take(Event(kind="message", at=120.0, text=f"two\nlines {name}"))

    async def script(screen: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        inert = "\\x1b]0;title\\x07[bold red]markup[/] \\x9b2J red \\u202egnol"
        assert f"[worker 0 node-0] {inert}" in shown(screen)
        assert shown(screen)[-1] == "lines [blink]loss\\x1b"
        assert max(map(len, shown(screen))) == LONGEST_LINE
        assert "job \\x1b[2J[red]x" in text_of(screen.status)
        assert "[bold red]markup[/]" in text_of(screen.status)
        await pilot.press("s")
        assert "Stop job \\x1b[2J[red]x?" in box_of(screen)
        await pilot.press("enter")
        await screen.workers.wait_for_complete()
        assert not watched.called.is_set()

    drive(watched, script)


def test_the_end_of_a_job_stays_on_the_screen(job: Make) -> None:
    ended = Event(kind="process", at=120.0, process=worker(1, exit_code=3))
    watched = job(*running(), ended, Event(kind="result", at=121.0, result=FAILED, state="failed"))

    async def script(screen: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        assert text_of(screen.status).splitlines() == [
            "job mnist: failed 21 s, 2.00 k samples/s, 2 workers, epoch 0, accuracy 0.25",
            "worker 1 on node-1: \\x1b[2J[red]exit code 3[/]",
        ]
        assert "exit 3" in text_of(screen.ranks)
        await pilot.press("s")
        assert not isinstance(screen.screen, Question)
        await pilot.press("q")

    assert drive(watched, script).return_value is None


def test_leaving_ends_the_thread_that_follows(job: Make) -> None:
    """Ctrl-C is told from q, and what the thread raises is kept for the command."""
    watched = job(*running())
    ended = threading.Event()

    def follow() -> None:
        watched.left.wait()
        ended.set()

    async def script(_: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        await pilot.press("ctrl+c")

    watched.to_do = follow
    assert isinstance(drive(watched, script).return_value, KeyboardInterrupt)
    assert ended.is_set()

    def fail() -> None:
        raise ConnectError("gave up")

    async def wait(screen: WatchScreen, pilot: "Pilot[BaseException | None]") -> None:
        await screen.workers.wait_for_complete()
        await pilot.pause()

    watched = job(*running())
    watched.to_do = fail
    assert str(drive(watched, wait).return_value) == "gave up"
