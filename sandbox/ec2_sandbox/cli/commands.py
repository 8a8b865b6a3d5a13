"""The command `ec2-sandbox`, and its subcommands, which `cluster sandbox` has, too."""

import json
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from ec2_sandbox import control, rootless
from ec2_sandbox.cli.examples import EXAMPLES, render_examples
from ec2_sandbox.cli.settings import read_settings
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.control import SandboxStatus
from ec2_sandbox.errors import NotFoundError, SandboxError, UsageError
from ec2_sandbox.faults import KINDS, FaultError, parse_fault
from ec2_sandbox.hosts.system import is_machines_root
from ec2_sandbox.progress import Event, Report

SYSTEM_PACKAGES = Path(__file__).parents[1] / "system-packages"
INTERRUPTED = 130  # 128 + SIGINT, as in shells
# They enter an ordinary user's namespaces themselves, or do not need them.
OUTSIDE = ("setup", "start", "list", "prune")


def print_event(event: Event) -> None:
    """Prints an event to stderr; a step only when it has ended."""
    if event.kind != "start":
        took = "" if event.duration_s is None else f" ({event.duration_s:.1f} s)"
        click.echo(f"{'warning: ' if event.kind == 'warn' else ''}{event.what}{took}", err=True)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """For whom a subcommand works.

    project_dir: the folder whose sandbox is meant. name_instances: replaces names of nodes in a fault's parameters by
    instance ids. forget: called with the id of each sandbox that was removed.
    """

    project_dir: Path
    report: Report = print_event
    settings: FolderSettings = field(default_factory=FolderSettings)
    name_instances: Callable[[Sequence[str]], Sequence[str]] = tuple
    forget: Callable[[str], None] = lambda _: None


def require(question: str, *, yes: bool) -> None:
    """Asks the user, unless `yes`, and ends the command if the answer is no. Raises UsageError without a terminal."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"without a terminal, this needs --yes: {question}")
    if not click.confirm(question, err=True):
        click.echo("cancelled: nothing was changed", err=True)
        raise click.exceptions.Exit(1)


def show(text: str, document: Any, *, as_json: bool) -> None:
    """Prints a result: the text, or the document if as_json."""
    click.echo(json.dumps(document, indent=2, default=str) if as_json else text)


@click.command("setup")
@click.pass_context
def setup(ctx: click.Context) -> None:
    """Install the system packages that the sandbox needs on this machine.

    It needs Debian or Ubuntu, and root's rights or sudo. It starts no service.
    """
    ctx.exit(subprocess.run(("bash", str(SYSTEM_PACKAGES)), check=False).returncode)


@click.command("start")
@click.pass_obj
def start(caller: Caller) -> None:
    """Start the sandbox of this folder, and print the address of its API."""
    rootless.enter(caller.project_dir, start=True, report=caller.report)
    rootless.become_root(caller.project_dir, report=caller.report)
    info = control.start(caller.project_dir, caller.settings, report=caller.report)
    click.echo(info.endpoint_url)


@click.command("stop")
@click.option("-y", "--yes", is_flag=True, help="Stop the sandbox without asking, whatever is in it.")
@click.pass_obj
def stop(caller: Caller, *, yes: bool) -> None:
    """Stop the sandbox and delete its instances and objects.

    It asks if there are any, and removes what a crashed sandbox has left.
    """
    rootless.become_root(caller.project_dir, report=caller.report)
    if not yes and control.find_running(caller.project_dir) is not None:
        described = control.describe(caller.project_dir)
        nodes = sum(host.state != "terminated" for host in described.hosts)
        counts = ((nodes, "node"), (control.count_objects(caller.project_dir), "object"))
        content = " and ".join(f"{number} {what}{'s' * (number > 1)}" for number, what in counts if number)
        if content:
            require(f"The sandbox has {content}. Delete it with its content?", yes=False)
    control.reset(caller.project_dir, report=caller.report)
    caller.forget(control.describe(caller.project_dir).id)


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_obj
def list_(caller: Caller, *, as_json: bool) -> None:
    """List your sandboxes on this machine, of all folders.

    It includes those that have crashed, and those whose folder was moved or deleted.
    """
    rootless.enter(caller.project_dir, start=False, report=caller.report, for_all=True)
    found = control.list_all()
    show(render_list(found), [{**asdict(one), "node_count": count_nodes(one)} for one in found], as_json=as_json)


@click.command("prune")
@click.option("-y", "--yes", is_flag=True, help="Remove them without asking.")
@click.pass_obj
def prune(caller: Caller, *, yes: bool) -> None:
    """Remove sandboxes that have crashed or whose folder is gone.

    This removes their processes, networks, mounts and files, with all objects in them.
    """
    rootless.enter(caller.project_dir, start=False, report=caller.report, for_all=True)
    found = [one for one in control.list_all() if one.state != "running"]
    if not found:
        click.echo("nothing to remove: every sandbox runs, and its folder exists", err=True)
        return
    click.echo(render_list(found), err=True)
    require("Remove them, with everything in them?", yes=yes)
    control.prune([one.id for one in found], report=caller.report)
    for one in found:
        caller.forget(one.id)


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@click.pass_obj
def status(caller: Caller, *, as_json: bool) -> None:
    """Show the sandbox and its hosts."""
    found = control.describe(caller.project_dir)
    show(render_status(found), asdict(found), as_json=as_json)


@click.command("shell", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.pass_obj
def shell(caller: Caller, *, command: tuple[str, ...]) -> None:
    """Open a shell for AWS tools, or run a command in one.

    In it, AWS tools use the sandbox. If the sandbox does not run, it is started for this shell, and removed at its end.
    If it runs without root, only this shell gives your own tools access to the sandbox and its hosts.
    """
    info = control.find_running(caller.project_dir)
    owner = os.getpid() if info is None else None
    if info is None:
        rootless.enter(caller.project_dir, start=True, report=caller.report)
        info = control.start(caller.project_dir, caller.settings, report=caller.report, owner=owner)
    kept = {name: value for name, value in os.environ.items() if name not in control.unset_environment(os.environ)}
    words = command or (os.environ.get("SHELL", "/bin/sh"),)
    try:
        os.execvpe(words[0], words, {**kept, **control.environment(info)})  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise NotFoundError(f"{words[0]}: {error.strerror}") from error


@click.command("env")
@click.pass_obj
def env(caller: Caller) -> None:
    """Print the environment variables for AWS tools.

    They point any AWS tool to the sandbox: eval "$(ec2-sandbox env)".
    """
    info = control.find_required(caller.project_dir)
    for name in control.unset_environment(os.environ):
        click.echo(f"unset {name}")
    for name, value in control.environment(info).items():
        click.echo(f"export {name}={shlex.quote(value)}")
    # In an ordinary user's terminal, this runs in the namespaces, but the terminal's next commands do not.
    inside = not rootless.is_ordinary_user() and not is_machines_root()
    if inside and os.environ.get("AWS_ENDPOINT_URL") != info.endpoint_url:
        shell = click.get_current_context().command_path.removesuffix("env") + "shell"
        click.echo(f"without root, only programs in `{shell}` reach the sandbox", err=True)


@click.command("install")
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE...")
@click.pass_obj
def install(caller: Caller, *, packages: tuple[str, ...]) -> None:
    """Install distribution packages on all hosts.

    Hosts that start later get them too. The packages come from this machine's package sources, but are not installed on
    this machine. Hosts have no systemd: start a daemon with `service NAME start`.
    """
    rootless.become_root(caller.project_dir, report=caller.report)
    hosts = control.install(caller.project_dir, packages, report=caller.report)
    what = f"{', '.join(packages)}: installed on {hosts} hosts; hosts that start later install them when they boot"
    caller.report(Event(kind="done", what=what))


def _list_kinds() -> str:
    """Lists the kinds of faults, for the help."""
    lines = []
    for kind in KINDS.values():
        words = [f"{p.name}=" if p.required else f"[{p.name}=]" for p in kind.parameters]
        lines.append(f"  {' '.join([kind.name, *words])}")
        lines += textwrap.wrap(kind.summary, width=72, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\b\n" + "\n".join(lines)


@click.command(
    "fault",
    help="Inject a fault.\n\n"
    "KIND is one of those below; KEY=VALUE narrows it down. "
    "A fault with instance=, or with a= and b=, takes effect at once; these name an instance. Others wait "
    "for the next matching call or boot."
    "\n\n" + _list_kinds(),
)
@click.argument("kind")
@click.argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--count", metavar="K", help='How often it takes effect; "all": until disarmed.')
@click.pass_obj
def fault(caller: Caller, *, kind: str, parameters: tuple[str, ...], count: str | None) -> None:
    """Arm a fault, or bring one about."""
    text = [kind, *parameters, *([f"count={count}"] if count else [])]
    try:
        parse_fault(shlex.join(text))
    except FaultError as error:
        raise UsageError(str(error), hint="ec2-sandbox fault --help") from None
    found = control.cause_fault(caller.project_dir, shlex.join(caller.name_instances(text)))
    click.echo(found["did"] if "did" in found else found["id"])


@click.command("faults")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_obj
def faults(caller: Caller, *, as_json: bool) -> None:
    """List the armed faults."""
    found = control.list_faults(caller.project_dir)
    if found or as_json:
        show("\n".join(render_fault(one) for one in found), found, as_json=as_json)
    else:
        click.echo("no fault is armed", err=True)


@click.command("disarm")
@click.argument("which", metavar="ID|all")
@click.pass_obj
def disarm(caller: Caller, *, which: str) -> None:
    """Remove one armed fault, or all of them."""
    for one in control.disarm_faults(caller.project_dir, which):
        click.echo(render_fault(one))


@click.command("log")
@click.option("--json", "as_json", is_flag=True, help="Print each call as one line of JSON.")
@click.pass_obj
def log(caller: Caller, *, as_json: bool) -> None:
    """Show every API call since the sandbox started."""
    with control.api_log(caller.project_dir).open() as stream:
        for line in stream:
            click.echo(line.rstrip() if as_json else render_call(json.loads(line)))


def render_fault(fault: Mapping[str, Any]) -> str:
    """Renders a fault as one line. Pure."""
    words = " ".join([fault["kind"], *(f"{name}={value}" for name, value in fault["parameters"].items())])
    left = "until disarmed" if fault["left"] is None else f"{fault['left']} left"
    return f"{fault['id']:<10} {words}  ({left}; took effect: {fault['struck']})"


def render_call(call: Mapping[str, Any]) -> str:
    """Renders a call in the API log as one readable line. Pure."""
    what = f"{call['service']} {call['action']}"
    notes = [call[name] for name in ("resource", "error") if call[name]]
    notes += [f"token {call['client_token']}"] if call["client_token"] else []
    notes += ["dry run"] if call["dry_run"] else []
    notes += [f"fault: {call['fault']}"] if call["fault"] else []
    begun = f"{call['time'].partition('+')[0][:23]}Z  {call['status'] or '---'}  {call['duration_ms']:8.1f} ms"
    return escape(f"{begun}  {what:<36} {'  '.join(notes)}".rstrip())


def escape(line: str) -> str:
    """Escapes what a terminal does not print, such as control sequences. Pure."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def count_nodes(sandbox: SandboxStatus) -> int:
    """Returns the number of running instances. Pure."""
    return sum(host.state == "running" for host in sandbox.hosts)


def render_list(found: Sequence[SandboxStatus]) -> str:
    """Renders sandboxes as a table. Pure."""
    if not found:
        return "no sandboxes"
    rows = [("STATE", "NODES", "PID", "ADDRESS", "FOLDER")]
    for one in found:
        folder = one.folder or f"unknown, id {one.id}"
        state = one.state.replace("-", " ")
        rows.append((state, str(count_nodes(one)), str(one.pid or "-"), one.endpoint_url or "-", folder))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [escape("  ".join(map(str.ljust, row, widths)).rstrip()) for row in rows]
    return "\n".join(lines)


def render_status(status: SandboxStatus) -> str:
    """Renders the status as text. Pure."""
    if status.state == "stopped":
        return "the sandbox of this folder is not running"
    if status.state == "crashed":
        return "the sandbox of this folder has crashed; to remove what is left of it, run: ec2-sandbox stop"
    lines = [
        f"running  {status.endpoint_url}  region {status.region}  pid {status.pid}",
        f"private addresses {status.private_cidr}, public {status.public_cidr}",
        f"files {status.state_dir}",
    ]
    for host in status.hosts:
        pid = f"pid {host.pid}" if host.pid is not None else ""
        addresses = f"{host.private_ip or '-':<16} {host.public_ip or '-':<16}"
        lines.append(f"{host.instance_id:<20} {host.state:<14} {addresses} {pid}".rstrip())
    return "\n".join(lines)


# In the order of use.
COMMANDS = (setup, start, stop, list_, prune, status, shell, env, install, fault, faults, disarm, log)
for command in COMMANDS:
    command.short_help = (command.help or "").partition("\n")[0]  # click would cut it
    command.epilog = render_examples(EXAMPLES[command.name or ""])


class Commands(click.Group):
    """The subcommands, in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the commands in the order of use, not sorted by name."""
        return list(self.commands)


@click.group(
    cls=Commands,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=render_examples(EXAMPLES[""]),
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    default=".",
    help="The folder that the sandbox belongs to; default: this one.",
)
@click.option("--region", help="The region of a sandbox that is started; default: us-east-1.")
@click.option("--hosts", type=click.Choice(["real", "none"]), help="none: the API only, without hosts; default: real.")
@click.version_option(package_name="ec2-sandbox", prog_name="ec2-sandbox")
@click.pass_context
def cli(ctx: click.Context, /, *, folder: Path, **given: Any) -> None:
    """Run a local EC2 and S3, whose instances are real Linux hosts on this machine.

    Each folder has its own. [tool.ec2-sandbox] in its pyproject.toml has the settings, which the options override.
    """
    ctx.obj = Caller(project_dir=folder)
    if ctx.invoked_subcommand in {"start", "shell"}:
        settings = read_settings(folder, {name: value for name, value in given.items() if value is not None})
        ctx.obj = Caller(project_dir=folder, settings=settings)
    if ctx.invoked_subcommand not in OUTSIDE:
        rootless.enter(folder, start=False, report=print_event)


def run() -> None:
    """Runs the command and exits with its code: 0, 1 for a failure, 2 for wrong usage, 130 after an interrupt."""
    try:
        code = cli.main(prog_name="ec2-sandbox", standalone_mode=False)
    except SandboxError as error:
        click.echo(f"error: {error.message}" + (f"\n  try: {error.hint}" if error.hint else ""), err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("error: interrupted", err=True)
        code = INTERRUPTED
    except OSError as error:  # BrokenPipeError: the reader of our output has exited, as in `ec2-sandbox log | head`
        if not isinstance(error, BrokenPipeError):
            click.echo(f"error: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
