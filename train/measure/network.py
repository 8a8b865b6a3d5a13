"""Measures the network between nodes, pair by pair: bytes per second and round trips."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import NodeProgram
from foundation.decode import decode
from foundation.errors import ClusterError
from node.protocol import Name, find_first_key, shorten
from train.follow.head import SILENCE_S

MAX_ALL_PAIRS = 8
"""Up to this many nodes, every ordered pair is measured; with more nodes, the head to all others, and a ring."""
PINGS = 200
START_S, PAIR_S = 60.0, 30.0  # limits: until all nodes listen; for a pair, besides the measured seconds
PROGRAM = "bench_network"
_BLOCKED = "cluster verify checks the ports between nodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One direction between two nodes.

    bytes_per_s: measured at the receiver. round_trips_s: the time of each round trip, in seconds.
    """

    source: str
    target: str
    bytes_per_s: float
    round_trips_s: tuple[float, ...]

    @property
    def round_trip_s(self) -> float:
        """The median round trip, in seconds."""
        return statistics.median(self.round_trips_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkResult:
    """The measurement. seconds, streams: the duration and the number of parallel connections of each pair."""

    nodes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    seconds: float
    streams: int

    @property
    def all_pairs(self) -> bool:
        """Whether every ordered pair was measured."""
        return len(self.pairs) == len(self.nodes) * (len(self.nodes) - 1)


def choose_pairs(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the (source, target) pairs to measure. names: the nodes, with the head first. Pure.

    Up to MAX_ALL_PAIRS nodes, these are all ordered pairs; with more, the head to all others, and a ring.
    """
    if len(names) <= MAX_ALL_PAIRS:
        return tuple((source, target) for source in names for target in names if source != target)
    ring = zip(names, [*names[1:], names[0]], strict=True)
    return tuple(dict.fromkeys([*((names[0], target) for target in names[1:]), *ring]))


def measure_network(
    nodes: Sequence[ReadyNode], *, seconds: float, streams: int, on_pair: Callable[[Pair], None]
) -> NetworkResult:
    """Measures one pair after another, each for `seconds`. on_pair: called with each result.

    Raises ClusterError for nodes that cannot reach each other, and ConnectError.
    """
    by_name = {node.host.name: node for node in nodes}
    planned = choose_pairs(list(by_name))
    limit_s = START_S + len(planned) * (PAIR_S + seconds)
    common = {"secret": secrets.token_hex(16), "limit_s": limit_s}
    pairs: list[Pair] = []
    with ExitStack() as stack:
        ports = _listen(nodes, common, stack)
        targets_of: dict[str, list[str]] = {}
        for source, target in planned:
            targets_of.setdefault(source, []).append(target)
        for source, targets in targets_of.items():
            peers = [{"name": name, "ip": by_name[name].host.private_ip, "port": ports[name]} for name in targets]
            order = {"do": "send", "peers": peers, "seconds": seconds, "streams": streams, "pings": PINGS}
            with closing(_start(by_name[source], {**order, **common}, silence_s=SILENCE_S + seconds)) as program:
                for said in _messages(program, source, deadline_s=limit_s):
                    pair = _read_pair(source, said)
                    on_pair(pair)
                    pairs.append(pair)
                    if len(pairs) > len(planned):
                        raise ClusterError(f"{source}: {PROGRAM} sent more results than expected")
    return NetworkResult(nodes=tuple(by_name), pairs=tuple(pairs), seconds=seconds, streams=streams)


def _listen(nodes: Sequence[ReadyNode], common: Mapping[str, Any], stack: ExitStack) -> dict[str, int]:
    """Starts a receiver on every node, which runs until `stack` closes. Returns the port on each node."""
    ports: dict[str, int] = {}

    def listen(node: ReadyNode) -> None:
        program = _start(node, {"do": "receive", "address": node.host.private_ip, **common})
        stack.callback(program.close)
        said = next(_messages(program, node.host.name, deadline_s=START_S), None)
        if said is None or said.listening is None:
            raise ClusterError(f"{node.host.name}: {PROGRAM} ended before it listened", hint=_BLOCKED)
        ports[node.host.name] = said.listening

    on_all(nodes, listen)
    return ports


def _start(node: ReadyNode, order: Mapping[str, Any], *, silence_s: float = SILENCE_S) -> NodeProgram:
    program = NodeProgram(node.connection, PROGRAM)
    program.silence_s = silence_s
    program.tell(order)
    return program


class _Said(Struct, frozen=True, kw_only=True):
    """A line that the program on a node prints: the port where it listens, a result for a peer, or an error."""

    listening: Annotated[int, Meta(ge=1, le=65535)] | None = None
    to: Name | None = None
    error: str | None = None
    bytes: Annotated[int, Meta(ge=0)] = 0
    seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    round_trips_s: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(max_length=PINGS)] = ()


def _messages(program: NodeProgram, node: str, *, deadline_s: float) -> Iterator[_Said]:
    """Yields the program's messages, without keep-alives. Raises ClusterError for an invalid line."""
    for line in program.lines(time.monotonic() + deadline_s):
        if find_first_key(line) == "alive":
            continue
        try:
            yield decode(line, _Said)
        except ValueError as error:
            raise ClusterError(f"{node}: {PROGRAM} sent an invalid line: {error}", hint=_BLOCKED) from None


def _read_pair(source: str, said: _Said) -> Pair:
    """Returns the result of one pair. Raises ClusterError if the line has no result or reports an error."""
    if said.to is None or not (said.error or said.round_trips_s):
        raise ClusterError(f"{source}: {PROGRAM} sent a line without a result", hint=_BLOCKED)
    if said.error is not None:
        raise ClusterError(f"{source} to {said.to}: {shorten(said.error)}", hint=_BLOCKED)
    return Pair(
        source=source,
        target=said.to,
        bytes_per_s=said.bytes / said.seconds if said.seconds else 0.0,
        round_trips_s=said.round_trips_s,
    )
