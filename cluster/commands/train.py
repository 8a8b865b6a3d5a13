"""`cluster train`."""

import os
from typing import TYPE_CHECKING, Any

import click

from cluster.app import App, pass_app
from cluster.commands import train_options
from provision.progress import Event
from train.asking import Asking, Question

if TYPE_CHECKING:
    from provision.model import ClusterState


@click.command(
    "train",
    context_settings={"ignore_unknown_options": False},
    epilog='What follows -- is passed on word for word. One word with blanks, "python my.py", is a line for the shell.',
)
@train_options.train_options
@click.option("-d", "--detach", is_flag=True, help="Print the job's id, and leave it running.")
@click.option("--plain", is_flag=True, help="On a terminal, too: every line as it comes, and no view.")
@click.argument("command_words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@pass_app
def command(app: App, /, *, detach: bool, plain: bool, command_words: tuple[str, ...], **options: Any) -> int:
    """Run a training job on the cluster, to its end.

    Without COMMAND it runs [train] script with [train] args. The exit code is that of the first process that failed,
    and 0 when all of them went well. The job needs this machine no more once it runs: Ctrl-C asks whether to stop it
    or to leave it running, and without a terminal leaves it; `cluster logs -f` goes on with its output.
    """
    with Asking() as asking:
        request = train_options.read(options, command_words)
        app.overrides |= request.overrides
        config = app.config
        app.enter_cloud()
        provision = config.provision
        from provision.iam_policy import render_job_policy  # noqa: PLC0415 - not for --help
        from train.scope import find_scope  # noqa: PLC0415 - as above

        scope = find_scope(config.train, config.data, command=request.command)
        question = Question(
            cluster=config.name,
            known=app.files.known_instances(),
            region=provision.region,
            instance_profile=provision.instance_profile,
            url=config.data.url,
            policy=None if scope.is_empty else render_job_policy(scope, region=provision.region),
            # One that waits for its turn is not known to start soon.
            max_duration_s=None if config.train.queue else config.train.max_duration_s,
            env=dict(os.environ),
        )
        asking.ask(question)
        from cluster.session import ready_nodes, warn_untrusted  # noqa: PLC0415 - slow to import: beside the asking

        def find_state() -> "ClusterState":
            from provision.differences import find_differences  # noqa: PLC0415 - as above

            state = asking.state()
            warn_untrusted(app, state)
            for difference in find_differences(provision, state.nodes):
                app.report(Event(kind="warn", what=difference))
            return state

        with ready_nodes(app, find_state, hostfile=config.train.hosts) as (nodes, script):
            from cluster.launching import launch  # noqa: PLC0415 - as above

            return launch(app, nodes, request, script=script, scope=scope, asking=asking, detach=detach, plain=plain)
