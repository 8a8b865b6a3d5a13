"""`cluster sandbox ...`."""

import json
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cluster.app import App, pass_app, sandbox_files_dir
from cluster.commands import OrderedGroup
from cluster.completion import Words
from cluster.nodes.ec2 import Ec2Nodes
from cluster.session import describe
from cluster.views.layout import render_table
from foundation.errors import NotFoundError, UsageError
from foundation.user_folders import state_folder
from provision.model import count
from sandbox import control, rootless
from sandbox.control import SandboxOnMachine, SandboxStatus
from sandbox.faults import KINDS, FaultError, parse_fault


@click.group("sandbox", cls=OrderedGroup)
@pass_app
def sandbox(app: App) -> None:
    """Manage the local stand-in for EC2 and S3.

    Its instances are real Linux hosts on this machine. Each folder with a cluster.toml has its own sandbox.
    """
    rootless.enter(app.project_dir, start=False, report=app.report)


@sandbox.command("start")
@pass_app
def start(app: App) -> None:
    """Start the sandbox of this folder.

    `cluster up` starts it automatically.
    """
    rootless.enter(app.project_dir, start=True, report=app.report)
    rootless.become_root(app.project_dir, report=app.report)
    info = control.start(
        app.project_dir,
        region=app.config.provision.region,
        report=app.report,
        config=app.config.sandbox,
        others=app.config.provision.regions,
    )
    app.print(info.endpoint_url)


@sandbox.command("stop")
@click.option("-y", "--yes", is_flag=True, help="Stop the sandbox without asking, whatever is in it.")
@pass_app
def stop(app: App, *, yes: bool) -> None:
    """Stop the sandbox and delete its instances and objects."""
    _end(app, yes=yes)


@sandbox.command("reset")
@click.option("-y", "--yes", is_flag=True, help="Remove the sandbox without asking, whatever is in it.")
@pass_app
def reset(app: App, *, yes: bool) -> None:
    """Remove the sandbox, whatever state it is in."""
    _end(app, yes=yes)


def _end(app: App, *, yes: bool) -> None:
    """Ends the sandbox. Asks, unless `yes`, if it has nodes or objects, which end with it. Raises UsageError."""
    rootless.become_root(app.project_dir, report=app.report)
    if not yes and control.find_running(app.project_dir) is not None:
        nodes = sum(host.state != "terminated" for host in control.describe(app.project_dir).hosts)
        objects = control.count_objects(app.project_dir)
        content = " and ".join(count(number, what) for number, what in ((nodes, "node"), (objects, "object")) if number)
        if content:
            app.require(f"The sandbox has {content}. Delete them with it?", yes=False)
    control.reset(app.project_dir, report=app.report)
    _forget_clusters(sandbox_files_dir(app.project_dir))


@sandbox.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@pass_app
def list_(app: App, *, as_json: bool) -> None:
    """List your sandboxes on this machine, of all folders.

    It includes those that have crashed, and those whose folder was moved or deleted.
    """
    rootless.enter(app.project_dir, start=False, report=app.report, for_all=True)
    found = control.list_all()
    app.show(render_list(found), [asdict(one) for one in found], as_json=as_json, wrapped=False)


@sandbox.command("prune")
@click.option("-y", "--yes", is_flag=True, help="Remove them without asking.")
@pass_app
def prune(app: App, *, yes: bool) -> None:
    """Remove sandboxes that have crashed or whose folder is gone.

    This removes their processes, networks, mounts and files, with all objects in them.
    """
    rootless.enter(app.project_dir, start=False, report=app.report, for_all=True)
    found = [one for one in control.list_all() if one.state != "running"]
    if not found:
        app.say("nothing to remove: every sandbox runs, and its folder exists")
        return
    app.say(render_list(found))
    app.require("Remove them, with everything in them?", yes=yes)
    control.prune([one.id for one in found], report=app.report)
    for one in found:
        _forget_clusters(state_folder() / f"sandbox-{one.id}")


@sandbox.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@pass_app
def status(app: App, *, as_json: bool) -> None:
    """Show the sandbox and its hosts."""
    found = control.describe(app.project_dir)
    app.show(render_status(found), asdict(found), as_json=as_json)


@sandbox.command("shell", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@pass_app
def shell(app: App, *, command: tuple[str, ...]) -> None:
    """Open a shell for AWS tools, or run a command in one.

    In it, AWS tools use the sandbox. If the sandbox runs without root, only this shell gives your own tools access to
    the sandbox and its hosts.
    """
    info = control.find_required(app.project_dir)
    kept = {name: value for name, value in os.environ.items() if name not in control.unset_environment(os.environ)}
    words = command or (os.environ.get("SHELL", "/bin/sh"),)
    try:
        os.execvpe(words[0], words, {**kept, **control.environment(info)})  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise NotFoundError(f"{words[0]}: {error.strerror}") from error


@sandbox.command("env")
@pass_app
def env(app: App) -> None:
    """Print the environment variables for AWS tools.

    They point any AWS tool to the sandbox: eval "$(cluster sandbox env)".
    """
    info = control.find_required(app.project_dir)
    for name in control.unset_environment(os.environ):
        app.print(f"unset {name}", wrapped=False)
    for name, value in control.environment(info).items():
        app.print(f"export {name}={shlex.quote(value)}", wrapped=False)


@sandbox.command("install")
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE...")
@pass_app
def install(app: App, *, packages: tuple[str, ...]) -> None:
    """Install distribution packages on all hosts.

    Hosts that start later get them too. The packages come from this machine's package sources, but are not installed on
    this machine. Hosts have no systemd: start a daemon with `service NAME start`.
    """
    rootless.become_root(app.project_dir, report=app.report)
    hosts = control.install(app.project_dir, packages, report=app.report)
    app.say(f"{', '.join(packages)}: installed on {hosts} hosts; hosts that start later install them when they boot")


def _list_kinds() -> str:
    """Lists the kinds of faults, for the help."""
    lines = []
    for kind in KINDS.values():
        words = [f"{p.name}=" if p.required else f"[{p.name}=]" for p in kind.parameters]
        lines.append(f"  {' '.join([kind.name, *words])}")
        lines += textwrap.wrap(kind.summary, width=72, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\b\n" + "\n".join(lines)


@sandbox.command(
    "fault",
    help="Inject a fault.\n\n"
    "KIND is one of those below; KEY=VALUE narrows it down. "
    "A fault with instance=, or with a= and b=, takes effect at once; these name a node or an instance. Others wait "
    "for the next matching call or boot."
    "\n\n" + _list_kinds(),
)
@click.argument("kind", type=Words(KINDS))
@click.argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--count", metavar="K", help='How often it takes effect; "all": until disarmed.')
@pass_app
def fault(app: App, *, kind: str, parameters: tuple[str, ...], count: str | None) -> None:
    """Arm a fault, or bring one about."""
    text = shlex.join([kind, *parameters, *([f"count={count}"] if count else [])])
    try:
        parse_fault(text)
    except FaultError as error:
        raise UsageError(str(error), hint="cluster sandbox fault --help") from None
    if any(map(_OF_NODE.fullmatch, parameters)):
        app.enter_cloud()
        nodes = describe(app)
        ids = {node.name: node.instance_id for node in nodes.state.nodes} if isinstance(nodes, Ec2Nodes) else {}
        text = shlex.join([kind, *name_instances(parameters, ids), *([f"count={count}"] if count else [])])
    found = control.cause_fault(app.project_dir, text)
    app.print(found["did"] if "did" in found else found["id"])


_OF_NODE = re.compile(r"(instance|a|b)=(node-\d+)")


def name_instances(parameters: Sequence[str], ids: Mapping[str, str]) -> tuple[str, ...]:
    """Replaces nodes' names in a fault's parameters by their instances' ids. Pure. Raises NotFoundError."""
    named = []
    for word in parameters:
        of_node = _OF_NODE.fullmatch(word)
        if of_node is not None and of_node[2] not in ids:
            raise NotFoundError(f"there is no {of_node[2]}", hint="cluster status shows the nodes")
        named.append(word if of_node is None else f"{of_node[1]}={ids[of_node[2]]}")
    return tuple(named)


@sandbox.command("faults")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@pass_app
def faults(app: App, *, as_json: bool) -> None:
    """List the armed faults."""
    found = control.list_faults(app.project_dir)
    if as_json:
        app.print_json(found)
    elif found:
        app.print("\n".join(render_fault(one) for one in found))
    else:
        app.say("no fault is armed")


@sandbox.command("disarm")
@click.argument("which", metavar="ID|all", type=Words(["all"]))
@pass_app
def disarm(app: App, *, which: str) -> None:
    """Remove one armed fault, or all of them."""
    for one in control.disarm_faults(app.project_dir, which):
        app.print(render_fault(one))


@sandbox.command("log")
@click.option("--json", "as_json", is_flag=True, help="Print each call as one line of JSON.")
@pass_app
def log(app: App, *, as_json: bool) -> None:
    """Show every API call since the sandbox started."""
    with control.api_log(app.project_dir).open() as stream:
        for line in stream:
            app.print_line(line.rstrip() if as_json else render_call(json.loads(line)), wrapped=not as_json)


def render_fault(fault: Mapping[str, Any]) -> str:
    """Renders a fault as one line. Pure."""
    words = " ".join([fault["kind"], *(f"{name}={value}" for name, value in fault["parameters"].items())])
    left = "until disarmed" if fault["left"] is None else f"{fault['left']} left"
    return f"{fault['id']:<10} {words}  ({left}, took effect {fault['struck']} times)"


def render_call(call: Mapping[str, Any]) -> str:
    """Renders a call in the API log as one readable line. Pure."""
    what = f"{call['service']} {call['action']}"
    notes = [call[name] for name in ("resource", "error") if call[name]]
    notes += [f"token {call['client_token']}"] if call["client_token"] else []
    notes += ["dry run"] if call["dry_run"] else []
    notes += [f"fault: {call['fault']}"] if call["fault"] else []
    begun = f"{call['time'].partition('+')[0][:23]}Z  {call['status'] or '---'}  {call['duration_ms']:8.1f} ms"
    return f"{begun}  {what:<36} {'  '.join(notes)}".rstrip()


def _forget_clusters(folder: Path) -> None:
    """Deletes the files of clusters that ended with their sandbox. folder: see sandbox_files_dir."""
    for each in (folder, *folder.parent.glob(f"{folder.name}@*")):  # the latter are for other regions
        if each.exists():
            shutil.rmtree(each)


def render_list(found: Sequence[SandboxOnMachine]) -> str:
    """Renders sandboxes as a table. Pure."""
    if not found:
        return "no sandboxes"
    rows = [
        (one.state, str(one.nodes), str(one.pid or "-"), one.endpoint_url or "-", one.folder or f"unknown, id {one.id}")
        for one in found
    ]
    return render_table([("STATE", "NODES", "PID", "ADDRESS", "FOLDER"), *rows])


def render_status(status: SandboxStatus) -> str:
    """Renders the status as text. Pure."""
    if status.state == "stopped":
        return "the sandbox of this folder is not running"
    if status.state == "crashed":
        return "the sandbox of this folder has crashed; to remove what is left of it, run: cluster sandbox reset"
    lines = [
        f"running  {status.endpoint_url}  region {status.region}  pid {status.pid}",
        f"private addresses {status.private_cidr}, public {status.public_cidr}, files {status.state_dir}",
    ]
    for host in status.hosts:
        pid = f"pid {host.pid}" if host.pid is not None else ""
        addresses = f"{host.private_ip or '-':<16} {host.public_ip or '-':<16}"
        lines.append(f"{host.instance_id:<20} {host.state:<14} {addresses} {pid}".rstrip())
    return "\n".join(lines)
