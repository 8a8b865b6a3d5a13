"""A head whose program is hostile or damaged: `cluster` says so in a line, or shows the rest of the answer.

The sshd is real, and so is the command, at a terminal. Only jobs.py on the head is replaced: by programs that print
what a hostile or damaged head would.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from job_steps import hosts_of
from preloaded import preloaded
from project import CLUSTER, Project
from terminal import Terminal

pytestmark = pytest.mark.sandbox

LIMIT_S = 45
LIMIT_KIB = 100 << 10
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*A|[0-9]*[JK])")
"""Colours, and what the view and the passing line of a step write: no other sequence is for a terminal."""
GOOD = (
    '{"spec": {"id": "20261121-000000-abcdef", "name": "good", "workers": 1, "servers": 0}, "state": "done", '
    '"submitted_at": 9.0, "started_at": 9.0, "ended_at": 10.0, "exit_code": 0, "error": null}'
)
LOG = r"""
say('{"t": 1.0, "p": 0, "role": "worker", "host": "node-0"}')
say('{"t": 1.0, "p": 0, "line": "first"}')
"""
END = r"""
say('{"t": 2.0, "p": 0, "line": "last"}')
say('{"t": 3.0, "result": {"state": "done", "exit_code": 0, "error": null, "left": {}}}')
"""
PREAMBLE = f"""
import json, os, sys, time
del sys.argv[1]  # the name of the program
GOOD = {GOOD!r}
def say(text, end="\\n"):
    sys.stdout.write(text + end)
    sys.stdout.flush()
def records(*texts):
    say('{{"jobs": [' + ", ".join(texts + (GOOD,)) + "]}}")
def record(**values):
    made = json.loads(GOOD)
    for key, value in dict(values, id="20261121-000001-abcdef").items():
        (made["spec"] if key in ("id", "name", "workers") else made)[key] = value
    return json.dumps(made)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One answer. command: arguments of `cluster`; says: a part of its output; code: its exit code.

    rows: the other record, or the other lines, are shown as well.
    """

    program: str
    says: str
    command: tuple[str, ...] = ("jobs",)
    code: int = 0
    rows: bool = False

    @property
    def source(self) -> str:
        """The program that replaces jobs.py on the head."""
        listed = self.command[0] == "logs"
        # `logs` asks for the list first, which is valid.
        first = "if sys.argv[1] == 'list':\n    records()\n    sys.exit()\n" if listed else ""
        return f"{PREAMBLE}{first}{self.program}"


LOGS = ("logs", "20261121-000000-abcdef")
ANSWERS = {
    "missing keys": Script(program='records(\'{"id": "20261121-000001-abcdef"}\')', says="damaged", rows=True),
    "deeply nested": Script(program='records(record()[:-1] + \', "x": \' + "[" * 10**6 + "]" * 10**6 + "}")',
                            says="nested too deeply", code=1),
    "escapes in a name": Script(program=r"records(record(name='\x1b]0;owned\x07\x1b[2J\u202e'))",
                                says=r"\x1b]0;owned\x07\x1b[2J\u202e", rows=True),
    "escapes in an error": Script(program=r"records(record(error='\x1b]52;c;cm0K\x07\nTraceback'))",
                                  says=r"\x1b]52;c;cm0K\x07", rows=True),
    "an error of escapes": Script(program=r"""say('{"error": "\\u001b[31m\\u009b2J[red]gone[/red]\\nTraceback"}')""",
                                  says=r"error: node-0: \x1b[31m\x9b2J[red]gone[/red]; Traceback", code=1),
    "a line without end": Script(program="""
say('{"jobs": [', end="")
while True:
    say("[" * 65536, end="")
""", says="jobs.py has sent a line of more than 8 MiB", code=1),
    "a dense line": Script(program='say(\'{"jobs": [\' + "[]," * 2_700_000 + "[]]}")',
                           says="more than 600000 values in the list of jobs", code=1),
    "a traceback": Script(program=r"raise KeyError('\x1b]0;owned\x07')", says=r"KeyError: '\x1b]0;owned\x07'", code=1),
    "damaged lines of a log": Script(program=LOG + r"""
say('{"t": 1.0, "p": 7, "line": "of nobody"}')
say('{"t": 1.0, "p": "x", "line": "of no number"}')
say('{"t": 1.0, "x": ' + "[" * 10**6 + "]" * 10**6 + '}')
say('{"t": NaN, "message": "never"}')
say('{"t": 1.0, "p": 0, "kind of a later version": {}}')
""" + END, says="process 7 is unknown", command=LOGS, rows=True),
    "escapes in a log": Script(program=LOG + r"""
say('{"t": 1.0, "p": 0, "line": "\\u001b]0;owned\\u0007\\u001b[2J over\\rwritten"}')
say('{"t": 1.0, "message": "\\u001b[1;1H\\u009d0;x\\u009c [red]:warning:"}')
""" + END, says=r"[supervisor node-0] \x1b[1;1H\x9d0;x\x9c [red]:warning:", command=LOGS, rows=True),
    "an invalid answer to stop": Script(program="""
if sys.argv[1] == "list":
    records(record(state="running", ended_at=None, exit_code=None))
else:
    say('{"result": {"state": "stopped", "exit_code": "x", "left": 5}}')
""", says="sent an invalid answer", command=("stop",)),
    "an invalid answer to an order": Script(
        program=r"""say('{"refused": {"id": "\\u001b[2J"}}')""",
        says="sent an invalid answer",
        command=("train", "--kv-store", "local", "-n", "1", "--", "true"), code=1),
    "a status of damaged records": Script(program='records("5", record(state="running", workers=[]))',
                                          says="job    none", command=("status",)),
}  # fmt: skip


@pytest.fixture
def jobs_py(two_nodes: Project) -> Iterator[list[Path]]:
    """The paths of the head's program in every installed version; it is restored afterwards."""
    root = hosts_of(two_nodes)["node-0"].root
    places = list((root / "home/ubuntu/.cluster/runtime").glob("*/node/__main__.py"))
    assert places
    before = {place: place.read_bytes() for place in places}
    yield places
    for place, program in before.items():
        replace(place, program)


def replace(place: Path, program: bytes) -> None:
    """Replaces a program by a new file, since the old one may be shared with other versions of the tree."""
    owner = place.stat()
    place.unlink()
    for compiled in place.parent.glob(f"__pycache__/{place.stem}.*"):  # reused if time in s and size are unchanged
        compiled.unlink()
    place.write_bytes(program)
    os.chown(place, owner.st_uid, owner.st_gid)
    place.chmod(owner.st_mode)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=[*ANSWERS])
def test_an_answer_of_a_hostile_head(answer: Script, two_nodes: Project, jobs_py: list[Path]) -> None:
    for place in jobs_py:
        hostile = f"import sys\nif sys.argv[1] == 'jobs':\n    exec({answer.source!r})\n    sys.exit()\n"
        replace(place, hostile.encode() + place.read_bytes())
    terminal = Terminal()
    try:
        done = preloaded().run(
            [CLUSTER, *answer.command],
            cwd=two_nodes.directory,
            env=two_nodes.environment() | {"TERM": "xterm-256color"},
            timeout_s=LIMIT_S,
            terminal=terminal.theirs,
        )
        terminal.settle()
    finally:
        terminal.close()
    shown = terminal.raw.replace("\r\n", "\n")
    tail = shown[-2000:]
    assert " ".join(answer.says.split()) in " ".join(shown.split()), tail  # lines are wrapped
    assert done.returncode == answer.code, tail
    assert "Traceback (most recent call last)" not in shown
    assert re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", OURS.sub("", shown)) is None, tail
    if answer.rows:
        expected = ("first", "last") if answer.command[0] == "logs" else ("20261121-000000-abcdef",)
        assert all(word in shown for word in expected), tail
    else:
        rows = OURS.sub("", shown.replace("\x1b[2K", "\n"))  # a cleared row ends where the next text begins
        assert len(re.findall(r"^error: ", rows, re.MULTILINE)) == (answer.code != 0), tail
    assert done.peak_kib < LIMIT_KIB
