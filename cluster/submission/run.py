"""`cluster run`: up, train, results and down, one after the other."""

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from cluster import existing_hosts
from cluster.app import App, if_interrupted
from cluster.bring_up import LEFT_BY_UP, check_inputs, find_question, up_in_a_region
from cluster.config import ClusterConfig
from cluster.costs import find_spending
from cluster.jobs import ask_for_job, render_interruption
from cluster.nodes.deletion import delete_cluster
from cluster.nodes.results import copy_job, keep_from_jobs
from cluster.session import describe
from cluster.submission.request import TrainRequest
from cluster.submission.submit import read_request, submit
from cluster.views.layout import wrap
from cluster.views.status import render_usd
from cluster.views.terminal import escape_line, find_columns
from foundation.errors import ClusterError, ConfigError, NotFoundError, UsageError
from provision.lease.terms import render_number
from provision.plan import Plan
from provision.resources.launch import LaunchNodes
from provision.up import refuse_no_nodes
from train.job.checks import find_results_problems
from train.job.job_plan import new_job_id
from train.job.survey import find_data

USUAL_HOURS = 1.0


class Choices(Struct, frozen=True, kw_only=True):
    """The options that only `cluster run` has."""

    down: bool = False
    budget_usd: float | None = None
    yes: bool = False


def run_job(app: App, words: Sequence[str], options: Mapping[str, Any], choices: Choices, *, is_command: bool) -> int:
    """Brings the cluster up if needed, runs a job, copies its results, and deletes the cluster if asked.

    Returns 0, or 130 when the job was left running: then the cluster stays. Raises the errors of up_in_a_region and
    submit; after a failed job, JobError with its exit code.
    """
    detach, dry_run = options["detach"], options["dry_run"]
    if choices.down and detach:
        raise UsageError(
            "--down deletes the cluster when the job has ended, and --detach does not wait for that",
            hint="leave out one of them; [lease] idle ends the nodes of a detached job",
        )
    if choices.budget_usd is not None:
        app.override("lease.budget_usd", choices.budget_usd)
    app.copies_results = not (detach or dry_run)
    request = read_request(app, words, options, is_command=is_command)
    is_up = _bring_up(app, choices, dry_run=dry_run)
    if dry_run and not is_up:
        app.message(_render_next(app.config, request, down=choices.down))
        return 0
    job_id = new_job_id()
    try:
        code = submit(app, request, job_id=job_id, detach=detach, dry_run=dry_run, plain=options["plain"])
    except KeyboardInterrupt:
        _report_left(app, "")
        raise
    except ClusterError as error:
        if not (detach or dry_run):
            _go_on_after(error, app, lambda: _finish(app, job_id, down=choices.down))
        raise
    if detach or dry_run:
        return code
    if code:  # left running, or withdrawn
        _report_left(app, "")
        return code
    _finish(app, job_id, down=choices.down)
    return 0


def _bring_up(app: App, choices: Choices, *, dry_run: bool) -> bool:
    """Launches the nodes that are missing, after one question. Returns whether all nodes were there before.

    `submit` sets up nodes that are there, and existing hosts. If nodes were to be launched and that fails, or their
    set-up, this deletes the cluster as after a job: otherwise, nodes without a job would cost money.
    """
    if not app.has_instances:
        if choices.down and not dry_run:
            app.require("Remove the cluster from the hosts after the job?", yes=choices.yes)
        return True
    refuse_no_nodes(app.config.provision)
    check_inputs(app)
    plans: list[Plan] = []
    launches: list[LaunchNodes] = []  # to which the user has agreed

    def agree(plan: Plan) -> bool:
        plans.append(plan)
        changed = ask(plan)
        launches.extend(filter(None, [find_launch(plan)]))
        return changed

    def ask(plan: Plan) -> bool:
        launch = find_launch(plan)
        is_new = launch is not None and launch.is_first  # `up` does not change the lease of others
        if choices.budget_usd is not None and not is_new:
            raise UsageError(
                f"--budget is for new clusters; cluster {plan.cluster} exists",
                hint=f"cluster lease --budget {render_number(choices.budget_usd)}, then cluster run without --budget",
            )
        usd_per_hour = find_spending(app).usd_per_hour if launch is None else launch.usd_per_hour
        hours, yes = find_hours(app.config), choices.yes or app.config.cloud == "sandbox"
        can_limit = is_new and app.config.lease.budget is None
        spent_usd = 0.0 if launch is None else launch.world.spent_usd
        app.message(render_estimate(usd_per_hour, hours, note=app.price_note, spent_usd=spent_usd))
        question = render_question(plan, down=choices.down)
        if question is None or dry_run:
            return False
        if yes or not (can_limit and usd_per_hour and app.is_interactive()):
            app.require(question, yes=yes)
            return False
        app.override("lease.budget_usd", ask_budget(app, question, spent_usd + usd_per_hour * hours))
        return True

    try:
        with if_interrupted(LEFT_BY_UP):
            app.enter_cloud(start_sandbox=True)
            _check_results(app)
            up_in_a_region(app, dry_run=dry_run, yes=choices.yes, keep_failed=False, agree=agree)
    except ClusterError as error:
        if choices.down and launches and not dry_run:
            _go_on_after(error, app, lambda: _delete(app, is_new=launches[0].is_first))
        raise
    return not plans[0]


def _check_results(app: App) -> None:
    """Raises ConfigError if the bucket of [data] results does not exist: before nodes cost money."""
    data = app.config.data
    for problem in find_results_problems(find_data(app.clients, data.s3_results), data.results, app.config.train):
        raise ConfigError(problem.message, hint=problem.hint)


def ask_budget(app: App, question: str, usd: float) -> float:
    """Asks whether to go on, and what the nodes may cost. Returns that in dollars; the answer "n" ends the command."""

    def read(answer: str) -> float | None:
        try:
            amount = None if answer.lower() in ("n", "no") else float(answer.removeprefix("$"))
        except ValueError:
            amount = 0.0
        if amount is None or 0 < amount < math.inf:
            return amount
        raise click.UsageError(f'"{escape_line(answer)}" is neither an amount, such as 2.50, nor n')

    limit = "The nodes end when they have cost so many dollars; Enter takes the estimate, n cancels"
    found: float | None = click.prompt(
        wrap(f"{question} {limit}", find_columns(sys.stderr)),
        default=f"{max(math.ceil(usd * 100 - 1e-6) / 100, 0.01):.2f}",  # less would end the nodes before the job's time
        value_proc=read,
        err=True,
    )
    if found is None:
        app.cancel()
    return found


def find_launch(plan: Plan) -> LaunchNodes | None:
    """Returns the launch of a plan. Pure."""
    return next((step for step in plan.steps if isinstance(step, LaunchNodes)), None)


def find_hours(config: ClusterConfig) -> float:
    """Returns how long the job is expected to take, in hours: the first limit that is known. Pure."""
    limits_s = [config.train.max_duration_s, config.lease.lifetime_s]
    return next((limit / 3600 for limit in limits_s if limit is not None), USUAL_HOURS)


def render_estimate(usd_per_hour: float | None, hours: float, *, note: str, spent_usd: float = 0.0) -> str:
    """Describes the cost. note: such as "simulated". spent_usd: of earlier nodes of the cluster. Pure."""
    if usd_per_hour is None:
        return "estimate: the price per hour is unknown"
    usd = f"{render_usd(usd_per_hour * hours)}{f' ({note})' if note else ''}"
    spent = f"; the cluster has already cost {render_usd(spent_usd)}" if spent_usd else ""
    return f"estimate: {hours:g} h at {render_usd(usd_per_hour)} per hour: {usd}{spent}"


def render_question(plan: Plan, *, down: bool) -> str | None:
    """Returns the only question of `cluster run`; None if nothing is launched or deleted. Pure."""
    question = find_question(plan)
    if not down:
        return question
    if question is None:
        return "Delete the cluster after the job?"
    return f"{question.removesuffix('?')}, and delete the cluster after the job?"


def _render_next(config: ClusterConfig, request: TrainRequest, *, down: bool) -> str:
    """Describes what follows the plan of `up`, which a dry run cannot check without nodes. Pure."""
    command = shlex.join(request.command or (config.train.script, *config.train.args))
    steps = [f"train: {command}", "copy the results", *(["delete the cluster"] if down else [])]
    return f"then: {', '.join(steps)}; the job is checked once the nodes run"


def _go_on_after(failure: ClusterError, app: App, work: Callable[[], None]) -> None:
    """Works on after the error that the command ends with. Warns of another error, but not of the same again."""
    try:
        work()
    except ClusterError as error:
        if error.message != failure.message:
            app.warn_of(error)


def _finish(app: App, job_id: str, *, down: bool) -> None:
    """Copies an ended job's results, writes its report, and deletes the cluster if asked. Raises ClusterError."""
    why_left = "its results were not copied"
    try:
        try:
            copy_job(app, job_id)
        except NotFoundError:  # the job did not start
            app.message(f"job {job_id} has no results")
        else:
            why_left = "the job's report was not written"
            save_report(app, job_id)
    except ClusterError:
        _report_left(app, why_left)
        raise
    if not down:
        return
    if app.has_instances:
        _delete(app)
    else:
        existing_hosts.down(app, yes=True, as_json=False)


def _delete(app: App, *, is_new: bool = False) -> None:
    """Deletes the cluster, unless another job runs there. is_new: none can. Raises ClusterError."""
    nodes = describe(app)
    if is_new and not nodes.names:
        return  # nothing was launched, and the volume of earlier nodes stays
    running = None if is_new else ask_for_job(app, nodes)()
    why_not = None if running is None else render_interruption(running, now=datetime.now(UTC))
    if why_not is None:
        delete_cluster(app, yes=True, as_json=False)
    else:
        _report_left(app, why_not)


def save_report(app: App, job_id: str) -> None:
    """Writes the job's page to the folder of its results. Raises ClusterError."""
    from cluster.report import load_jobs, write_report  # noqa: PLC0415 - the plots are slow to import

    jobs, path = load_jobs(app, job_id), Path("results", job_id, "report.html")
    keep_from_jobs(path.parents[1])
    write_report(path, jobs)
    app.message(f"its report is in {path}")


def _report_left(app: App, why: str) -> None:
    """Prints that the cluster still runs. why: the reason for that, if it is not obvious."""
    if app.has_instances:
        reason = f": {why}" if why else ""
        app.message(f"cluster {app.config.name} is not deleted{reason}; cluster down deletes it", style="yellow")
