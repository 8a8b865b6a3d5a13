"""What the plan of a job needs besides [train]."""

from collections.abc import Mapping

from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import PreparedImage
from node.engines.engine import Framework
from node.protocol import Notify
from provision.aws.s3_access import S3Access
from train.job.config import DataConfig, QueueConfig
from train.job.survey import Survey


class JobInputs(Struct, frozen=True, kw_only=True):
    """What the plan of a job needs besides [train].

    nodes: the head first. script: its absolute path on the head; `command` replaces it. access: the job's access to S3;
    [train] env overrides its variables. credentials: a line that describes it. queue: [queue]. framework: that of
    [bootstrap]. program: the text of the user's own program, as far as it is known. survey: AWS's answers, if it was
    asked. hidden: by "env", "env_server" and "env_worker", the variables whose values are never shown. image:
    [container] image, on the nodes that the job may use. volumes, notify: see Order. prices: of instances by their ids,
    in US dollars per hour, as far as they are known.
    """

    nodes: tuple[ReadyNode, ...]
    job_id: str
    script: str
    data: DataConfig
    access: S3Access
    command: tuple[str, ...] = ()
    credentials: str = ""
    queue: QueueConfig = QueueConfig()
    framework: Framework = "mxnet"
    program: str = ""
    survey: Survey = Survey()
    hidden: Mapping[str, tuple[str, ...]] = {}
    image: PreparedImage | None = None
    volumes: tuple[str, ...] = ()
    prices: Mapping[str, float] = {}
    notify: Notify | None = None

    @property
    def head(self) -> ReadyNode:
        """The node that starts the job."""
        return self.nodes[0]

    @property
    def is_shipped(self) -> bool:
        """Whether the job runs a script of this project."""
        return not self.command and self.script.startswith(f"{self.head.code_dir}/")

    @property
    def script_name(self) -> str:
        """The script's file name."""
        return self.script.rpartition("/")[2]

    @property
    def library(self) -> str:
        """The installed framework, such as "mxnet==1.7.0.post2"."""
        return self.head.library or self.framework

    @property
    def output_url(self) -> str | None:
        """The job's own folder below [data] results."""
        return f"{self.data.results.rstrip('/')}/{self.job_id}/" if self.data.results else None
