"""`cluster sandbox ...`: the subcommands of ec2-sandbox, for the sandbox of a folder with a cluster.toml."""

import copy
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.commands import OrderedGroup
from cluster.config import sandbox_settings
from cluster.sandbox import as_own_errors, as_report, rename
from cluster.session import describe
from ec2_sandbox import rootless
from ec2_sandbox.cli.commands import COMMANDS, Caller
from foundation.errors import NotFoundError
from foundation.user_folders import state_folder

_OF_NODE = re.compile(r"(instance|a|b)=(node-\d+)")


class SandboxGroup(OrderedGroup):
    """The sandbox's subcommands, whose errors are this command's."""

    needs_config = True

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a subcommand."""
        with as_own_errors():
            return super().invoke(ctx)


def adopt(command: click.Command) -> click.Command:
    """Returns a subcommand of ec2-sandbox with this command's name in its help."""
    own = copy.copy(command)
    own.help = rename(command.help or "")
    own.params = [*command.params]
    return own


@click.group("sandbox", cls=SandboxGroup, commands={command.name or "": adopt(command) for command in COMMANDS})
@pass_app
@click.pass_context
def sandbox(ctx: click.Context, app: App) -> None:
    """Manage the local stand-in for EC2 and S3.

    Its instances are real Linux hosts on this machine. Each folder with a cluster.toml has its own sandbox.
    """
    report = as_report(app.report)
    rootless.enter(app.project_dir, start=False, report=report)

    def name_nodes(words: Sequence[str]) -> Sequence[str]:
        return name_instances(words, find_ids(app)) if any(map(_OF_NODE.fullmatch, words)) else words

    def forget(sandbox_id: str) -> None:
        """Deletes the files of clusters that ended with their sandbox."""
        folder = state_folder() / f"sandbox-{sandbox_id}"
        for each in (folder, *folder.parent.glob(f"{folder.name}@*")):  # the latter are for other regions
            if each.exists():
                shutil.rmtree(each)

    caller = Caller(project_dir=app.project_dir, report=report, name_instances=name_nodes, forget=forget)
    if ctx.invoked_subcommand in {"start", "shell"}:  # shell starts what does not run
        caller = replace(caller, settings=sandbox_settings(app.config))
    ctx.obj = caller


def find_ids(app: App) -> Mapping[str, str]:
    """Returns the instance ids of the cluster's nodes, by their names."""
    app.enter_cloud()
    nodes = describe(app)
    return {node.name: node.instance_id for node in nodes.state.nodes} if nodes.state is not None else {}


def name_instances(words: Sequence[str], ids: Mapping[str, str]) -> Sequence[str]:
    """Replaces nodes' names in a fault's parameters by their instances' ids. Pure. Raises NotFoundError."""
    named = []
    for word in words:
        of_node = _OF_NODE.fullmatch(word)
        if of_node is not None and of_node[2] not in ids:
            raise NotFoundError(f"there is no {of_node[2]}", hint="cluster status")
        named.append(word if of_node is None else f"{of_node[1]}={ids[of_node[2]]}")
    return tuple(named)
