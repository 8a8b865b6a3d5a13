"""[bootstrap] of cluster.toml: what every node gets."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

PYTHON_PATTERN = r"^(auto|/[A-Za-z0-9._/-]+)$"
# With its version: without one, nodes that are added later could get another.
MXNET_PATTERN = r"^(auto|mxnet[A-Za-z0-9-]*==[A-Za-z0-9.!+]+)$"
REQUIREMENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+]+)?$"


class BootstrapConfig(BaseModel):
    """The Python environment of the nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    python: str = Field(
        default="auto",
        pattern=PYTHON_PATTERN,
        description='"auto" takes the image\'s own python3; or the absolute path of a Python 3.8 to 3.12 on the nodes',
    )
    mxnet: str = Field(
        default="auto",
        pattern=MXNET_PATTERN,
        description='"auto" picks the wheel for the nodes\' GPU (none: mxnet==1.7.0.post2, which reads s3://); '
        'or one of your own choice with its version, such as "mxnet-cu112==1.9.1"; cluster oracle lists them',
    )
    packages: Annotated[tuple[Annotated[str, Field(pattern=REQUIREMENT_PATTERN)], ...], Strict(strict=False)] = Field(
        default=(),
        description='a list of more packages from PyPI for the nodes\' environment: "NAME" or "NAME==VERSION"',
    )
