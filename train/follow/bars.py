"""Progress bars without a terminal: now and then a line, so that a log shows that a long epoch goes on."""

from msgspec.structs import replace

from train.follow.events import Event

EVERY_S = 60.0


class BarLines:
    """Chooses the states of bars to show as lines: of each process every EVERY_S seconds, while its bar moves.

    A bar that ends earlier is not among them: the log has its last state, as a line.
    """

    def __init__(self) -> None:
        self._shown_at: dict[int, float] = {}  # by the process's number: the last state shown, or the bar's start

    def take(self, event: Event) -> list[Event]:
        """The lines to show for a bar."""
        process = event.process
        if process is None or event.kind != "bar":
            return []
        if not event.text:
            self._shown_at.pop(process.number, None)
            return []
        if event.at < self._shown_at.setdefault(process.number, event.at) + EVERY_S:
            return []
        self._shown_at[process.number] = event.at
        return [replace(event, kind="line", text=row) for row in event.text.split("\n")]
