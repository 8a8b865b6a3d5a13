"""Which node takes from which other."""

from collections.abc import Sequence

import pytest

from bootstrap.transfer.sources import CANDIDATES_AT_MOST, Peer, Peers, choose_candidates


def member(name: str, files: str = "a") -> Peer:
    return Peer(address=f"10.0.0.{name}", port=1, files=frozenset(files))


def names(members: Sequence[Peer]) -> str:
    return " ".join(each.address.removeprefix("10.0.0.") for each in members)


MANY = [member(str(number)) for number in range(100)]


@pytest.mark.parametrize(
    ("members", "missing", "lost", "chosen"),
    [
        ([], "a", "", ""),
        ([member("1"), member("2")], "a", "", "2 1"),
        ([member("1"), member("2"), member("3")], "a", "2", "3 1"),
        ([member("1", "ab"), member("2", "b"), member("3", "c")], "ad", "", "1"),
        ([member("1", "ab"), member("2", "b"), member("3", "c")], "bc", "", "3 2 1"),
        ([member("1", "ab")], "", "", ""),
        (MANY, "a", "", names(MANY[: -CANDIDATES_AT_MOST - 1 : -1])),
    ],
)
def test_choose_candidates(members: list[Peer], missing: str, lost: str, chosen: str) -> None:
    gone = {f"10.0.0.{name}" for name in lost.split()}
    assert names(choose_candidates(members, missing, lost=gone)) == chosen


def test_one_node_is_fed_at_a_time() -> None:
    peers = Peers()
    one, two, three = member("1"), member("2"), member("3")
    assert peers.feed(one, "a", excluded=()) is None
    assert peers.feed(two, "a", excluded=()) == one
    assert peers.feed(two, "b", excluded=()) is None  # another file
    assert peers.feed(one, "a", excluded=()) is None  # the first node again
    assert peers.feed(two, "a", excluded=[one]) is None  # the first node did not provide it
    assert peers.feed(three, "a", excluded=[one]) == two
    peers.lose(two)
    assert peers.feed(three, "a", excluded=()) is None
