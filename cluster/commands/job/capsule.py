"""`cluster capsule`, `replay` and `debug`."""

from collections.abc import Iterable
from pathlib import Path

import click

from cluster.app import App, pass_app

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("capsule")
@click.argument("job", required=False)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="The file to write. Default: ID.capsule.")
@pass_app
def capsule(app: App, *, job: str | None, output: Path | None) -> None:
    """Write what a job ran with to one file, to run it again.

    JOB is an id, the start of an id, or a name; default: the newest job. The file has the job's settings, packages,
    machines, data and log, without secrets, and your files as the nodes got them.
    """
    from cluster.capsule.describe import write_capsule  # noqa: PLC0415 - boto3, Fabric

    _show(app, *write_capsule(app, job, output))


@click.command("replay")
@click.argument("file", metavar="CAPSULE", type=FILE)
@click.option("--dry-run", is_flag=True, help="Show what differs, check the job, and start nothing.")
@pass_app
def replay(app: App, *, file: Path, dry_run: bool) -> int:
    """Run the job of a capsule again.

    It first shows what is the same as then, what differs, and what is missing, and then runs the job as cluster train
    does, with its exit code. A capsule that was changed is refused. Your own files stay as they are.
    """
    from cluster.capsule.replay import replay as run  # noqa: PLC0415 - as above

    app.is_brief = True
    return run(app, file, dry_run=dry_run)


@click.command("debug")
@click.argument("job", required=False)
@click.option("-o", "--output", type=FILE, metavar="FILE", default="cluster-debug.tar.gz", help="The file to write.")
@pass_app
def debug(app: App, *, job: str | None, output: Path) -> None:
    """Write a report about a problem, for an issue, without secrets.

    It has versions, cluster.toml, the cluster's status, and the record and the log of JOB or of the newest job. It has
    no credentials, no values of variables, no numbers of AWS accounts, and none of your files.
    """
    from cluster.capsule.describe import write_capsule  # noqa: PLC0415 - as above

    _show(app, *write_capsule(app, job, output, is_report=True))


def _show(app: App, path: Path, missing: Iterable[str]) -> None:
    for one in missing:
        app.say(f"not in the file: {one}", style="yellow")
    app.print_line(str(path), wrapped=False)
