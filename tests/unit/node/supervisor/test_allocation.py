"""The nodes that a batch scheduler gives a job are requested, awaited, watched and given back."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fake_slurm import FakeSlurm, make_slurm
from node.protocol import AllocationRequest, JobHost
from node.supervisor import allocation
from node.supervisor.allocation import Allocation, match_hosts
from node.tasks import Tasks
from train.engines.scheduler import AllocatedNode, AllocationState, Scheduler
from train.engines.schedulers import SCHEDULERS
from train.engines.sge import VAGUE

JOB = "20260101-000000-abcdef"
HOSTS = tuple(JobHost(name=f"node-{number}", ip=f"10.0.0.{4 + number}") for number in range(3))
SLURM = SCHEDULERS["slurm"]
# Runs its last argument on this machine.
SSH = '#!/bin/sh\neval "last=\\${$#}"\nexec /bin/sh -c "$last"\n'


@dataclass
class World:
    """A head with a fake Slurm that works on files. The lists hold the reports of Allocation."""

    folder: Path
    loop: asyncio.AbstractEventLoop
    slurm: FakeSlurm
    notes: list[tuple[str, str]] = field(default_factory=list)
    granted: list[tuple[str, ...]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def make(self, **more: Any) -> Allocation:
        request = AllocationRequest(**{"job": JOB, "name": "mlp", "nodes": 2, **more})
        return Allocation(
            SLURM,
            request,
            HOSTS,
            Tasks(self.loop, lambda error: pytest.fail(repr(error))),
            note=lambda number, reason: self.notes.append((number, reason)),
            grant=lambda hosts: self.granted.append(tuple(host.name for host in hosts)),
            fail=self.errors.append,
            expire=lambda error: self.errors.append(f"124: {error}"),
            say=self.said.append,
        )

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < give_up_at, self
            self.do(asyncio.sleep(0.02))

    def do(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def heartbeat(self) -> Path:
        return self.folder / ".cluster" / "jobs" / JOB / "heartbeat"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    slurm = make_slurm(tmp_path)
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{slurm.programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CLUSTER_SSH", str(ssh))
    monkeypatch.setattr(allocation, "POLL_EVERY_S", 0.05)
    monkeypatch.setattr(allocation, "HEARTBEAT_EVERY_S", 0.05)
    (tmp_path / ".cluster" / "jobs" / JOB).mkdir(parents=True)
    with closing(asyncio.new_event_loop()) as loop:
        yield World(folder=tmp_path, loop=loop, slurm=slurm)


def test_nodes_are_awaited_watched_and_given_back(world: World) -> None:
    made = world.make(queue="cluster")
    made.start()
    world.until(lambda: len(world.notes) > 1)
    assert world.notes == [("12", ""), ("12", "Resources: waits for free nodes")]
    assert "#SBATCH --partition=cluster\n" in world.slurm.read("script")

    world.slurm.set_job("PENDING", "Priority")
    world.until(lambda: len(world.notes) > 2)
    assert not world.granted
    world.slurm.set_job("RUNNING")
    world.until(lambda: world.granted)
    assert world.granted == [("node-0", "node-1")]
    assert world.notes[2:] == [("12", "Priority: other jobs come first"), ("12", "")]
    world.until(lambda: world.heartbeat.exists() and int(world.heartbeat.read_text() or 0) > 2)

    assert world.do(made.cancel()) is None
    assert world.slurm.read("cancelled") == "12\n"
    assert world.errors == world.said == []


def test_the_end_of_the_allocation_ends_the_job_with_its_reason(world: World) -> None:
    world.slurm.set_job("RUNNING")
    made = world.make()
    made.start()
    world.until(lambda: world.granted)
    world.slurm.set_job("TIMEOUT")
    world.until(lambda: world.errors)
    assert world.errors == ["124: Slurm job 12 ended: it reached its walltime (00:01:00)"]
    assert world.do(made.cancel()) is None


@pytest.mark.parametrize(
    ("scheduler", "reason", "is_vague", "expires"),
    [
        (SLURM, "it was cancelled", False, False),
        (SCHEDULERS["sge"], "it reached its walltime (h_rt)", False, True),
        (SCHEDULERS["sge"], VAGUE, True, True),  # where the accounting file cannot be read
        (SCHEDULERS["pbs"], "its batch script was killed by signal 15 (qdel, or the walltime)", True, True),
        (SCHEDULERS["pbs"], "it was cancelled", False, False),
    ],
)
def test_what_the_walltime_has_ended_has_run_out(
    world: World, scheduler: Scheduler, reason: str, *, is_vague: bool, expires: bool
) -> None:
    """Exit code 124, as for max_duration. For those that do not say why, the time decides."""
    made = world.make(walltime_s=60)
    made.scheduler, made._granted_at = scheduler, time.monotonic() - 60
    made._note_end(AllocationState("ended", reason, is_vague=is_vague))
    assert [error.startswith("124: ") for error in world.errors] == [expires]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"queue": "gpu"}, 'Slurm has no partition "gpu" (it has: cluster, short); to list them: sinfo'),
        (
            {"queue": "short"},
            'Slurm partition "short" allows at most 1 node (MaxNodes=1), and the job needs 2; to list them: sinfo',
        ),
    ],
)
def test_a_job_that_exceeds_a_limit_is_refused_before_it_is_submitted(
    world: World, more: dict[str, Any], error: str
) -> None:
    world.make(**more).start()
    world.until(lambda: world.errors)
    assert world.errors == [error]
    assert not world.slurm.read("submitted")


def test_a_limit_is_checked_while_waiting(world: World) -> None:
    """jobs.py checks this before it accepts the order."""
    questions = allocation.check_request(SLURM, AllocationRequest(job=JOB, name="mlp", nodes=2, queue="short"))
    with pytest.raises(ValueError, match="allows at most 1 node"):
        world.do(allocation.answer(questions, allocation.environment()))


def test_the_schedulers_refusal_is_quoted(world: World) -> None:
    world.slurm.touch("refusal", "sbatch: error: x\nsbatch: error: Batch job submission failed: Invalid account\n")
    world.make(account="nope").start()
    world.until(lambda: world.errors)
    assert world.errors == ["Slurm refused the job: sbatch: error: Batch job submission failed: Invalid account"]


def test_a_head_without_the_schedulers_commands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.slurm.programs / "scontrol").unlink()
    monkeypatch.setattr(allocation, "PLACES", "/nowhere")
    monkeypatch.setenv("PATH", str(world.slurm.programs))
    world.make().start()
    world.until(lambda: world.errors)
    assert world.errors == ["the queues of Slurm cannot be read: scontrol: No such file or directory"]


def test_a_stop_during_the_submission_gives_the_nodes_back(world: World) -> None:
    world.slurm.touch("slow")
    made = world.make()
    made.start()
    world.until(lambda: world.slurm.read("submitted"))
    assert world.do(made.cancel()) is None
    assert world.slurm.read("cancelled") == "12\n"
    assert world.notes == world.errors == []


def test_a_stop_before_the_submission_submits_nothing(world: World) -> None:
    made = world.make()
    made.start()
    assert world.do(made.cancel()) is None
    assert not world.slurm.read("submitted")


def test_a_scheduler_that_does_not_answer_for_a_while_does_not_end_the_job(world: World) -> None:
    world.slurm.set_job("RUNNING")
    made = world.make()
    made.start()
    world.until(lambda: world.granted)
    world.slurm.touch("down")
    world.until(lambda: world.said)
    (world.slurm.state / "down").unlink()
    world.until(lambda: len(world.said) > 1)
    assert world.said == [
        "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller",
        "Slurm answers again",
    ]
    assert not world.errors
    world.do(made.cancel())


def test_a_failed_cancellation_is_reported_unless_the_job_has_ended(world: World) -> None:
    world.slurm.set_job("RUNNING")
    world.slurm.touch("cancel-fails")
    env = allocation.environment()
    assert world.do(allocation.cancel(SLURM, "12", env)) == "Slurm job 12 could not be cancelled: scancel: error: no"
    world.slurm.set_job("COMPLETED")
    assert world.do(allocation.cancel(SLURM, "12", env)) is None


def test_a_wrong_number_of_nodes_fails_the_job(world: World) -> None:
    world.slurm.set_job("RUNNING")
    world.slurm.touch("nodes", "NodeName=n1 NodeAddr=10.0.0.4 State=ALLOCATED\n")
    made = world.make()
    made.start()
    world.until(lambda: world.errors)
    assert world.errors == ["Slurm assigned 1 node, but the job needs 2"]
    assert not world.granted
    world.do(made.cancel())


def test_a_job_that_is_put_back_into_the_queue_has_ended(world: World) -> None:
    world.slurm.set_job("RUNNING")
    made = world.make()
    made.start()
    world.until(lambda: world.granted)
    world.slurm.set_job("PENDING", "BeginTime")
    world.until(lambda: world.errors)
    assert world.errors == ["Slurm job 12 ended: it was put back into the queue"]
    world.do(made.cancel())


def test_a_program_that_hangs_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "ANSWER_TIMEOUT_S", 0.2)
    (world.slurm.programs / "scontrol").write_text("#!/bin/sh\nexec sleep 600\n")
    world.make().start()
    world.until(lambda: world.errors)
    assert world.errors == ["the queues of Slurm cannot be read: scontrol did not end within 0.2 s"]


def test_a_lost_heartbeat_connection_is_opened_again(world: World) -> None:
    (world.folder / "ssh").write_text(
        f"#!/bin/sh\n[ -f {world.folder}/ok ] || {{ echo refused >&2; exit 255; }}\n{SSH[10:]}"
    )
    world.slurm.set_job("RUNNING")
    made = world.make()
    made.start()
    world.until(lambda: world.said)
    (world.folder / "ok").touch()
    world.until(world.heartbeat.exists)
    assert world.said == ["connecting to node-0 again, to hold its nodes: refused"]
    world.do(made.cancel())


@pytest.mark.parametrize(
    "node",
    [
        AllocatedNode("n1", "10.0.0.5"),
        AllocatedNode("node-1"),
        AllocatedNode("node-1.example.org"),
        AllocatedNode("10.0.0.5"),
        AllocatedNode("ip-10-0-0-5.ec2.internal"),
    ],
)
def test_a_schedulers_node_is_one_of_the_jobs_hosts(node: AllocatedNode) -> None:
    assert match_hosts([node], HOSTS) == (HOSTS[1],)


def test_other_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="assigned n9, which is not one of the hosts that are set up"):
        match_hosts([AllocatedNode("n9", "10.0.0.99")], HOSTS)
