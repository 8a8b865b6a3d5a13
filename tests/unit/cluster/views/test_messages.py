"""How steps are shown while they run, and afterwards."""

from pathlib import Path

import pytest

from cluster.app import LONG_S, App
from cluster.views.messages import StepDisplay
from foundation.progress import Event


def begin(what: str, where: str | None = None) -> Event:
    return Event(kind="start", what=what, where=where)


def done(what: str, where: str | None = None) -> Event:
    return Event(kind="done", what=what, where=where, duration_s=1.25)


def test_without_a_terminal_finished_steps_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = StepDisplay(None)
    for event in (begin("launch"), done("launch"), Event(kind="warn", what="[bold]not markup[/]", where="node-0")):
        display.show(event)
    display.close()
    assert capsys.readouterr().err == "ok launch (1.2 s)\n!! node-0: [bold]not markup[/]\n"


def test_a_warning_of_many_nodes_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = StepDisplay(None)
    for node, what in (("node-0", "no driver"), ("node-1", "no driver"), ("node-1", "slow"), ("node-0", "no driver")):
        display.show(Event(kind="warn", what=what, where=node))
    expected = "!! node-0: no driver\n!! node-1: the same as node-0\n!! node-1: slow\n!! node-0: no driver\n"
    assert capsys.readouterr().err == expected


def test_a_brief_command_shows_only_long_steps_of_single_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    app = App(config_path=Path("cluster.toml"))
    app.is_brief = True
    warning = Event(kind="warn", what="slow", where="node-0")
    steps = (begin("set up", "node-0"), done("ready", "node-0"), Event(kind="same", what="no change", where="node-1"))
    long = Event(kind="done", what="has pulled it", where="node-1", duration_s=LONG_S)
    for event in (*steps, done("launch 1 node"), warning, long):
        app.report(event)
    assert capsys.readouterr().err == ("ok launch 1 node (1.2 s)\n!! node-0: slow\nok node-1: has pulled it (10.0 s)\n")
