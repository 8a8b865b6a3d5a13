"""Plans a training job from its configuration and the nodes. Pure."""

import secrets as random_secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import LauncherUse, PreparedImage
from foundation.remote_command import HIDDEN
from node.engines import ENGINES, find_engine
from node.engines.engine import Framework
from node.engines.schedulers import SCHEDULERS
from node.job_folder import mask
from node.protocol import AllocationRequest, Container, JobSpec, Notify, Order
from provision.aws.s3_access import S3Access
from train.job.checks import ProposedJob, check
from train.job.config import DataConfig, QueueConfig, TrainConfig
from train.job.defaults import (
    Threads,
    choose_gpus,
    choose_processes,
    choose_servers,
    choose_threads,
    job_name,
    script_options,
)
from train.job.placement import Placement, describe_hosts, find_hosts, find_slots, place, rebase
from train.job.program import choose_kv_store_option, names_data, trains_alone
from train.job.reading import Reading, plan_reading, plan_saved, plan_staged, reading_environment, reading_warnings
from train.job.survey import Survey

IMAGE_PYTHON = "python3"
"""The program that runs scripts in an image with its own framework."""


class Job(Struct, frozen=True, kw_only=True):
    """One run of a job: its order, and what the user sees of it.

    config: [train] with its overrides. gpus: the value of --gpus, None for none. reading: how its workers read s3://.
    credentials: a line that describes the job's credentials.
    """

    order: Order
    config: TrainConfig
    threads: Threads
    gpus: str | None
    reading: Reading
    credentials: str
    warnings: tuple[str, ...]


def new_job_id() -> str:
    """A unique id for a job, which begins with the time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{random_secrets.token_hex(3)}"


def plan_job(
    config: TrainConfig,
    nodes: Sequence[ReadyNode],
    *,
    job_id: str,
    script: str,
    data: DataConfig,
    access: S3Access,
    command: Sequence[str] = (),
    credentials: str = "",
    queue: QueueConfig | None = None,
    framework: Framework = "mxnet",
    program: str = "",
    survey: Survey | None = None,
    hidden: Mapping[str, tuple[str, ...]] | None = None,
    image: PreparedImage | None = None,
    volumes: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
    notify: Notify | None = None,
) -> Job:
    """Plans a job. script: its absolute path on the nodes; `command` replaces it. Pure.

    nodes: the head first. access: the job's access to S3; [train] env overrides its variables. credentials: a line
    that describes the job's credentials. queue: [queue]. framework: that of [bootstrap]. program: the text of
    the user's own program, as far as it is known. survey: AWS's answers, if it was asked. hidden: by "env",
    "env_server" and "env_worker", the variables whose values are never shown. volumes, notify: see Order. prices: of
    instances by their ids, in US dollars per hour, as far as they are known.
    image: [container] image, on the nodes that the job may use.

    Raises ConfigError for an invalid job.
    """
    head = nodes[0]
    survey = survey or Survey()
    scheduler = config.launcher if config.launcher in SCHEDULERS else None
    started = "mxnet" if image is not None and image.launcher is not None else framework
    engine = find_engine(config.launcher, started)
    config = replace(
        config,
        launcher=engine.name,
        kv_store=config.kv_store if engine.uses_kv_store(started) else "none",
        kv_store_option=choose_kv_store_option(config.kv_store_option, program),
        on_node_loss=config.on_node_loss if scheduler is None else "fail",  # an allocation ends when it loses a node
        restarts_on_error=config.restarts_on_error if scheduler is None else 0,
    )
    placement = _place(config, nodes)
    is_shipped = not command and script.startswith(f"{head.code_dir}/")

    library = head.library or framework
    output_url = f"{data.results.rstrip('/')}/{job_id}/" if data.results else None
    args = name_prefix(config.args, output_url) if is_shipped else config.args
    words_of_program = command or args
    reading = plan_reading(
        data,
        access,
        library=library,
        framework=framework,
        program=program,
        words=words_of_program,
        is_shipped=is_shipped,
    )
    staged_urls = plan_staged(data, framework, words_of_program, program=program, is_shipped=is_shipped)
    words_of_job = (*(command or config.args), *config.env.values(), *config.env_worker.values())
    proposed = ProposedJob(
        config=config,
        placement=placement,
        framework=framework,
        library=library,
        shipped=_base(script) if is_shipped else None,
        command=tuple(command),
        data=data,
        survey=survey,
        nodes_credentials=access.of_nodes,
        volumes=tuple(volumes),
        trains_alone=framework == "pytorch" and trains_alone(program),
        names_data=is_shipped or data.url is None or names_data(data.url, program=program, words=words_of_job),
    )
    warnings = (
        *([access.warning] if access.warning is not None else []),
        *check(proposed),
        *reading_warnings(reading, config, access),
    )
    if scheduler is not None:
        placement = replace(placement, nodes=(*placement.nodes, *(one for one in nodes if one not in placement.nodes)))
    gpus, shares = choose_gpus(config, proposed.gpus, most_workers=placement.most_workers)
    if config.kv_store == "none":  # its programs choose their GPU by their local rank
        gpus, shares = None, ()
    options = script_options(config, gpus=gpus, shipped=is_shipped)

    def folder(node: ReadyNode) -> str:
        home = node.facts.home
        return _expand(config.sync_dst_dir, home=home) or f"{home}/.cluster/jobs/{job_id}/work"

    def words(node: ReadyNode) -> tuple[str, ...]:
        there = rebase(script, head=head, node=node, project_dir=folder(node))
        python = node.python if image is None or framework != "none" else IMAGE_PYTHON
        return tuple(command) or (python, there, *args, *options)

    name = job_name(config.name, command or (_base(script),))
    request = None
    if scheduler is not None:
        request = make_request(
            queue or QueueConfig(),
            job=job_id,
            name=name,
            nodes=len(placement.processes),
            max_duration_s=config.max_duration_s,
        )
    threads = choose_threads(placement, slots=request.slots_per_node if request is not None else 0)
    hosts = describe_hosts(placement, words=words, folder=folder, prices=prices or {})
    containers = plan_containers(image, framework, volumes=volumes)
    saved = plan_saved(data, words_of_program, program=program)
    urls = {"CLUSTER_DATA_URL": data.url, "CLUSTER_RESULTS_URL": data.results, "CLUSTER_OUTPUT_URL": output_url}
    env = {
        **_environment(config, threads, containers, python=head.python),
        "CLUSTER_JOB_NAME": name,
        **({"CLUSTER_VOLUMES": ":".join(volumes)} if volumes else {}),
        **{key: url for key, url in urls.items() if url is not None},
        **reading_environment(reading, data, access, staged=staged_urls, saved=saved),
        **access.env,
        **config.env,
    }
    train = _settle(config, name, placement, hidden=hidden or {})
    spec = JobSpec(
        id=job_id,
        name=name,
        workers=proposed.workers,
        servers=sum(placement.servers.values()),
        train=train,
        command=words(head),
        script_source=None if command else "shipped" if is_shipped else "project",
        selection=str(config.nodes),
        scheduler=scheduler,
        python=head.python,
        cwd=folder(head),
        env={
            **_mask(env, (hidden or {}).get("env", ())),
            **{f"{key} (servers)": value for key, value in train.env_server.items()},
            **{f"{key} (workers)": value for key, value in train.env_worker.items()},
        },
        output_url=output_url,
        setup=head.setup,
        library=library,
        packages=head.bundle.packages if head.bundle is not None else (),
        image=image.reference if image is not None else None,
        code=_base(head.code_dir),
        project=_base(head.project_dir) if head.project_dir else None,
        owner=survey.owner,
        nodes_credentials=access.of_nodes,
    )
    order = Order(
        spec=spec,
        hosts=hosts,
        tree=head.project_dir,
        env=env,
        env_server=config.env_server,
        env_worker=config.env_worker,
        secrets=dict(access.secrets),
        gpus_per_worker=shares,
        volumes=tuple(volumes),
        request=request,
        containers=containers,
        image_launcher=image.launcher if image is not None else None,
        replace_command=head.client if scheduler is None and config.on_node_loss == "requeue" else (),
        notify=notify,
        authorities=access.authorities,
    )
    return Job(
        order=order,
        config=config,
        threads=threads,
        gpus=gpus if not command and "--gpus" in options else None,
        reading=reading,
        credentials=credentials,
        warnings=warnings,
    )


def name_prefix(args: Sequence[str], output_url: str | None) -> tuple[str, ...]:
    """A shipped script's arguments, with the job's own folder in S3 instead of --model-prefix auto. Pure."""
    if output_url is None or not output_url.startswith("s3://"):
        return tuple(args)
    words = list(args)
    for at, word in enumerate(words):
        if word == "--model-prefix=auto" or (word == "auto" and words[at - 1] == "--model-prefix"):
            words[at] = word.replace("auto", f"{output_url}model")
    return tuple(words)


def _place(config: TrainConfig, nodes: Sequence[ReadyNode]) -> Placement:
    engine = ENGINES[config.launcher]
    chosen = find_hosts(config.hosts, nodes)
    if engine.uses_slots and config.kv_store == "none" and config.workers == "auto":
        chosen = find_slots(chosen, {node.host.name: choose_processes(config, node) for node in chosen})
    workers = len(chosen) if config.workers == "auto" else config.workers
    used = nodes[:1] if engine.is_on_head else chosen
    servers = choose_servers(used, workers) if config.servers == "auto" else config.servers
    if not config.kv_store.startswith("dist"):
        servers = 0  # gradients stay in the worker's own memory, or the program exchanges them
    return place(chosen, head=nodes[0], launcher=config.launcher, workers=workers, servers=servers)


def plan_containers(
    image: PreparedImage | None, framework: Framework, *, volumes: Sequence[str] = ()
) -> dict[str, Container]:
    """The containers on each node that has the image; {} without one. volumes: where [[volumes]] are mounted. Pure."""
    mounts = tuple((path, path, False) for path in volumes)
    return {
        name: replace(one, mounts=(*mounts, *one.mounts), has_environment=framework != "none")
        for name, one in (image.nodes.items() if image is not None else ())
    }


def choose_launcher_use(config: TrainConfig, framework: Framework) -> LauncherUse:
    """Whether a job in an image uses the launch.py in the image, which MXNet's kv-store needs. Pure.

    Whether the image has MXNet is not known from outside. With mpi and with schedulers, an image that has it is treated
    as [bootstrap] framework = "mxnet" is.
    """
    if framework != "none":
        return "none"
    if find_engine(config.launcher, framework).uses_kv_store(framework):
        return "required"
    chooses = config.launcher in SCHEDULERS or find_engine(config.launcher, framework).uses_kv_store("mxnet")
    return "optional" if chooses and config.kv_store != "none" else "none"


def find_used(config: TrainConfig, nodes: Sequence[ReadyNode], framework: Framework) -> tuple[ReadyNode, ...]:
    """The nodes where a job may run processes, the head first. Pure. Raises ConfigError for hosts that do not exist."""
    if config.launcher in SCHEDULERS:
        return tuple(nodes)
    if find_engine(config.launcher, framework).is_on_head:
        return tuple(nodes[:1])
    chosen = find_hosts(config.hosts, nodes)
    return (nodes[0], *(node for node in nodes[1:] if node in chosen))


def _environment(
    config: TrainConfig, threads: Threads, containers: Mapping[str, Container], *, python: str
) -> dict[str, str]:
    """The variables that this project sets for a job's processes, except the job's name and its URLs."""
    path = next((one.path for one in containers.values()), "/usr/local/bin:/usr/bin:/bin")
    env = {
        "PATH": f"{python.rpartition('/')[0]}:{path}",
        "OMP_NUM_THREADS": str(threads.count),
        "PYTHONUNBUFFERED": "1",
    }
    if any(not one.has_environment for one in containers.values()):
        del env["PATH"]  # the image has its own Python
    if config.kv_store != "none":
        env["CLUSTER_KV_STORE"] = config.kv_store
    if config.gpus == "none" or (config.kv_store == "none" and config.gpus != "auto"):
        env["CUDA_VISIBLE_DEVICES"] = "" if config.gpus == "none" else ",".join(map(str, config.gpus))
    if config.p3:
        env["MXNET_UPDATE_ON_KVSTORE"] = "0"  # P3's servers only add up gradients, and cannot update the model
    return env


def _settle(
    config: TrainConfig, name: str, placement: Placement, *, hidden: Mapping[str, tuple[str, ...]]
) -> TrainConfig:
    """[train] as the job's spec has it: with the values chosen for it, and without secrets. See JobSpec."""
    has_slots = ENGINES[config.launcher].uses_slots and config.kv_store == "none"
    return replace(
        config,
        name=name,
        nodes="current",
        hosts=placement.lines,
        workers=config.workers if has_slots else sum(placement.workers.values()),
        servers=sum(placement.servers.values()) or "auto",
        processes=config.processes if has_slots else "auto",
        env=_mask(config.env, hidden.get("env", ())),
        env_server=_mask(config.env_server, hidden.get("env_server", ())),
        env_worker=_mask(config.env_worker, hidden.get("env_worker", ())),
    )


def _mask(variables: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """Variables without secrets. hidden: the names of those whose values are secrets whatever their names."""
    return {name: HIDDEN if name in hidden else mask(name, value) for name, value in variables.items()}


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _expand(folder: str, *, home: str) -> str | None:
    """[train] sync_dst_dir as an absolute path; None for ""."""
    expanded = f"{home}/{folder[2:]}" if folder.startswith("~/") else folder
    return expanded.rstrip("/") or None


def make_request(
    queue: QueueConfig, *, job: str, name: str, nodes: int, max_duration_s: int | None
) -> AllocationRequest:
    """A job's request to a batch scheduler, from [queue] and [train]. Pure.

    job: its id. max_duration_s: [train] max_duration, if there is one.
    """
    return AllocationRequest(
        job=job,
        name=name,
        nodes=nodes,
        queue=queue.name,
        walltime_s=queue.find_walltime_s(max_duration_s),
        account=queue.account,
        slots_per_node=0 if queue.slots_per_node == "auto" else queue.slots_per_node,
        options=queue.options,
    )
