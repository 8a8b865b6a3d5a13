"""Distributes files to four real hosts by real sshd and links of a known speed, while hosts die and freeze.

tests/unit/bootstrap/transfer/ has the agents on this machine, with the same faults and full disks.
"""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3
import pytest
from mypy_boto3_ec2.type_defs import IpPermissionTypeDef

from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.ssh.connections import Connections, InstanceAccess
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import Console, HostKeyPins
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.transfer.distribute import Agent, Distribution, SetUp
from cluster.nodes.ec2 import open_console
from foundation.errors import ConnectError
from foundation.progress import silent
from provision.aws.clients import make_clients
from sandbox import control
from sandbox_steps import REGION, RunningSandbox, Ssh, enter, launch, open_ssh, start_sandbox
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

TIMEOUT_S = 60
MBIT = 100
SIZE = 10_000_000
"""Almost a second on such a link."""
SLOW_MBIT = 8
"""Ten seconds: enough time for a fault at half of the file, even on a busy machine."""
SILENCE_S = 10.0
"""Shorter than usual, but many times the interval between signs of life."""


@dataclass(frozen=True, kw_only=True)
class HostSeen:
    """A host as ssh sees it. pid: of its process 1, on this machine."""

    host: Host
    pid: int

    @property
    def store(self) -> Path:
        return Path(f"/proc/{self.pid}/root/home/ubuntu/.cluster")

    def has(self, file: BundleFile) -> bool:
        path = self.store / "files" / file.sha256 / file.name
        return path.exists() and describe_file(path).sha256 == file.sha256

    def has_half(self, file: BundleFile) -> bool:
        try:
            return (self.store / "incoming" / file.sha256).stat().st_size > file.size_bytes // 2
        except FileNotFoundError:
            return False

    def link_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        words = next(line.split() for line in lines if line.strip().startswith("eth0:"))
        return int(words[1]) + int(words[9])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    folder = tmp_path_factory.mktemp("distribution")
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            sandbox = start_sandbox(folder, link_mbit=MBIT)
            enter(sandbox, monkeypatch)
            yield sandbox
        finally:
            control.reset(folder, report=silent)


class Four:
    """Four hosts, and the distribution of files to them."""

    def __init__(self, project: RunningSandbox, ssh: Ssh) -> None:
        ec2 = boto3.client("ec2")
        self.project = project
        self._key = ssh.key
        made = launch(ssh, 4)
        group = open_ssh(ec2)
        inside: IpPermissionTypeDef = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[inside])
        pids = {host.instance_id: host.pid or 0 for host in control.describe(project.project_dir).hosts}
        self.hosts = [
            HostSeen(
                host=Host(
                    name=f"node-{number}",
                    instance_id=each["InstanceId"],
                    address=each["PublicIpAddress"],
                    private_ip=each["PrivateIpAddress"],
                    user="ubuntu",
                    is_head=number == 0,
                ),
                pid=pids[each["InstanceId"]],
            )
            for number, each in enumerate(made)
        ]
        self.errors: dict[str, BaseException] = {}

    def fault(self, kind: str, number: int, *more: str) -> None:
        words = (kind, f"instance={self.hosts[number].host.instance_id}", *more)
        control.cause_fault(self.project.project_dir, " ".join(words))

    def shape_link(self, number: int, mbit: int) -> None:
        self.fault("link", number, f"mbit={mbit}")

    def distribute(self, wanted: SetUp, *, meanwhile: Callable[[], object] = bool) -> dict[str, BaseException]:
        """Sets up all hosts in parallel; returns the errors by node."""
        errors: dict[str, BaseException] = {}
        pins = HostKeyPins(self.project.project_dir / "pins")
        console: Console = open_console(partial(make_clients, REGION))
        with (
            Connections(
                instances=InstanceAccess(private_key=self._key, pins=pins, console=console), wait_s=20
            ) as connections,
            Distribution(report=silent) as distribution,
        ):

            def work(host: Host) -> None:
                try:
                    distribution.set_up(connections.get(host), wanted)
                except BaseException as error:  # noqa: BLE001 - the test checks it
                    errors[host.name] = error

            threads = [threading.Thread(target=work, args=(seen.host,)) for seen in self.hosts]
            for thread in threads:
                thread.start()
            meanwhile()
            for thread in threads:
                thread.join(TIMEOUT_S)
                assert not thread.is_alive()
        return errors

    def having(self, file: BundleFile) -> list[bool]:
        return [seen.has(file) for seen in self.hosts]


@pytest.fixture(scope="module")
def four(project: RunningSandbox, ssh: Ssh) -> Four:
    return Four(project, ssh)


@pytest.fixture
def file(tmp_path: Path) -> BundleFile:
    path = tmp_path / "some.bin"
    path.write_bytes(random.randbytes(SIZE))
    return describe_file(path)


def wanted(file: BundleFile) -> SetUp:
    task = {"kind": "script", "what": "the test's script", "text": "echo fine >>log", "silence_s": 30}
    return SetUp(python="python3", files=(file,), tasks=(task,))


def test_files_reach_all_nodes_once(four: Four, file: BundleFile) -> None:
    assert four.distribute(wanted(file)) == {}
    assert four.having(file) == [True] * 4
    before = [seen.link_bytes() for seen in four.hosts]
    assert four.distribute(wanted(file)) == {}
    moved = [seen.link_bytes() - was for seen, was in zip(four.hosts, before, strict=True)]
    assert max(moved) < SIZE // 10, moved
    logs = [(seen.store.parent / "log").read_text() for seen in four.hosts]
    assert logs == ["fine\nfine\n"] * 4


def test_the_transfers_secret_is_on_no_command_line(four: Four, file: BundleFile) -> None:
    """No process on any host has the transfer's own secret on its command line."""
    seen: list[bytes] = []

    def look() -> None:
        until(lambda: four.hosts[3].has_half(file), "it does not get through")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(path.read_bytes())
            except OSError:
                continue

    secrets = []
    original = Agent.tell

    def tell(self: Agent, message: object) -> None:
        secrets.append(message.get("secret", "") if isinstance(message, dict) else "")
        original(self, message)

    four.shape_link(3, SLOW_MBIT)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Agent, "tell", tell)
        assert four.distribute(wanted(file), meanwhile=look) == {}
    four.shape_link(3, MBIT)
    [secret] = {each for each in secrets if each}
    assert not [line for line in seen if secret.encode() in line]


@pytest.mark.parametrize(("fault", "number"), [("freeze", 2), ("kill", 1)])
def test_a_frozen_or_dead_node(
    four: Four, file: BundleFile, monkeypatch: pytest.MonkeyPatch, fault: str, number: int
) -> None:
    """The kill is the last case, because the node stays dead."""
    monkeypatch.setattr(NodeProgram, "silence_s", SILENCE_S)
    node = four.hosts[number]

    def strike() -> None:
        until(lambda: node.has_half(file), "it does not get through")
        four.fault(fault, number)

    four.shape_link(number, SLOW_MBIT)
    errors = four.distribute(wanted(file), meanwhile=strike)
    assert list(errors) == [node.host.name]
    assert isinstance(errors[node.host.name], ConnectError)
    assert node.host.name in str(errors[node.host.name])
    assert [seen.has(file) for seen in four.hosts if seen is not node] == [True] * 3
    if fault == "freeze":
        four.fault("thaw", number)
        four.shape_link(number, MBIT)
        assert not node.has(file)
        assert four.distribute(wanted(file)) == {}
        assert four.having(file) == [True] * 4
