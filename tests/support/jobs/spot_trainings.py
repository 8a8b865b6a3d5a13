"""Trainings on a cluster of two spot instances, whose second node is interrupted."""

import random
import re
import time
from typing import Any

import boto3
import pytest
from mypy_boto3_ec2.client import EC2Client

from job_steps import cause, ec2_of, gone, hosts_of, job_of, live, wait_for_state
from project import Project
from waits import until

EPOCHS = 20
BATCH_SIZE = 16
SLOW_EPOCHS = 8
SLOW_MBIT, SLOWER_THAN_A_NOTICE_MBIT = 4, 60
"""With the first bandwidth a batch takes a second, and almost no CPU time; with the second, the training a minute."""


def training(prefix: str, *, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE) -> tuple[str, ...]:
    """Returns the arguments of `cluster train` that train the digits."""
    shape = ("--network", "mlp", "--num-epochs", str(epochs), "--batch-size", str(batch_size))
    return ("--", *shape, "--disp-batches", "5", "--model-prefix", prefix)


def slow_down(project: Project, mbit: int) -> None:
    """Limits the bandwidth of node-1, until it is replaced."""
    cause(project, "link", f"instance={hosts_of(project, again=True)['node-1'].instance_id}", f"mbit={mbit}")


def train_and_interrupt(
    project: Project,
    ec2: EC2Client,
    prefix: str,
    after_s: float,
    *,
    notice: bool,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Trains the digits, interrupts node-1 this long after the first checkpoint, and replaces it by `cluster up`.

    notice: whether the node gets the notice of a spot instance. Returns the record of the ended job.
    """
    words = training(prefix, epochs=epochs, batch_size=batch_size)
    before = hosts_of(project, again=True)
    with project.configured(checkpoint_grace="30s" if notice else "1s"):
        job = project.run("train", "--detach", *words).stdout.strip()
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    s3 = boto3.client("s3")
    until(lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount", 0) > 1, "no checkpoint")
    time.sleep(after_s)
    assert job_of(project, job)["state"] == "running", job_of(project, job)
    if notice:
        cause(project, "spot-notice", f"instance={before['node-1'].instance_id}")
    else:
        ec2.terminate_instances(InstanceIds=[before["node-1"].instance_id])
    wait_for_state(project, job, "waiting")
    project.run("up")
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
    return ended


def interrupt_at_a_random_moment(
    project: Project, monkeypatch: pytest.MonkeyPatch, number: int, *, notice: bool
) -> int | None:
    """Trains the digits and interrupts node-1 up to 4 s after the first checkpoint; no instance may be left over.

    number: of the test, which chooses the moment. Returns the number of lost batches.
    """
    ec2 = ec2_of(project, monkeypatch)
    if "node-1" not in hosts_of(project, again=True):  # an earlier test has failed
        project.run("up")
    # Otherwise a busy machine may interrupt it too late.
    slow_down(project, SLOWER_THAN_A_NOTICE_MBIT)
    after_s = random.Random(number).uniform(0, 4)

    ended = train_and_interrupt(project, ec2, f"s3://cluster-demo/models/{number}/m", after_s, notice=notice)

    assert live(ec2) == {host.instance_id for host in hosts_of(project).values()}
    lost: int | None = ended["attempts"][0]["lost_batches"]
    return lost
