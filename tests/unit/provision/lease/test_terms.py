"""Deadlines: texts, ends and changes."""

import pytest

from foundation.errors import ClusterError, ConfigError, UsageError
from foundation.settings import check
from provision.lease.config import LeaseConfig, find_conflicts
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

NOW = 1_800_000_000.0
KNOWN = Spending(usd_per_hour=2.0, usd=8.0)
FULL = Lease(
    set_at=NOW, until=NOW + 3600, idle_s=1800.0, budget_usd=123456.78, budget_until=NOW + 7200, then="stop"
)  # fmt: skip


@pytest.mark.parametrize("lease", [Lease(set_at=NOW), FULL, FULL._replace(until=None), FULL._replace(idle_s=None)])
def test_a_lease_is_its_text(lease: Lease) -> None:
    text = render_lease(lease)
    assert parse_lease(text) == lease
    assert parse_lease(f"{text} later=thing") == lease
    assert len(text) <= MAX_TEXT


@pytest.mark.parametrize(
    "text",
    [
        "","until=2026-11-25T15:00:00Z then=down","set=2026-11-25 then=down",
        "set=2026-11-25T15:00:00Z then=sleep",
        "set=2026-11-25T15:00:00Z then=down budget=nan", "set=2026-11-25T15:00:00Z then=down until=tomorrow",
    ],
)  # fmt: skip
def test_a_text_that_is_no_lease(text: str) -> None:
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


def make_config(**values: object) -> LeaseConfig:
    return check(LeaseConfig, values, source="cluster.toml")


def test_a_new_lease() -> None:
    lease = make_lease(make_config(lifetime="12h", idle="30m", budget_usd=200.0), now=NOW, spending=KNOWN)
    assert lease == Lease(NOW, NOW + 43200, 1800, 200.0, NOW + 96 * 3600, "down")
    assert make_lease(make_config(), now=NOW, spending=KNOWN) is None


@pytest.mark.parametrize(("spending", "said"), [(Spending(), "unknown"), (Spending(2.0, 200.0), "already cost")])
def test_a_budget_that_cannot_be_kept(spending: Spending, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[lease\] budget_usd = 200: .*{said}"):
        make_lease(make_config(budget_usd=200), now=NOW, spending=spending)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lifetime", "12"), ("lifetime", "0h"),("lifetime", -5),
        ("idle", "soon"),("budget_usd", 0),("budget_usd", "200"),
("budget_usd", float("nan")), ("then", "sleep"),
        ("life_time", "1h"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        make_config(**{"lifetime": "1h", key: value})


def test_conflicts_with_other_tables() -> None:
    stop = make_config(idle="1h", then="stop")
    assert list(find_conflicts(stop, market=("on-demand",), in_ec2=True)) == []
    assert "spot instances cannot be stopped" in next(find_conflicts(stop, market=("on-demand", "spot"), in_ec2=True))
    assert [said.partition(" = ")[0] for said in find_conflicts(
        make_config(lifetime="1h", idle="1h", budget_usd=3.0), market=(), in_ec2=False
    )] == ["[lease] lifetime", "[lease] idle", "[lease] budget_usd"]  # fmt: skip
    assert list(find_conflicts(make_config(), market=(), in_ec2=False)) == []


@pytest.mark.parametrize(
    ("change", "until", "idle_s", "budget"),
    [
        (Change(extend_s=14400), NOW + 3600 + 14400, 1800.0, 300.0),
        (Change(idle_s="none"), NOW + 3600, None, 300.0),
        (Change(budget_usd="none"), NOW + 3600, 1800.0, None),
        (Change(none=True), None, None, None),
    ],
)
def test_a_change(change: Change, until: float | None, idle_s: float | None, budget: float | None) -> None:
    old = FULL._replace(budget_usd=300.0)
    new = change_lease(old, change, now=NOW + 1800, spending=KNOWN, then="down")
    assert (new.until, new.idle_s, new.budget_usd, new.then) == (until, idle_s, budget, "stop")
    assert (new.set_at, new.budget_until) == (NOW + 1800, None if budget is None else old.budget_until)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (Change(idle_s=299), "in 4m: idle = 299s"),
        (Change(idle_s=300), None),
        (Change(budget_usd=8.125), "in 3m: the budget of $8.125"),
        (Change(extend_s=60), None),  # an hour is left
        (Change(none=True), None),
    ],
)
def test_a_change_that_ends_the_cluster_soon(change: Change, asked: str | None) -> None:
    new = change_lease(FULL, change, now=NOW, spending=KNOWN, then="down")
    assert find_near_end(FULL, new, now=NOW) == asked


@pytest.mark.parametrize(
    ("old", "change", "asked"),
    [
        (None, Change(extend_s=60), "in 1m: its lifetime"),
        (Lease(set_at=NOW, until=NOW + 60), Change(extend_s=60), None),  # later than before
        (Lease(set_at=NOW, until=NOW + 60), Change(idle_s=120), None),  # it ends anyway
        (Lease(set_at=NOW, until=NOW - 5), Change(extend_s=60), None),
    ],
)
def test_an_end_that_a_change_does_not_bring_is_not_asked_about(
    old: Lease | None, change: Change, asked: str | None
) -> None:
    new = change_lease(old, change, now=NOW, spending=Spending(), then="down")
    assert find_near_end(old, new, now=NOW) == asked


def test_a_budget_counts_from_the_launch_on() -> None:
    """Also one that is set later."""
    old = Lease(set_at=NOW, idle_s=3600.0)
    limited = change_lease(old, Change(budget_usd=10.0), now=NOW + 600, spending=KNOWN, then="down")
    assert (limited.budget_usd, limited.budget_until) == (10.0, NOW + 600 + 3600)


def test_more_time_after_the_deadline_or_without_one_begins_now() -> None:
    old = Lease(set_at=NOW, until=NOW + 10)
    assert change_lease(old, Change(extend_s=60), now=NOW + 500, spending=Spending(), then="down").until == NOW + 560
    assert change_lease(None, Change(extend_s=60), now=NOW, spending=Spending(), then="stop") == Lease(
        set_at=NOW, until=NOW + 60, then="stop"
    )


def test_refused_changes() -> None:
    with pytest.raises(UsageError, match="--none"):
        change_lease(FULL, Change(none=True, extend_s=60), now=NOW, spending=KNOWN, then="down")
    with pytest.raises(ClusterError, match="already cost"):
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
        "ends in 1h01m (2027-01-15T09:01:00Z), or after 1h without use"
    )
    assert describe_lease(FULL._replace(until=None, idle_s=None), now=NOW) == "stops at $123457 (in 2h00m)"
