"""The agent with a container engine, where that fails; jobs in containers are in tests/sandbox/train/containers."""

from pathlib import Path

import pytest

from node.agent.container import Contained, note_engine
from node.protocol import Container
from node.wire import Exited
from node_agent import end_from_outside, home, make_order, run_agent
from train.job.job_plan import new_job_id

__all__ = ["home"]

# It starts no container, and has one, by the name in a file, until that is removed.
PODMAN = """#!/bin/sh
case $1 in
run) echo "Error: it does not start"; exit 125 ;;
ps) cat "$HOME/container" 2>/dev/null || : ;;
rm) [ -e "$HOME/stays" ] || rm "$HOME/container" ;;
esac
"""


@pytest.fixture
def podman(home: Path) -> str:
    path = home / "podman"
    path.write_text(PODMAN)
    path.chmod(0o755)
    return str(path)


def test_an_engine_that_cannot_start_it(podman: str) -> None:
    with run_agent() as agent:
        agent.start("true", container=Container(engine=(podman,), image="sha256:ab"))
        exited = agent.read_until(Exited)
    why = "podman could not start the job's container: Error: it does not start"
    assert (exited.exit_code, exited.why) == (125, why)


def test_agent_end_removes_what_a_killed_agent_has_left(home: Path, podman: str) -> None:
    job = new_job_id()
    note_engine(job, [podman])
    (home / "container").write_text(f"cluster-{job}-1-0\n")
    (home / "stays").touch()
    assert end_from_outside(job) == [(0, f"container cluster-{job}-1-0")]
    (home / "stays").unlink()
    assert end_from_outside(job) == []
    assert not (home / "container").exists()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (5, (5, None, None)),
        (137, (137, 9, None)),
        (125, (125, None, "podman could not start it in its container")),
        (-9, (137, 9, "podman, which runs its container, was killed")),
    ],
)
def test_how_a_process_has_ended(code: int, found: tuple[int, int | None, str | None]) -> None:
    """code: that of the engine's client."""
    container = Container(engine=("/usr/bin/podman",), image="sha256:ab")
    assert Contained(make_order(new_job_id()), container, "cluster-j-1-0", "0-0").read_code(code) == found
