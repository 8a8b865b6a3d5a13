"""A head whose program is hostile or damaged: `cluster` says so in a line, or shows the rest of the answer.

The sshd is real, and so is the command, at a terminal. Only jobs.py on the head is replaced.
"""

import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hostile_answers import ANSWERS, Script
from job_steps import hosts_of
from preloaded import preloaded
from project import CLUSTER, Project

pytestmark = pytest.mark.sandbox

LIMIT_S = 45
LIMIT_KIB = 100 << 10
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*A|[0-9]*[JK])")
"""Colours, and what the view and the passing line of a step write: no other sequence is for a terminal."""


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


def read_all(descriptor: int, into: bytearray) -> None:
    """Reads the output of a terminal until no process has it open."""
    with suppress(OSError):
        while piece := os.read(descriptor, 1 << 16):
            into += piece


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=[*ANSWERS])
def test_an_answer_of_a_hostile_head(answer: Script, two_nodes: Project, jobs_py: list[Path]) -> None:
    for place in jobs_py:
        hostile = f"import sys\nif sys.argv[1] == 'jobs':\n    exec({answer.source!r})\n    sys.exit()\n"
        replace(place, hostile.encode() + place.read_bytes())
    said = bytearray()
    ours, theirs = pty.openpty()
    reader = threading.Thread(target=read_all, args=(ours, said))
    reader.start()
    try:
        done = preloaded().run(
            [CLUSTER, *answer.command],
            cwd=two_nodes.directory,
            env=two_nodes.environment() | {"TERM": "xterm-256color"},
            timeout_s=LIMIT_S,
            terminal=theirs,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    shown = said.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
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
