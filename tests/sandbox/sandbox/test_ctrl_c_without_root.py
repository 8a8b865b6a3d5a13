"""Ctrl-C in the rootless sandbox, by an ordinary user in a shell at a terminal."""

import os
import re
import subprocess
import termios
from pathlib import Path

import pytest

from ordinary_user import NEEDS_NAMESPACES, UID, User, ordinary_user
from project import shipped
from terminal import Terminal
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(1200), NEEDS_NAMESPACES]
QUESTION = r"continue to watch\] "
SLEEP = "sleep 45678"  # on a node, where all processes of this machine have other arguments
RUNS_ON = r"job \S+ continues: cluster logs -f \S+ follows it, cluster stop \S+ stops it\n"


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


def test_train_asks_and_says_what_runs_on() -> None:
    with ordinary_user() as user:
        work = user.home / "work"
        work.mkdir()
        text = shipped(provision__nodes=1, framework="none", launcher="env", sync=[])
        (work / "cluster.toml").write_text(text)
        for path in (work, *work.rglob("*")):
            os.chown(path, UID, UID)
        shell = Shell(user)
        shell.run("cluster up")
        shell.start(f"cluster train -- {SLEEP}")
        shell.press("\x03", after="running 1 s")
        shell.press("\x03", after=QUESTION)
        shell.check_end(RUNS_ON)
        assert len(sleepers()) == 1
        shell.run("cluster stop")
        until(lambda: not sleepers(), "a process is left on the node")
        shell.run("cluster sandbox stop --yes")
        shell.close()
