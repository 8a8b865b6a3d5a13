"""Where a cluster that runs is not what cluster.toml asks for. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from provision.config import ProvisionConfig, all_types
from provision.model import Node


def find_differences(config: ProvisionConfig, nodes: Sequence[Node]) -> Iterator[str]:
    """What somebody should know who is about to use the nodes as they are; without nodes there is nothing to use."""
    enough = config.nodes if config.min_nodes == "all" else min(config.min_nodes, config.nodes)
    if 0 < len(nodes) < enough:
        yield f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster up adds the others)"
    elif len(nodes) > config.nodes:
        yield (
            f"[provision] nodes = {config.nodes}, and the cluster has {len(nodes)} (cluster resize {config.nodes} ends "
            "the others)"
        )
    others = Counter(node.instance_type for node in nodes if node.instance_type not in all_types(config))
    if others:
        listed = ", ".join(f"{count} {instance_type}" for instance_type, count in sorted(others.items()))
        yield (
            f'[provision] instance_type = "{config.instance_type}", and the cluster has {listed} (cluster down and '
            "cluster up make it anew)"
        )
    elsewhere = sorted({node.subnet_id for node in nodes if node.subnet_id is not None} - {config.subnet_id})
    if config.subnet_id != "auto" and elsewhere:
        yield (
            f'[provision] subnet_id = "{config.subnet_id}", and the cluster has nodes in {", ".join(elsewhere)} '
            "(cluster down and cluster up make it anew)"
        )
