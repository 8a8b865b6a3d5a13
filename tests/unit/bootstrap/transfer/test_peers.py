"""Which node takes from which other: tables, and simulated distributions in which nodes join and die."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.transfer.sources import CANDIDATES_AT_MOST, Peer, Peers, choose_candidates


def member(name: str, files: str = "a") -> Peer:
    return Peer(name=name, address=f"10.0.0.{name}", port=1, files=frozenset(files))


def names(members: Sequence[Peer]) -> str:
    return " ".join(each.name for each in members)


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
    assert peers.feed(one, "a", asked=()) is None
    assert peers.feed(two, "a", asked=()) == one
    assert peers.feed(two, "b", asked=()) is None  # another file
    assert peers.feed(one, "a", asked=()) is None  # the first node again
    assert peers.feed(two, "a", asked=[one]) is None  # the first node did not provide it
    assert peers.feed(three, "a", asked=[one]) == two
    peers.lose(two)
    assert peers.feed(three, "a", asked=()) is None


@dataclass
class Playing:
    """A node like agent.py: it takes its files in order, each from its first peers or from the peer assigned to it."""

    member: Peer
    wanted: list[str]
    first: tuple[Peer, ...]
    has: set[str]
    asked: dict[str, set[Peer]] = field(default_factory=dict)
    told: Peer | None = None
    fed: bool = False
    dead: bool = False


class Play:
    """A simulated distribution; each method is one possible step."""

    def __init__(self) -> None:
        self.peers = Peers()
        self.nodes: dict[str, Playing] = {}
        self.uploads = 0

    def join(self, number: int, wanted: list[str], has: set[str]) -> None:
        joined = member(str(number), "".join({*wanted, *has}))
        candidates = self.peers.join(joined, wanted)
        self.nodes[joined.name] = Playing(member=joined, wanted=list(wanted), first=candidates, has=set(has))

    def die(self, node: Playing, *, noticed: bool) -> None:
        node.dead = True
        if noticed:
            self.peers.lose(node.member)

    def step(self, node: Playing) -> bool:
        """Lets a node act; returns whether it made progress."""
        if node.dead or not node.wanted:
            return False
        file = node.wanted[0]
        if node.fed:
            return self.have(node, file)
        for upstream in [self.nodes[m.name] for m in ([node.told] if node.told else node.first)]:
            if upstream.dead:
                continue
            if file in upstream.has:
                return self.have(node, file)
            if file in upstream.wanted:
                return False  # the upstream node sends signs of life
        asked = node.asked.setdefault(file, set(node.first))
        node.told = self.peers.feed(node.member, file, asked=asked)
        if node.told is None:
            node.fed = True
            self.uploads += 1
        else:
            asked.add(node.told)
        return True

    def have(self, node: Playing, file: str) -> bool:
        node.wanted.remove(file)
        node.has.add(file)
        node.told, node.fed = None, False
        return True


FILES = st.permutations("abc").flatmap(lambda files: st.integers(0, 3).map(lambda count: files[:count]))


@settings(max_examples=300)
@given(st.lists(st.tuples(FILES, st.sets(st.sampled_from("abc"))), min_size=1, max_size=7), st.randoms())
def test_no_cycle_of_waiting_nodes(nodes: list[tuple[list[str], set[str]]], chance: object) -> None:
    pick = chance.choice  # type: ignore[attr-defined]
    play = Play()
    coming = list(enumerate(nodes))
    while True:
        acts = [
            lambda: play.join(coming[0][0], [f for f in coming[0][1][0] if f not in coming[0][1][1]], coming[0][1][1])
        ]
        living = [node for node in play.nodes.values() if not node.dead]
        what = pick(["join", "step", "step", "step", "step", "die"])
        if what == "join" and coming:
            acts[0]()
            coming.pop(0)
        elif what == "die" and living:
            play.die(pick(living), noticed=pick([True, False]))
        elif not coming and not any(play.step(node) for node in pick([living, living[::-1]])):
            break
        elif living:
            play.step(pick(living))
    for node in play.nodes.values():
        assert node.dead or not node.wanted, f"{node.member.name} waits for {node.wanted} for ever"


@given(st.lists(FILES.filter(len), min_size=1, max_size=9), st.randoms())
def test_without_deaths_files_are_uploaded_once(wanted: list[list[str]], chance: object) -> None:
    play = Play()
    for number, files in enumerate(wanted):
        play.join(number, files, set())
    while living := [node for node in play.nodes.values() if node.wanted]:
        play.step(chance.choice(living))  # type: ignore[attr-defined]
    assert play.uploads <= len({file for files in wanted for file in files}) + len(wanted) - 1
