"""[train] nodes: which of the cluster's nodes a job uses. Pure."""

import re
from collections.abc import Mapping

from foundation.errors import ClusterError
from provision.model import Market, count

_AT_LEAST = re.compile(r"([1-9][0-9]{0,3})\.\.")
_MARKETS: tuple[Market, ...] = ("spot", "on-demand")


def check_nodes(value: int | str) -> int | str:
    """Returns [train] nodes unchanged. Pure. Raises ValueError."""
    if isinstance(value, int):
        if not 1 <= value <= 9999:
            raise ValueError("must be from 1 to 9999")
        return value
    if value not in ("requested", "current", *_MARKETS) and _AT_LEAST.fullmatch(value) is None:
        raise ValueError('must be "current", "requested", "spot", "on-demand", a number, or a minimum such as "2.."')
    return value


def parse_nodes(text: str) -> int | str:
    """The value of `--nodes`: an int if it consists of digits. Pure."""
    return int(text) if text.isdecimal() else text


def select_nodes(selection: int | str, nodes: Mapping[str, Market], *, requested: int) -> tuple[str, ...]:
    """The names of a job's nodes, in the order of `nodes`. Pure.

    selection: [train] nodes. nodes: the cluster's, with their markets, the head first. requested: [provision] nodes.
    Raises ClusterError if the cluster has fewer than it needs.
    """
    if selection in _MARKETS:
        names = tuple(name for name, market in nodes.items() if market == selection)
        return _at_least(names, 1, f"{selection} node")
    names = tuple(nodes)
    if isinstance(selection, int):
        return _at_least(names, selection, "node")[:selection]
    found = _AT_LEAST.fullmatch(selection)
    least = int(found[1]) if found is not None else requested if selection == "requested" else 1
    return _at_least(names, least, "node")


def _at_least(names: tuple[str, ...], least: int, what: str) -> tuple[str, ...]:
    if len(names) >= least:
        return names
    raise ClusterError(
        f"train.nodes: the job needs {count(least, what)}, and the cluster has {len(names) or 'none'}",
        hint="cluster up adds the nodes of cluster.toml; --queue waits for them; or choose others with [train] nodes",
    )
