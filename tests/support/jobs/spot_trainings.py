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
SLOWER_THAN_A_NOTICE_MBIT = 60
"""With this bandwidth the training takes a minute."""


def training(prefix: str, *, epochs: int = EPOCHS) -> tuple[str, ...]:
    """Returns the arguments of `cluster train` that train the digits."""
    shape = ("--network", "mlp", "--num-epochs", str(epochs), "--batch-size", "16")
    return ("--", *shape, "--disp-batches", "5", "--model-prefix", prefix)


def slow_down(project: Project, mbit: int) -> None:
    """Limits the bandwidth of node-1, until it is replaced."""
    cause(project, "link", f"instance={hosts_of(project, again=True)['node-1'].instance_id}", f"mbit={mbit}")


def interrupt_at_a_random_moment(project: Project, monkeypatch: pytest.MonkeyPatch, number: int) -> int | None:
    """Trains the digits, and gives node-1 a spot notice up to 4 s after the first checkpoint; `cluster up` replaces it.

    number: of the test, which chooses the moment. Returns the number of lost batches.
    """
    ec2, s3 = ec2_of(project, monkeypatch), boto3.client("s3")
    if "node-1" not in hosts_of(project, again=True):  # an earlier test has failed
        project.run("up")
    # Otherwise a busy machine may interrupt it too late.
    slow_down(project, SLOWER_THAN_A_NOTICE_MBIT)
    before = hosts_of(project, again=True)
    with project.configured(checkpoint_grace="30s"):
        words = training(f"s3://cluster-demo/models/{number}/m")
        job = project.run("train", "--detach", *words).stdout.strip()
    key = f"models/{number}/m"
    until(lambda: s3.list_objects_v2(Bucket="cluster-demo", Prefix=key).get("KeyCount", 0) > 1, "no checkpoint")
    time.sleep(random.Random(number).uniform(0, 4))
    assert job_of(project, job)["state"] == "running", job_of(project, job)
    cause(project, "spot-notice", f"instance={before['node-1'].instance_id}")
    wait_for_state(project, job, "waiting")
    project.run("up")
    ended = wait_for_state(project, job, "done", "failed", "stopped", timeout_s=200)
    log = project.run("logs", job).stdout
    assert (ended["state"], ended["exit_code"]) == ("done", 0), log
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    after = hosts_of(project, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert live(ec2) == {host.instance_id for host in after.values()}
    done = [int(number) for number in re.findall(r"Epoch\[(\d+)\] Train-accuracy", log)]
    assert set(done) == set(range(EPOCHS))  # no epoch is left out
    gone(job)
    lost: int | None = ended["attempts"][0]["lost_batches"]
    return lost
