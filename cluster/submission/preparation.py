"""Finds out what the plan of a job needs besides its nodes, in threads, while the command connects to these."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.node_program import NodeProgram
from cluster.app import App
from cluster.containers import find_login, prepare_image
from cluster.costs import find_node_prices
from cluster.nodes.health_check import find_hardware
from cluster.nodes.source import Nodes
from cluster.session import find_notify, source_of
from foundation.thread_pool import run_in_thread
from foundation.user_folders import find_user
from provision.aws.clients import Clients
from provision.aws.iam_policy import S3Scope, render_job_policy
from provision.aws.s3_access import S3Access, find_s3_access
from train.follow.head import Head, run_jobs
from train.job.config import TrainConfig
from train.job.job_inputs import JobInputs
from train.job.job_plan import Job, find_used, plan_job
from train.job.program import read_program
from train.job.reading import find_scope, render_access
from train.job.survey import Surveyor, find_folder_data


class Preparation:
    """What the plan of a job needs besides its nodes. It is being found out once this exists.

    train: the job's [train]. described: the cluster's nodes. command: the one that the user typed; () for a script.
    hardware: by the nodes' names. Raises ConfigError as find_login does.
    """

    def __init__(self, app: App, train: TrainConfig, described: Future[Nodes], *, command: tuple[str, ...]) -> None:
        data = app.config.data
        self._app, self._command, self._login = app, command, find_login(app)
        self._scope = scope = find_scope(train, data, command=command)
        clients = app.clients if app.has_instances or not scope.is_empty else None
        # A queued job may start at any time, so the lifetime of its keys cannot be derived from its duration.
        keys_s = None if train.queue else train.max_duration_s
        self.access = run_in_thread(lambda: _find_access(app, clients, scope, keys_s))
        self.hardware = run_in_thread(lambda: find_hardware(app, described.result))
        self._prices = run_in_thread(lambda: find_node_prices(app, described.result()))
        owner = None if app.has_instances else find_user()
        self._surveyor = Surveyor(clients, url=data.s3_url, results=data.s3_results, owner=owner)

    def plan(
        self,
        train: TrainConfig,
        ready: Sequence[ReadyNode],
        *,
        job_id: str,
        script: str,
        hidden: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Job:
        """Plans a job. train: its [train]. ready: the nodes. script: its path there. hidden: see JobInputs.

        Raises ClusterError or a subclass.
        """
        app, config, known, access = self._app, self._app.config, self.hardware.result(), self.access.result()
        nodes = tuple(replace(node, hardware=known.get(node.host.name)) for node in ready)
        survey = self._surveyor.result()
        if config.data.url is not None and config.data.s3_url is None:
            survey = replace(survey, data=find_folder_data(nodes, config.data.url))
        inputs = JobInputs(
            nodes=nodes,
            job_id=job_id,
            script=script,
            data=config.data,
            access=access,
            command=self._command,
            credentials=render_access(access, self._scope),
            queue=config.queue,
            framework=config.bootstrap.framework,
            program=read_program(
                train.script, command=self._command, project_dir=app.job_dir, subfolder=train.subfolder
            ),
            survey=survey,
            hidden=hidden or {},
            image=prepare_image(app, find_used(train, nodes, config.bootstrap.framework), self._login),
            volumes=tuple(volume.mount for volume in config.volumes),
            prices=self._prices.result(),
            notify=find_notify(app),
        )
        return plan_job(train, inputs)


class Submission:
    """The head's program that accepts an order, started before the order is known. follow: as for `submit`."""

    def __init__(self, *, follow: bool) -> None:
        self._words = ("submit", *(["--follow"] if follow else []))
        self._early: NodeProgram | None = None

    def begin(self, connection: NodeConnection) -> None:
        """Starts the program on a node that may be the head. Raises ConnectError."""
        self._early = run_jobs(connection, *self._words)

    def take(self, head: Head, node: ReadyNode) -> NodeProgram:
        """Returns the program on the head, which may have been started; node: the head's. Raises as Head.open.

        One that started before the set-up commands lacks what they export.
        """
        early = self._early
        if early is not None and early.connection is node.connection and not node.is_new:
            return early
        if early is not None:
            early.close()
        return head.open(*self._words)


def _find_access(app: App, clients: Clients | None, scope: S3Scope, keys_s: int | None) -> S3Access:
    if clients is None:
        return S3Access(env={}, secrets={})
    region = app.config.provision.region
    return find_s3_access(
        region=region,
        instance_profile=source_of(app).instance_profile,
        cluster=app.config.name,
        policy=None if scope.is_empty else render_job_policy(scope, region=region),
        max_duration_s=keys_s,
        clients=clients,
    )
