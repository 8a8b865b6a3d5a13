"""Trainings on a cluster of two spot instances, whose second node is interrupted."""

import random
import re
import time

import boto3
import pytest

from job_steps import cause, ec2_of, gone, hosts_of, job_of, live, wait_for_state
from project import Project
from waits import until

EPOCHS = 20
BATCH_SIZE = 16
SLOW_EPOCHS = 8
SLOW_MBIT, SLOWER_THAN_A_DRILL_MBIT = 4, 60
"""With the first bandwidth a batch takes a second, and almost no CPU time; with the second, the training a minute."""


def training(prefix: str, *, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE) -> tuple[str, ...]:
    """Returns the arguments of `cluster train` that train the digits."""
    shape = ("--network", "mlp", "--num-epochs", str(epochs), "--batch-size", str(batch_size))
    return ("--", *shape, "--disp-batches", "5", "--model-prefix", prefix)


def slow_down(project: Project, mbit: int) -> None:
    """Limits the bandwidth of node-1, until it is replaced."""
    cause(project, "link", f"instance={hosts_of(project, again=True)['node-1'].instance_id}", f"mbit={mbit}")


def train_and_interrupt(
    project: Project, prefix: str, after_s: float, *how: str, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE
) -> str:
    """Trains the digits, interrupts node-1 this long after the first checkpoint, and waits for the end.

    Returns the output of the drill.
    """
    words = training(prefix, epochs=epochs, batch_size=batch_size)
    before = hosts_of(project, again=True)
    with project.configured(checkpoint_grace="30s" if not how else "1s"):
        job = project.run("train", "--detach", *words).stdout.strip()
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    s3 = boto3.client("s3")
    until(lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount", 0) > 1, "no checkpoint")
    time.sleep(after_s)
    assert job_of(project, job)["state"] == "running", job_of(project, job)
    shown = project.run("drill", "spot", *how).stdout
    ended = wait_for_state(project, job, "done", "failed", "stopped", timeout_s=200)
    log = project.run("logs", job).stdout
    assert (ended["state"], ended["exit_code"]) == ("done", 0), log
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    after = hosts_of(project, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    done = [int(number) for number in re.findall(r"Epoch\[(\d+)\] Train-accuracy", log)]
    assert set(done) == set(range(epochs))  # no epoch is left out
    gone(job)
    return shown


def interrupt_at_a_random_moment(project: Project, monkeypatch: pytest.MonkeyPatch, number: int, *how: str) -> str:
    """Trains the digits and interrupts node-1 up to 4 s after the first checkpoint; no instance may be left over.

    number: of the test, which chooses the moment. how: options of `cluster drill spot`.
    Returns the output of the drill.
    """
    ec2 = ec2_of(project, monkeypatch)
    if "node-1" not in hosts_of(project, again=True):  # an earlier test has failed
        project.run("up")
    # Otherwise a busy machine may interrupt it too late.
    slow_down(project, SLOWER_THAN_A_DRILL_MBIT)
    after_s = random.Random(number).uniform(0, 4)

    shown = train_and_interrupt(project, f"s3://cluster-demo/models/{number}/m", after_s, *how)

    assert live(ec2) == {host.instance_id for host in hosts_of(project).values()}
    return shown


def summarize(shown: str) -> str:
    """Returns the lines of a drill's output that say how fast the training continued, and what was lost."""
    return ", ".join(line for line in shown.splitlines() if ("sshd" in line and "again" in line) or "lost" in line)
