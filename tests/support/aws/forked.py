"""`up` and `down` in processes that kill themselves at a chosen point.

A point is an API call or an fsync. The processes are forked: there are hundreds, and starting Python and loading
botocore's data would take a second each.
"""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.session

import foundation.waiting
import provision.resources.launch_recovery
from foundation.progress import silent
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.down import down, prepare_down
from provision.files import ClusterFiles
from provision.lease.config import NO_LEASE, LeaseConfig
from provision.plan import Plan, Request
from provision.up import prepare_up, up
from provision.volumes.config import VolumeConfig
from sandbox_steps import LOADER, REGION

SETTLE_S = 0.3
"""The sandbox's lists do not lag here: an interrupted launch is listed at once or never."""
PAUSE_S = 0.02
READS = ("Describe", "Get", "List")
"""Prefixes of calls that change nothing. Their number varies: some poll."""


def find_changes(points: Sequence[str]) -> tuple[str, ...]:
    return tuple(point for point in points if not point.startswith(READS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """Kill just before, or just after, the point number `point`. changes: count only points that change something."""

    point: int
    before: bool
    changes: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ended. points: names of the points that it passed."""

    killed: bool
    points: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """`up` or `down` of a cluster with `nodes` nodes. files: the folder of its local files."""

    verb: str
    name: str
    nodes: int
    files: Path
    lease: LeaseConfig = NO_LEASE

    def request(self) -> Request:
        config = ProvisionConfig(nodes=self.nodes, ssh_from="203.0.113.7/32", instance_profile="auto")
        volumes = (VolumeConfig(mount="/shared", source="head"),)
        return Request(name=self.name, config=config, data_url="s3://bucket/digits/", volumes=volumes, lease=self.lease)


def read_descriptions() -> None:
    """Loads botocore's data for the clients now, so that forked processes have it."""
    made = Clients(_session(), region=REGION)
    for client in (made.ec2, made.ssm, made.sts, made.iam, made.s3, made.service_quotas, made.pricing):
        LOADER.load_service_model(client.meta.service_model.service_name, "paginators-1")


def _session() -> boto3.session.Session:
    session = botocore.session.get_session()
    session.register_component("data_loader", LOADER)
    return boto3.session.Session(botocore_session=session, region_name=REGION)


def run(act: Act, kill: Kill | None = None) -> Ending:
    """Runs an act in a process of its own. Raises AssertionError with its traceback when it fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            _carry_out(act, kill, writing)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent reports it
            os.write(writing, f"failed: {traceback.format_exc()}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        output = file.read().decode()
    status = os.waitpid(pid, 0)[1]
    points, _, failure = output.partition("failed: ")
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.WEXITSTATUS(status) == 0, f"{act} {kill}: {failure}"
    return Ending(killed=killed, points=tuple(points.splitlines()))


def _carry_out(act: Act, kill: Kill | None, writing: int) -> None:
    counter = _Counter(kill, writing)
    provision.resources.launch_recovery.SETTLE_S = SETTLE_S
    foundation.waiting.FIRST_PAUSE_S = PAUSE_S
    os.fsync = counter.around(os.fsync)
    made = _session()
    made.events.register("before-call.*.*", lambda model, **_: counter.before(model.name))
    made.events.register("after-call.*.*", lambda model, **_: counter.after(model.name))
    clients = Clients(made, region=REGION)
    files = ClusterFiles(act.files)
    if act.verb == "down":
        plan = prepare_down(clients, request=act.request(), files=files, report=silent)
        receipt = down(plan, clients=clients, files=files, report=silent)
        assert not receipt.leftovers, receipt
        return

    def replan(avoid: frozenset[str] = frozenset()) -> Plan:
        return prepare_up(clients, request=act.request(), files=files, avoid=avoid)

    up(replan(), clients=clients, files=files, report=silent, replan=replan)


class _Counter:
    """Writes the points' names to the parent, and kills the process at the right one."""

    def __init__(self, kill: Kill | None, writing: int) -> None:
        self._kill = kill
        self._writing = writing
        self._count = 0
        self._lock = threading.Lock()

    def before(self, name: str) -> None:
        with self._lock:
            if self._is_due(name, before=True):
                os.kill(os.getpid(), signal.SIGKILL)

    def after(self, name: str) -> None:
        with self._lock:
            os.write(self._writing, f"{name}\n".encode())
            if self._is_due(name, before=False):
                os.kill(os.getpid(), signal.SIGKILL)
            self._count += self._counts(name)

    def _is_due(self, name: str, *, before: bool) -> bool:
        kill = self._kill
        return kill is not None and kill.before == before and self._counts(name) and self._count >= kill.point

    def _counts(self, name: str) -> bool:
        return self._kill is None or not self._kill.changes or bool(find_changes([name]))

    def around(self, function: Callable[[Any], None]) -> Any:
        """Wraps a function so that each of its calls is a point."""

        def counted(argument: Any) -> None:
            self.before("fsync")
            function(argument)
            self.after("fsync")

        return counted
