"""The sandbox's scale: hosts that boot in parallel, the memory of an idle host, and 1000 instances without hosts."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from ec2_sandbox import Sandbox, control
from ec2_sandbox.config import FolderSettings
from foundation.progress import silent

ROUNDS = 5
SIZES = (1, 2, 16, 32)
IMAGE = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"


@contextmanager
def sandbox(config: FolderSettings) -> Iterator[tuple[Any, str, Path]]:
    """Starts a separate sandbox. Yields an EC2 client, an image, and the sandbox's folder."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    before = dict(os.environ)
    try:
        info = control.start(folder, config, report=silent)
        os.environ.update(control.environment(info))
        boto3.setup_default_session()  # the previous session has another sandbox's credentials
        image = boto3.client("ssm").get_parameter(Name=IMAGE)["Parameter"]["Value"]
        yield boto3.client("ec2"), image, folder
    finally:
        control.reset(folder, report=silent)
        shutil.rmtree(folder)
        os.environ.clear()
        os.environ.update(before)


def measure_starts() -> list[str]:
    """Starts sandboxes without hosts. Returns rows with the seconds of a start and of a clear, and the memory."""
    starts, clears, sizes = [], [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        with Sandbox(hosts="none") as one:
            starts.append(time.perf_counter() - begun)
            sizes.append(pss_kib(one.pid) / 1000)
            begun = time.perf_counter()
            one.clear()
            clears.append(time.perf_counter() - begun)
    return [
        f"| start of a sandbox, with its imports, s | {spread(starts)} |",
        f"| its daemon without hosts, own memory (PSS), MB | {spread(sizes)} |",
        f"| clear without hosts, s | {spread(clears)} |",
    ]


def launch(ec2: Any, image: str, count: int) -> tuple[float, list[str]]:
    """Launches instances. Returns the seconds from RunInstances until all run, and the ids."""
    started = time.perf_counter()
    made = ec2.run_instances(ImageId=image, InstanceType="t3.micro", MinCount=count, MaxCount=count)
    ids = [instance["InstanceId"] for instance in made["Instances"]]
    while states(ec2, ids) != {"running"}:
        time.sleep(0.05)
    return time.perf_counter() - started, ids


def terminate(ec2: Any, ids: list[str]) -> float:
    """Terminates instances. Returns the seconds until all are terminated."""
    started = time.perf_counter()
    ec2.terminate_instances(InstanceIds=ids)
    while states(ec2, ids) != {"terminated"}:
        time.sleep(0.05)
    return time.perf_counter() - started


def states(ec2: Any, ids: list[str]) -> set[str]:
    """Returns the states of the instances."""
    pages = ec2.get_paginator("describe_instances").paginate(Filters=[{"Name": "instance-id", "Values": ids}])
    return {i["State"]["Name"] for page in pages for r in page["Reservations"] for i in r["Instances"]}


def host_memory_mb(folder: Path) -> float:
    """Returns the proportional set size of all processes of a host in MB, as the median over the hosts.

    This includes the parent of process 1 outside the host's namespaces, unless that is the daemon itself.
    """
    sizes, described = [], control.describe(folder)
    for host in described.hosts:
        namespace = Path(f"/proc/{host.pid}/ns/pid").readlink()
        fields = Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()
        outside = [int(fields[1])] if int(fields[1]) != described.pid else []
        inside = [pid for pid in all_pids() if in_namespace(pid, namespace)]
        sizes.append(sum(pss_kib(pid) for pid in (*inside, *outside)) / 1000)
    return statistics.median(sizes)


def all_pids() -> list[int]:
    """Returns the pids of all processes of the machine."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def in_namespace(pid: int, namespace: Path) -> bool:
    """Returns whether a process is in this pid namespace."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink() == namespace
    except OSError:
        return False


def pss_kib(pid: int) -> int:
    """Returns the proportional set size in KiB, or 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def available_mb() -> float:
    """Returns the machine's available memory in MB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("MemAvailable"))


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    lines = ["## The sandbox's scale", "", "| what | median | min | max |", "|---|---|---|---|", *measure_starts()]
    with sandbox(FolderSettings()) as (ec2, image, folder):
        for count in SIZES:
            up, gone = [], []
            for _ in range(ROUNDS):
                before_mb = available_mb()
                seconds, ids = launch(ec2, image, count)
                up.append(seconds)
                taken_mb, host_mb = before_mb - available_mb(), host_memory_mb(folder)
                gone.append(terminate(ec2, ids))
            lines.append(f"| {count} hosts, RunInstances to all running, s | {spread(up)} |")
            lines.append(f"| {count} hosts, TerminateInstances to all gone, s | {spread(gone)} |")
        lines.append(f"| idle host, own memory (PSS of its processes), MB | {host_mb:.1f} | | |")
        lines.append(f"| {SIZES[-1]} hosts, drop of the machine's available memory, MB | {taken_mb:.0f} | | |")
    with sandbox(FolderSettings(hosts="none", quotas={"L-1216C47A": 10_000})) as (ec2, image, _):
        seconds, ids = launch(ec2, image, 1000)
        lines.append(f"| 1000 instances without hosts, RunInstances to all running, s | {seconds:.1f} | | |")
        lines.append(f"| the same, TerminateInstances to all gone, s | {terminate(ec2, ids):.1f} | | |")
    return "\n".join([*lines, "", "- all: `sudo python -m bench sandbox`", ""])


def spread(values: list[float]) -> str:
    """Returns the median, minimum and maximum as cells of a row."""
    return f"{statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f}"
