"""`cluster train`: its options.

launch.py's own option names work: -n, -s, -H, --launcher, --sync-dst-dir, --env-server, --env-worker, --p3.
"""

import difflib
import shlex
from pathlib import Path
from typing import Any, get_args

import click

from cluster.app import App, pass_app
from cluster.completion import SCRIPT
from foundation.errors import UsageError
from node.engines import LAUNCHERS
from node.train_settings import KvStore


class TrainCommand(click.Command):
    """A command whose options end at the script's name: later words are the script's.

    Records in `is_command` whether `--` precedes the words.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the options, and names the form for words of the script. Raises click's errors, UsageError."""
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [option for parameter in self.params for option in parameter.opts]
            if difflib.get_close_matches(error.option_name, known, n=1, cutoff=0.8):
                raise  # with click's suggestion
            at = next((index for index, word in enumerate(given) if word.startswith(error.option_name)), 0)
            first = next((word for word in given[at:] if word.endswith(".py")), "--")
            line = shlex.join([first, *(word for word in given[at:] if word != first)])
            raise UsageError(
                f"{ctx.command_path} has no option {error.option_name}",
                hint=f"arguments of the script follow its name or --: {ctx.command_path} {line}",
            ) from None
        words = ctx.params["words"]
        ctx.params["is_command"] = bool(words) and given[: -len(words)][-1:] == ["--"]
        return rest


@click.command(
    "train",
    cls=TrainCommand,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-n", "--workers", "--num-workers", type=int, metavar="W", help="Worker processes; default: one per node."
)
@click.option(
    "-s", "--servers", "--num-servers", type=int, metavar="S", help="Parameter servers; default: by workers and cores."
)
@click.option(
    "-H",
    "--hostfile",
    type=click.Path(),  # not a Path: it would turn ./pbs into pbs, the allocation of PBS
    metavar="FILE",
    help="Use only these hosts, one per line; pbs, slurm or sge: those of the allocation.",
)
@click.option("--nodes", metavar="WHICH", help='Nodes: "current", "requested", "spot", "on-demand", 2, or "2..".')
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    metavar="NAME",
    help=f"What starts processes: {', '.join(LAUNCHERS)}.",
)
@click.option(
    "--kv-store",
    type=click.Choice(get_args(KvStore)),
    metavar="STORE",
    help=f"How workers exchange gradients: {', '.join(get_args(KvStore))}.",
)
@click.option("--gc-type", type=click.Choice(["none", "2bit"]), help="Gradient compression.")
@click.option("--gc-threshold", type=float, metavar="X", help="Compression threshold; default: 0.5.")
@click.option("--p3", is_flag=True, help="Send parameters by priority (MXNet 1.7 or later).")
@click.option("--gpus", metavar="N,N", help='GPUs of each worker: "0,1", "auto" or "none".')
@click.option(
    "--env",
    multiple=True,
    metavar="K[=V]",
    help="Set an environment variable of the job; without =V, pass on its local value; repeatable.",
)
@click.option("--env-server", multiple=True, metavar="K[=V]", help="The same, for servers only; repeatable.")
@click.option("--env-worker", multiple=True, metavar="K[=V]", help="The same, for workers only; repeatable.")
@click.option(
    "--sync-dst-dir",
    "--sync-dir",
    "sync_dst_dir",
    metavar="DIR",
    help="Copy your files to DIR on each node and run there.",
)
@click.option("--cwd", metavar="DIR", help="Run in this folder of your files; default: the current one.")
@click.option("--max-duration", metavar="TIME", help='End the job after this time: "90m", "2h", "1d" or seconds.')
@click.option("--image", metavar="IMAGE", help='Run the job in this image, over [container] image; "": in none.')
@click.option("--name", metavar="NAME", help="Name of the job; default: from its script or command.")
@click.option("--queue", is_flag=True, help="Queue the job if another job is running.")
@click.option("--job", type=click.Path(path_type=Path), metavar="FILE", help="Read [train] keys from this TOML file.")
@click.option("-d", "--detach", is_flag=True, help="Print the job's id and return while it runs.")
@click.option("--dry-run", is_flag=True, help="Check the job, show the scheduler's script, and start nothing.")
@click.option("--plain", is_flag=True, help="Print every line; show no live view.")
@click.option("-v", "--verbose", is_flag=True, help="Show the set-up of each node, and all settings of the job.")
@click.argument("words", metavar="[SCRIPT [ARGS...] | -- COMMAND...]", nargs=-1, type=SCRIPT)
@pass_app
def train(
    app: App,
    /,
    *,
    detach: bool,
    dry_run: bool,
    plain: bool,
    verbose: bool,
    words: tuple[str, ...],
    is_command: bool,
    **options: Any,
) -> int:
    """Run a training job on the cluster.

    Without SCRIPT or COMMAND, it runs [train] script with [train] args. The exit code is that of the first process that
    failed, or 0.

    A running job does not depend on this machine. Ctrl-C asks whether to stop the job; without a terminal, the job
    keeps running. `cluster logs -f` attaches to it again.
    """
    from cluster.submission.submit import read_request, submit  # noqa: PLC0415 - boto3, Fabric: --help saves 0.5 s

    app.is_brief = not (verbose or dry_run)
    request = read_request(app, words, options, is_command=is_command)
    return submit(app, request, detach=detach, dry_run=dry_run, plain=plain)
