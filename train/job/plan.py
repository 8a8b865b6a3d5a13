"""A training job: what it is. Pure."""

import secrets as random_secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from bootstrap.apply import ReadyNode
from bootstrap.environment.target import choose_mxnet
from train.engines import ENGINES
from train.job.checks import check
from train.job.config import DataConfig, TrainConfig
from train.job.defaults import Threads, choose_gpus, choose_servers, choose_threads, job_name, script_options
from train.job.placement import Placement, find_hosts, place
from train.job.places import describe_hosts, other_warnings, rebase
from train.job.protocol import DataCheck, JobHost, Order, copy_settings
from train.job.reading import Reading, plan_reading, reading_environment, reading_warnings
from train.job.survey import Survey
from train.job.wanted import Wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run. `command` is what every worker, server and scheduler process executes in `cwd` on its node.

    Without servers there is no scheduler either: one worker, on the first of hostfile, that nobody has to be
    introduced to.
    config: [train], with what goes over it. hosts: the cluster's head, where launch.py runs, and the nodes with
    processes. hostfile: launch.py's, private addresses.
    sync_dst_dir: where the files of `cwd` are copied to, and the job runs. env: of every process.
    gpus: the value of --gpus, None when there is none. gpus_per_worker: by the order of a worker on its node, what it
    sees of the node's GPUs (CUDA_VISIBLE_DEVICES); () for all.
    nodes_credentials: it uses the credentials of the head's instance profile, which supervise.py reads there.
    setup: the digest of [bootstrap] setup, whose exports its processes get, None when there are none.
    script_source: whose [train] script it runs, this project's ("shipped") or the user's ("project"); None where it
    runs a command.
    library, code, project: MXNet, and the digests of this project's files on the nodes and of the user's.
    results_url: [data] results. reading: how its workers read s3://. data_url: what MXNet itself is to read of S3,
    which every node with workers tries beside them; needs_data: the job fails where one cannot.
    credentials: what they are, in a line. warnings: what the user should know.
    hidden: by key of config (env, env_server, env_worker), the variables whose values are shown nowhere.
    """

    id: str
    name: str
    config: TrainConfig
    python: str
    hosts: tuple[JobHost, ...]
    hostfile: tuple[str, ...]
    workers: int
    servers: int
    command: tuple[str, ...]
    cwd: str
    sync_dst_dir: str | None
    env: Mapping[str, str]
    threads: Threads
    gpus: str | None
    gpus_per_worker: tuple[tuple[int, ...], ...]
    nodes_credentials: bool
    setup: str | None
    script_source: Literal["shipped", "project"] | None
    library: str
    code: str
    project: str | None
    owner: str | None
    results_url: str | None
    reading: Reading
    data_url: str | None = None
    needs_data: bool = False
    credentials: str = ""
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def output_url(self) -> str | None:
        """The folder in S3 that is this job's alone."""
        return f"{self.results_url}{self.id}/" if self.results_url else None

    def order(self, *, secrets: Mapping[str, str]) -> Order:
        """The job as the head takes it."""
        config = self.config
        return Order(
            job=self.id,
            name=self.name,
            queue=config.queue,
            python=self.python,
            launcher=config.launcher,
            workers=self.workers,
            servers=self.servers,
            kv_store=config.kv_store,
            start_timeout_s=config.start_timeout_s,
            stall_timeout=config.stall_timeout_s,
            max_duration_s=config.max_duration_s,
            hosts=self.hosts,
            hostfile=self.hostfile,
            command=self.command,
            script=config.script if self.script_source else None,
            script_source=self.script_source,
            cwd=self.cwd,
            sync_dst_dir=self.sync_dst_dir,
            env=dict(self.env),
            env_server=dict(config.env_server),
            env_worker=dict(config.env_worker),
            hidden=dict(self.hidden),
            gpus_per_worker=self.gpus_per_worker,
            secrets=dict(secrets),
            nodes_credentials=self.nodes_credentials,
            setup=self.setup,
            job_setup=tuple(config.setup),
            library=self.library,
            code=self.code,
            project=self.project,
            owner=self.owner,
            results_url=self.results_url,
            data_check=DataCheck(url=self.data_url, needed=self.needs_data) if self.data_url else None,
            **copy_settings(config),
        )


def new_job_id() -> str:
    """A name for a job: when it began, and something that nobody else has."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{random_secrets.token_hex(3)}"


def find_library(mxnet: str, node: ReadyNode) -> str:
    """The MXNet that [bootstrap] mxnet comes to on a node: "mxnet==1.7.0.post2", "source@v1.7.x"."""
    return choose_mxnet(node.facts, node=node.host.name) if mxnet == "auto" else mxnet


def plan_job(
    config: TrainConfig,
    nodes: Sequence[ReadyNode],
    *,
    job_id: str,
    script: str,
    data: DataConfig,
    env: Mapping[str, str],
    command: Sequence[str] = (),
    nodes_credentials: bool = False,
    credentials_left_s: float | None = None,
    credentials: str = "",
    credentials_warning: str | None = None,
    mxnet: str = "auto",
    program: str = "",
    survey: Survey | None = None,
    hidden: Mapping[str, tuple[str, ...]] | None = None,
) -> Job:
    """Decide what a job is; `script` is its absolute path on the nodes, `command` replaces it. Pure.

    nodes: the cluster's, the head first. env: variables that the cluster sets; [train] env goes over them.
    nodes_credentials: see Job. credentials_left_s: of the others, where that is known. credentials: what they are, in a
    line; credentials_warning: what the user should know of them. mxnet: [bootstrap]'s.
    program: the text of the user's own program that is run, as far as it is known.
    survey: what AWS was asked, where it was. hidden: see Job.
    Raises ConfigError for what makes no sense.
    """
    head = nodes[0]
    survey = survey or Survey()
    placement = _place(config, nodes)
    is_shipped = not command and script.startswith(f"{head.code_dir}/")
    wanted = Wanted(
        config=config,
        placement=placement,
        library=find_library(mxnet, head),
        shipped=_base(script) if is_shipped else None,
        command=tuple(command),
        has_files=head.project_dir is not None,
        data_url=data.url,
        data=survey.data,
        region=survey.region,
        nodes_credentials=nodes_credentials,
    )
    reading = plan_reading(
        data,
        library=wanted.library,
        program=program,
        nodes_credentials=nodes_credentials,
        credentials_left_s=credentials_left_s,
    )
    staged = reading.mode == "stage"
    warnings = (
        *((credentials_warning,) if credentials_warning is not None else ()),
        *check(replace(wanted, staged=staged)),
        *reading_warnings(reading, config, credentials_left_s=credentials_left_s),
        *other_warnings(
            placement,
            library=wanted.library,
            find_library=lambda node: find_library(mxnet, node),
            staged=staged,
            of_nodes=nodes_credentials,
        ),
    )
    gpus, shares = choose_gpus(config, wanted.gpus, most_workers=placement.most_workers)
    options = script_options(config, gpus=gpus, shipped=is_shipped)

    def target(node: ReadyNode) -> str | None:
        return _expand(config.sync_dst_dir, home=node.facts.home)

    def words(node: ReadyNode) -> tuple[str, ...]:
        there = rebase(script, head=head, node=node)
        own = (node.python, _moved(there, node.project_dir, target(node)), *config.args, *options)
        return tuple(command) or own

    job = Job(
        id=job_id,
        name=job_name(config.name, command or (_base(script),)),
        config=config,
        python=head.python,
        hosts=describe_hosts(placement, words=words, target=target),
        hostfile=placement.hostfile,
        workers=wanted.workers,
        servers=wanted.servers,
        command=words(head),
        cwd=head.project_dir or head.code_dir,
        sync_dst_dir=target(head),
        env={},
        threads=choose_threads(placement),
        gpus=gpus if not command and "--gpus" in options else None,
        gpus_per_worker=shares,
        nodes_credentials=nodes_credentials,
        setup=head.setup,
        script_source=None if command else "shipped" if is_shipped else "project",
        library=wanted.library,
        code=_base(head.code_dir),
        project=_base(head.project_dir) if head.project_dir else None,
        owner=survey.owner,
        results_url=_folder(data.results),
        reading=reading,
        data_url=None if command or staged or wanted.reads_something_else else data.url,
        needs_data=wanted.reads_data_url,
        credentials=credentials,
        hidden=hidden or {},
        warnings=warnings,
    )
    staging = reading_environment(reading, data, placement, nodes_credentials=nodes_credentials)
    return replace(job, env={**_environment(job, data), **staging, **env, **config.env})


def _place(config: TrainConfig, nodes: Sequence[ReadyNode]) -> Placement:
    chosen = find_hosts(config.hosts, nodes)
    workers = len(chosen) if config.workers == "auto" else config.workers
    used = nodes[:1] if ENGINES[config.launcher].is_on_head else chosen
    servers = choose_servers(used, workers) if config.servers == "auto" else config.servers
    if not config.kv_store.startswith("dist"):
        servers = 0  # gradients stay in the worker's own memory
    return place(chosen, head=nodes[0], launcher=config.launcher, workers=workers, servers=servers)


def _environment(job: Job, data: DataConfig) -> dict[str, str]:
    """What a job's processes get of this project's own."""
    env = {
        "PATH": f"{job.python.rpartition('/')[0]}:/usr/local/bin:/usr/bin:/bin",
        "OMP_NUM_THREADS": str(job.threads.count),
        "PYTHONUNBUFFERED": "1",
        "CLUSTER_KV_STORE": job.config.kv_store,
        "CLUSTER_JOB_NAME": job.name,
    }
    if job.config.p3:
        env["MXNET_UPDATE_ON_KVSTORE"] = "0"  # P3's servers only add up; MXNet's scripts ask for more by default
    urls = {
        "CLUSTER_DATA_URL": data.url,
        "CLUSTER_RESULTS_URL": data.results,
        "CLUSTER_OUTPUT_URL": job.output_url,
    }
    return env | {key: url for key, url in urls.items() if url is not None}


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(url: str | None) -> str | None:
    return url if url is None or url.endswith("/") else f"{url}/"


def _expand(folder: str, *, home: str) -> str | None:
    """[train] sync_dst_dir as an absolute path; None for none."""
    expanded = f"{home}/{folder[2:]}" if folder.startswith("~/") else folder
    return expanded.rstrip("/") or None


def _moved(script: str, project_dir: str | None, target: str | None) -> str:
    """Where a script lies once the user's files have been copied to `target`."""
    if target is None or project_dir is None or not script.startswith(f"{project_dir}/"):
        return script
    return target + script.removeprefix(project_dir)
