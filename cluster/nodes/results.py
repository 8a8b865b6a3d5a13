"""Finds the files that a job has created, on its nodes and in [data] results, and copies them to this machine."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import on_all
from cluster.app import App, if_interrupted
from cluster.jobs import open_jobs
from cluster.nodes.source import Nodes
from cluster.session import source_of
from cluster.views.data import counting_bar
from cluster.views.results import render_skipped
from foundation.errors import ClusterError, NotFoundError
from node.agent.work_folder import OUTPUT
from node.job.results import OURS
from provision.model import count
from train.follow.records import JobRecord
from train.follow.results import Copy, Listing, choose_files, copy_all, find_clash
from train.s3 import operations as s3
from train.s3.url import S3Object, parse_url

S3 = "s3"
VOLUME = "volume"


@dataclass(kw_only=True)
class JobResults:
    """A job's files. listings: by the node's name, or VOLUME. s3_names: those below `s3_url`, if that is set.

    gone: nodes that no longer run, with files. errors: of nodes that cannot be asked, or S3, by name.
    """

    listings: dict[str, Listing] = field(default_factory=dict)
    s3_url: str | None = None
    s3_names: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    errors: dict[str, ClusterError] = field(default_factory=dict)

    @property
    def has_files(self) -> bool:
        """Whether there is anything to copy."""
        return bool(self.s3_names) or any(listing.files for listing in self.listings.values())


def copy_job(app: App, job: str | None, folder: Path | None = None) -> None:
    """Copies a job's files to a folder, by default results/ID. job: see JobSources.find_job. Raises ClusterError."""
    with open_jobs(app) as sources:
        record = sources.find_job(job)
        target = folder or Path("results", record.id)
        if not record.has_ended:
            app.message(f"job {record.id} is {record.state}: these are its files so far")
        with (
            if_interrupted("run the command again: it copies what is missing"),
            open_results(app, record, sources.nodes) as found,
        ):
            if folder is None and found.has_files:
                keep_from_jobs(target.parent)
            copy_results(app, record, found, target)
    if record.has_ended:
        app.files.note_copied(record.id)


def keep_from_jobs(folder: Path) -> None:
    """Creates a folder whose files no job sends to the nodes, not even while they arrive. Raises ClusterError."""
    try:
        folder.mkdir(exist_ok=True)
        with suppress(FileExistsError), (folder / ".gitignore").open("x") as stream:
            stream.write("*\n")
    except OSError as error:
        raise ClusterError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextmanager
def open_results(app: App, record: JobRecord, nodes: Nodes | None) -> Iterator[JobResults]:
    """Yields a job's files. nodes: the cluster's, if there is one. The connections are closed at the end of the block.

    Raises ClusterError when no node can be reached from this machine.
    """
    found = JobResults()
    with ExitStack() as stack:
        connects = _find_connects(app, record, nodes, found, stack)

        def ask(name: str, *words: str, source: str = "") -> None:
            try:
                listing = Listing(connects[name](), record.id, *words)
            except ClusterError as error:
                found.errors[name] = error
            else:
                stack.callback(listing.close)
                found.listings[source or name] = listing

        on_all(tuple(connects), ask)
        found.listings = {name: found.listings[name] for name in connects if name in found.listings}
        output_url = record.spec.output_url
        if output_url is not None and output_url.startswith("/") and found.listings:
            ask(next(name for name in connects if name in found.listings), output_url, source=VOLUME)
        results = app.config.data.s3_results
        if results is not None:
            found.s3_url = f"{results.rstrip('/')}/{record.id}/"
            try:
                found.s3_names = _list_s3(found.s3_url, region=app.config.provision.region)
            except ClusterError as error:
                found.errors[found.s3_url] = error
        yield found


def _find_connects(
    app: App, record: JobRecord, nodes: Nodes | None, found: JobResults, stack: ExitStack
) -> dict[str, Callable[[], NodeConnection]]:
    """Returns functions that connect to the job's hosts that run, by name; adds the others to `found.gone`."""
    connects: dict[str, Callable[[], NodeConnection]] = {}
    with_files = {files.host for files in record.files if files.count or files.is_part}
    if nodes is not None:
        there = [host for host in record.nodes if host.name in nodes.names]
        is_any_running = any(host.name in nodes.running for host in there)
        connections = stack.enter_context(source_of(app).open_connections()) if is_any_running else None
        for host in there:
            try:
                now = nodes.find_host(host.name)
            except ClusterError as error:
                if host.name in nodes.running or host.name in with_files or not record.has_ended:
                    found.errors[host.name] = error
            else:
                if connections is not None and host.instance_id in (None, "", now.instance_id):
                    connects[host.name] = partial(connections.get, now)
    found.gone = tuple(
        host.name for host in record.nodes if host.name in with_files and host.name not in {*connects, *found.errors}
    )
    return connects


def _list_s3(url: str, *, region: str) -> tuple[str, ...]:
    try:
        entries = s3.ls(url, region=region, recursive=True)
    except NotFoundError:
        return ()
    folder = parse_url(url).as_folder().key
    names = (entry.url.key.removeprefix(folder) for entry in entries if isinstance(entry, S3Object))
    return tuple(name for name in names if not is_ours(name))


def is_ours(name: str) -> bool:
    """Whether a name in a job's folder of [data] results is of its record or log. Pure."""
    return OURS.fullmatch(name) is not None


def find_copies(names: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """The names below a job's folder of [data] results of files that nodes have in $CLUSTER_OUTPUT_DIR. Pure.

    names: of the files on each node.
    """
    outputs = ((node, name.partition("/")) for node, of_node in names.items() for name in of_node)
    return frozenset(f"{OUTPUT}/{node}/{rest}" for node, (folder, _, rest) in outputs if folder == OUTPUT)


def copy_results(app: App, record: JobRecord, found: JobResults, folder: Path) -> None:
    """Copies the files, and says what was copied, and what are no files that can be copied.

    Raises ClusterError if the folder cannot be written to, or files could not be copied.
    """
    chosen = {name: choose_files(listing.files, where=name) for name, listing in found.listings.items()}
    sources: dict[str, Collection[str]] = {name: names.values() for name, (names, _) in chosen.items() if names}
    from_nodes = find_copies({name: names.values() for name, (names, _) in chosen.items()})
    s3_names = [name for name in found.s3_names if name not in from_nodes]
    if s3_names:
        sources[S3] = s3_names
    left = [text for _, texts in chosen.values() for text in texts]
    if left:
        app.message(render_skipped(left), style="yellow")
    if found.gone:
        app.message(
            f"{', '.join(found.gone)}: no longer there, and the files of job {record.id} with it", style="yellow"
        )
    if not sources:
        _raise_errors(found.errors, ())
        where = f", or below {found.s3_url}" if found.s3_url else ""
        app.message(f"job {record.id} has no files in its working folder or $CLUSTER_OUTPUT_DIR{where}")
        return
    clash = find_clash(sources)
    if clash is not None:
        first, second, name = clash
        app.message(f"{first} and {second} both have {name}: the files of each are in a folder of its own")
    prefixes = {source: "" if clash is None else f"{source}/" for source in sources}
    copies = [
        Copy(listing=found.listings[name], names={at: prefixes[name] + path for at, path in names.items()})
        for name, (names, _) in chosen.items()
        if names
    ]
    if copies:
        total = sum(copy.listing.files[number].size_bytes for copy in copies for number in copy.names)
        with counting_bar(app, "copying", total, "bytes") as moved:
            copy_all(copies, folder, moved=moved)
    files, unchanged = sum(copy.files for copy in copies), sum(copy.unchanged for copy in copies)
    size_bytes = sum(copy.size_bytes for copy in copies)
    if s3_names and found.s3_url is not None:
        into, region = str(folder / prefixes[S3]), app.config.provision.region
        got = s3.get([found.s3_url], into, region=region, exclude=lambda name: is_ours(name) or name in from_nodes)
        files += len(got.plan.transfers)
        size_bytes += sum(transfer.size_bytes for transfer in got.plan.transfers)
        unchanged += len(got.plan.unchanged)
    same = f"; {count(unchanged, 'file')} unchanged" if unchanged else ""
    app.message(f"copied {count(files, 'file')} ({decimal(size_bytes)}) from {', '.join(sources)} to {folder}{same}")
    for copy in copies:
        if copy.error is not None:
            found.errors[copy.listing.name] = copy.error
    _raise_errors(found.errors, [text for copy in copies for text in copy.failed])


def _raise_errors(errors: Mapping[str, ClusterError], failed: Sequence[str]) -> None:
    """Raises ClusterError if not all files could be copied."""
    texts = [error.message if name in error.message else f"{name}: {error.message}" for name, error in errors.items()]
    if texts or failed:
        first = "; then ".join(dict.fromkeys(error.hint for error in errors.values() if error.hint))
        again = "run the command again: it copies what is missing"
        raise ClusterError(render_skipped([*texts, *failed]), hint=f"{first}; then {again}" if first else again)
