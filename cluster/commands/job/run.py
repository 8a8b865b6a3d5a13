"""`cluster run`: the options of `cluster train`, and those of what comes before and after it."""

from typing import Any

import click

from cluster.app import App, pass_app
from cluster.commands.job.train import TrainCommand, train


@click.command("run", cls=TrainCommand, context_settings=train.context_settings, params=[*train.params])
@click.option("--down", is_flag=True, help="Delete the cluster after the job, even if it failed.")
@click.option(
    "--budget",
    "budget_usd",
    type=click.FloatRange(min=0, min_open=True),
    metavar="USD",
    help="End the nodes when they cost so much.",
)
@click.option("-y", "--yes", is_flag=True, help="Launch and delete nodes that cost money without asking.")
@pass_app
def run(
    app: App,
    /,
    *,
    down: bool,
    budget_usd: float | None,
    yes: bool,
    verbose: bool,
    words: tuple[str, ...],
    is_command: bool,
    **options: Any,
) -> int:
    """Launch nodes if they are missing, train, and copy the results.

    It has the options and the exit code of cluster train. It asks once, at the start, with an estimate of the cost.
    The results are copied to results/ID/. With --down, it then deletes the cluster.
    """
    from cluster.submission.run import Choices, run_job  # noqa: PLC0415 - as in cluster/commands/job/train.py

    app.is_brief = not (verbose or options["dry_run"])
    choices = Choices(down=down, budget_usd=budget_usd, yes=yes)
    return run_job(app, words, options, choices, is_command=is_command)


run.params.sort(key=lambda each: each in train.params)  # the help begins with the options that only this command has
