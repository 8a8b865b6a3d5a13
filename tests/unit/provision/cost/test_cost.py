"""The costs of clusters over weeks, compared with a bill that separate code computes from the sandbox's log."""

import sys
from datetime import UTC, datetime

import pytest

import ec2_sandbox.api.log
from ec2_sandbox.api.instances import SandboxInstance
from provision.cost import storage
from provision.cost.bill import ClusterBill, make_bills
from provision.cost.ledger import Ledger, note
from provision.cost.observe import find_prices, observe
from provision.status import add_up
from provision_world import NAME, World, make_config, make_volume
from states_bill import bill, read_states

HOUR = 3600.0
DAY = 24 * HOUR


class Watched:
    """A world whose ledger is maintained as the commands do it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.first_line = len(read_states(world.sandbox.state_log))

    def look(self) -> Ledger:
        world = self.world
        now = datetime.fromtimestamp(world.time.now_s, UTC)
        known = storage.read(world.files.root)
        exists, here, config = world.describe().exists, world.files.known_instances(), make_config()
        seen = observe(world.clients, name=NAME, exists=exists, known=known, here=here, config=config, now=now)
        ledger = storage.update(world.files.root, lambda known: note(known, seen))
        return storage.update(world.files.root, find_prices(world.clients, ledger))

    def up(self, nodes: int, **settings: object) -> None:
        self.world.up(make_config(nodes=nodes, **settings))
        self.look()

    def stop(self) -> None:
        self.world.stop()
        self.look()

    def start(self) -> None:
        self.world.start()
        self.look()

    def down(self) -> None:
        self.look()
        self.world.down()
        self.look()

    def wait(self, seconds: float) -> None:
        self.world.time.now_s += seconds

    def instance(self, index: int) -> SandboxInstance:
        instance_id = self.world.describe().node(f"node-{index}").instance_id
        return next(one for one in self.world.sandbox.backend.sandbox_instances() if one.id == instance_id)

    def settle(self) -> None:
        """Makes some calls: instances advance to their next state with each call."""
        for _ in range(3):
            self.world.describe()

    def bills(self) -> tuple[ClusterBill, ...]:
        return make_bills(self.look(), now=self.world.time.now_s)

    def expected(self) -> dict[str, float]:
        entries = read_states(self.world.sandbox.state_log)[self.first_line :]
        return bill(entries, now=self.world.time.now_s)


def parts(bills: tuple[ClusterBill, ...]) -> dict[str, float]:
    nodes = [node for each in bills for node in each.nodes]
    found = {market: add_up([n.instance_usd for n in nodes if n.market == market]) for market in ("on-demand", "spot")}
    found |= {"disk": add_up([n.disk_usd for n in nodes]), "address": add_up([n.address_usd for n in nodes])}
    assert None not in found.values()
    return {name: usd for name, usd in found.items() if usd}


def assert_matches(watched: Watched) -> None:
    expected, found = watched.expected(), parts(watched.bills())
    assert sum(expected.values()) > 0
    assert found.pop("spot", 0.0) == pytest.approx(expected.pop("spot", 0.0), rel=0.25)  # of the price of the time
    assert found == pytest.approx(expected, rel=0.01)


@pytest.fixture
def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """An account in which time passes only when the test lets it."""
    world.time.now_s = datetime(2031, 1, 1, tzinfo=UTC).timestamp()

    def utcnow() -> datetime:
        return datetime.fromtimestamp(world.time.now_s, UTC).replace(tzinfo=None)

    for name, module in tuple(sys.modules.items()):
        if name.startswith(("moto.", "ec2_sandbox.")) and hasattr(module, "utcnow"):
            monkeypatch.setattr(module, "utcnow", utcnow)
    assert vars(ec2_sandbox.api.log)["utcnow"] is utcnow
    return Watched(world)


def test_days_of_a_cluster_on_demand(watched: Watched) -> None:
    """Prices that cannot be read are unknown at first, and filled in later."""
    book = watched.world.sandbox.book
    book.arm("unauthorized service=pricing")
    watched.up(2)
    watched.wait(3 * HOUR + 77)
    (current,) = watched.bills()
    assert (current.cost_usd, current.usd_per_hour) == (None, None)
    book.disarm("all")
    assert_matches(watched)
    (current,) = watched.bills()
    disk = 80 * watched.instance(0).root_volume.image_bytes / (1 << 30) / 1000 / 730
    assert current.usd_per_hour == pytest.approx(2 * (0.17 + 0.005 + disk))
    watched.stop()
    watched.wait(10 * HOUR)
    (current,) = watched.bills()
    assert current.usd_per_hour == pytest.approx(2 * disk)
    watched.start()
    watched.wait(2 * HOUR)
    watched.instance(1).shut_down_from_inside()  # EC2 does not report the time
    watched.settle()
    watched.wait(20 * DAY)
    assert_matches(watched)


def test_days_of_a_cluster_on_spot(watched: Watched) -> None:
    spot = {"market": "spot"}
    watched.up(2, **spot)
    watched.wait(50 * 60)
    watched.instance(1).reclaim()  # in its first hour, which is free of charge
    watched.settle()
    watched.up(2, **spot)
    watched.wait(17 * HOUR)
    watched.instance(1).reclaim()
    watched.settle()
    watched.up(2, **spot)
    watched.wait(5)  # less than a minute, the shortest time that AWS bills
    watched.down()
    assert_matches(watched)
    (bill,) = watched.bills()
    assert (bill.ended_at is not None, bill.usd_per_hour, bill.unseen_usd, len(bill.nodes)) == (True, 0, 0, 4)
    watched.wait(100 * DAY)  # EC2 forgets instances
    assert_matches(watched)


def test_a_capacity_block_is_paid_in_advance(watched: Watched) -> None:
    given = {"InstanceType": "c5.xlarge", "AvailabilityZone": "us-east-1a"}
    blocks = watched.world.sandbox.backend.capacity_reservations
    watched.up(1, reservation=blocks.create(given, count=1, reservation_type="capacity-block").id)
    watched.wait(HOUR)
    (bill,) = watched.bills()
    assert bill.nodes[0].instance_usd == 0.0
    disk = 80 * watched.instance(0).root_volume.image_bytes / (1 << 30) / 1000 / 730
    assert bill.usd_per_hour == pytest.approx(0.005 + disk)


def test_a_kept_volume_belongs_to_the_next_cluster(watched: Watched) -> None:
    watched.world.volumes = (make_volume(size_gib=100, keep=True),)
    watched.up(1)
    watched.wait(DAY)
    watched.down()
    watched.wait(9 * DAY)
    (first,) = watched.bills()
    assert first.ended_at is None  # the volume still costs money
    assert first.usd_per_hour == pytest.approx(100 * 0.08 / 730)
    watched.up(1)
    watched.wait(DAY)
    first, second = watched.bills()
    assert first.ended_at is not None
    of_volume = [volume.cost_usd for each in (first, second) for volume in each.volumes]
    assert add_up(of_volume) == pytest.approx(100 * 0.08 * 11 * 24 / 730, rel=0.01)
    assert second.ended_at is None
