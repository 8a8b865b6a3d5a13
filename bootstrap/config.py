"""The [bootstrap] section of cluster.toml: what every node gets."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta

from bootstrap.environment.requirements import check_entry
from foundation.setting_types import Settings, Shape, check_command
from node.engines.engine import Framework

# Each pattern must match the whole value.
PYTHON_PATTERN = r"auto|3\.(9|1[0-4])|/[A-Za-z0-9._/-]+"
# The version is required: otherwise nodes that are added later could get another version.
MXNET_PATTERN = (
    r"auto|installed|mxnet[A-Za-z0-9-]*==[A-Za-z0-9.!+]+|((s3|https)://[A-Za-z0-9.:-]+/)?[A-Za-z0-9._~/+@%= -]+\.whl"
)
TORCH_PATTERN = r"auto|torch==[A-Za-z0-9.!+]+"
NEWER_PYTHONS = ("3.13", "3.14")
"""The Pythons that are too new for MXNet."""


def check_sync_entry(entry: str) -> str:
    """Returns an entry of sync, unchanged. Pure. Raises ValueError if it cannot be a path in cluster.toml's folder."""
    if not entry or "\0" in entry:
        raise ValueError("not a path")
    if entry.startswith(("/", "~")):
        raise ValueError("must be relative to the folder of cluster.toml")
    if ".." in entry.split("/"):
        raise ValueError("must be in the folder of cluster.toml, without ..")
    return entry


def check_pattern(pattern: str) -> str:
    """Returns a pattern of exclude, unchanged. Pure. Raises ValueError if it is invalid or excludes nothing."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - slow to import, and few configurations have a pattern

    try:
        parsed = GitIgnoreSpec.from_lines([pattern]).patterns
    except ValueError as error:
        raise ValueError("not a .gitignore pattern") from error
    if not any(found.include is not None for found in parsed):
        raise ValueError("excludes nothing")
    return pattern


class BootstrapConfig(Settings, frozen=True, kw_only=True):
    """The Python environment of the nodes."""

    framework: Annotated[
        Framework,
        Meta(description='what jobs train with: "mxnet", "pytorch", or "none", which installs neither'),
    ] = "mxnet"
    python: Annotated[
        str,
        Shape(PYTHON_PATTERN),
        Meta(
            description='"auto" uses the image\'s Python if the framework works with it, and installs one otherwise; '
            'or a version, such as "3.11"; or the absolute path of a Python on the nodes'
        ),
    ] = "auto"
    mxnet: Annotated[
        str,
        Shape(MXNET_PATTERN),
        Meta(
            description='"auto" picks the wheel for the nodes\' GPU (none: mxnet==1.7.0.post2, which reads s3://); '
            'or a wheel with its version, such as "mxnet-cu112==1.9.1"; cluster oracle lists them; '
            'or a wheel of your own: "PATH.whl", or its s3:// or https:// address; or "installed", the MXNet of the '
            "Python at [bootstrap] python"
        ),
    ] = "auto"
    torch: Annotated[
        str,
        Shape(TORCH_PATTERN),
        Meta(
            description='"auto" uses the image\'s PyTorch if it fits the node, and installs a wheel otherwise; or a '
            'wheel with its version, such as "torch==2.13.0"; cluster oracle --framework pytorch lists them'
        ),
    ] = "auto"
    project: Annotated[
        str,
        Meta(
            description="a folder with pyproject.toml and uv.lock, relative to the folder of cluster.toml, whose "
            "packages are installed exactly as locked"
        ),
    ] = ""
    packages: Annotated[
        Literal["here"] | tuple[Annotated[str, check_entry], ...],
        Meta(
            description='a list of more packages from PyPI for the nodes\' environment: "NAME", "NAME==VERSION", '
            '"NAME>=VERSION,<VERSION" or "-r requirements.txt"; "here": those of the environment that you work in'
        ),
    ] = ()
    setup: Annotated[
        tuple[Annotated[str, check_command], ...],
        Meta(
            description="a list of commands that every node runs once, in one login shell: "
            '"sudo apt-get install -y NAME", "module load NAME"'
        ),
    ] = ()
    sync: Annotated[
        Literal["auto"] | tuple[Annotated[str, check_sync_entry], ...],
        Meta(
            description="a list of your files and folders for every node, relative to the folder of cluster.toml: "
            '"NAME/"; "auto": the folders that jobs and your script are in, without files that .gitignore names'
        ),
    ] = "auto"
    exclude: Annotated[
        tuple[Annotated[str, check_pattern], ...],
        Meta(description='a list of .gitignore patterns that sync leaves out: "*.rec", "data/"'),
    ] = ()

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each key of another framework, and for a `python` that does not fit MXNet."""
        for key, framework in (("mxnet", "mxnet"), ("torch", "pytorch")):
            if key in given and self.framework != framework and getattr(self, key) != "auto":
                yield (
                    f'{key} is for framework = "{framework}", and framework is "{self.framework}": '
                    f'remove {key}, or set framework = "{framework}"'
                )
        if self.mxnet == "installed" and not self.python.startswith("/"):
            yield (
                f'mxnet = "installed" uses the MXNet of a Python on the nodes, and python is "{self.python}": '
                'set python to its absolute path, such as "/home/ubuntu/venv/bin/python"'
            )
        if self.framework == "mxnet" and self.python in NEWER_PYTHONS:
            yield f'python = "{self.python}": MXNet works with 3.9 to 3.12: set python to one of these, or "auto"'
