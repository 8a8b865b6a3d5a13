"""The last lines of a job's log, found from its end."""

import pytest

from job_channels import encode
from node.job import log_tail
from node.job.log_tail import find_processes, find_tail
from node.protocol import LogWanted, Process

LINES = [
    {"t": 1.0, "state": "starting"},
    {"t": 1.0, "p": 0, "role": "launcher", "host": "node-0"},
    {"t": 1.0, "p": 1, "role": "worker", "host": "node-0"},
    {"t": 1.0, "p": 1, "line": 'a "role": "worker"'},
    {"t": 1.0, "p": 1, "rank": 0},
    {"t": 2.0, "message": "starting attempt 2"},
    {"t": 2.0, "p": 2, "role": "worker", "host": "node-0"},
    {"t": 2.0, "p": 3, "role": "worker", "host": "node-1"},
    {"t": 2.0, "p": 3, "line": "b"},
    {"t": 2.0, "p": 3, "rank": 1},
    {"t": 2.0, "p": 2, "line": "c"},
    {"t": 2.0, "warnings": ["w"]},
    {"t": 2.0, "warnings": []},
    {"t": 2.0, "p": 2, "rank": 0},
    {"t": 2.0, "p": 3, "line": "d"},
    {"t": 2.0, "p": 3, "exit": 0},
]
RESULT = [{"t": 3.0, "result": {"state": "done", "exit_code": 0}}]
ROLES = [
    Process(role="worker", host="node-0", number=2, rank=0, pid=7),
    Process(role="worker", host="node-1", number=3, rank=1),
]


def read_from(log: bytes) -> log_tail.Read:
    return lambda start, end: log[start:end]


def tail(log: bytes, **wanted: object) -> bytes:
    processes = find_processes(ROLES, 2, log.splitlines())
    return log[find_tail(read_from(log), len(log), LogWanted(**wanted), processes) :]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ({}, 0),
        ({"tail": 1}, 14),
        ({"tail": 2}, 11),  # the warning; its withdrawal shows nothing
        ({"tail": 3}, 10),
        ({"tail": 5}, 5),
        ({"tail": 99}, 3),
        ({"tail": 2, "ranks": (1,)}, 11),
        ({"tail": 3, "ranks": (1,)}, 8),
        ({"tail": 3, "ranks": (0,)}, 5),
        ({"tail": 4, "ranks": (0,)}, 3),  # of the attempt before
        ({"tail": 2, "roles": ("launcher",)}, 5),
        ({"tail": 3, "roles": ("launcher",)}, 5),
        ({"tail": 3, "roles": ("launcher", "worker"), "ranks": (0,)}, 5),
        ({"since": 0.5}, 0),  # also the states, for --json
        ({"since": 1.5, "ranks": (1,)}, 5),
        ({"since": 1.5, "tail": 2}, 11),
        ({"since": 1.5, "tail": 99, "ranks": (1,)}, 5),
    ],
)
@pytest.mark.parametrize("block", [1, 50, 1 << 18])
def test_the_last_lines_of_roles_and_ranks(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, object], first: int, block: int
) -> None:
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", block)
    assert tail(encode(LINES), **wanted) == encode(LINES[first:])
    assert tail(encode(LINES + RESULT), **wanted) == encode(LINES[first:] + RESULT)
    assert tail(encode(LINES) + b'{"t": 3.0, "p"', **wanted) == encode(LINES[first:]) + b'{"t": 3.0, "p"'


@pytest.mark.parametrize(
    ("log", "sent"),
    [
        (encode(LINES[:-1]), b""),
        (encode(LINES + RESULT), encode(RESULT)),
        (b"damaged\n" + encode(RESULT), encode(RESULT)),
        (b"", b""),
    ],
)
def test_no_line_but_the_result(log: bytes, sent: bytes) -> None:
    assert tail(log, tail=0) == sent


def test_a_damaged_line_is_a_line() -> None:
    assert tail(b"damaged\n" + encode(RESULT), tail=1) == b"damaged\n" + encode(RESULT)
