"""Signals to jobs in containers, and the engine's own programs: no container is left.

The nodes' environment is mounted into an image that has only Python. test_random_kills.py kills each program of a job.
"""

import time
from collections.abc import Iterator

import pytest

from container_nodes import ContainerNodes, container_nodes
from job_steps import (
    Tell,
    borrowed,
    running,
)
from oci_images import plain_image
from project import Project
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with (
        container_nodes(tmp_path_factory.mktemp("containers")) as nodes,
        nodes.configured(nodes.push(plain_image(), "plain:latest")),
    ):
        yield nodes


@pytest.fixture
def nodes(shared: ContainerNodes) -> Iterator[Project]:
    """The shared cluster; afterwards no container and no program of an engine is left.

    The program that keeps podman's namespace may stay.
    """
    with borrowed(shared.project) as project:
        yield project
    until(lambda: not shared.containers(), f"containers are left: {shared.containers()}", timeout_s=15.0)
    until(lambda: not shared.engine_programs(), f"left: {shared.engine_programs()}", timeout_s=15.0)


def test_processes_that_ignore_sigterm(nodes: Project, record_property: Tell) -> None:
    program = (
        "trap '' TERM; (env -i setsid sh -c 'trap \"\" TERM; exec sleep 599' &) ; echo waits; while :; do sleep 1; done"
    )
    with running(nodes, command=("--", "sh", "-c", program)) as job:
        nodes.run("stop", job.id)
        job.struck_at = time.monotonic()
        code, said = job.ends()
    assert code == 130, said
    assert "may still run" not in said
    record_property("result", f"in containers: SIGTERM ignored: {job.took_s:.1f} s after stop")


def test_sigterm_arrives_once(nodes: Project) -> None:
    """A container's client, monitor and runtime do not pass the signal on a second time."""
    program = """
import signal, sys, time
count = 0
def note(*_):
    global count
    count += 1
    print("signal number", count, flush=True)
signal.signal(signal.SIGTERM, note)
print("waits", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end and count == 0:
    time.sleep(0.05)
time.sleep(1.0)
sys.exit(0)
"""
    with running(nodes, "--launcher", "env", command=("--", "python3", "-c", program), waiting=2) as job:
        nodes.run("stop", job.id)
        code, said = job.ends()
    assert code == 130, said
    got = [line for line in job.shown if "signal number" in line]
    assert sorted(got) == ["[worker 0 node-0] signal number 1", "[worker 1 node-1] signal number 1"]
