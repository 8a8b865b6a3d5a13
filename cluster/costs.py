"""Keeps the ledger of a cluster's costs: on this machine, and in [data] results if that is in S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from cluster.app import App
from foundation.errors import ClusterError, NotFoundError
from foundation.progress import Event
from provision.aws.clients import Clients
from provision.cost import storage
from provision.cost.ledger import Ledger, merge, note
from provision.cost.observe import add_prices, observe
from provision.describe import describe_cluster
from train.s3.connection import Connection
from train.s3.url import S3Url, parse_url


def ledger_url(app: App) -> S3Url | None:
    """Where the ledger is in S3; None without [data] results in S3."""
    results = app.config.data.s3_results
    if results is None:
        return None
    folder = parse_url(results).as_folder()
    return S3Url(bucket=folder.bucket, key=f"{folder.key}costs/{app.config.name}.json")


def update_ledger(app: App, clients: Clients, *, exists: bool) -> Ledger:
    """Note what EC2 shows now; returns the ledger. exists: see ClusterState.exists.

    A ledger in S3 that cannot be used is a warning. Raises ClusterError, AwsError.
    """
    url = ledger_url(app)
    connection = Connection(region=app.config.provision.region)
    found, writable = Ledger(), False
    if url is not None:
        try:
            found, writable = read_s3(connection, url), True
        except ClusterError as error:
            warn(app, f"the costs in {url} cannot be read: {error.message}")

    known = merge(storage.read(app.files.root), found)
    seen = observe(clients, name=app.config.name, exists=exists, known=known, now=datetime.now(UTC))
    noted = add_prices(clients, note(known, seen))
    ledger = storage.add(app.files.root, noted)
    if url is not None and writable and is_news(ledger, found):
        try:
            connection.call(
                "put_object",
                Bucket=url.bucket,
                Key=url.key,
                Body=storage.encode(ledger),
                ContentType="application/json",
            )
        except ClusterError as error:
            warn(app, f"the costs cannot be copied to {url}: {error.message}")
    return ledger


def is_news(ledger: Ledger, found: Ledger) -> bool:
    """Whether a ledger has more than the one in S3 than the time of the last look. Pure."""
    return bool(ledger.nodes) and (ledger.nodes, ledger.volumes, ledger.downs) != (
        found.nodes,
        found.volumes,
        found.downs,
    )


def read_s3(connection: Connection, url: S3Url) -> Ledger:
    """The ledger in S3; an empty one if there is none. Raises ClusterError's kinds."""
    try:
        body = connection.call("get_object", Bucket=url.bucket, Key=url.key)["Body"]
    except NotFoundError:
        return Ledger()
    with body:
        data = body.read(storage.MAX_BYTES)
    try:
        return storage.parse(data)
    except ValueError as error:
        raise ClusterError(f"it is damaged: {error}") from error


def warn(app: App, text: str) -> None:
    """Costs are only information: nothing else fails for them."""
    app.report(Event(kind="warn", what=text))


def note_costs(app: App, clients: Clients, *, exists: bool | None = None) -> Ledger | None:
    """Update the ledger after a command that changed the cluster, or shows it; None after a warning that it failed.

    exists: see ClusterState.exists; None to ask EC2.
    """
    try:
        if exists is None:
            state = describe_cluster(clients.ec2, name=app.config.name, known=app.files.known_instances())
            exists = state.exists
        return update_ledger(app, clients, exists=exists)
    except ClusterError as error:
        warn(app, f"the costs were not noted: {error.message}")
        return None


@contextmanager
def noting_costs(app: App, clients: Clients, *, before: bool = False) -> Iterator[None]:
    """Update the ledger after the block, also after an error; after Ctrl-C, the next command does it.

    before: update it before the block, too, because what the block ends may not be in it.
    """
    if before:
        note_costs(app, clients)
    try:
        yield
    except ClusterError:
        note_costs(app, clients)
        raise
    note_costs(app, clients)
