"""Runs the user's set-up commands in one login shell, and stores the variables that they export for jobs.

    run_setup FOLDER DIGEST

FOLDER/DIGEST.json is the list of commands. When all have succeeded, the program writes their changes of the environment
to FOLDER/DIGEST.env (for setup_env.py), creates FOLDER/DIGEST.done, and removes the files of earlier lists. It prints
each command before it runs: agent.py shows the last lines of a script that fails or prints nothing.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from node.job_folder import write_whole

# Bash's own variables, and those that describe the shell, not the set-up.
NOT_KEPT = frozenset(["_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS", "HOME", "USER", "LOGNAME"])
SHOWN = 200


def render(commands: Sequence[str], work: str) -> str:
    """The script for bash. Each command is one quoted word for `eval`, so its syntax cannot affect the next command."""
    env = shlex.quote(shutil.which("env") or "/usr/bin/env")
    lines = ["set -e", f"{env} -0 >{shlex.quote(work + '/before')}"]
    for number, command in enumerate(commands, 1):
        lines.append(f"echo {number} >{shlex.quote(work + '/at')}")
        lines.append(f"printf '%s\\n' {shlex.quote(f'({name_command(commands, number)})')}")
        lines.append(f"eval {shlex.quote(command)}")
    lines.append(f"{env} -0 >{shlex.quote(work + '/after')}")
    return "\n".join(lines) + "\n"


def read_env(path: str) -> dict[str, str]:
    """The variables in the output of `env -0`, without functions and the shell's own variables."""
    with open(path, "rb") as stream:
        entries = stream.read().decode("utf-8", "surrogateescape").split("\0")
    pairs = (entry.partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if name.isidentifier() and name not in NOT_KEPT}


def compare(before: Mapping[str, str], after: Mapping[str, str], base: Mapping[str, str]) -> dict[str, Any]:
    """The changes of variables; for lists of paths, the entries at the front and at the end that jobs lack.

    base: this login's variables without the shell's profile. Jobs begin with its PATH, but with no other list of it.
    """
    changes: dict[str, Any] = {"set": {}, "prepend": {}, "append": {}, "unset": sorted(set(before) - set(after))}
    for name, value in after.items():
        old = before.get(name)
        if value == old:
            continue
        if not name.endswith("PATH"):
            changes["set"][name] = value
            continue
        kept = base.get(name, "").split(":") if name == "PATH" else []
        words = [word for word in value.split(":") if word]
        first = next((index for index, word in enumerate(words) if word in kept), len(words))
        for key, part in (("prepend", words[:first]), ("append", words[first:])):
            new = [word for word in part if word not in kept]
            if new:
                changes[key][name] = new
    return changes


def name_command(commands: Sequence[str], number: int, ending: str = "") -> str:
    """A command in messages, by its number from 1 on and its first line. ending: what is said about it."""
    first, *others = commands[number - 1].strip().splitlines() or [""]
    shown = first[:SHOWN] + ("..." if others or len(first) > SHOWN else "")
    return f"setup command {number} of {len(commands)}{ending}: {shown}"


def explain(code: int, commands: Sequence[str], work: str) -> str:
    """The message for a shell that has not reached the end of the commands."""
    if not os.path.exists(work + "/at"):
        return "the login shell ended before the first setup command: check this user's profile"
    with open(work + "/at") as stream:
        number = int(stream.read())
    ending = f" was killed by signal {-code}" if code < 0 else f" ended with exit code {code}"
    return name_command(commands, number, ending if code else " left the shell with `exit`")


def main() -> None:
    """Runs the program."""
    folder, digest = os.path.abspath(sys.argv[1]), sys.argv[2]
    base = os.path.join(folder, digest)
    os.umask(0o077)
    with open(base + ".json", encoding="utf-8") as stream:
        commands = json.load(stream)
    os.unlink(base + ".json")  # it may contain secrets
    if os.path.exists(base + ".done"):  # by another command, meanwhile
        return
    if shutil.which("bash") is None:
        sys.exit("setup commands need bash, which this node does not have")
    with tempfile.TemporaryDirectory(prefix=".run-", dir=folder) as work:
        write_whole(work + "/commands", render(commands, work).encode())
        os.umask(0o022)  # as for commands that the user types
        code = subprocess.call(["bash", "-l", work + "/commands"], cwd=os.path.expanduser("~"))
        os.umask(0o077)
        if code != 0 or not os.path.exists(work + "/after"):
            print(explain(code, commands, work), flush=True)
            sys.exit(code if code > 0 else 1)
        changes = compare(read_env(work + "/before"), read_env(work + "/after"), os.environ)
        write_whole(base + ".env", json.dumps(changes).encode())
    write_whole(base + ".done", b"")
    for name in os.listdir(folder):
        if not name.startswith(digest):  # without its files, an earlier list would run again
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
