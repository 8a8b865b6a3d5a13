"""Reads what a capsule or a problem report has, from the head, S3, EC2 and this machine, and writes it.

What cannot be read is named in the file, and is no error: nodes end, and a report is wanted because something fails.
"""

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import distributions
from itertools import islice, pairwise
from pathlib import Path
from platform import python_version
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from bootstrap.ssh.connections import try_on_all
from bootstrap.transfer.tree import Tree, file_of_bytes, make_tree
from bootstrap.verify.node_health import check_node
from cluster.app import App
from cluster.capsule.archive import CAPSULE, ERRORS, FILES, PROGRAM, Ingredients, encode, read_tree, unpack, write
from cluster.config import read_table
from cluster.jobs import JobSources, open_jobs
from cluster.nodes.source import Nodes
from cluster.session import collect, source_of
from cluster.status import describe_status
from cluster.views.status import status_document
from foundation.errors import ClusterError
from foundation.remote_command import HIDDEN, run_program
from node.job_folder import SECRET, mask
from node.protocol import JobSpec
from node.train_settings import ENVIRONMENTS
from train.follow.events import EventReader, render_line
from train.follow.records import JobRecord
from train.s3.operations import ls
from train.s3.url import S3Object, parse_url

# With these, all but the user's files is below 1 MB.
MOST_LINES = 1500  # of a log, at its begin and at its end
LONGEST_LINE = 250
MOST_OBJECTS = 2000
# What is a secret, whatever its name; and names of secrets, with what comes before a value.
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|pypi-|xox[abprs]-)[\w-]{10,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|https://hooks\.slack\.com/\S+|https://discord(?:app)?\.com/api/webhooks/\S+",
    re.DOTALL,
)
_NAME = (
    r"[\w-]*(?:SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|SIGNATURE|API[_-]?KEY|ACCESS[_-]?KEY"
    r"|PRIVATE[_-]?KEY|WEBHOOK|AUTHORIZATION)[\w-]*"
)
_START = rf"""(?:{_NAME}["']?\s*[=:]\s*["']?|--{_NAME} |\b(?:Bearer|Basic) )+"""
_NAMED = re.compile(rf"""({_START})(?![\d.,]+\b)[^\s"'&,;]{{4,}}""", re.IGNORECASE)
_ACCOUNT = re.compile(r"(?<![\w.])\d{12}(?!\w)")  # also in a bucket's name


def write_capsule(app: App, words: str | None, path: Path | None, *, is_report: bool = False) -> None:
    """Writes the capsule of the job that `words` names, or of the newest one, and prints its path and what it lacks.

    is_report: a report about a problem instead, with or without a job: it has the cluster's status, and not the user's
    files, nor values of variables. Raises ClusterError if there is no such job, or the file cannot be written.
    """
    missing: list[str] = []
    texts: dict[str, Any] = {"cluster.json": _try(missing, "cluster.toml", lambda: read_table(app.config_path))}
    if is_report:
        texts["versions.json"] = {one.name: one.version for one in distributions()} | {"Python": python_version()}
    tree = make_tree(())
    with TemporaryDirectory(prefix="cluster-capsule-") as folder:
        try:
            with open_jobs(app) as sources:
                if is_report and app.has_instances and sources.nodes is not None:
                    texts["status.json"] = _try(missing, "status", lambda: status_document(describe_status(app)))
                record = sources.find_job(words)
                data = _try(missing, "data", lambda: list_data(app, record.spec)) or {}
                ran = Ingredients(spec=record.spec, hosts=record.nodes, program=PROGRAM, data=data)
                log = _try(missing, "log", lambda: _read_log(record, sources))
                texts |= {CAPSULE: ran, "record.json": record, "log.txt": log or ""}
                texts["health.json"] = _try(missing, "health", lambda: _read_health(app, record, sources.nodes))
                if not is_report and record.spec.project is not None:
                    tree = _try(missing, "files", lambda: find_tree(app, record, sources, Path(folder))) or tree
        except ClusterError as error:
            if not is_report:
                raise
            missing.append(f"job: {error.message}")
        known = _try([], "", lambda: _find_secrets(app, is_report=is_report)) or ()
        clean = {name: scrub(to_builtins(one), known, is_public=is_report) for name, one in texts.items()}
        if HIDDEN in str(clean):
            missing.append(f"values that may be secrets ({HIDDEN} stands for each)")
        missing = [scrub(one, known, is_public=is_report) for one in missing]
        files = [file_of_bytes(name, encode(one)) for name, one in clean.items()]
        files += [replace(file, path=f"{FILES}/{file.path}") for file in tree.files]
        path = path or Path(f"{record.id}.capsule")
        write(path, files, missing, [f"{FILES}/{name}" for name in tree.folders])
    for one in missing:
        app.message(f"not in the file: {one}", style="yellow")
    app.print_line(str(path), wrapped=False)


def _try(missing: list[str], what: str, read: Callable[[], Any]) -> Any:
    """What a function reads; None if it cannot, and then adds the reason to `missing`."""
    try:
        return read()
    except (ClusterError, *ERRORS) as error:
        missing.append(f"{what}: {str(error).partition(chr(10))[0]}")
        return None


def _find_secrets(app: App, *, is_report: bool) -> frozenset[str]:
    """The values of secrets that this machine knows; for a report, those of all variables. Raises ConfigError."""
    variables = [pair for key in ENVIRONMENTS for pair in getattr(app.config.train, key).items()]
    values = [value for name, value in variables if is_report or mask(name, value) == HIDDEN]
    values += [value for name, value in os.environ.items() if mask(name, value) == HIDDEN]
    return frozenset(value for value in (*values, app.config.notify.webhook or "") if len(value) > 5)


def _read_log(record: JobRecord, sources: JobSources) -> str:
    """A job's log as `cluster logs` prints it. Raises ClusterError."""
    reader, head = EventReader(), _find_head(record)
    with sources.open_log(record, reader.learn) as lines:
        events = filter(None, map(reader.read, lines))
        return cut_middle(filter(None, (render_line(event, head=head) for event in events)))


def _read_health(app: App, record: JobRecord, nodes: Nodes | None) -> dict[str, Any]:
    """What each node of a job now reports of its disks, memory, GPUs and kernel log. Raises ClusterError."""
    hosts = [nodes.find_host(one.name) for one in record.nodes if one.name in nodes.names] if nodes is not None else []
    if not hosts:
        raise ClusterError("its nodes are gone")
    with source_of(app).open_connections() as connections:
        found = try_on_all(hosts, lambda host: check_node(connections.get(host)).report)
    names = [host.name for host in hosts]
    return {name: str(one) if isinstance(one, ClusterError) else one for name, one in zip(names, found, strict=True)}


def _find_head(record: JobRecord) -> str:
    """The name of a job's head; "its head" if the record does not say."""
    return next((node.name for node in record.nodes), "its head")


def cut_middle(lines: Iterable[str]) -> str:
    """The first and the last lines, and the number of those between them. Pure."""
    rest = (line[:LONGEST_LINE] for line in lines)
    first, last = list(islice(rest, MOST_LINES)), deque(enumerate(rest, start=1), MOST_LINES)
    left_out = last[-1][0] - len(last) if last else 0
    between = [f"... {left_out} lines are left out here ..."] if left_out else []
    return "".join(f"{line}\n" for line in (*first, *between, *(line for _, line in last)))


def list_data(app: App, spec: JobSpec) -> dict[str, str]:
    """The objects below the job's [data] url, as Ingredients has them; {} if that is not in S3. Raises ClusterError."""
    url = spec.env.get("CLUSTER_DATA_URL", "")
    if not url.startswith("s3://"):
        return {}
    folder = parse_url(url).as_folder().key
    found = [one for one in ls(url, region=app.config.provision.region, recursive=True) if isinstance(one, S3Object)]
    objects = {one.url.key.removeprefix(folder): f"{one.size_bytes} bytes, ETag {one.etag}" for one in found}
    digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
    return {"": f"{url}: {len(objects)} objects, SHA-256 {digest[:16]}", **dict(islice(objects.items(), MOST_OBJECTS))}


def find_tree(app: App, record: JobRecord, sources: JobSources, folder: Path) -> Tree:
    """The user's files that a job ran: those here if they are unchanged, or else the head's, in `folder`."""
    spec, ran = record.spec, str(record.spec.project)
    app.override("train.script", spec.train.script)
    app.override("train.cwd", spec.train.cwd)
    with suppress(ClusterError):  # such as a script that is gone
        here = collect(app, spec.typed_command, is_job=True, is_sent=False).project
        if here is not None and here.digest == ran:
            return here
    name, nodes, packed = _find_head(record), sources.nodes, f".cluster/{record.id}.tar.gz"
    if nodes is None or name not in nodes.names or not ran.isalnum():
        raise ClusterError(f"they have changed here, and {name} is gone")
    with source_of(app).open_connections() as connections:
        connection = connections.get(nodes.find_host(name))
        pack = run_program("tar", "-C", ".cluster/tree", f"--exclude={ran}/.complete", "-czf", packed, "--", ran)
        connection.run(pack, timeout_s=600, what="packing the job's files")
        connection.get(packed, folder / "tree.tar.gz")
        connection.run(run_program("rm", "-f", packed))
    unpack(folder / "tree.tar.gz", folder)
    tree = read_tree(folder / ran)
    if tree.digest != ran:
        raise ClusterError(f"they have changed here, and {name} has others in their place")
    return tree


def scrub(value: Any, known: Collection[str], *, is_public: bool = False, name: str = "") -> Any:
    """A value of JSON without what looks like a secret. known: values that are secrets. name: its key.

    is_public: also masks numbers of AWS accounts, and the values of all variables of a job. In a list, the word after
    an option such as --password is a secret.
    """
    if isinstance(value, Mapping):
        if is_public and name in ENVIRONMENTS:
            return dict.fromkeys(value, HIDDEN)
        return {key: scrub(one, known, is_public=is_public, name=str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        found = [scrub(one, known, is_public=is_public, name=name) for one in value]
        return [HIDDEN if _NAMED.fullmatch(f"{before} {one}") else one for before, one in pairwise(["", *found])]
    if not isinstance(value, str) or not value:
        return value
    if SECRET.search(name):
        return HIDDEN
    for one in sorted(known, key=len, reverse=True):
        value = value.replace(one, HIDDEN)
    text = _NAMED.sub(rf"\1{HIDDEN}", _FORMS.sub(HIDDEN, mask("", value)))
    return _ACCOUNT.sub(HIDDEN, text) if is_public else text
