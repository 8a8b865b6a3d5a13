"""`cluster capsule`, `replay` and `debug`."""

from pathlib import Path

import click

from cluster.app import App, pass_app


@click.command("capsule")
@click.argument("job", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: ID.capsule.")
@pass_app
def capsule(app: App, *, job: str | None, output: Path | None) -> None:
    """Write what a job ran with to one file, to run it again.

    JOB is an id, the start of an id, or a name; default: the newest job. The file has no secrets, and your files as the
    nodes got them.
    """
    from cluster.capsule.describe import write_capsule  # noqa: PLC0415 - boto3, Fabric

    write_capsule(app, job, output)


@click.command("replay")
@click.argument("file", metavar="CAPSULE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show what differs, check the job, and start nothing.")
@pass_app
def replay(app: App, *, file: Path, dry_run: bool) -> int:
    """Run the job of a capsule again.

    It first shows what is the same as then, what differs, and what is missing, and then runs the job as cluster train
    does. A capsule that was changed is refused. Your own files stay as they are.
    """
    from cluster.capsule.replay import replay as run  # noqa: PLC0415 - as above

    app.is_brief = True
    return run(app, file, dry_run=dry_run)


@click.command("debug")
@click.argument("job", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: cluster-debug.tar.gz.")
@pass_app
def debug(app: App, *, job: str | None, output: Path | None) -> None:
    """Write a report about a problem, for an issue, without secrets.

    It has versions, cluster.toml, the cluster's status, and the record and the log of JOB or of the newest job. It has
    no values of variables, and no numbers of AWS accounts.
    """
    from cluster.capsule.describe import write_capsule  # noqa: PLC0415 - as above

    write_capsule(app, job, output or Path("cluster-debug.tar.gz"), is_report=True)
