"""Shared by the provision tests: values for plans, and an EC2 (the sandbox's, in this process) for applying them."""

import gc
import multiprocessing
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from botocore.exceptions import ClientError

from foundation.progress import Event, Report, silent
from foundation.settings import check
from provision import plan as plans
from provision.apply import apply
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.cost.bill import NodeBill
from provision.describe import describe_cluster
from provision.down import DownPlan, Receipt, down, prepare_down
from provision.files import ClusterFiles
from provision.lease.config import NO_LEASE, LeaseConfig
from provision.model import Caller, ClusterState, Instance, KeyPair, LaunchOption, Node, Preflight, SecurityGroup
from provision.plan import Plan, Request
from provision.power import plan_stop, prepare_start
from provision.resources.launch_recovery import wait_for_interrupted_launches
from provision.up import prepare_resize, prepare_up, up
from provision.volumes.config import VolumeConfig
from sandbox_in_process import REGION, Clock, InProcessSandbox

T = TypeVar("T")
AnyInstance = TypeVar("AnyInstance", bound=Instance)
NAME = "demo"
CALLER_NETWORK = "203.0.113.7/32"
PUBLIC_KEY = "ssh-ed25519 AAAAours"
LAUNCHED_AT = datetime(2030, 1, 1, tzinfo=UTC)
READS = ("Describe", "Get", "List", "DryRun")
WITH_TIME = (
    "provision.apply", "provision.down", "provision.power", "provision.resources.launch",
    "provision.resources.launch_recovery", "provision.resources.run_instances", "provision.up",
    "foundation.waiting", "ec2_sandbox.api.instances", "botocore.endpoint",
)  # fmt: skip
CALLER = Caller(
    region="us-east-1", account_id="123456789012", owner="arn:aws:iam::123456789012:user/ada", ssh_from=CALLER_NETWORK
)


def make_config(**settings: Any) -> ProvisionConfig:
    return check(ProvisionConfig, {"nodes": 2, "ssh_from": CALLER_NETWORK, **settings}, source="cluster.toml")


def make_lease_config(**settings: Any) -> LeaseConfig:
    return check(LeaseConfig, settings, source="cluster.toml")


def make_volume(**settings: Any) -> VolumeConfig:
    return check(VolumeConfig, {"mount": "/shared", "source": "head", **settings}, source="cluster.toml")


def make_option(**values: Any) -> LaunchOption:
    defaults: dict[str, Any] = {
        "market": "on-demand",
        "instance_type": "c5.xlarge",
        "architecture": "x86_64",
        "vcpus": 4,
        "gpus": "no GPU",
        "image_id": "ami-0123456789abcdef0",
        "image_name": "ubuntu-22.04",
        "image_created_at": datetime(2029, 12, 1, tzinfo=UTC),
        "root_device": "/dev/sda1",
        "subnet_id": "subnet-1",
        "vpc_id": "vpc-1",
        "zone": "us-east-1a",
        "free_addresses": 4091,
    }
    return LaunchOption(**{**defaults, **values})


def make_wanted(*, config: ProvisionConfig | None = None, found: Any = None, **values: Any) -> plans.World:
    """The input of a plan. found: the state's `found`, by kind; values: other fields of World and of Request."""
    asked = {key: values.pop(key) for key in ("volumes", "lease", "from_head") if key in values}
    defaults: dict[str, Any] = {
        "request": Request(name=NAME, config=config or make_config(), **asked),
        "state": ClusterState(name=NAME, found=found or {}),
        "caller": CALLER,
    }
    return plans.World(**{**defaults, **values})


def make_preflight(*options: LaunchOption, **values: Any) -> Preflight:
    return Preflight(options=options or (make_option(),), **values)


def make_instance(kind: type[AnyInstance], **values: Any) -> AnyInstance:
    """An instance; node-0, if it is a node."""
    defaults: dict[str, Any] = {
        "instance_id": "i-0",
        "state": "running",
        "private_ip": "10.0.0.10",
        "public_ip": "198.51.100.10",
        "instance_type": "c5.xlarge",
        "zone": "us-east-1a",
        "launched_at": LAUNCHED_AT,
    }
    return kind(**{**defaults, **values})


def make_node(index: int, **values: Any) -> Node:
    given = {"subnet_id": "subnet-1", "vpc_id": "vpc-1", "started_at": LAUNCHED_AT, "instance_id": f"i-{index}"}
    given |= {"private_ip": f"10.0.0.{index + 10}", "public_ip": f"198.51.100.{index + 10}"}
    return make_instance(Node, **{**given, "index": index, "role": "worker" if index else "head", **values})


def make_bill(instance_id: str, **values: Any) -> NodeBill:
    defaults: dict[str, Any] = {
        "name": instance_id,
        "region": "us-east-1",
        "zone": "us-east-1a",
        "market": "on-demand",
        "state": "running",
        "ended_at": None,
        "disk_usd": 0.0,
        "address_usd": 0.0,
        "unseen_usd": 0.0,
    }
    return NodeBill(instance_id=instance_id, **{**defaults, **values})


def make_key(public_key: str | None = PUBLIC_KEY, *, ours: bool = True) -> KeyPair:
    return KeyPair(key_name=f"cluster-{NAME}", public_key=public_key, ours=ours)


def make_group(**values: Any) -> SecurityGroup:
    defaults: dict[str, Any] = {
        "group_id": "sg-1",
        "vpc_id": "vpc-1",
        "ours": True,
        "ssh_from": (CALLER_NETWORK,),
        "ssh_open_to": (CALLER_NETWORK,),
        "open_to_members": True,
    }
    return SecurityGroup(**{**defaults, **values})


def make_state(*nodes: Node, **values: Any) -> ClusterState:
    """A complete cluster of these nodes."""
    defaults: dict[str, Any] = {"nodes": nodes, "key_pair": make_key(), "security_groups": (make_group(),)}
    return ClusterState(name=NAME, **{**defaults, **values})


def aws_error(code: str, operation: str = "RunInstances", words: str = "no way") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": words}}, operation)


def when(what: str, act: Callable[[], object], *, kind: str = "done") -> Report:
    """A report that acts at each event of this kind whose text begins with `what`."""

    def report(event: Event) -> None:
        if event.kind == kind and event.what.startswith(what):
            act()

    return report


@contextmanager
def listening(client: Any, event: str, listener: Callable[..., Any]) -> Iterator[None]:
    """botocore calls the listener at each such event, for example "after-call.ec2.RunInstances"."""
    events = client.meta.events
    register = events.register_first if event.startswith("before-send") else events.register
    register(event, listener)
    try:
        yield
    finally:
        events.unregister(event, listener)


class Killed(BaseException):
    """Like SIGKILL or Ctrl-C: the program must not catch it."""


@dataclass
class Calls:
    """Counts all API calls, and raises Killed just before or just after one."""

    made: list[str] = field(default_factory=list)
    kill_before: int | None = None
    kill_after: int | None = None
    begun: int = 0
    points: int = 0  # those that have ended
    lock: Any = field(default_factory=threading.Lock)

    def before(self, name: str) -> None:
        with self.lock:
            if self.kill_before is not None and self.begun >= self.kill_before:
                raise Killed(f"before {name}")
            self.begun += 1
            self.made.append(name)

    def after(self, name: str) -> None:
        with self.lock:
            self.points += 1
            if self.kill_after is not None and self.points > self.kill_after:
                raise Killed(f"after {name}")

    def mutating(self) -> Counter[str]:
        return Counter(name for name in self.made if not name.startswith(READS))

    def watch(self, session: Any) -> None:
        session.events.register("before-call.*.*", self._before_call)
        session.events.register("after-call.*.*", lambda model, **_: self.after(model.name))

    def _before_call(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        body = params.get("body")
        dry = isinstance(body, dict) and body.get("DryRun") == "true"
        self.before(f"DryRun{model.name}" if dry else model.name)


@dataclass
class World:
    """One AWS account and one user's machine."""

    sandbox: InProcessSandbox
    clients: Clients
    files: ClusterFiles
    calls: Calls
    time: Clock
    volumes: tuple[VolumeConfig, ...] = ()
    lease: LeaseConfig = NO_LEASE

    def request(self, config: ProvisionConfig) -> Request:
        return Request(name=NAME, config=config, data_url="s3://bucket/digits/", volumes=self.volumes, lease=self.lease)

    def prepare(self, config: ProvisionConfig, avoid: frozenset[str] = frozenset()) -> Plan:
        request = self.request(config)
        return prepare_up(self.clients, request=request, files=self.files, avoid=avoid)

    def up(self, config: ProvisionConfig, *, report: Report = silent, keep_failed: bool = False) -> ClusterState:
        return up(
            self.prepare(config),
            clients=self.clients,
            files=self.files,
            report=report,
            replan=lambda avoid: self.prepare(config, avoid),
            keep_failed=keep_failed,
        )

    def kill_up(self, what: str, *, kind: str = "done") -> None:
        """Runs `up`, which is killed at the first event of this kind whose text begins with `what`."""

        def kill() -> NoReturn:
            raise Killed

        with pytest.raises(Killed):
            self.up(make_config(), report=when(what, kill, kind=kind))

    def resize(self, config: ProvisionConfig, *, report: Report = silent) -> ClusterState:
        request = self.request(config)

        def prepare(avoid: frozenset[str] = frozenset()) -> Plan:
            return prepare_resize(self.clients, request=request, files=self.files, avoid=avoid)

        return up(prepare(), clients=self.clients, files=self.files, report=report, replan=prepare)

    def launch(self, **asked: Any) -> str:
        """Launches an instance without the code under test; returns its id."""
        request = {"ImageId": next(iter(self.sandbox.backend.amis)), "InstanceType": "c5.large", **asked}
        return str(self.clients.ec2.run_instances(MinCount=1, MaxCount=1, **request)["Instances"][0]["InstanceId"])

    def stop(self) -> None:
        wait_for_interrupted_launches(self.clients.ec2, name=NAME, files=self.files, report=silent)
        apply(plan_stop(self.describe()), clients=self.clients, files=self.files, report=silent)

    def start(self) -> ClusterState:
        plan = prepare_start(self.clients, name=NAME, config=make_config(), files=self.files)
        return up(plan, clients=self.clients, files=self.files, report=silent)

    def prepare_down(self) -> DownPlan:
        request = self.request(make_config())
        return prepare_down(self.clients, request=request, files=self.files, report=silent)

    def down(self, ending: DownPlan | None = None, *, report: Report = silent) -> Receipt:
        ending = self.prepare_down() if ending is None else ending
        return down(ending, clients=self.clients, files=self.files, report=report)

    def describe(self) -> ClusterState:
        return describe_cluster(self.clients.ec2, name=NAME, known=self.files.known_instances())

    def settled(self) -> ClusterState:
        """The cluster after all lists have caught up."""
        self.time.sleep(60)
        return self.describe()

    def move_files(self, root: Path) -> None:
        """Copies the files to another folder, for a forked process."""
        if self.files.root.exists():
            shutil.copytree(self.files.root, root)
        self.files = ClusterFiles(root)

    def reset(self, root: Path, **config: Any) -> None:
        """Leaves an empty account, and a machine without files of the cluster. config: the sandbox's."""
        self.sandbox.reset(**config)
        self.files = ClusterFiles(root)
        self.volumes = ()
        self.lease = NO_LEASE
        self.calls.made.clear()

    @contextmanager
    def killed_at(self, point: int, *, before: bool) -> Iterator[None]:
        """Raises Killed just before, or just after, the API call or fsync number `point`."""
        self.calls.begun = self.calls.points = 0
        self.calls.kill_before, self.calls.kill_after = (point, None) if before else (None, point)
        try:
            yield
        finally:
            self.calls.kill_before = self.calls.kill_after = None

    def resources(self, region: str = REGION) -> Counter[str]:
        """Counts the account's resources in the backend, without the code under test."""
        backend = self.sandbox.in_region(region)
        return +Counter(
            {
                "instances": sum(i.state != "terminated" for i in backend.sandbox_instances()),
                "volumes": sum(not is_shared(volume) for volume in backend.volumes.values()),
                "shared volumes": sum(map(is_shared, backend.volumes.values())),
                "interfaces": len(backend.enis),
                "groups": sum(
                    group.name != "default" for groups in backend.groups.values() for group in groups.values()
                ),
                "placements": len(backend.placement_groups.describe()),
                "keys": len(backend.key_pairs),
                "open spot requests": sum(
                    request.state in {"open", "active"} for request in backend.spot_instance_requests.values()
                ),
            }
        )


def is_shared(volume: Any) -> bool:
    return any(tag["value"] == "shared-volume" for tag in volume.get_tags())


def complete(nodes: int) -> Counter[str]:
    """The resources of a cluster of on-demand nodes."""
    of_nodes = dict.fromkeys(("instances", "volumes", "interfaces"), nodes)
    return +Counter({**of_nodes, "groups": 1, "placements": int(nodes > 1), "keys": 1})


def plan_kills(points: list[str], *, share: int | None = None) -> list[tuple[int, bool]]:
    """Returns where to kill, as (point, before): before and after every point.

    share: only one in so many of the states that a kill can leave, with the first and the last. Nothing changes between
    two reads, so "after the first" and "before the second" count once.
    """
    if share is None:
        return list(product(range(len(points)), (True, False)))
    kills = []
    for number, point in enumerate(points):
        changes = not point.startswith(READS) or point == "ListFsync"
        kills += [(number, True), (number, False)] if changes else [(number, False)]
    return [kills[index] for index in sorted({*range(0, len(kills), share), len(kills) - 1})]


def run_side_by_side(act: Callable[[T], None], cases: Iterable[T]) -> None:
    """Runs `act` for each case in a process of its own, forked with the account's current state.

    A process that fails prints its traceback, with the case as its name.
    """
    gc.freeze()  # the collector would copy shared pages
    fork = multiprocessing.get_context("fork")
    done: list[Any] = []
    running: deque[Any] = deque()
    for case in cases:
        if len(running) >= max(2, os.cpu_count() or 1):
            running[0].join()
            done.append(running.popleft())
        process = fork.Process(target=act, args=(case,), name=str(case))
        process.start()
        running.append(process)
    for process in running:
        process.join()
    gc.unfreeze()
    codes = {process.name: process.exitcode for process in (*done, *running)}
    assert set(codes.values()) == {0}, codes


def counting_fsync(calls: Calls, real: Callable[[int], None]) -> Callable[[int], None]:
    """Wraps os.fsync so that each call is one more point for kills."""

    def fsync(handle: int) -> None:
        calls.before("ListFsync")  # its prefix makes it a call that does not mutate
        real(handle)
        calls.after("ListFsync")

    return fsync


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with one set of clients per module, because making them takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in WITH_TIME:
            patch.setattr(f"{module}.time", clock)
        calls = Calls()
        patch.setattr(os, "fsync", counting_fsync(calls, os.fsync))
        sandbox_ = InProcessSandbox(tmp_path_factory.mktemp("sandbox") / "api.jsonl", clock)
        clients = sandbox_.make_clients(calls.watch)
        yield World(
            sandbox=sandbox_, clients=clients, files=ClusterFiles(Path("/nonexistent")), calls=calls, time=clock
        )


@pytest.fixture
def world(ec2: World, tmp_path: Path) -> World:
    ec2.reset(tmp_path / "cluster")
    return ec2


@pytest.fixture
def late_world(world: World) -> World:
    """An account whose lists and ids lag by some seconds, as on AWS."""
    world.sandbox.reset(consistency_delay_s=3)
    return world
