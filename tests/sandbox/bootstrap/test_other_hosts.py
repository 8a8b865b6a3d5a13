"""`cluster train -H` with one of the user's own hosts: a real host, reached with the user's ssh set-up."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from foundation.progress import silent
from job_steps import hosts_of
from lab import PORT, WAITS, World, answers, make_world
from sandbox import control
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            yield make_world(directory, monkeypatch)
        finally:
            control.reset(directory, report=silent)


@pytest.mark.slow
def test_a_job_on_another_host_ends_with_a_killed_worker(world: World) -> None:
    known = world.known_hosts.read_text()
    world.known_hosts.write_text(known.splitlines()[0] + "\n")  # only the jump host's
    refused = world.project.run("train", "-H", "hosts", "--", "true", code=1).stderr
    assert f"lab (alice@{world.address} port {PORT}): its host key is not in your known_hosts" in refused
    assert "ssh alice@lab, once" in refused
    assert not (world.root / "home/alice/.cluster").exists()
    world.known_hosts.write_text(known)
    with world.training() as process:
        number = world.worker()
        assert os.readlink(f"/proc/{number}/cwd").startswith("/home/alice/.cluster/jobs/")
        os.kill(number, signal.SIGKILL)
        process.wait(timeout=20)
    said = world.project.messages.read_text()
    assert process.returncode == 128 + signal.SIGKILL
    assert re.search(r"worker \d on lab \(process \d+\) was killed by signal 9", said), said
    world.is_quiet()
    lines = world.authorized_keys.splitlines()
    assert len(lines) == 2
    head = json.loads(world.project.run("status", "--json").stdout)["nodes"][0]
    assert lines[1].startswith(f'restrict,from="{head["private_ip"]},{head["public_ip"]}" ssh-ed25519 ')
    assert (world.home / ".ssh" / "id_ed25519").read_text().splitlines()[1] not in "".join(
        path.read_text(errors="replace")
        for path in (world.root / "home/alice/.cluster").rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 16
    )


@pytest.mark.slow
def test_stop_ends_the_job_on_another_host(world: World) -> None:
    with world.training() as process:
        said = world.project.run("stop").stdout
        assert re.search(r"no process of the job is left on node-0, lab", said)
        assert process.wait(timeout=20) == 130
    world.is_quiet()


@pytest.mark.slow
def test_a_host_cut_off_from_the_head(world: World) -> None:
    head = world.head_id()
    with world.training() as process:
        control.cause_fault(world.project.directory, f"partition a={head} b={world.instance_id}")
        try:
            process.wait(timeout=60)
        finally:
            control.cause_fault(world.project.directory, f"heal a={head} b={world.instance_id}")
    said = world.project.messages.read_text()
    assert process.returncode == 1
    assert re.search(r"(worker|server) (\d )?on lab .*(no sign of life|was lost)", said), said
    time.sleep(1)
    world.is_quiet()


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_process(world: World) -> None:
    """The next command completes the record, and searches lab by the record's user, port and paths."""
    with world.training() as process:
        [supervisor] = hosts_of(world.project)["node-0"].programs("supervise")
        os.kill(supervisor, signal.SIGKILL)
        assert process.wait(timeout=30) == 1
    said = world.project.messages.read_text()
    assert "the supervisor on node-0 was killed" in said
    assert "may still run" not in said
    world.is_quiet()


@pytest.mark.slow
def test_the_head_dies(world: World) -> None:
    head = world.head_id()
    with world.training() as process:
        control.cause_fault(world.project.directory, f"kill instance={head}")
        process.wait(timeout=90)
    said = world.project.messages.read_text()
    assert process.returncode == 1
    assert "ended with its head" in said
    assert "no process of the job is left on the other nodes" in said
    world.is_quiet()
    world.project.run("start")


@pytest.mark.slow
def test_down_cleans_the_host(world: World) -> None:
    before = world.authorized_keys.splitlines()[0]
    if not (world.root / "home/alice/.cluster").exists():  # this test runs alone
        world.project.run("train", "-H", "hosts", "--kv-store", "local", "-n", "1", "--", "true")
    receipt = world.project.run("down").stdout
    assert "1 x set-up of a host of yours: alice@lab" in receipt
    assert world.authorized_keys == before + "\n"
    assert not (world.root / "home/alice/.cluster").exists()
    left = [path.name for path in (world.project.directory / "state").rglob("*") if path.is_file()]
    assert [name for name in left if ".costs.json" not in name] == []  # the ledger of costs stays


@pytest.mark.slow
def test_a_host_that_dies_and_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, monkeypatch)
    try:
        with world.training() as process:
            control.cause_fault(tmp_path, f"kill instance={world.instance_id}")
            assert process.wait(timeout=60) == 1
        said = world.project.messages.read_text()
        assert re.search(r"(worker|server) (\d )?on lab .*(no sign of life|was lost)", said), said
        assert "may still run: lab could not be searched" in said
        receipt = world.project.run("down").stdout
        [mark] = re.findall(r"cluster-internal-demo-[0-9a-f]{8}", receipt)
        words = " ".join(receipt.split())
        assert "unseen set-up of a host of yours alice@lab: lab (alice@" in words
        assert f"ssh alice@lab 'sed -i '\"'\"'/ {mark}$/d'\"'\"' ~/.ssh/authorized_keys; " in words
        boto3.client("ec2").start_instances(InstanceIds=[world.instance_id])
        until(lambda: answers(world), "lab is not back")
        again = world.project.run("down").stdout
        assert "1 x set-up of a host of yours: alice@lab" in again
        assert not list((tmp_path / "state").rglob("other_hosts.json"))
    finally:
        control.reset(tmp_path, report=silent)


@pytest.mark.slow
def test_ports_that_are_not_open_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, monkeypatch, opens=False)
    try:
        said = world.project.run("train", "-H", "hosts", "--", "python", "-c", WAITS, "600", code=None).stderr
        assert re.search(r"(worker|server) on lab.*: the scheduler's port 9\d+ on [0-9.]+ cannot be reached", said), (
            said
        )
    finally:
        control.reset(tmp_path, report=silent)
