"""A project folder with a cluster.toml, and the real command run in it as a user would run it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ec2_sandbox import control
from foundation.progress import silent
from preloaded import Started, may_run, preloaded
from terminal import Terminal

REPOSITORY = Path(__file__).parents[3]
CLUSTER = str(Path(sys.executable).parent / "cluster")


def shipped(**values: Any) -> str:
    """The text of cluster.toml with all keys, with these values as in `configure`."""
    return configure((REPOSITORY / "cluster" / "default.toml").read_text(), **values)


def configure(text: str, **values: Any) -> str:
    """The text of a cluster.toml with these values for keys, whose lines may be commented out in it.

    A key that several tables have is named with its table: TABLE__KEY, or __KEY above all tables.
    """
    for name, value in values.items():
        table, named, key = name.rpartition("__")
        begin = text.index(f"\n[{table}]") if table else 0
        end = f"{text}\n[".index("\n[", begin + 1) if named else len(text)
        line = f"{key} = {_toml(value)}".replace("\\", r"\\")
        part, found = re.subn(rf"^(# )?{key} = .*$", line, text[begin:end], flags=re.MULTILINE)
        assert found == 1, name
        text = text[:begin] + part + text[end:]
    return text


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


@contextmanager
def project_in(directory: Path, config: str | None = None) -> "Iterator[Project]":
    """A project with this cluster.toml; its sandbox, if one was started, is removed at the end of the block."""
    project = Project(directory)
    if config is not None:
        project.write(config)
    try:
        yield project
    finally:
        control.reset(directory, report=silent)


@contextmanager
def cluster_in(directory: Path, config: str) -> "Iterator[Project]":
    """The cluster of a cluster.toml, after `cluster up`; its sandbox is removed at the end of the block."""
    with project_in(directory, config) as project:
        project.run("up")
        yield project


class Shown(NamedTuple):
    """What a command has shown at a terminal. broken: see Screen."""

    code: int
    text: str
    raw: str
    broken: list[str]


@dataclass
class Project:
    """`directory` holds cluster.toml and, below it, the state of clusters. Wheels are in the user's usual cache.

    command: the program to run.
    """

    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    command: str = field(default=CLUSTER, kw_only=True)

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CLUSTER_"))}
        return {**kept, "XDG_STATE_HOME": str(self.directory / "state"), "COLUMNS": "200", **self.env}

    def write(self, text: str) -> None:
        (self.directory / "cluster.toml").write_text(text)

    @contextmanager
    def configured(self, **values: Any) -> Iterator[None]:
        """In the block, cluster.toml has these values for its keys."""
        kept = (self.directory / "cluster.toml").read_text()
        self.write(configure(kept, **values))
        try:
            yield
        finally:
            self.write(kept)

    def run(self, *words: str, code: int | None = 0, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs `cluster WORDS...` to its end, and checks its exit code."""
        command, env = [self.command, *words], self.environment()
        done: subprocess.CompletedProcess[str]
        if self.command == CLUSTER and may_run(env):
            done = preloaded().run(command, cwd=self.directory, env=env, timeout_s=timeout_s)
        else:
            done = subprocess.run(
                command, cwd=self.directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        assert code is None or done.returncode == code, (
            f"cluster {words}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run_at_terminal(self, *words: str, typed: str = "", columns: int = 80, term: str = "dumb") -> Shown:
        """Runs `cluster WORDS...` to its end at a terminal, at which somebody types."""
        terminal = Terminal(columns, 24)
        env = {**self.environment(), "TERM": term}
        env.pop("COLUMNS")
        try:
            terminal.type(typed)
            command = [self.command, *words]
            done = preloaded().run(command, cwd=self.directory, env=env, timeout_s=180, terminal=terminal.theirs)
            return Shown(done.returncode, terminal.settle(), terminal.raw, terminal.screen.broken)
        finally:
            terminal.close()

    @property
    def messages(self) -> Path:
        """The file with the stderr of the command that `running` or `following` started last."""
        return self.directory / "messages"

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Starts `cluster WORDS...`; it is killed at the end of the block if it still runs."""
        with self.messages.open("w") as messages:
            process = subprocess.Popen(
                [self.command, *words],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @contextmanager
    def following(self, *words: str) -> Iterator[Started]:
        """Like `running`, in a fork of the preloaded program, whose arguments and environment /proc shows."""
        env = self.environment()
        assert may_run(env)
        with self.messages.open("w") as messages:
            command = preloaded().running([self.command, *words], messages.fileno(), cwd=self.directory, env=env)
            with command as process:
                yield process


def processes_of(job: str) -> dict[int, dict[str, str]]:
    """The environments of a job's processes anywhere on this machine, by pid."""
    environments = {process.pid: process.info["environ"] or {} for process in psutil.process_iter(["environ"])}
    return {pid: env for pid, env in environments.items() if env.get("CLUSTER_JOB_ID") == job}
