"""The nodes that a batch scheduler gives a job are requested, awaited, watched and given back."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fake_slurm import FakeSlurm, make_slurm
from job_forms import make_request
from node.engines.scheduler import AllocatedNode, AllocationState, Scheduler
from node.engines.schedulers import SCHEDULERS
from node.engines.sge import VAGUE
from node.protocol import JobHost
from node.supervisor import allocation
from node.supervisor.allocation import Allocation, Client, match_hosts

HOSTS = tuple(JobHost(name=f"node-{number}", ip=f"10.0.0.{4 + number}") for number in range(3))
SLURM = SCHEDULERS["slurm"]


@dataclass
class World:
    """A head with a fake Slurm that works on files. The lists hold the reports of Allocation."""

    loop: asyncio.AbstractEventLoop
    slurm: FakeSlurm
    notes: list[tuple[str, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def make(self, number: str = "") -> Allocation:
        return Allocation(Client(SLURM), self.messages.append, number)

    def wait(self, made: Allocation, **more: Any) -> Coroutine[Any, Any, tuple[JobHost, ...]]:
        return made.wait(make_request(**more), HOSTS, lambda number, reason: self.notes.append((number, reason)))

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < give_up_at, self
            self.do(asyncio.sleep(0.02))

    def do(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def grant(self) -> Allocation:
        self.slurm.set_job("RUNNING")
        made = self.make()
        assert [host.name for host in self.do(self.wait(made))] == ["node-0", "node-1"]
        return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    slurm = make_slurm(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{slurm.programs}:{os.environ['PATH']}")
    monkeypatch.setattr(allocation, "POLL_EVERY_S", 0.05)
    (tmp_path / ".cluster" / "jobs" / make_request().job).mkdir(parents=True)
    with closing(asyncio.new_event_loop()) as loop:
        yield World(loop=loop, slurm=slurm)


def test_nodes_are_awaited_and_given_back(world: World) -> None:
    made = world.make()
    waiting = world.loop.create_task(world.wait(made, queue="cluster"))
    world.until(lambda: len(world.notes) > 1)
    assert world.notes == [("12", ""), ("12", "Resources")]
    assert "#SBATCH --partition=cluster\n" in world.slurm.read("script")

    world.slurm.set_job("PENDING", "Priority")
    world.until(lambda: len(world.notes) > 2)
    assert not waiting.done()
    world.slurm.set_job("RUNNING")
    assert [host.name for host in world.do(waiting)] == ["node-0", "node-1"]
    assert world.notes[2:] == [("12", "Priority"), ("12", "")]

    assert world.do(made.cancel()) is None
    assert world.slurm.read("cancelled") == "12\n"
    assert world.messages == []


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        (("TIMEOUT",), ("it reached its walltime (00:01:00)", True)),
        (("PENDING", "BeginTime"), ("it was put back into the queue", False)),
    ],
)
def test_the_end_of_the_allocation(world: World, state: tuple[str, ...], ended: tuple[str, bool]) -> None:
    """Also of the one that the command runs in, which is not cancelled."""
    around = world.make("12")
    watching = [world.loop.create_task(made.watch()) for made in (world.grant(), around)]
    world.slurm.set_job(*state)
    assert [world.do(one) for one in watching] == [(f"Slurm job 12 ended: {ended[0]}", ended[1])] * 2
    assert (world.do(around.cancel()), world.slurm.read("cancelled")) == (None, "")


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

    class Ended(Client):
        async def find_state(self, *_: object, **__: object) -> AllocationState:
            return AllocationState("ended", reason, is_vague=is_vague)

    made = Allocation(Ended(scheduler), world.messages.append, "12")
    made._granted_at, made._walltime_s = time.monotonic() - 60, 60
    assert world.do(made.watch())[1] == expires


def test_a_node_whose_address_is_a_name_is_found_by_its_ip(world: World) -> None:
    """PBS and Grid Engine say no addresses, and Slurm's NodeAddr is the node's name by default."""
    getent = world.slurm.programs / "getent"
    getent.write_text("#!/bin/sh\n[ $2 = n1-ib ] && echo 10.0.0.4 STREAM n1 || echo 10.0.0.5\n")
    getent.chmod(0o755)
    world.slurm.touch("nodes", "NodeName=n1 NodeAddr=n1-ib State=IDLE\nNodeName=n2 NodeAddr=n2 State=IDLE\n")
    world.grant()


@pytest.mark.parametrize(("queue", "error"), [("gpu", "has no partition"), ("short", "allows at most 1 node")])
def test_the_limits_of_a_queue(world: World, queue: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"{error}.*; to list them: sinfo"):
        world.do(Client(SLURM).check(make_request(queue=queue)))


def test_commands_that_only_a_login_shell_finds(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".bash_profile").write_text(f"echo welcome; export SGE_ROOT=/sge PATH=$PATH:{world.slurm.programs}\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    made = Client(SLURM)
    assert world.do(made.submit("script")) == "12"
    assert world.do(made.ask(("sh", "-c", "echo $SGE_ROOT"))).stdout == "/sge\n"


def test_a_head_without_the_schedulers_commands(world: World) -> None:
    (world.slurm.programs / "scontrol").unlink()
    error = "the queues of Slurm cannot be read: scontrol: No such file or directory; if a module has it"
    with pytest.raises(ValueError, match=error):
        world.do(Client(SLURM).check(make_request()))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (
            "sbatch: error: x\nsbatch: error: Batch job submission failed: Invalid account\n",
            "sbatch: error: Batch job submission failed: Invalid account",
        ),
        (
            "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n",
            "sbatch: unrecognized option '--bogus'",
        ),
    ],
)
def test_the_schedulers_refusal_is_quoted(world: World, text: str, quoted: str) -> None:
    world.slurm.touch("refusal", text)
    with pytest.raises(ValueError, match=f"refused the job: {quoted}"):
        world.do(world.wait(world.make(), account="nope"))


def test_a_stop_during_the_submission_gives_the_nodes_back(world: World) -> None:
    world.slurm.touch("slow")
    made = world.make()
    waiting = world.loop.create_task(world.wait(made))
    world.until(lambda: world.slurm.read("submitted"))
    waiting.cancel()
    assert world.do(made.cancel()) is None
    assert world.slurm.read("cancelled") == "12\n"
    assert world.notes == []


def test_a_scheduler_that_does_not_answer_for_a_while_does_not_end_the_job(world: World) -> None:
    made = world.grant()
    watching = world.loop.create_task(made.watch())
    world.slurm.touch("down")
    world.until(lambda: world.messages)
    (world.slurm.state / "down").unlink()
    world.until(lambda: len(world.messages) > 1)
    assert world.messages == [
        "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller",
        "Slurm answers again",
    ]
    assert not watching.done()
    watching.cancel()


def test_a_failed_cancellation_is_reported_unless_the_job_has_ended(world: World) -> None:
    world.slurm.set_job("RUNNING")
    world.slurm.touch("cancel-fails")
    client = Client(SLURM)
    assert world.do(client.cancel("12")) == "Slurm job 12 could not be cancelled: scancel: error: no"
    world.slurm.set_job("COMPLETED")
    assert world.do(client.cancel("12")) is None


@pytest.mark.parametrize(
    "node",
    [
        AllocatedNode("n1", "10.0.0.5"),
        AllocatedNode("node-1"),
        AllocatedNode("node-1.example.org"),
        AllocatedNode("10.0.0.5"),
    ],
)
def test_a_schedulers_node_is_one_of_the_jobs_hosts(node: AllocatedNode) -> None:
    assert match_hosts([node], HOSTS) == (HOSTS[1],)


def test_other_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="assigned n9, which is not one of the hosts that are set up"):
        match_hosts([AllocatedNode("n9", "10.0.0.99")], HOSTS)
