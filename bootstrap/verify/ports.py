"""Who reaches whom on the parameter server's ports: what has one cause is told once. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.verify.compute import EVERYWHERE, Check

RANGES = ((9091, 9999), (10000, 49999))
"""Where the scheduler listens, and where ps-lite's servers and workers do (first and last port, both included)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One connection from a node to a port of another; `error` in the words of node/verify_ports.py, or None."""

    source: str
    target: str
    port: int
    error: str | None


def check_ports(
    listening: Mapping[str, Sequence[int]], refused: Mapping[str, str], attempts: Collection[Attempt]
) -> tuple[Check, ...]:
    """Checks for all nodes: of one that all others reach, of one that none reaches, and of each pair between.

    listening: the ports of each node. refused: why a node cannot listen.
    """
    checks = [
        _failed(node, "listening", why, cause="other programs have these ports", hint=_look("ss -ltn", node))
        for node, why in refused.items()
    ]
    blocked = _blocked_pairs(attempts)
    tried = {(attempt.source, attempt.target) for attempt in attempts}
    if len(blocked) > 1 and blocked.keys() == tried:
        return (*checks, _failed(EVERYWHERE, "each other", _say(blocked.values()), **_explain(blocked.values(), None)))
    for role, direction in ((1, "from every other node"), (0, "to every other node")):
        for node in listening:
            pairs = [pair for pair in tried if pair[role] == node]
            if len(pairs) > 1 and all(pair in blocked for pair in pairs):
                failures = [blocked.pop(pair) for pair in sorted(pairs)]
                checks.append(_failed(node, direction, _say(failures), **_explain(failures, node)))
                tried -= set(pairs)
    for (source, target), found in sorted(blocked.items()):
        checks.append(_failed(source, f"to {target}", _say([found]), **_explain([found], target)))
    troubled = {check.node for check in checks} | {target for _, target in blocked}
    good = [_passed(node, ports, len(listening)) for node, ports in listening.items() if node not in troubled and ports]
    return (*checks, *good)


def _blocked_pairs(attempts: Collection[Attempt]) -> dict[tuple[str, str], list[Attempt]]:
    blocked: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.error is not None:
            blocked.setdefault((attempt.source, attempt.target), []).append(attempt)
    return blocked


def _say(pairs: Collection[Sequence[Attempt]]) -> str:
    """Each error with its ports, once for as many pairs as it befell."""
    ports: dict[str, set[int]] = {}
    for attempt in (attempt for pair in pairs for attempt in pair):
        ports.setdefault(str(attempt.error), set()).add(attempt.port)
    said = []
    for error, found in ports.items():
        shown = sorted(found)
        if len(shown) > len(RANGES):
            listed = f"{len(shown)} ports between {shown[0]} and {shown[-1]}"
        else:
            listed = f"port{'s' if len(shown) > 1 else ''} {', '.join(map(str, shown))}"
        said.append(f"{listed}: {error}")
    return "; ".join(said)


def _explain(pairs: Collection[Sequence[Attempt]], target: str | None) -> dict[str, str]:
    """The cause and the next command for the worst of some errors."""
    errors = {attempt.error for pair in pairs for attempt in pair}
    place = target or "the nodes"
    if "timed out" in errors:
        return {
            "cause": f"the cluster's security group lacks its rule between members, or a firewall on {place} drops it",
            "hint": f"cluster up, which puts the rule back; then {_look('sudo nft list ruleset', target)}",
        }
    if "wrong answer" in errors or "no answer" in errors:
        cause = f"what answers at the private address of {place} is another host, or a proxy in between"
        return {"cause": cause, "hint": "cluster status"}
    return {
        "cause": f"a firewall on {place} rejects it, or there is no route between their subnets",
        "hint": _look("sudo nft list ruleset", target),
    }


def _look(command: str, node: str | None) -> str:
    return f"cluster exec --node {node} -- {command}" if node else f"cluster exec -- {command}"


def _failed(node: str, subject: str, said: str, *, cause: str, hint: str) -> Check:
    return Check(node=node, check="ports", subject=subject, status="failed", said=said, cause=cause, hint=hint)


def _passed(node: str, ports: Sequence[int], nodes: int) -> Check:
    listed = " and ".join(map(str, ports))
    others = f"{nodes - 1} other node{'s' if nodes > 2 else ''}"
    said = f"open for {others}" if nodes > 1 else "can be listened on; there is no other node"
    return Check(node=node, check="ports", subject=listed, status="ok", said=said)
