import pytest

from foundation.durations import render_time
from foundation.errors import ClusterError, ConfigError, UsageError
from provision.lease.config import find_conflicts
from provision.lease.lease_plan import (
    Change,
    Spending,
    change_lease,
    describe_lease,
    find_near_end,
    make_lease,
    update_budget,
)
from provision.lease.terms import MAX_TEXT, Lease, find_end, find_newest, parse_lease, render_lease
from provision_world import make_lease_config

NOW = 1_800_000_000.0
LATER = NOW + 1800
KNOWN = Spending(usd_per_hour=2.0, usd=8.0)
FULL = Lease(
    set_at=NOW, until=NOW + 3600, idle_s=1800.0, budget_usd=123456.78, budget_until=NOW + 7200, then="stop"
)  # fmt: skip


@pytest.mark.parametrize("lease", [Lease(set_at=NOW), FULL])
def test_a_lease_is_its_text(lease: Lease) -> None:
    text = render_lease(lease)
    assert parse_lease(text) == parse_lease(f"{text} later=thing") == lease
    assert len(text) <= MAX_TEXT


@pytest.mark.parametrize("words", ["until=2026-11-25T15:00:00Z", "set=2026-11-25", "then=sleep", "budget=nan", ""])
def test_a_text_that_is_no_lease(words: str) -> None:
    text = f"set=2026-11-25T15:00:00Z then=down {words}" if words.startswith(("then", "budget")) else words
    assert parse_lease(text) is None
    assert find_newest([text, render_lease(FULL)]) == FULL


@pytest.mark.parametrize(
    ("lease", "end"),
    [
        (Lease(set_at=NOW, until=NOW + 600), (NOW + 600, "lifetime")),
        (Lease(set_at=NOW, budget_usd=3.0, budget_until=NOW + 3600), (NOW + 3600, "budget")),
        (Lease(set_at=NOW, until=NOW + 600, budget_usd=3.0, budget_until=NOW + 3600), (NOW + 600, "lifetime")),
        (Lease(set_at=NOW, budget_usd=3.0), None),  # unknown prices
        (Lease(set_at=NOW, idle_s=60.0), None),
    ],
)
def test_the_deadline(lease: Lease, end: tuple[float, str] | None) -> None:
    assert find_end(lease) == end


def test_a_new_lease() -> None:
    lease = make_lease(make_lease_config(lifetime="12h", idle="30m", budget_usd=200.0), now=NOW, spending=KNOWN)
    assert lease == Lease(NOW, NOW + 43200, 1800, 200.0, NOW + 96 * 3600, "down")
    assert make_lease(make_lease_config(), now=NOW, spending=KNOWN) is None
    endless = make_lease(make_lease_config(lifetime="12h", budget_usd=1e7), now=NOW, spending=Spending(0.001))
    assert endless is not None
    assert parse_lease(render_lease(endless)) == endless


@pytest.mark.parametrize(("spending", "message"), [(Spending(), "unknown"), (Spending(2.0, 200.0), "already cost")])
def test_a_budget_that_cannot_be_kept(spending: Spending, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[lease\] budget_usd = 200: .*{message}"):
        make_lease(make_lease_config(budget_usd=200), now=NOW, spending=spending)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lifetime", "12"),
        ("lifetime", "0h"),
        ("budget_usd", 0),
        ("then", "sleep"),
    ],
)
def test_wrong_values_are_refused_by_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        make_lease_config(**{"lifetime": "1h", key: value})


def test_conflicts_with_other_tables() -> None:
    stop = make_lease_config(idle="1h", then="stop")
    assert list(find_conflicts(stop, market=("on-demand",), in_ec2=True)) == []
    assert "spot instances cannot be stopped" in next(find_conflicts(stop, market=("on-demand", "spot"), in_ec2=True))
    assert [message.partition(" = ")[0] for message in find_conflicts(
        make_lease_config(lifetime="1h", idle="1h", budget_usd=3.0), market=(), in_ec2=False
    )] == ["[lease] lifetime", "[lease] idle", "[lease] budget_usd"]  # fmt: skip
    assert list(find_conflicts(make_lease_config(), market=(), in_ec2=False)) == []


@pytest.mark.parametrize(
    ("old", "change", "new"),
    [
        (FULL, Change(extend_s=14400), FULL._replace(until=NOW + 3600 + 14400)),
        (FULL, Change(idle_s="none"), FULL._replace(idle_s=None)),
        (FULL, Change(budget_usd="none"), FULL._replace(budget_usd=None, budget_until=None)),
        (FULL, Change(none=True), Lease(set_at=NOW, then="stop")),
        # A budget counts from the launch on, also one that is set later.
        (
            Lease(set_at=NOW, idle_s=60.0),
            Change(budget_usd=10.0),
            Lease(set_at=NOW, idle_s=60.0, budget_usd=10.0, budget_until=LATER + 3600),
        ),
        # After the deadline, or without one, more time begins now.
        (Lease(set_at=NOW, until=NOW + 10), Change(extend_s=60), Lease(set_at=NOW, until=LATER + 60)),
        (None, Change(extend_s=60), Lease(set_at=NOW, until=LATER + 60)),
    ],
)
def test_a_change(old: Lease | None, change: Change, new: Lease) -> None:
    assert change_lease(old, change, now=LATER, spending=KNOWN, then="down") == new._replace(set_at=LATER)


@pytest.mark.parametrize(
    ("old", "change", "end"),
    [
        (FULL, Change(idle_s=299), "in 4m59s: idle = 299s"),
        (FULL, Change(idle_s=300), None),
        (FULL, Change(budget_usd=8.125), "in 3m45s: the budget of $8.125"),
        (FULL, Change(none=True), None),
        (None, Change(extend_s=60), "in 1m00s: its lifetime"),
        (Lease(set_at=NOW, until=NOW + 60), Change(extend_s=60), None),  # later than before
        (Lease(set_at=NOW, until=NOW + 60), Change(idle_s=120), None),  # it ends anyway
    ],
)
def test_a_change_that_ends_the_cluster_soon(old: Lease | None, change: Change, end: str | None) -> None:
    new = change_lease(old, change, now=NOW, spending=KNOWN, then="down")
    assert find_near_end(old, new, now=NOW) == end


def test_refused_changes() -> None:
    with pytest.raises(UsageError, match="--none"):
        change_lease(FULL, Change(none=True, extend_s=60), now=NOW, spending=KNOWN, then="down")
    with pytest.raises(ClusterError, match="--budget 1: the cluster has already cost"):
        change_lease(FULL, Change(budget_usd=1.0), now=NOW, spending=KNOWN, then="down")


def test_a_budget_lasts_less_long_with_more_nodes() -> None:
    lease = Lease(set_at=NOW, budget_usd=10.0, budget_until=NOW + 3600)
    assert update_budget(lease, KNOWN, now=NOW + 30) is lease
    assert update_budget(lease, Spending(), now=NOW) is lease
    more = update_budget(lease, Spending(usd_per_hour=4.0, usd=8.0), now=NOW + 30)
    assert (more.set_at, more.budget_until) == (NOW + 30, NOW + 30 + 1800)


def test_a_lease_in_words() -> None:
    assert describe_lease(None, now=NOW).startswith("none")
    assert describe_lease(Lease(set_at=NOW, until=NOW + 3660, idle_s=3600.0), now=NOW) == (
        f"ends in 1h01m ({render_time(NOW + 3660)}), or after 1h without use"
    )
    assert describe_lease(FULL._replace(until=None, idle_s=None), now=NOW) == "stops at $123456.78 (in 2h00m)"
    assert describe_lease(FULL._replace(until=None, idle_s=None), now=LATER + 7200) == "stops at $123456.78 (now)"
