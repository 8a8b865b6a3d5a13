"""Several regions: the first with room gets the nodes, every machine finds it, and nothing is left in the others."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import AwsError, ClusterError, NoCapacityError, NotInRegionError, QuotaError
from foundation.progress import Event, silent
from provision.aws.clients import Clients
from provision.files import ClusterFiles
from provision.model import ClusterState
from provision.regions import find_home, find_remains, leave_region, try_regions
from provision_world import NAME, Killed, World, complete, make_config, make_volume, plan_kills
from sandbox_in_process import OTHER_REGION, REGION

REGIONS = (REGION, OTHER_REGION)
FULL = f"capacity zone={REGION}*"


@dataclass
class Both:
    """A user's machine, and an account in two regions."""

    world: World
    root: Path
    clients: dict[str, Clients]

    def in_region(self, region: str) -> World:
        return dataclasses.replace(self.world, clients=self.clients[region], files=ClusterFiles(self.root / region))

    def find_home(self) -> str | None:
        noted = next((region for region in REGIONS if self.in_region(region).files.exist), None)
        return find_home(self.clients.__getitem__, REGIONS, name=NAME, noted=noted)

    def find_remains(self) -> tuple[list[str], list[str]]:
        """The regions that have something of the cluster, and those that do not answer."""
        found, errors = find_remains(self.clients.__getitem__, REGIONS, name=NAME)
        return [*found], [*errors]

    def leave(self, region: str) -> str | None:
        here = self.in_region(region)
        return leave_region(here.clients, request=here.request(make_config()), files=here.files, report=silent)

    def up(self, report: Callable[[Event], None] = silent, **settings: Any) -> ClusterState:
        """Does what `cluster up` does."""
        home = self.find_home() or REGION
        order = (home, *(region for region in REGIONS if region != home))

        def attempt(region: str) -> ClusterState:
            return self.in_region(region).up(make_config(region=region, **settings))

        return try_regions(order, attempt=attempt, leave=self.leave, report=report)

    def down(self) -> None:
        """Does what `cluster down` does."""
        for region in REGIONS:
            self.in_region(region).down()


@pytest.fixture
def both(world: World, tmp_path: Path) -> Both:
    other = world.sandbox.make_clients(world.calls.watch, OTHER_REGION)
    return Both(world=world, root=tmp_path / "regions", clients={REGION: world.clients, OTHER_REGION: other})


def test_the_next_region_has_room(both: Both, tmp_path: Path) -> None:
    """Nothing is left in the first. Every machine finds the cluster."""
    both.world.sandbox.book.arm(FULL)
    lines: list[str] = []
    state = both.up(lambda event: lines.append(event.what))
    assert {node.zone[:-1] for node in state.nodes} == {OTHER_REGION}
    assert both.world.resources(REGION) == Counter()
    assert both.world.resources(OTHER_REGION) == complete(2)
    assert [line.partition(":")[0] for line in lines] == [f"{REGION} cannot give the nodes", f"trying {OTHER_REGION}"]
    zones = [line.split(":")[0].rpartition(" ")[2] for line in lines[0].splitlines() if "InsufficientInst" in line]
    assert zones == [f"{REGION}{letter}" for letter in "abcdf"]  # c5.xlarge is not offered in us-east-1e
    assert not both.in_region(REGION).files.exist
    both.world.sandbox.book.disarm("all")
    again = both.up()  # nothing to do, although the first region has room again
    assert [node.instance_id for node in again.nodes] == [node.instance_id for node in state.nodes]
    assert both.find_remains() == ([OTHER_REGION], [])
    elsewhere = dataclasses.replace(both, root=tmp_path / "another machine")
    elsewhere.in_region(REGION).files.make_key()  # of an earlier cluster
    assert elsewhere.find_home() == OTHER_REGION
    both.down()
    assert both.find_home() is None
    assert elsewhere.find_home() == REGION  # EC2 may not list a new resource yet
    assert both.find_remains() == ([], [])


def test_a_cluster_with_nodes_stays_where_they_are(both: Both) -> None:
    both.up()
    both.world.sandbox.book.arm(FULL)
    with pytest.raises(NoCapacityError, match="no other region is tried: the cluster has instances there"):
        both.up(nodes=3)
    assert both.world.resources(REGION) == complete(2)
    assert both.world.resources(OTHER_REGION) == Counter()
    both.world.sandbox.book.arm("unauthorized action=DescribeInstances count=all")
    with pytest.raises(AwsError, match=REGION):  # a region that cannot be asked may have the cluster
        find_home(both.clients.__getitem__, REGIONS, name=NAME, noted=None)
    assert both.find_remains() == ([], [REGION, OTHER_REGION])


def test_a_cluster_returns_to_its_kept_volume(both: Both) -> None:
    both.world.volumes = (make_volume(keep=True),)
    both.world.sandbox.book.arm(FULL)
    both.up()
    both.world.sandbox.book.disarm("all")
    both.down()
    assert both.find_home() == OTHER_REGION
    assert both.find_remains() == ([OTHER_REGION], [])


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([QuotaError("a"), NoCapacityError("b")], NoCapacityError),
        ([NotInRegionError("a"), NotInRegionError("b")], NotInRegionError),
        ([AwsError("a")], AwsError),
    ],
)
def test_the_error_after_all_regions(errors: list[ClusterError], raised: type[ClusterError]) -> None:
    left: list[str] = []
    given = dict(zip(REGIONS, errors, strict=False))

    def fail(region: str) -> None:
        raise given[region]

    with pytest.raises(raised) as error:
        try_regions(REGIONS, attempt=fail, leave=left.append, report=silent)
    assert type(error.value) is raised
    assert left == ([] if raised is AwsError else list(REGIONS))
    with pytest.raises(type(errors[0])) as alone:
        try_regions(REGIONS[:1], attempt=fail, leave=left.append, report=silent)
    assert alone.value is errors[0]


@pytest.mark.slow
def test_a_kill_at_every_call(both: Both, tmp_path: Path) -> None:
    """Of `up`, whose first region is full."""
    both.world.sandbox.book.arm(FULL)
    both.world.calls.made.clear()
    both.up()
    points = list(both.world.calls.made)
    for number, (point, before) in enumerate(plan_kills(points)):
        both.world.reset(tmp_path / "unused")
        both.root = tmp_path / str(number)
        both.world.sandbox.book.arm(FULL)
        with both.world.killed_at(point, before=before), pytest.raises(Killed):
            both.up()
        both.world.time.sleep(60)
        where = f"{'before' if before else 'after'} call {point} of {len(points)}, {points[point]}"
        if number % 2:
            state = both.up()
            assert {node.zone[:-1] for node in state.nodes} == {OTHER_REGION}, where
            assert both.world.resources(REGION) == Counter(), where
            assert both.world.resources(OTHER_REGION) == complete(2), where
        both.down()
        assert both.world.resources(REGION) == both.world.resources(OTHER_REGION) == Counter(), where
