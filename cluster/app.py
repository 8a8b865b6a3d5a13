"""Shared by all commands: the configuration, the cloud's environment variables, and the two output streams."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from cluster.config import ClusterConfig, load_config, sandbox_settings
from cluster.folders import NAME_LEFT, find_above, find_left
from cluster.sandbox import as_own_errors, as_report
from cluster.views.layout import wrap
from cluster.views.messages import StepDisplay, make_console, message
from cluster.views.terminal import escape, find_columns, write
from ec2_sandbox.sudo import AGAIN
from foundation.errors import ClusterError, ConfigError, Interrupted, NotFoundError, SandboxError, UsageError
from foundation.progress import Event
from foundation.user_folders import state_folder
from provision.config import all_regions

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.recovery.head_client import HeadSettings
    from provision.aws.clients import Clients
    from provision.files import ClusterFiles

wide_option = click.option("--wide", is_flag=True, help="Show all columns, also those that do not fit the terminal.")
P = ParamSpec("P")
T = TypeVar("T")
CLIENTS_S = 300.0
LONG_S = 10.0
"""A step of a node that took this long is shown without -v, too."""


class App:
    """One run of a command. Progress and messages go to stderr, results to stdout.

    on_head: the settings from the user's machine, for a command on a cluster's head; None on the user's machine.
    """

    on_head: "HeadSettings | None" = None

    def __init__(self, *, config_path: Path) -> None:
        self.config_path = config_path
        self.overrides: dict[str, Any] = {}
        self.job_file: Path | None = None  # of cluster train --job
        self.copies_results = False  # once the job has ended, the command copies its files and writes its report
        self.job_dir = self.project_dir  # the folder with the job's files; cluster replay has another one
        self.is_brief = False  # finished steps of single nodes are shown only if they took LONG_S
        self.is_temporary = False  # the cluster, which a command has made for itself: no next commands, no receipt
        self._sandbox_region: str | None = None
        self._clients: tuple[Clients, float] | None = None  # with the time at which they were made

    @cached_property
    def config(self) -> ClusterConfig:
        """The settings in cluster.toml with this command line's overrides. Raises ConfigError."""
        return load_config(self.config_path, self.overrides)

    def override(self, key: str, value: object) -> None:
        """Overrides a value of cluster.toml, even after the file was read. key: dotted."""
        self.overrides[key] = value
        for depends in ("config", "files"):
            self.__dict__.pop(depends, None)

    def warn(self, *texts: str, where: str | None = None) -> None:
        """Shows warnings. where: the node that they are about."""
        for text in texts:
            self.report(Event(kind="warn", what=text, where=where))

    def warn_of(self, error: ClusterError) -> None:
        """Shows an error that does not end the command, with its hint."""
        self.warn(f"{error.message} ({error.hint})" if error.hint else error.message)

    def warn_of_left_clusters(self) -> None:
        """Warns of clusters of this folder that cluster.toml does not name any more. A wrong file is not reported."""
        with suppress(ConfigError):
            # Not self.config, which keeps its value: a command's options may override it later.
            config = load_config(self.config_path, self.overrides) if self.config_path.exists() else None
            self.warn(*find_left(self.project_dir, config))

    def use_region(self, region: str) -> None:
        """Makes `config` and `files` refer to this one of [provision] region and regions; it becomes the first."""
        known = all_regions(self.config.provision)
        if region != known[0]:
            self.overrides |= {"provision.region": region}
            self.override("provision.regions", [other for other in known if other != region])

    def files_in(self, region: str, *, name: str | None = None) -> "ClusterFiles":
        """Returns this cluster's files for a region, or those of another one. Call enter_cloud first."""
        from provision.files import ClusterFiles  # noqa: PLC0415 - as in `files`

        name = name or self.config.name
        if self.config.cloud == "aws":
            return ClusterFiles(state_folder() / "aws" / region / name)
        from ec2_sandbox.paths import paths_of  # noqa: PLC0415 - as in enter_cloud

        folder = state_folder() / f"sandbox-{paths_of(self.project_dir).id}"  # it is deleted with the sandbox
        if self.config.provision.regions and region != self._sandbox_region:
            folder = folder.with_name(f"{folder.name}@{region}")
        return ClusterFiles(folder / name)

    @property
    def clients(self) -> "Clients":
        """The AWS clients of the cluster's region. Call enter_cloud first. Raises AwsError.

        Made again after CLIENTS_S: while a job ran, the user may have renewed the credentials in ~/.aws.
        """
        from provision.aws.clients import make_clients  # noqa: PLC0415 - boto3

        region, now = self.config.provision.region, time.monotonic()
        if self._clients is None or self._clients[0].region != region or now > self._clients[1] + CLIENTS_S:
            self._clients = make_clients(region), now
        return self._clients[0]

    @property
    def reach(self) -> str:
        """The end of a message about a port here: a sandbox without root has a network of its own."""
        from ec2_sandbox.hosts.system import is_machines_root  # noqa: PLC0415 - as in enter_cloud

        has_own = self.config.cloud == "sandbox" and not is_machines_root()
        return "; without root, only programs in `cluster sandbox shell` reach it" if has_own else ""

    @property
    def project_dir(self) -> Path:
        """The folder of cluster.toml."""
        return self.config_path.resolve().parent

    @cached_property
    def files(self) -> "ClusterFiles":
        """This cluster's private key, known hosts, journal and other files. Call enter_cloud first."""
        from provision.files import ClusterFiles  # noqa: PLC0415 - cryptography: `cluster data` saves 35 ms, 10 MB

        if self.config.cloud == "hosts":
            return ClusterFiles(state_folder() / "hosts" / self.config.name)
        return self.files_in(self.config.provision.region)

    def enter_cloud(self, *, start_sandbox: bool = False, is_any_region: bool = False) -> None:
        """Points AWS's environment variables at the configured cloud. No other function does this.

        `cloud = "aws"` and "hosts" leave them as the user set them. `cloud = "sandbox"` points them at this folder's
        sandbox, and starts it if start_sandbox is true. With [provision] regions, `config` becomes that of the region
        that has the cluster, unless is_any_region. Raises NotFoundError when no sandbox runs, SandboxError, AwsError.
        """
        if self.config.cloud == "sandbox":
            self._enter_sandbox(start=start_sandbox)
        if self.has_instances and self.config.provision.regions and not is_any_region:
            self._find_region()

    def _find_region(self) -> None:
        """Switches to the region that has the cluster, if one has it."""
        from provision.aws.clients import make_clients  # noqa: PLC0415 - boto3; few users have several regions
        from provision.regions import find_home  # noqa: PLC0415 - as above

        regions = all_regions(self.config.provision)
        noted = next((region for region in regions if self.files_in(region).exist), None)
        home = find_home(make_clients, regions, name=self.config.name, noted=noted)
        if home is not None:
            self.use_region(home)

    def _enter_sandbox(self, *, start: bool) -> None:
        from ec2_sandbox import control, rootless  # noqa: PLC0415 - commands on AWS save 40 ms

        report = as_report(self.report)
        with as_own_errors():
            rootless.enter(self.project_dir, start=start, report=report)
            info = control.find_running(self.project_dir)
            if info is None:
                if not start:
                    raise _explain_missing(has_crashed=control.describe(self.project_dir).state == "crashed")
                rootless.become_root(self.project_dir, report=report)
                info = control.start(self.project_dir, sandbox_settings(self.config), report=report)
        self._sandbox_region = home = info.settings.config.region
        region, regions = self.config.provision.region, all_regions(self.config.provision)
        if home not in regions:
            raise SandboxError(
                f'the sandbox of this folder runs in region {home}, and [provision] region = "{region}"',
                hint=f'set region = "{home}", or remove the sandbox and its content: cluster sandbox stop',
            )
        for key in control.unset_environment(os.environ):
            os.environ.pop(key, None)
        os.environ.update(control.environment(info))

    @property
    def has_instances(self) -> bool:
        """Whether nodes are instances, which commands launch, stop and delete. Otherwise they are existing hosts."""
        return self.config.cloud != "hosts"

    def check_has_instances(self, command: str, *, instead: str) -> None:
        """Raises UsageError if the command needs instances. instead: the hint for existing hosts."""
        if not self.has_instances:
            raise UsageError(
                f'cluster {command} is for instances; with cloud = "hosts" there is nothing to launch, stop or delete',
                hint=instead,
            )

    def find_cloud(self, *, is_any_region: bool = False) -> bool:
        """Like enter_cloud, but return whether the cloud can be used. If no sandbox runs, print that.

        For commands that show nothing without a sandbox.
        """
        try:
            self.enter_cloud(is_any_region=is_any_region)
        except NotFoundError as error:
            self.message(error.message)
            return False
        return True

    @cached_property
    def console(self) -> "Console | None":
        """The only Console of a command, on stderr; None if nothing can be drawn there."""
        return make_console()

    @cached_property
    def _steps(self) -> StepDisplay:
        return StepDisplay(self.console)

    def close(self) -> None:
        """Removes the spinner from the terminal. Called at the end of every command, also after an error."""
        if "_steps" in self.__dict__:
            self._steps.close()

    def report(self, event: Event) -> None:
        """Shows an event on stderr: a finished step as a line, a running one as a spinner (on a terminal only)."""
        of_one_node = event.kind in {"done", "same"} and event.where is not None
        self._steps.show(event, is_hidden=self.is_brief and of_one_node and (event.duration_s or 0.0) < LONG_S)

    def message(self, text: str, *, style: str = "") -> None:
        """Prints a message to stderr. It is never interpreted as markup."""
        message(self.console, text, style=style)

    def show_command(self, line: str) -> None:
        """Prints a command line that people copy to stderr: on a line of its own, which is not wrapped."""
        message(self.console, f"    {line}", wrapped=False)

    def print(self, text: str, *, wrapped: bool = True) -> None:
        """Prints a result to stdout. On a terminal, lines are wrapped between words.

        wrapped: False for output that people copy or that other programs read, such as scripts.
        """
        self.close()
        write(sys.stdout, text, wrapped=wrapped)

    def find_columns(self, *, wide: bool = False) -> int | None:
        """Returns the width for tables on stdout; None, no limit, with --wide or if stdout is not a terminal.

        A program such as `watch`, which reads the table from a pipe and shows it, says its width in COLUMNS.
        """
        if wide:
            return None
        if sys.stdout.isatty():
            return find_columns(sys.stdout)
        shown = os.environ.get("COLUMNS", "")
        return int(shown) if shown.isdecimal() and int(shown) else None

    def print_line(self, text: str, *, wrapped: bool = True) -> None:
        """Prints one line of a result to stdout. On a terminal, newlines in it are escaped. wrapped: see print."""
        self.close()
        write(sys.stdout, text, one_line=True, wrapped=wrapped)

    def print_json(self, value: Any) -> None:
        """Prints a result to stdout as JSON."""
        # The output is ASCII without control characters.
        write(sys.stdout, json.dumps(value, indent=2, default=str).replace("\x7f", "\\u007f"))

    def show(self, text: str, document: Any, *, as_json: bool, wrapped: bool = True) -> None:
        """Prints a result to stdout: the text, or the document if as_json. wrapped: see print."""
        if as_json:
            self.print_json(document)
        else:
            self.print(text, wrapped=wrapped)

    @staticmethod
    def is_interactive() -> bool:
        """Whether stdin and stderr are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Asks the user, unless `yes`. Returns whether the answer is yes.

        Raises UsageError, which names --yes, when there is no terminal.
        """
        if yes:
            return True
        if not self.is_interactive():
            raise UsageError(f"without a terminal, this needs --yes: {question}")
        keys, width = "[y: yes; n or Enter: no]", find_columns(sys.stderr)
        prompt = wrap(escape(question), width)
        gap = " " if len(prompt.rpartition("\n")[2]) + len(keys) + 2 <= width else "\n  "
        return click.confirm(f"{prompt}{gap}{keys}", prompt_suffix=" ", show_default=False, err=True)

    def require(self, question: str, *, yes: bool) -> None:
        """Like confirm, but ends the command if the answer is no."""
        if not self.confirm(question, yes=yes):
            self.cancel()

    def cancel(self) -> NoReturn:
        """Ends the command because the answer to its question is no."""
        self.message("cancelled: nothing was changed")
        raise click.exceptions.Exit(1)

    @property
    def price_note(self) -> str:
        """The note to add to prices; those of the sandbox are simulated."""
        return "simulated" if self.config.cloud == "sandbox" else ""


@contextmanager
def if_interrupted(hint: str) -> Iterator[None]:
    """Within the block, an interrupted command ends with this hint. The hint of the innermost block is shown."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        raise Interrupted(hint) from error


def _explain_missing(*, has_crashed: bool) -> NotFoundError:
    """Returns the error for a folder whose sandbox does not run."""
    what = "the sandbox of this folder is not running, so there is no cluster"
    if has_crashed:
        what = "the sandbox of this folder has crashed, and its clusters ended with it"
    return NotFoundError(what, hint="cluster up (it starts the sandbox), or cluster sandbox start")


def pass_app(command: Callable[Concatenate[App, P], T]) -> Callable[P, T]:
    """Passes the App of this run to a command. The App is created on first use and closed when the command ends."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        root = click.get_current_context().find_root()
        if root.obj is None:
            path: Path = root.params["config_path"]
            is_default = root.get_parameter_source("config_path") is ParameterSource.DEFAULT
            found = find_above(path) if is_default and root.invoked_subcommand != "init" else None
            root.obj = App(config_path=found or path)
            root.call_on_close(root.obj.close)
            if os.environ.pop(AGAIN, None) is None:
                if found is not None:
                    root.obj.message(f"using {found}")
                if root.invoked_subcommand in NAME_LEFT and (is_default or path.exists()):  # not after a typing error
                    root.obj.warn_of_left_clusters()
        return command(root.obj, *args, **kwargs)

    return update_wrapper(call, command)
