"""Which node takes from which other."""

from bootstrap.transfer.sources import Peer, Peers


def member(name: str, files: str = "a") -> Peer:
    return Peer(address=f"10.0.0.{name}", port=1, files=frozenset(files))


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
