"""What every command shares: the configuration, the cloud's environment, and the two output streams."""

import json
import os
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.terminal import escape, write
from provision.errors import NotFoundError, SandboxError, UsageError
from provision.progress import Event
from provision.user_folders import state_folder

if TYPE_CHECKING:
    from cluster.config import ClusterConfig
    from cluster.steps import PlainSteps, StepDisplay
    from provision.files import ClusterFiles


class App:
    """One run of the command. Progress and messages go to stderr, results to stdout."""

    def __init__(self, *, config_path: Path) -> None:
        self.config_path = config_path
        self.overrides: dict[str, Any] = {}

    @cached_property
    def config(self) -> "ClusterConfig":
        """cluster.toml with this command line's overrides. Raises ConfigError."""
        from cluster.config import load_config  # noqa: PLC0415 - not for --help

        return load_config(self.config_path, self.overrides)

    @property
    def project_dir(self) -> Path:
        """The folder of cluster.toml."""
        return self.config_path.resolve().parent

    @cached_property
    def files(self) -> "ClusterFiles":
        """Where this cluster's private key, known hosts and journal are. Call enter_cloud first."""
        from provision.files import ClusterFiles  # noqa: PLC0415 - as above

        if self.config.cloud == "aws":
            return ClusterFiles(state_folder() / "aws" / self.config.provision.region / self.config.name)
        return ClusterFiles(sandbox_files_dir(self.project_dir) / self.config.name)

    def enter_cloud(self, *, start_sandbox: bool = False) -> None:
        """Point AWS's environment variables at the configured cloud; the only place that does.

        `cloud = "aws"` leaves them as the user set them. `cloud = "sandbox"` points them at this folder's sandbox,
        which is started first where the command makes something.
        Raises SandboxError, as where it runs for another region; NotFoundError when it does not run.
        """
        if self.config.cloud == "aws":
            return
        from sandbox import control  # noqa: PLC0415 - only a sandbox user pays for it

        info = control.find_running(self.project_dir)
        if info is None:
            if not start_sandbox:
                raise NotFoundError(
                    "the sandbox of this folder is not running, so there is no cluster",
                    hint="cluster up (it starts the sandbox), or cluster sandbox start",
                )
            info = control.start(
                self.project_dir,
                region=self.config.provision.region,
                report=self.report,
                config=self.config.sandbox,
            )
        region = self.config.provision.region
        if info.region != region:
            raise SandboxError(
                f'the sandbox of this folder runs in region {info.region}, and [provision] region = "{region}"',
                hint=f'set region = "{info.region}", or cluster sandbox reset, which removes all that is in it',
            )
        for key in control.unset_environment(os.environ):
            os.environ.pop(key, None)
        os.environ.update(control.environment(info))

    def find_cloud(self) -> bool:
        """Like enter_cloud, for commands to which no sandbox is as good as an empty one: whether there is a cloud."""
        try:
            self.enter_cloud()
        except NotFoundError as error:
            self.say(error.message)
            return False
        return True

    @cached_property
    def console(self) -> Any:
        """A rich Console on stderr."""
        from rich.console import Console  # noqa: PLC0415 - slow to import: not for --help

        return Console(stderr=True, highlight=False, soft_wrap=True)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether there is no terminal, as rich sees it, which is slow to import for plain lines."""
        return not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE"))

    @cached_property
    def _steps(self) -> "StepDisplay | PlainSteps":
        from cluster.steps import PlainSteps, StepDisplay  # noqa: PLC0415 - as above

        return PlainSteps() if self._is_plain else StepDisplay(self.console)

    def close(self) -> None:
        """Give the terminal back as it was, on whatever way out."""
        if "_steps" in self.__dict__:
            self._steps.close()

    def report(self, event: Event) -> None:
        """Show an event on stderr: what has begun as a passing line (on a terminal alone), what is done to stay."""
        self._steps.show(event)

    def say(self, text: str, *, style: str = "") -> None:
        """A message for the person at the terminal: stderr, never markup."""
        if (style and not self._is_plain) or "console" in self.__dict__:
            text = escape(text) if sys.stderr.isatty() else text
            self.console.print(text, style=style or None, markup=False, emoji=False)
        else:  # nothing is drawn that it could come between: for plain words rich is slow to import
            write(sys.stderr, text)

    def print(self, text: str) -> None:
        """A result: stdout."""
        self.close()
        write(sys.stdout, text)

    def print_line(self, text: str) -> None:
        """One line of a result: stdout. On a terminal no name in it can begin another line."""
        self.close()
        write(sys.stdout, text, one_line=True)

    def print_json(self, value: Any) -> None:
        """A result as JSON: stdout."""
        write(sys.stdout, dump_json(value))

    def print_json_array(self, values: Iterable[Any]) -> None:
        """Results as one JSON array: stdout. Each is made and printed alone, for they may be large."""
        opening = "["
        for value in values:
            sys.stdout.write(f"{opening}\n  {dump_json(value).replace(chr(10), chr(10) + '  ')}")
            opening = ","
        write(sys.stdout, "[]" if opening == "[" else "\n]")

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask, unless `yes`. Without a terminal nobody can answer: UsageError naming --yes."""
        if yes:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{question} Without a terminal this needs --yes.")
        return click.confirm(escape(question), err=True)


def dump_json(value: Any) -> str:
    """JSON for people and programs, in ASCII and without control characters. Pure."""
    return json.dumps(value, indent=2, default=str).replace("\x7f", "\\u007f")


def sandbox_files_dir(project_dir: Path) -> Path:
    """The files of the clusters in the sandbox of a folder; they go with the sandbox."""
    from sandbox.marks import place_of  # noqa: PLC0415 - only a sandbox user pays for it

    return state_folder() / f"sandbox-{place_of(project_dir).id}"


pass_app = click.make_pass_decorator(App)
