"""Commands for other hosts, in each login shell that is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from foundation.remote_command import Quoted, RemoteCommand, Secret, run_program

SHELLS = ("bash", "dash", "zsh", "fish", "tcsh")
ODD = ("a b", "", "'", '"', "\\", "$HOME", "`id`", "!x", "*", "~", "-x", "=1", "%41", "ä", "line\nline\n", "\udcff")


def run(shell: str, command: RemoteCommand, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run((shell, "-c", command.line()), input=stdin, capture_output=True, check=False)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    path = shutil.which(str(request.param))
    if path is None:
        pytest.skip(f"{request.param} is not installed; `make test` installs it")
    return path


def test_words_arrive_unchanged(shell: str) -> None:
    done = run(shell, RemoteCommand("printf '%s\\0' ", Quoted(*ODD)))
    assert done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == list(ODD)


def test_scripts_get_stdin_and_give_their_code(shell: str) -> None:
    script = RemoteCommand(
        'set -u\nif true; then\n  read -r line; echo "$line $# it\'s"\nfi\necho left >&2\nexit 7 # end\n\n'
    )
    done = run(shell, script, b"a\\ b\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\\ b 0 it's\n", b"left\n", 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo a b", "a b\n"),
        ("echo 'it'\\''s' \"$((1 + 1))\"", "it's 2\n"),
        ("printf '%s\\n' \\\\ \\! x!y '!!' !=", "\\\n!\nx!y\n!!\n!=\n"),
        ("\n# first\n\nset -u\nset -- 'a\nb' c\necho \"$1 $# $0\"\n", "a\nb 2 sh\n"),
        ("set -- a,b\nIFS=,\nset -- $1\nunset IFS\necho $#", "2\n"),
        ("echo $# ~/x $n; exit", "0 /home/x\n"),
        ('read -r line\necho "$line"', "of stdin\n"),
    ],
)
def test_plain_text_needs_no_program(shell: str, tmp_path: Path, text: str, message: str) -> None:
    """Programs cost a node more than the shell: here, there are none."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    env = {"PATH": str(tmp_path), "HOME": "/home"}
    words = (shell, "-c", RemoteCommand(text).line())
    done = subprocess.run(words, env=env, input="of stdin\n", capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (message, "")


def test_programs_take_the_place_of_the_shell(shell: str) -> None:
    line = run_program("sh", "-c", "echo $PPID; kill -9 $$").line()
    with subprocess.Popen((shell, "-c", line), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        output = child.stdout.read()
    assert child.returncode == -9  # as the process that sshd waits for
    assert output


def test_a_failure_is_never_a_success(shell: str) -> None:
    for text in ("if", "echo 'open", "no-such-program", "false"):
        assert run(shell, RemoteCommand(text)).returncode != 0, text


def test_secrets_are_hidden_where_a_command_is_printed() -> None:
    inner = RemoteCommand("curl -u ", Quoted("me", Secret("p w")))
    command = RemoteCommand(inner, " >", Quoted("a b"))
    assert str(command) == f"{command}" == "curl -u me *** >'a b'"
    assert command.text == "curl -u me 'p w' >'a b'"
