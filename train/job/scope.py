"""What of S3 a job needs, to judge by cluster.toml, its arguments and its variables. Pure.

Its credentials allow this and no more.
"""

import re
from collections.abc import Iterable, Sequence

from provision.aws.iam_policy import S3Scope
from train.job.config import DataConfig, TrainConfig
from train.job.reading import render_left
from train.s3.environment import S3Access

# An s3:// URL within a word, up to what a shell, MXNet's readers or IAM do not take for a part of it. MXNet's readers
# take several with ; between them, other programs with a comma.
_URL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/(?:(?!,s3://)[^\s;'\"`|<>()?#*$\\\x00-\x1f\x7f])*)?"
_URLS = re.compile(_URL)
_SAVED = re.compile(rf"--model[-_]prefix(?:=|\s+)['\"]?({_URL})")
"""MXNet's own option for where a model is saved, and loaded from."""


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
