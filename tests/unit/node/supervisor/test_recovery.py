"""The search for a job's remaining processes on a host that does not answer as it should."""

import asyncio
from typing import Any

import pytest

from job_host import job_id
from node.protocol import JobHost
from node.supervisor import remains


def search(prefix: list[str], timeout_s: float = 20.0) -> Any:
    program = remains.search_program(job_id(1), JobHost(name="node-0", ip="127.0.0.1"))
    return asyncio.run(remains.search([*prefix, program.text], timeout_s)).left


def test_a_host_that_does_not_answer() -> None:
    refused = ["/bin/sh", "-c", "echo no route >&2; exit 255", "sh"]
    assert search(refused) == [(0, "could not be searched: no route")]
    silent = ["/bin/sh", "-c", "exec sleep 60", "sh"]
    assert search(silent, 0.2) == [(0, "could not be searched: no answer")]


@pytest.mark.parametrize("message", ["[", '{"left": [["1", "x"]]}', "[" * 50_000])
def test_a_host_with_an_invalid_answer_could_not_be_searched(message: str) -> None:
    answers = ["/bin/sh", "-c", f"printf '%s\\n' '{message}'", "sh"]
    assert search(answers) == [(0, "could not be searched: no answer")]
