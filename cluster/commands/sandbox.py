"""`cluster sandbox ...`."""

import os
import shlex
import shutil
from dataclasses import asdict

import click

from cluster.app import App, pass_app, sandbox_files_dir
from provision.errors import SandboxError
from sandbox import control
from sandbox.control import SandboxStatus


@click.group("sandbox")
def sandbox() -> None:
    """The local stand-in for EC2 and S3.

    Its instances are real Linux hosts on this machine. It belongs to the folder of cluster.toml, and needs root.
    """


@sandbox.command("start")
@pass_app
def start(app: App) -> None:
    """Start this folder's sandbox; `cluster up` does so by itself."""
    info = control.start(app.project_dir, region=app.config.provision.region, report=app.report)
    app.print(info.endpoint_url)


@sandbox.command("stop")
@pass_app
def stop(app: App) -> None:
    """End the sandbox with all its instances and objects."""
    if not control.stop(app.project_dir, report=app.report):
        app.say("no sandbox is running in this folder")
    _forget_clusters(app)


@sandbox.command("reset")
@pass_app
def reset(app: App) -> None:
    """Remove all of the sandbox from this machine, in whatever state it is."""
    if not control.reset(app.project_dir, report=app.report):
        app.say("there is nothing of a sandbox of this folder on this machine")
    _forget_clusters(app)


@sandbox.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@pass_app
def status(app: App, *, as_json: bool) -> None:
    """Show the sandbox and its hosts."""
    found = control.describe(app.project_dir)
    if as_json:
        app.print_json(asdict(found))
    else:
        app.print(render_status(found))


@sandbox.command("env")
@pass_app
def env(app: App) -> None:
    """Print what leads any AWS tool to the sandbox: eval "$(cluster sandbox env)"."""
    info = control.find_running(app.project_dir)
    if info is None:
        raise SandboxError("the sandbox of this folder is not running", hint="cluster sandbox start")
    for name in control.unset_environment(os.environ):
        app.print(f"unset {name}")
    for name, value in control.environment(info).items():
        app.print(f"export {name}={shlex.quote(value)}")


def _forget_clusters(app: App) -> None:
    """The keys of clusters that ended with their sandbox open nothing any more."""
    folder = sandbox_files_dir(app.project_dir)
    if folder.exists():
        shutil.rmtree(folder)


def render_status(status: SandboxStatus) -> str:
    """The status for people. Pure."""
    if status.state == "stopped":
        return "the sandbox of this folder is not running"
    if status.state == "crashed":
        return "the sandbox of this folder has crashed; cluster sandbox reset removes what is left of it"
    lines = [
        f"running  {status.endpoint_url}  region {status.region}  pid {status.pid}",
        f"private addresses {status.private_cidr}, public {status.public_cidr}, files {status.state_dir}",
    ]
    for host in status.hosts:
        pid = f"pid {host.pid}" if host.pid is not None else ""
        addresses = f"{host.private_ip or '-':<16} {host.public_ip or '-':<16}"
        lines.append(f"{host.instance_id:<20} {host.state:<14} {addresses} {pid}".rstrip())
    return "\n".join(lines)
