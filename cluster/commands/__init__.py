"""One module per command or group of related commands: parses, calls and prints. Imported only to run a command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cluster.completion import load_command, load_shape

# Name -> "module:attribute" and one line of help: `cluster --help` shows this without importing boto3 and Fabric.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("cluster.commands.init:init", "Write an annotated cluster.toml."),
    "up": ("cluster.commands.up:up", "Launch the cluster's nodes and prepare them for training."),
    "status": ("cluster.commands.status:status", "Show the cluster's nodes, their cost and the running job."),
    "cost": (
        "cluster.commands.status:cost",
        "Show the costs of the cluster and of earlier ones of its name.",
    ),
    "list": ("cluster.commands.status:list_", "List all clusters in the region, or in all of [provision] regions."),
    "resize": ("cluster.commands.up:resize", "Change the number of nodes."),
    "stop": ("cluster.commands.stop:stop", "Stop a job, or stop the nodes."),
    "start": ("cluster.commands.up:start", "Start stopped nodes and prepare them for training."),
    "lease": ("cluster.commands.lease:lease", "Show or change when the cluster ends by itself."),
    "adopt": ("cluster.commands.adopt:adopt", "Accept instances that this machine did not launch as nodes."),
    "allow": ("cluster.commands.adopt:allow", "Allow ssh from this machine's current address."),
    "verify": (
        "cluster.commands.verify:verify",
        "Check the nodes' health, the framework, S3 access, ports, clocks, disks and volumes on all nodes.",
    ),
    "train": ("cluster.commands.train:train", "Run a training job on the cluster."),
    "jobs": ("cluster.commands.logs:jobs", "List the cluster's jobs, newest first."),
    "logs": ("cluster.commands.logs:logs", "Show the output of a job."),
    "results": ("cluster.commands.logs:results", "Copy the files that a job has created."),
    "drill": ("cluster.commands.drill:drill", "Rehearse the loss of a node with a running job."),
    "bench": ("cluster.commands.bench:bench", "Measure the network, the kv-store and scaling."),
    "exec": ("cluster.commands.shell:exec_", "Run a command on all nodes in parallel."),
    "ssh": ("cluster.commands.ssh:ssh", "Open a shell or run a command on a node."),
    "cp": ("cluster.commands.ssh:cp", "Copy files to or from a node."),
    "ssh-config": ("cluster.commands.ssh:ssh_config", "Print an ssh configuration for the nodes."),
    "down": ("cluster.commands.down:down", "Delete everything that `up` created."),
    "data": ("cluster.commands.data:data", "Transfer, check and create datasets."),
    "oracle": ("cluster.commands.oracle:oracle", "Show which MXNet or PyTorch wheel runs on which GPU."),
    "iam-policy": ("cluster.commands.init:iam_policy", "Print the minimal IAM policy that you need."),
    "completion": (
        "cluster.commands.completion:completion",
        "Print a shell completion script.",
    ),
    "sandbox": ("cluster.commands.sandbox:sandbox", "Manage the local stand-in for EC2 and S3."),
}


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition, which is the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the commands in the order of their definition, not sorted by name."""
        return list(self.commands)


class LazyGroup(OrderedGroup):
    """A group that imports a command's module only to run that command. Help and completion need only the table.

    table: "module:attribute" and the short help of each command, in the order of use.
    """

    def __init__(self, name: str, *, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        commands = {below: click.Command(below, short_help=text) for below, (_, text) in table.items()}
        super().__init__(name, commands, **options)
        self.table = table

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Imports the command that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            load = load_shape if ctx.resilient_parsing else load_command  # only completion sets resilient_parsing
            command = load(self.table[name][0])
            if not isinstance(command, click.Group):
                _take_config(command)
        return name, command, rest


def _take_config(command: click.Command) -> None:
    """Accepts the option -c after the command's name as well as before it."""

    def keep(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
        if value is not None:
            root = ctx.find_root()
            root.params["config_path"] = value
            root.set_parameter_source("config_path", ParameterSource.COMMANDLINE)

    option = click.Option(
        ["-c", "--config", "config_path"],
        type=click.Path(path_type=Path),
        expose_value=False,
        hidden=True,
        is_eager=True,
        callback=keep,
    )
    if not any(set(option.opts) & set(other.opts) for other in command.params):
        command.params.append(option)
