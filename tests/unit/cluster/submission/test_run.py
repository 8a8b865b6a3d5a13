"""`cluster run`: its estimate, its question, and when it deletes the cluster."""

import io
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cluster.app import App
from cluster.bring_up import bring_up
from cluster.config import parse_config
from cluster.submission import run
from cluster.submission.run import (
    Choices,
    ask_budget,
    find_hours,
    find_launch,
    render_estimate,
    render_question,
    run_job,
)
from cluster.views.status import HeadJob
from foundation.errors import ClusterError, ConfigError, JobError, NotFoundError, UsageError
from provision.lease.lease_plan import Spending
from provision.plan import Plan
from provision.up import prepare_up
from provision_world import World, make_config
from train.job.survey import Data


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        ({}, 1.0),
        ({"train": {"max_duration": "90m"}}, 1.5),
        ({"lease": {"lifetime": "12h"}}, 12.0),
        ({"lease": {"lifetime": "12h"}, "train": {"max_duration": "2h"}}, 2.0),
    ],
)
def test_the_hours_of_the_estimate(tables: dict[str, Any], found: float) -> None:
    assert find_hours(parse_config({"name": "demo", **tables}, source="test")) == found


@pytest.mark.parametrize(
    ("usd_per_hour", "note", "text"),
    [
        (0.25, "simulated", "estimate: 2 h at $0.25 per hour: $0.50 (simulated)"),
        (None, "", "estimate: the price per hour is unknown"),
    ],
)
def test_the_estimate(usd_per_hour: float | None, note: str, text: str) -> None:
    assert render_estimate(usd_per_hour, 2.0, note=note) == text


def test_the_question_and_the_price_come_from_the_plan(world: World) -> None:
    plan = prepare_up(world.clients, request=world.request(make_config(nodes=2)), files=world.files)
    assert render_question(plan, down=False) == "Launch 2 instances?"
    assert render_question(plan, down=True) == "Launch 2 instances, and delete the cluster after the job?"
    assert find_launch(plan).usd_per_hour is not None
    world.up(make_config(nodes=2))
    again = prepare_up(world.clients, request=world.request(make_config(nodes=2)), files=world.files)
    assert find_launch(again) is None
    assert render_question(again, down=False) is None
    one = prepare_up(world.clients, request=world.request(make_config(nodes=3)), files=world.files)
    assert render_question(one, down=False) == "Launch 1 instance?"
    assert render_question(again, down=True) == "Delete the cluster after the job?"


OPTIONS = {"detach": False, "dry_run": False, "plain": True}


def make_nodes(*names: str) -> Any:
    return SimpleNamespace(names=names)


@pytest.fixture
def calls(app: App, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that the command takes. `up` finds a complete cluster; the job ends well."""
    app.config_path.write_text('name = "demo"\ncloud = "aws"\n')
    made: list[str] = []

    def up(_: App, *, agree: Any, **_options: Any) -> None:
        agree(Plan(cluster="demo", steps=()))
        made.append("up")

    def submit(*_: object, **_options: Any) -> int:
        made.append("train")
        return 0

    monkeypatch.setattr(run, "read_request", lambda *_args, **_options: None)
    monkeypatch.setattr(App, "enter_cloud", lambda _, **_options: None)
    monkeypatch.setattr(run, "find_spending", lambda _: Spending())
    monkeypatch.setattr(run, "up_in_a_region", up)
    monkeypatch.setattr(run, "submit", submit)
    monkeypatch.setattr(run, "save_report", lambda *_: made.append("report"))
    monkeypatch.setattr(run, "copy_job", lambda *_: made.append("results"))
    monkeypatch.setattr(run, "describe", lambda _: make_nodes("node-0"))
    monkeypatch.setattr(run, "ask_for_job", lambda *_: HeadJob)
    monkeypatch.setattr(run, "delete_cluster", lambda *_args, **_options: made.append("down"))
    return made


def fail(error: BaseException) -> Any:
    def call(*_: object, **_options: object) -> int:
        raise error

    return call


YES = Choices(down=True, yes=True)
JOB_FAILED = JobError("failed", exit_code=3)


@pytest.mark.parametrize(
    ("changed", "steps", "error"),
    [
        ({}, ["up", "train", "results", "report", "down"], None),
        ({"submit": fail(JOB_FAILED)}, ["up", "results", "report", "down"], JobError),
        ({"submit": fail(JOB_FAILED), "copy_job": fail(NotFoundError("x"))}, ["up", "down"], JobError),
        ({"save_report": fail(NotFoundError("no log"))}, ["up", "train", "results"], NotFoundError),
        ({"submit": lambda *_, **_options: 130}, ["up"], None),
        ({"submit": fail(KeyboardInterrupt())}, ["up"], KeyboardInterrupt),
        ({"copy_job": fail(ClusterError("no disk"))}, ["up", "train"], ClusterError),
        ({"submit": fail(JOB_FAILED), "copy_job": fail(ClusterError("no disk"))}, ["up"], JobError),
        ({"ask_for_job": lambda *_: lambda: HeadJob(why="no answer")}, ["up", "train", "results", "report"], None),
        ({"ask_for_job": lambda *_: lambda: HeadJob(queued=1)}, ["up", "train", "results", "report"], None),
        ({"ask_for_job": lambda *_: lambda: None}, ["up", "train", "results", "report", "down"], None),
    ],
)
def test_when_the_cluster_is_deleted(
    app: App,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    changed: dict[str, Any],
    steps: list[str],
    error: Any,
) -> None:
    """Only after a job of which everything is here, and while nothing else runs."""
    for name, value in changed.items():
        monkeypatch.setattr(run, name, value)
    with nullcontext() if error is None else pytest.raises(error):
        run_job(app, (), OPTIONS, YES, is_command=False)
    assert calls == steps


@pytest.mark.parametrize(
    ("choices", "is_new", "head", "steps"),
    [
        (YES, True, HeadJob(why="no answer"), ["down"]),
        (YES, False, HeadJob(), ["down"]),
        (YES, False, HeadJob(queued=1), []),
        (Choices(yes=True), True, HeadJob(), []),
    ],
)
def test_a_set_up_that_fails(
    app: App, calls: list[str], monkeypatch: pytest.MonkeyPatch, *, choices: Choices, is_new: bool, head: HeadJob,
    steps: list[str],
) -> None:  # fmt: skip
    """The nodes that --down was to delete cost money, too, if no job has run on them."""
    world = SimpleNamespace(spent_usd=0.0)
    launch = SimpleNamespace(is_first=is_new, usd_per_hour=1.0, world=world, indices=(0, 1))

    def up(_: App, *, agree: Any, **_options: Any) -> None:
        agree(Plan(cluster="demo", steps=(launch,)))  # type: ignore[arg-type]
        raise ClusterError("no such package")

    monkeypatch.setattr(run, "up_in_a_region", up)
    monkeypatch.setattr(run, "find_launch", lambda _: launch)
    monkeypatch.setattr(run, "ask_for_job", lambda *_: lambda: head)
    with pytest.raises(ClusterError, match="no such package"):
        run_job(app, (), OPTIONS, choices, is_command=False)
    assert calls == steps
    monkeypatch.setattr(run, "describe", lambda _: make_nodes())
    with pytest.raises(ClusterError, match="no such package"):
        run_job(app, (), OPTIONS, choices, is_command=False)
    assert calls == (steps if is_new else 2 * steps)  # nothing was launched: a volume of earlier nodes stays


@pytest.mark.parametrize(
    ("choices", "options", "message"),
    [
        (Choices(down=True), {}, "without a terminal, this needs --yes: Delete the cluster after the job"),
        (YES, {"detach": True}, "--detach does not wait"),
        (Choices(budget_usd=5.0), {}, "--budget is for new clusters"),
    ],
)
def test_what_is_refused_before_anything_happens(
    app: App, calls: list[str], choices: Choices, options: dict[str, bool], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_job(app, (), OPTIONS | options, choices, is_command=False)
    assert calls == []
    assert app.config.lease.budget == choices.budget_usd


def test_a_missing_bucket_for_results(app: App, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before anything is launched."""
    app.override("data.results", "s3://bucket/x/")
    monkeypatch.setattr(run, "find_data", lambda *_: Data(exists=False))
    with pytest.raises(ConfigError, match=r'data\.results = "s3://bucket/x/": there is no such bucket'):
        run_job(app, (), OPTIONS, YES, is_command=False)
    assert calls == []


@pytest.mark.parametrize(
    ("answers", "budget"),
    [("\n", 0.5), ("2.5\n", 2.5), ("$3\n", 3.0), ("a lot\n-1\nnan\n4\n", 4.0), ("n\n", None)],
)
def test_the_answer_is_the_budget(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: str, budget: float | None
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    with nullcontext() if budget is not None else pytest.raises(click.exceptions.Exit):
        assert ask_budget(app, "Launch 2 instances?", 0.5) == budget
    assert capsys.readouterr().err.count("neither an amount") == answers.count("\n") - 1


@pytest.mark.parametrize(("changes", "plans"), [(False, 1), (True, 2)])
def test_an_answer_that_changes_the_settings_changes_the_plan(app: App, *, changes: bool, plans: int) -> None:
    app.config_path.write_text('name = "demo"\n')
    made: list[Plan] = []

    def prepare(_avoid: frozenset[str]) -> Plan:
        made.append(Plan(cluster="demo", steps=()))
        return made[-1]

    assert not bring_up(app, prepare, agree=lambda _: changes)
    assert len(made) == plans
