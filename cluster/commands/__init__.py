"""One module per command or group of related commands: parses, calls and prints. Imported only to run a command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cluster.completion import load_command, load_shape
from cluster.views.examples import render_examples

# For each heading of `cluster --help`, in the order of use: name -> "module:attribute" and one line of help.
# `cluster --help` shows this without importing boto3 and Fabric.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Set up": {
        "init": ("cluster.commands.setup.init:init", "Write an annotated cluster.toml."),
        "config": ("cluster.commands.setup.config:config", "Check cluster.toml, or print its JSON schema."),
        "iam-policy": ("cluster.commands.setup.init:iam_policy", "Print the minimal IAM policy that you need."),
        "oracle": ("cluster.commands.oracle:oracle", "Show which MXNet or PyTorch wheel runs on which GPU."),
        "completion": ("cluster.commands.completion:completion", "Print a shell completion script."),
    },
    "Nodes": {
        "up": ("cluster.commands.up:up", "Launch the cluster's nodes and prepare them for training."),
        "status": ("cluster.commands.status:status", "Show the cluster's nodes, their cost and the running job."),
        "cost": ("cluster.commands.status:cost", "Show the costs of the cluster and of earlier ones of its name."),
        "list": (
            "cluster.commands.status:list_",
            "List all clusters in the region, or in all of [provision] regions.",
        ),
        "verify": (
            "cluster.commands.verify:verify",
            "Check the nodes' health, the framework, S3 access, ports, clocks, disks and volumes on all nodes.",
        ),
        "resize": ("cluster.commands.up:resize", "Change the number of nodes."),
        "stop": ("cluster.commands.stop:stop", "Stop a job, or stop the nodes."),
        "start": ("cluster.commands.up:start", "Start stopped nodes and prepare them for training."),
        "lease": ("cluster.commands.lease:lease", "Show or change when the cluster ends by itself."),
        "image": ("cluster.commands.image:image", "Make, list and delete images of nodes that are set up."),
        "adopt": ("cluster.commands.adopt:adopt", "Accept instances that this machine did not launch as nodes."),
        "allow": ("cluster.commands.adopt:allow", "Allow ssh from this machine's current address."),
        "down": ("cluster.commands.down:down", "Delete everything that `up` created."),
    },
    "Jobs": {
        "train": ("cluster.commands.job.train:train", "Run a training job on the cluster."),
        "run": ("cluster.commands.job.run:run", "Launch nodes if they are missing, train, and copy the results."),
        "jobs": ("cluster.commands.job.jobs:jobs", "List the cluster's jobs, newest first."),
        "logs": ("cluster.commands.job.logs:logs", "Show the output of a job."),
        "report": (
            "cluster.commands.job.report:report",
            "Write a page about a job: its curves, ranks, nodes, errors and cost.",
        ),
        "watch": (
            "cluster.commands.job.watch:watch",
            "Watch a job on the whole terminal: its nodes, ranks, curves and log.",
        ),
        "stacks": ("cluster.commands.job.stacks:stacks", "Show at which lines the processes of a running job are."),
        "results": ("cluster.commands.job.logs:results", "Copy the files that a job has created."),
        "capsule": ("cluster.commands.job.capsule:capsule", "Write what a job ran with to one file, to run it again."),
        "replay": ("cluster.commands.job.capsule:replay", "Run the job of a capsule again."),
        "debug": ("cluster.commands.job.capsule:debug", "Write a report about a problem, for an issue."),
        "bench": ("cluster.commands.job.bench:bench", "Measure the nodes, and MXNet's kv-store."),
    },
    "Shell and files": {
        "exec": ("cluster.commands.shell:exec_", "Run a command on all nodes in parallel."),
        "ssh": ("cluster.commands.ssh:ssh", "Open a shell or run a command on a node."),
        "notebook": ("cluster.commands.notebook:notebook", "Run JupyterLab on a node."),
        "forward": ("cluster.commands.ssh:forward", "Forward ports of a node to this machine."),
        "cp": ("cluster.commands.ssh:cp", "Copy files to or from a node."),
        "ssh-config": ("cluster.commands.ssh:ssh_config", "Print an ssh configuration for the nodes."),
        "data": ("cluster.commands.data:data", "Transfer, check and create datasets."),
    },
    "On this machine": {
        "sandbox": ("cluster.commands.sandbox:sandbox", "Manage the local stand-in for EC2 and S3."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition, which is the order of use.

    needs_config: the group itself reads cluster.toml, so that -c comes before its command's name.
    """

    needs_config = False

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the commands in the order of their definition, not sorted by name."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Adds the examples to the help of the command that is called, and the option -c."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command.epilog = render_examples(f"{self.name} {name}".removeprefix("cli "))
            if not self.needs_config:
                _take_config(command)
        return name, command, rest


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
        name, found, rest = super().resolve_command(ctx, args)
        command = found
        if name is not None and found is not None:
            load = load_shape if ctx.resilient_parsing else load_command  # only completion sets resilient_parsing
            command = load(self.table[name][0])
            command.epilog = found.epilog
            _take_config(command)
        return name, command, rest


class RootGroup(LazyGroup):
    """The command `cluster` itself, whose help has a heading for each kind of command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the list of commands."""
        width = max(map(len, COMMANDS))
        for heading, section in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in section.items()])


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
