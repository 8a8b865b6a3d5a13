"""[bootstrap] of cluster.toml: what every node gets."""

from typing import Annotated, Literal

from msgspec import Meta

from bootstrap.environment.requirements import check_entry
from foundation.settings import Settings, Shape

# All to be matched in full.
PYTHON_PATTERN = r"auto|3\.([89]|1[0-2])|/[A-Za-z0-9._/-]+"
# With its version: without one, nodes that are added later could get another.
MXNET_PATTERN = r"auto|mxnet[A-Za-z0-9-]*==[A-Za-z0-9.!+]+|source@[A-Za-z0-9][A-Za-z0-9._/-]*"
# Neither the shell nor make makes anything else of the value.
OPTION_PATTERN = r"[A-Z][A-Za-z0-9_]*=[A-Za-z0-9 ._/+,:=-]*"
# Without a password: it would be in the list of processes of the head.
SOURCE_URL_PATTERN = r"(https://[A-Za-z0-9.-]+(:[0-9]+)?|file://)/[A-Za-z0-9._~/+-]+"
SOURCE_URL = "https://github.com/apache/mxnet.git"
Distribute = Literal["chain", "pypi"]
Fetch = Literal["auto", "here", "head"]


def check_sync_entry(entry: str) -> str:
    """One entry of sync as it is; pure. Raises ValueError for what cannot be a path below a folder."""
    if not entry or "\0" in entry:
        raise ValueError("not a path")
    if entry.startswith(("/", "~")):
        raise ValueError("must be relative to the folder of cluster.toml")
    if ".." in entry.split("/"):
        raise ValueError("must be in the folder of cluster.toml, without ..")
    return entry


def check_pattern(pattern: str) -> str:
    """One pattern of exclude as it is; pure. Raises ValueError for one that means nothing."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - slow to import, and few configurations have a pattern

    try:
        parsed = GitIgnoreSpec.from_lines([pattern]).patterns
    except ValueError as error:
        raise ValueError("not a .gitignore pattern") from error
    if not any(found.include is not None for found in parsed):
        raise ValueError("excludes nothing")
    return pattern


def check_command(command: str) -> str:
    """One entry of setup as it is; pure. Raises ValueError for what no shell can run."""
    if not command.strip():
        raise ValueError("an empty command")
    if "\0" in command:
        raise ValueError("a command with a NUL byte")
    return command


class BootstrapConfig(Settings, frozen=True, kw_only=True):
    """The Python environment of the nodes."""

    python: Annotated[
        str,
        Shape(PYTHON_PATTERN),
        Meta(
            description='"auto" takes the image\'s own Python where it is 3.9 to 3.12, and brings one along where not; '
            'or a version, such as "3.11"; or the absolute path of a Python on the nodes',
        ),
    ] = "auto"
    mxnet: Annotated[
        str,
        Shape(MXNET_PATTERN),
        Meta(
            description='"auto" picks the wheel for the nodes\' GPU (none: mxnet==1.7.0.post2, which reads s3://); '
            'or one of your own choice with its version, such as "mxnet-cu112==1.9.1"; cluster oracle lists them; '
            'or "source@REF", a branch, tag or commit that the head builds',
        ),
    ] = "auto"
    build_options: Annotated[
        tuple[Annotated[str, Shape(OPTION_PATTERN)], ...],
        Meta(
            description='a list of "NAME=VALUE" for the build of mxnet = "source@REF", over the usual ones',
        ),
    ] = ()
    source_url: Annotated[
        str,
        Shape(SOURCE_URL_PATTERN),
        Meta(
            description='the git repository for mxnet = "source@REF": https://HOST/PATH without a password, or a '
            "folder of the head, file:///PATH",
        ),
    ] = SOURCE_URL
    packages: Annotated[
        tuple[Annotated[str, check_entry], ...],
        Meta(
            description='a list of more packages from PyPI for the nodes\' environment: "NAME", "NAME==VERSION", '
            '"NAME>=VERSION,<VERSION" or "-r requirements.txt"',
        ),
    ] = ()
    setup: Annotated[
        tuple[Annotated[str, check_command], ...],
        Meta(
            description="a list of commands that every node runs once, in one login shell: "
            '"sudo apt-get install -y NAME", "module load NAME"',
        ),
    ] = ()
    sync: Annotated[
        Literal["auto"] | tuple[Annotated[str, check_sync_entry], ...],
        Meta(
            description="a list of files and folders of your own for every node, from the folder of cluster.toml: "
            '"NAME/"; "auto": the folder of your script, without what .gitignore names',
        ),
    ] = "auto"
    exclude: Annotated[
        tuple[Annotated[str, check_pattern], ...],
        Meta(
            description='a list of patterns, as .gitignore has them, of what sync leaves out: "*.rec", "data/"',
        ),
    ] = ()
    distribute: Annotated[
        Distribute,
        Meta(
            description='how wheels reach the nodes: "chain", each node gives them on to the next; "pypi", each '
            "takes them from the package index",
        ),
    ] = "chain"
    fetch: Annotated[
        Fetch,
        Meta(
            description='who fetches wheels for the chain: "here", this machine; "head", the first node; "auto", the '
            "first node, where it can and this machine does not have them already",
        ),
    ] = "auto"
