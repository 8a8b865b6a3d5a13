"""How a job's workers read their data from S3, and what its credentials allow there. Pure.

MXNet reads s3:// itself, or local files that train/node/staging/ stages for it, and has a worker's Python read.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from foundation.errors import ConfigError
from provision.aws.iam_policy import S3Scope
from provision.oracle.tables import find_wheel
from train.job.config import DataConfig, TrainConfig
from train.job.placement import Placement
from train.s3.environment import S3Access

INSTANCE_CREDENTIALS_S = 6 * 3600
"""How long those of an instance profile are valid at most; a job that starts may find them half used up."""
SHORT_S = 2 * 3600
"""Credentials that end sooner are warned of in a job that has no time limit: AWS gives some for an hour alone."""
_STAGE = 'set [data] mode = "stage"'
_PYTHON_READERS = re.compile(r"\b(ImageRecordDataset|RecordFileDataset|MXIndexedRecordIO|ImageIter|ImageDetIter)\b")
_OF_NODES = f'set [provision] instance_profile = "auto", and {_STAGE.removeprefix("set ")}'
# An s3:// URL within a word, up to what a shell, MXNet's readers or IAM do not take for a part of it. MXNet's readers
# take several with ; between them, other programs with a comma.
_URL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/(?:(?!,s3://)[^\s;'\"`|<>()?#*$\\\x00-\x1f\x7f])*)?"
_URLS = re.compile(_URL)
_SAVED = re.compile(rf"--model[-_]prefix(?:=|\s+)['\"]?({_URL})")
"""MXNet's own option for where a model is saved, and loaded from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """mode: who reads from S3, MXNet ("native") or stage.py. why: in a few words, for the reader.

    limit_s: for how many seconds MXNet can read, which cannot renew its credentials; None where nothing ends, or
    where it is not known. unreadable: a reader that the program uses and that cannot read s3:// in this mode.
    """

    mode: Literal["native", "stage"]
    why: str
    limit_s: float | None = None
    unreadable: str | None = None


def find_python_reader(program: str) -> str | None:
    """The first reader of MXNet's that a program names and that opens files by Python, which cannot open s3://. Pure.

    Each opens an index or a list so; MXNet's C++ code opens what other readers read.
    """
    found = _PYTHON_READERS.search(program)
    return found[0] if found is not None else None


def plan_reading(data: DataConfig, access: S3Access, *, library: str, program: str = "") -> Reading:
    """Decide for a job; library: "mxnet==1.7.0.post2", "source@v1.7.x". program: its text, as far as it is known.

    Raises ConfigError where MXNet is to read s3:// itself and is known not to.
    """
    wheel = find_wheel(library)
    reads = wheel.reads_s3 if wheel is not None else None  # None: not known
    if data.mode == "native" and reads is False:
        raise ConfigError(f'data.mode = "native": {library} cannot read s3://', hint=f'{_STAGE}, or "auto"')
    reader = find_python_reader(program)
    if data.mode == "native" or (data.mode == "auto" and reads and reader is None):
        limit_s = INSTANCE_CREDENTIALS_S if access.of_nodes else access.left_s
        why = f"{library} can" if reads else "as [data] mode says"
        return Reading(mode="native", why=why, limit_s=limit_s, unreadable=reader)
    if data.mode == "stage":
        return Reading(mode="stage", why="as [data] mode says")
    cannot = f"{reader} cannot" if reads else f"{library} {'cannot' if reads is False else 'may not'}"
    return Reading(mode="stage", why=f"{cannot} read s3://")


def reading_environment(reading: Reading, data: DataConfig, placement: Placement, access: S3Access) -> dict[str, str]:
    """What a job's processes get to read so."""
    if reading.mode == "native":
        return {}
    env = {"CLUSTER_DATA_MODE": "stage", "CLUSTER_DATA_RANKS": " ".join(guess_ranks(placement))}
    if data.cache_gib != "auto":
        env["CLUSTER_DATA_CACHE_GIB"] = repr(data.cache_gib)
    if data.cache_dir != "auto":
        env["CLUSTER_DATA_CACHE_DIR"] = data.cache_dir
    if access.of_nodes:
        env["CLUSTER_DATA_CREDENTIALS"] = "instance"
    return env


def guess_ranks(placement: Placement) -> list[str]:
    """The nodes of the workers by the ranks that these will probably get.

    ps-lite gives them by address, as text and backwards (its src/van.cc, ProcessAddNodeCommandAtScheduler). Where it
    is otherwise, data is fetched ahead of need for nobody.
    """
    nodes = sorted(placement.of_workers, key=lambda node: node.host.private_ip, reverse=True)
    return [node.host.name for node in nodes for _ in range(placement.workers[node.host.name])]


def reading_warnings(reading: Reading, config: TrainConfig, access: S3Access) -> list[str]:
    """What the user should know of a job that uses what cannot read so, or that may run longer than its credentials."""
    said = []
    if reading.unreadable is not None:
        said.append(f'data.mode = "native": {reading.unreadable}, in the program, cannot read s3:// so: {_STAGE}')
    wanted_s = config.max_duration_s
    # Those of this machine are renewed by nobody. Those of an instance profile are, where data is staged.
    limit_s, todo = (access.left_s, _OF_NODES) if access.left_s is not None else (reading.limit_s, _STAGE)
    if limit_s is not None and wanted_s is not None and wanted_s > limit_s:
        said.append(
            f'train.max_duration = "{config.max_duration}": the credentials that this job uses S3 with end before, '
            f"after {render_left(limit_s)}, and cannot be renewed: {todo}"
        )
    elif wanted_s is None and access.left_s is not None and access.left_s < SHORT_S:
        said.append(
            f"the credentials of this job end in {render_left(access.left_s)}, and cannot be renewed: after that "
            f"the job can neither read nor write S3. For a longer job, {todo}"
        )
    return said


def render_left(seconds: float) -> str:
    """A time that is left, in hours and minutes: "11 h 59 min"."""
    minutes = int(seconds // 60)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes // 60} h {minutes % 60} min"


def render_reading(reading: Reading) -> str:
    """The reading in a few words, as it stands behind where S3 is. Pure."""
    if reading.mode == "stage":
        return f"read from files staged on the nodes ({reading.why})"
    end = f", for {render_left(reading.limit_s)} at most" if reading.limit_s is not None else ""
    return f"read by MXNet itself ({reading.why}){end}"


# -- what a job's credentials allow ------------------------------------------------------------------------------------


def find_scope(config: TrainConfig, data: DataConfig, *, command: Sequence[str] = ()) -> S3Scope:
    """What a job needs: to read and write what [data] names, to read what else is named, to write at --model-prefix.

    command: what is run in place of [train] script.
    """
    words = "\n".join(command or config.args)
    variables = [value for env in (config.env, config.env_server, config.env_worker) for value in env.values()]
    folders = [url for url in (data.url, data.results) if url is not None]
    written = _without_covered(_SAVED.findall(words), folders=[url for url in (data.results,) if url is not None])
    named = _without_covered(_URLS.findall("\n".join([words, *config.setup])), folders=folders, beginnings=written)
    of_variables = _URLS.findall("\n".join(variables))
    return S3Scope(
        data_url=data.url,
        results_url=data.results,
        also_read=named,
        also_written=written,
        read_secretly=_without_covered(of_variables, folders=folders, beginnings=(*written, *named)),
    )


def _without_covered(
    urls: Iterable[str], *, folders: Iterable[str], beginnings: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Those that are in no folder, and begin with none of the others. A bucket alone gets a slash behind it."""
    insides = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    whole = {url if "/" in url.removeprefix("s3://") else f"{url}/" for url in urls}
    left = {url for url in whole if not f"{url}/".startswith(insides) and not url.startswith(beginnings)}
    return tuple(sorted(url for url in left if not any(url != other and url.startswith(other) for other in left)))


def render_access(access: S3Access, scope: S3Scope) -> str:
    """A job's credentials in a line: whose they are, what they may do, and how long."""
    if access.of_nodes:
        return "credentials: those of the nodes' instance profile"
    if not access.secrets:
        return "credentials: none, since neither [data] nor the job's arguments and variables name a place in S3"
    # Rounded up: what was made for 36 hours has some seconds less by now.
    left = f" for {render_left(access.left_s + 59)}" if access.left_s is not None else ""
    if access.warning is not None:
        return f"credentials: yours{left}, not limited"
    read = [url for url in scope.read if url not in scope.read_secretly]
    if scope.read_secretly:
        read.append("what your variables name")
    allowed = [f"{verb} {', '.join(urls)}" for verb, urls in (("read", read), ("write", scope.written)) if urls]
    return f"credentials: temporary{left}, to {' and '.join(allowed)}"
