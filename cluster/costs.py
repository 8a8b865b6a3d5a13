"""Keeps the ledger of a cluster's costs on this machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from cluster.app import App
from cluster.nodes.ec2 import describe_state
from cluster.nodes.source import Nodes
from foundation.errors import ClusterError
from provision.cost import bill, storage
from provision.cost.bill import ClusterBill, make_bills
from provision.cost.ledger import Ledger, note
from provision.cost.observe import find_prices, observe
from provision.lease.lease_plan import Spending


def find_spending(app: App) -> Spending:
    """Returns what the cluster costs and has cost by the ledger, for the budget of its lease. Does not raise."""
    with suppress(ClusterError):  # a damaged file, which `cluster cost` reports
        return bill.find_spending(storage.read(app.files.root), now=time.time())
    return Spending()


def find_spent(app: App, exists: bool) -> float:  # noqa: FBT001 - see Request.find_spent
    """Returns what a cluster has cost, in US dollars; 0 if it is deleted or unknown. Does not raise.

    Notes first how its nodes have ended, and whether it was deleted from elsewhere: the next launch begins another.
    """
    if not (exists or _read_prices(app)):
        return 0.0
    note_costs(app, exists=exists)
    return find_spending(app).usd if exists else 0.0


def find_bill(app: App, before: Ledger | None) -> ClusterBill | None:
    """Returns the bill of the cluster that a command has deleted; None if it had no nodes, or the ledger is unknown.

    before: the ledger before the command.
    """
    if before is None or not before.nodes:
        return None
    is_of_earlier = max(before.downs, default=0.0) >= max(node.launched_at for node in before.nodes)
    bills = make_bills(storage.read(app.files.root), now=time.time())
    return bills[-1] if bills and not is_of_earlier else None


def note_costs(app: App, *, exists: bool | None = None) -> Ledger | None:
    """Updates the ledger after a command that changes or shows the cluster, and returns it.

    A failure is a warning, and returns None. exists: see ClusterState.exists; None: EC2 is asked.
    """
    try:
        root, name, config, here = app.files.root, app.config.name, app.config.provision, app.files.known_instances()
        if exists is None:
            exists = describe_state(app).exists
        known, now = storage.read(root), datetime.now(UTC)
        seen = observe(app.clients, name=name, exists=exists, known=known, here=here, config=config, now=now)
        ledger = storage.update(root, lambda known: note(known, seen))
        return storage.update(root, find_prices(app.clients, ledger))
    except ClusterError as error:  # costs are only information: no command fails because of them
        app.warn(f"the costs were not recorded: {error.message}")
        return None


def find_node_prices(app: App, nodes: Nodes) -> dict[str, float]:
    """Returns the prices in the ledger, in US dollars per hour by instance id, without unknown ones.

    First adds the nodes that the ledger lacks, on a machine that did not launch them.
    """
    noted = _read_prices(app)
    if nodes.state is not None and any(node.instance_id not in noted for node in nodes.state.nodes):
        note_costs(app, exists=True)
        noted = _read_prices(app)
    return {instance_id: usd for instance_id, usd in noted.items() if usd is not None}


def _read_prices(app: App) -> dict[str, float | None]:
    with suppress(ClusterError):  # a damaged file, which note_costs reports
        return {node.instance_id: node.usd_per_hour for node in storage.read(app.files.root).nodes}
    return {}


@contextmanager
def noting_costs(app: App, *, exists: bool | None = True) -> Iterator[None]:
    """Updates the ledger after the block, even after a ClusterError; after Ctrl-C, the next command updates it.

    exists: whether the cluster exists after a block that succeeds; None: EC2 is asked.
    """
    try:
        yield
    except ClusterError:
        note_costs(app)
        raise
    note_costs(app, exists=exists)
