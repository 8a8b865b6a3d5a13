"""[train] and [data] of cluster.toml: what a job runs, and what it reads."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from bootstrap.config import FOLDER_URL_PATTERN

KvStore = Literal["local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device"]
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
EnvName = Annotated[str, Field(pattern=ENV_NAME_PATTERN)]
# What can stand on a command line or in an environment: all but NUL.
Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class TrainConfig(BaseModel):
    """What `cluster train` runs when its command line does not say otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    script: Word = Field(
        default="train_mnist.py",
        min_length=1,
        description="a script that ships with this project (train_mnist.py), or the path of your own",
    )
    args: Annotated[tuple[Word, ...], Strict(strict=False)] = Field(
        default=(), description="a list of words: arguments of the script, passed on word for word"
    )
    kv_store: KvStore = Field(
        default="dist_sync",
        description="how gradients are exchanged; given to the script as --kv-store",
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description='how many worker processes, 1 to 1000; "auto": one for each node'
    )
    servers: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description='how many parameter server processes, 1 to 1000; "auto": as many as workers'
    )
    env: dict[EnvName, Word] = Field(
        default={},
        description='environment variables of every process of the job, such as { OMP_NUM_THREADS = "4" }',
    )


class DataConfig(BaseModel):
    """Where the records are, and where jobs leave what they made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: str | None = Field(
        default=None,
        pattern=FOLDER_URL_PATTERN,
        description='the folder in S3 that training reads, "s3://BUCKET/FOLDER/": $CLUSTER_DATA_URL for the script',
    )
    results: str | None = Field(
        default=None,
        pattern=FOLDER_URL_PATTERN,
        description='the folder in S3 that jobs write to, "s3://BUCKET/FOLDER/": $CLUSTER_RESULTS_URL for the script',
    )
