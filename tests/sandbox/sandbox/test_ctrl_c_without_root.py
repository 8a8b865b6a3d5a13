"""Ctrl-C in the rootless sandbox, by an ordinary user in a shell at a terminal."""

import os
import re
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordinary_user import NEEDS_NAMESPACES, UID, User, ordinary_user
from project import REPOSITORY, configure
from terminal import Terminal
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(1200), NEEDS_NAMESPACES]
QUESTION = r"continue to watch\] "
SLEEP = "sleep 45678"  # on a node, where all processes of this machine have other arguments
INTERRUPTED = r"error: interrupted\n"
RUNS_ON = r"job \S+ is still running: cluster logs -f \S+ follows it, cluster stop \S+ stops it\n"


class Shell:
    """The user's bash at a terminal. Its prompt shows the last exit code, and the number of the next command."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._terminal = Terminal(columns=200, lines=50)
        self._number = self._seen = 0
        environment = {**user.environment, "TERM": "xterm-256color", "PS1": r"[$?:\#]$ "}
        environment["PATH"] = f"{user.source / '.venv/bin'}:{environment['PATH']}"
        self._process = subprocess.Popen(
            user.words("setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "--noediting", "-i"),
            cwd=user.home / "work", env=environment, start_new_session=True,
            stdin=self._terminal.theirs, stdout=self._terminal.theirs, stderr=self._terminal.theirs,
        )  # fmt: skip
        self._code()
        self._modes = self._read_modes()

    def run(self, command: str) -> None:
        self.start(command)
        code = self._code()
        assert code == 0, self._terminal.screen.text

    def start(self, command: str) -> None:
        self._seen = len(self._terminal.raw)
        self._terminal.type(f"{command}\n")

    def press(self, keys: str, *, after: str) -> None:
        """Types keys as soon as the command has shown a text."""
        self._terminal.wait_for(lambda: re.search(after, self._terminal.raw[self._seen :]) is not None, timeout_s=120)
        self._seen = len(self._terminal.raw)
        self._terminal.type(keys)

    def check_end(self, words: str) -> None:
        """Waits for the prompt; the terminal is then as it was, and no process of the command is left."""
        code = self._code()
        text = self._terminal.settle()
        assert code == 130, text
        assert find_commands() == []
        assert self._read_modes() == self._modes
        assert self._terminal.raw.rfind("\x1b[?25h") >= self._terminal.raw.rfind("\x1b[?25l"), "the cursor is hidden"
        assert re.search(words, text.rpartition("$ cluster")[2]), text

    def close(self) -> None:
        self._terminal.type("exit\n")
        try:
            self._process.wait(timeout=30)
        finally:
            self._process.kill()
            self._terminal.close()

    def _code(self) -> int:
        """Waits until the command has ended, and returns its exit code. A Ctrl-C after it repeats the prompt."""
        self._number += 1
        prompt = re.compile(rf"\[(\d+):{self._number}\]\$ ")
        self._terminal.wait_for(lambda: prompt.search(self._terminal.raw) is not None, timeout_s=300)
        return int(prompt.findall(self._terminal.raw)[0])

    def _read_modes(self) -> list[object]:
        return termios.tcgetattr(self._terminal.theirs)


def find_commands() -> list[list[str]]:
    """Returns the commands `cluster` that the user runs, in and outside the namespaces."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid == UID:
                words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")]
                found += [words] if any(word.endswith("/bin/cluster") for word in words) else []
        except FileNotFoundError:
            continue
    return found


def sleepers() -> list[int]:
    done = subprocess.run(("pgrep", "--full", "--exact", SLEEP), capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """A user with a cluster of one node, and a bucket with a large object."""
    with ordinary_user() as user:
        work = user.home / "work"
        (work / "large").mkdir(parents=True)
        os.truncate(os.open(work / "large" / "object", os.O_CREAT | os.O_WRONLY), 600_000_000)
        text = (REPOSITORY / "cluster.toml").read_text().replace("\nnodes = 2", "\nnodes = 1")
        text = configure(text, framework="none", launcher="env", sync=[])
        (work / "cluster.toml").write_text(text)
        (work / "other.toml").write_text(text.replace('name = "demo"', 'name = "other"'))
        for path in (work, *work.rglob("*")):
            os.chown(path, UID, UID)
        yield user


@pytest.fixture(scope="module")
def opened(user: User) -> Iterator[Shell]:
    shell = Shell(user)
    shell.run("cluster up")
    yield shell
    shell.run("cluster sandbox reset --yes")
    shell.close()


@pytest.fixture
def shell(opened: Shell) -> Iterator[Shell]:
    """The shell. No job runs when the test begins."""
    yield opened
    opened.run("cluster stop")
    until(lambda: not sleepers(), "a process is left on the node")


@pytest.mark.parametrize(
    ("answer", "words"),
    [pytest.param("s\n", r"error: job \S+ was stopped\n", marks=pytest.mark.slow), ("\x03", RUNS_ON)],
)
def test_train_asks_and_says_what_runs_on(shell: Shell, answer: str, words: str) -> None:
    shell.start(f"cluster train -- {SLEEP}")
    shell.press("\x03", after="running 1 s")
    shell.press(answer, after=QUESTION)
    shell.check_end(words)
    assert len(sleepers()) == (0 if answer == "s\n" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["\x03", "\x03\x03"])
@pytest.mark.parametrize(
    ("before", "command", "after", "words"),
    [
        (f"cluster train --detach -- {SLEEP}", "logs -f", "running", r"try: cluster logs -f \S+ follows the job"),
        ("", f"exec -- {SLEEP}", "", INTERRUPTED),
        ("", "verify", "computing", INTERRUPTED),
        ("cluster sandbox fault no-boot", "-c other.toml up", "ok launch 1 node", "try: cluster up continues with"),
        ("", "data put --create-bucket large/ s3://put/", r"\d MB/s", "try: to copy what is missing"),
        (
            "cluster data put --create-bucket large/ s3://get/",
            "data get s3://get/ got/",
            r"\d MB/s",
            "try: to copy what is missing",
        ),
    ],
)
def test_a_command_ends_with_130_and_a_next_step(
    shell: Shell, *, keys: str, before: str, command: str, after: str, words: str
) -> None:
    if before:
        shell.run(before)
    shell.start(f"cluster {command}")
    if not after:
        until(sleepers, "it does not start")
    for key in keys:
        shell.press(key, after=after)
        after = "."  # anything that is shown since
    shell.check_end(words)
    if command.startswith("-c"):
        shell.run("cluster -c other.toml down --yes")
