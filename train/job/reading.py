"""Plans how a job's workers read their data from S3, and what its credentials allow there. Pure.

Programs read s3:// themselves, or local files that node/staging/ fetches. They save to local files, which it copies.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from foundation.durations import render_minutes
from foundation.errors import ConfigError
from node.engines.engine import Framework
from node.protocol import SAVED_AT, STAGED
from node.staging.words import RECORDS, URL, find_urls, is_below
from provision.aws.iam_policy import S3Scope
from provision.aws.s3_access import S3Access
from provision.oracle.tables import find_wheel
from train.job.config import DataConfig, TrainConfig

INSTANCE_CREDENTIALS_S = 6 * 3600
"""The longest validity of an instance profile's credentials; they may be half used up when a job starts."""
SHORT_S = 2 * 3600
"""A job without a time limit gets a warning if its credentials end sooner: some are valid for only an hour."""
DATA_DIR = "CLUSTER_DATA_DIR"
_STAGE = 'set [data] mode = "stage"'
_PYTHON_READERS = re.compile(r"\b(ImageRecordDataset|RecordFileDataset|MXIndexedRecordIO|ImageIter|ImageDetIter)\b")
# Programs that take s3:// URLs. PyTorch's distributed checkpoints do by fsspec's reader and writer.
_OWN_READERS = re.compile(
    r"^\s*(?:import|from)[ \t](?:[\w., \t]*[ \t,])?"
    r"(?:s3torchconnector|s3fs|fsspec|boto3|botocore|aiobotocore|aioboto3|obstore|cloudpathlib|minio)\b"
    r"|\bFsspec(?:Reader|Writer)\b|\baws s3\b|\bs5cmd\b",
    re.MULTILINE,
)
_OF_NODES = f'set [provision] instance_profile = "auto", and {_STAGE.removeprefix("set ")}'
_SAVED = re.compile(rf"--model[-_]prefix(?:=|\s+)['\"]?({URL.pattern})")
"""The option of MXNet's own scripts for where they save and load a model."""
_READ = re.compile(rf"--data[\w-]*(?:=|\s+)['\"]?({URL.pattern})")


class Reading(Struct, frozen=True, kw_only=True):
    """mode: what reads S3: MXNet ("native"), the nodes before the job ("stage"), or the program itself ("own").

    why: the reason in a few words.

    limit_s: the seconds after which MXNet's credentials, which it cannot renew, end; None: no limit, or an unknown one.
    """

    mode: Literal["native", "stage", "own"]
    why: str
    limit_s: float | None = None


def find_python_reader(program: str) -> str | None:
    """The first MXNet reader named in a program that opens files in Python, which cannot open s3://. Pure.

    Such a reader opens an index or a list in Python; other readers leave all files to MXNet's C++ code.
    """
    found = _PYTHON_READERS.search(program)
    return found[0] if found is not None else None


def plan_reading(
    data: DataConfig,
    access: S3Access,
    *,
    library: str,
    framework: Framework = "mxnet",
    program: str = "",
    words: Sequence[str] = (),
    is_shipped: bool = False,
) -> Reading:
    """Decides how a job reads S3. library: such as "mxnet==1.7.0.post2", or the file name of a wheel.

    program: its text, as far as it is known. words: those of its command, or its arguments. is_shipped: it is a script
    of this project. Raises ConfigError for mode "native" with an MXNet that cannot read s3://.
    """
    if data.url is not None and data.s3_url is None and data.s3_results is None and data.mode == "auto":
        return Reading(mode="own", why="")
    if framework != "mxnet":
        why = _why_staged(data, program=program, words=words, is_shipped=is_shipped)
        return Reading(mode="own", why="", limit_s=access.left_s) if why is None else Reading(mode="stage", why=why)
    wheel = find_wheel(library)
    reads = wheel.reads_s3 if wheel is not None else None  # None: not known
    if data.mode == "native" and reads is False:
        raise ConfigError(f'data.mode = "native": {library} cannot read s3://', hint=f'{_STAGE}, or "auto"')
    reader = find_python_reader(program)
    if data.mode == "native" or (data.mode == "auto" and reads and reader is None):
        limit_s = INSTANCE_CREDENTIALS_S if access.of_nodes else access.left_s
        why = f"{library} can" if reads else "set by [data] mode"
        return Reading(mode="native", why=why, limit_s=limit_s)
    if data.mode == "stage":
        return Reading(mode="stage", why="set by [data] mode")
    cannot = f"{reader} cannot" if reads else f"{library} {'cannot' if reads is False else 'may not'}"
    return Reading(mode="stage", why=f"{cannot} read s3://")


def _why_staged(data: DataConfig, *, program: str, words: Sequence[str], is_shipped: bool) -> str | None:
    """Why the data of a program without MXNet is copied to the nodes before the job; None if it is not."""
    if data.mode == "stage":
        return "set by [data] mode"
    if is_shipped:  # it reads only files
        needs = data.s3_url is not None or find_urls(words)
        return f"the program reads ${DATA_DIR}" if needs else None
    if data.mode == "native" or data.s3_url is None:
        return None
    if not _takes_urls(program, words) and any(is_below(url, data.s3_url) for url in find_urls(words)):
        return "the command names it"
    return f"the program reads ${DATA_DIR}" if _names_folder(program, words) else None


def _takes_urls(program: str, words: Sequence[str]) -> bool:
    return any(_OWN_READERS.search(text) for text in (program, " ".join(words)))


def _names_folder(program: str, words: Sequence[str]) -> bool:
    return any(DATA_DIR in text for text in (program, *words))


def plan_staged(
    data: DataConfig, framework: Framework, words: Sequence[str], *, program: str = "", is_shipped: bool = False
) -> list[str]:
    """The URLs to copy to the nodes' disks before the job. Pure.

    Those that its command names; [data] url, if a script of this project names none, or if a program reads
    $CLUSTER_DATA_DIR and its command does not name a part of it. MXNet reads only local files in this mode; other
    programs may read what is not below [data] url themselves.
    """
    written = {*_SAVED.findall("\n".join(words)), *_below_results(data, words)}
    named = [url for url in find_urls(words) if url not in written]
    if data.s3_url is None:
        return named
    below = [url for url in named if is_below(url, data.s3_url)]
    named = named if framework == "mxnet" or is_shipped else below
    needs_all = (is_shipped and not named) or (_names_folder(program, words) and not below)
    return [*named, data.s3_url] if needs_all else named


def plan_saved(data: DataConfig, words: Sequence[str], *, program: str = "") -> list[str]:
    """The URLs to which a job saves by files on the node: those of --model-prefix, and below [data] results. Pure.

    Not those below results of options such as --data-train, and of a program that takes URLs.
    """
    below = [] if _takes_urls(program, words) else _below_results(data, words)
    return list(dict.fromkeys([*below, *_SAVED.findall("\n".join(words))]))


def _below_results(data: DataConfig, words: Sequence[str]) -> list[str]:
    results, read = data.s3_results, _READ.findall("\n".join(words))
    return [url for url in find_urls(words) if results is not None and is_below(url, results) and url not in read]


def reading_environment(
    reading: Reading,
    data: DataConfig,
    access: S3Access,
    *,
    staged: Sequence[str] = (),
    saved: Sequence[str] = (),
) -> dict[str, str]:
    """The variables of a job's processes for this way of reading. staged, saved: of plan_staged and plan_saved."""
    uses_s3 = reading.mode == "stage" or saved or data.s3_results is not None
    env = {"CLUSTER_DATA_CREDENTIALS": "instance"} if access.of_nodes and uses_s3 else {}
    if saved:
        env[SAVED_AT] = " ".join(saved)
    if reading.mode != "stage":
        return env
    env["CLUSTER_DATA_MODE"] = "stage"
    if staged:
        env[STAGED] = shlex.join(staged)
    if data.cache_gib != "auto":
        env["CLUSTER_DATA_CACHE_GIB"] = repr(data.cache_gib)
    if data.cache_dir != "auto":
        env["CLUSTER_DATA_CACHE_DIR"] = data.cache_dir
    return env


def reading_warnings(reading: Reading, config: TrainConfig, access: S3Access) -> list[str]:
    """A warning about credentials that end before the job."""
    parts = []
    wanted_s = config.max_duration_s
    # This machine's credentials are not renewed; staging renews those of an instance profile.
    limit_s, todo = (access.left_s, _OF_NODES) if access.left_s is not None else (reading.limit_s, _STAGE)
    if limit_s is not None and wanted_s is not None and wanted_s > limit_s:
        parts.append(
            f'train.max_duration = "{config.max_duration}": the job\'s S3 credentials end after '
            f"{render_minutes(limit_s)} and cannot be renewed: {todo}"
        )
    elif wanted_s is None and access.left_s is not None and access.left_s < SHORT_S:
        parts.append(
            f"the job's credentials end in {render_minutes(access.left_s)} and cannot be renewed: after that it can "
            f"neither read nor write S3. For a longer job, {todo}"
        )
    return parts


def render_reading(reading: Reading) -> str:
    """How the job's data is read, in a few words. Pure."""
    if reading.mode == "stage":
        return f"read from files staged on the nodes ({reading.why})"
    if reading.mode == "own":
        return "read by the program itself"
    end = f", for at most {render_minutes(reading.limit_s)}" if reading.limit_s is not None else ""
    return f"read by MXNet itself ({reading.why}){end}"


# -- what a job's credentials allow ------------------------------------------------------------------------------------


def find_scope(config: TrainConfig, data: DataConfig, *, command: Sequence[str] = ()) -> S3Scope:
    """What a job needs: to read [data] url and all other URLs, and to read and write [data] results and --model-prefix.

    command: the command that runs instead of [train] script, if any.
    """
    words = "\n".join(command or config.args)
    variables = [value for env in (config.env, config.env_server, config.env_worker) for value in env.values()]
    folders = [url for url in (data.s3_url, data.s3_results) if url is not None]
    written = _without_covered(_SAVED.findall(words), folders=[url for url in (data.s3_results,) if url is not None])
    urls = URL.findall("\n".join([words, *config.setup]))
    # Without "rec", it is also the URL of the index beside the records.
    stems = [url.removesuffix(RECORDS[1:]) if url.endswith(RECORDS) and url.count("/") > 2 else url for url in urls]
    named = _without_covered(stems, folders=folders, beginnings=written)
    of_variables = URL.findall("\n".join(variables))
    return S3Scope(
        data_url=data.s3_url,
        results_url=data.s3_results,
        also_read=named,
        also_written=written,
        read_secretly=_without_covered(of_variables, folders=folders, beginnings=(*written, *named)),
    )


def _without_covered(
    urls: Iterable[str], *, folders: Iterable[str], beginnings: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The URLs that are in none of the folders and begin with no other URL. A bucket's URL gets a final slash."""
    insides = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    whole = {url if "/" in url.removeprefix("s3://") else f"{url}/" for url in urls}
    left = {url for url in whole if not f"{url}/".startswith(insides) and not url.startswith(beginnings)}
    return tuple(sorted(url for url in left if not any(url != other and url.startswith(other) for other in left)))


def render_access(access: S3Access, scope: S3Scope) -> str:
    """A job's credentials in one line: whose they are, what they allow, and for how long."""
    if access.of_nodes:
        return "credentials: those of the nodes' instance profile"
    if not access.secrets:
        return "credentials: none, because neither [data] nor the job's arguments and variables name an S3 URL"
    # Rounded up: credentials for 36 hours are already some seconds old.
    left = f" for {render_minutes(access.left_s + 59)}" if access.left_s is not None else ""
    if access.warning is not None:
        return f"credentials: yours{left}, not limited"
    read = [url for url in scope.read if url not in scope.read_secretly]
    if scope.read_secretly:
        read.append("the URLs in your variables")
    allowed = [f"{verb} {', '.join(urls)}" for verb, urls in (("read", read), ("write", scope.written)) if urls]
    return f"credentials: temporary{left}, to {' and '.join(allowed)}"
