"""Plans a training job from its configuration and the nodes. Pure."""

import secrets as random_secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import LauncherUse
from node.engines import ENGINES, find_engine
from node.engines.engine import Framework
from node.engines.schedulers import SCHEDULERS
from node.protocol import Order
from train.job.checks import ProposedJob, check
from train.job.config import TrainConfig
from train.job.defaults import (
    Threads,
    choose_gpus,
    choose_processes,
    choose_servers,
    choose_threads,
    job_name,
    script_options,
)
from train.job.job_inputs import JobInputs
from train.job.order import Choices, make_order
from train.job.placement import Placement, find_hosts, find_slots, place
from train.job.program import choose_kv_store_option, names_data, trains_alone
from train.job.reading import Reading, plan_reading, reading_warnings


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


def plan_job(config: TrainConfig, inputs: JobInputs) -> Job:
    """Plans a job. config: [train] with its overrides. Pure. Raises ConfigError for an invalid job."""
    scheduler = config.launcher if config.launcher in SCHEDULERS else None
    config = _choose_engine(config, inputs)
    args = name_prefix(config.args, inputs.output_url) if inputs.is_shipped else config.args
    words = inputs.command or args
    reading = plan_reading(
        inputs.data,
        inputs.access,
        library=inputs.library,
        framework=inputs.framework,
        program=inputs.program,
        words=words,
        is_shipped=inputs.is_shipped,
    )
    proposed = _propose(config, inputs)
    warnings = (
        *([inputs.access.warning] if inputs.access.warning is not None else []),
        *check(proposed),
        *reading_warnings(reading, config, inputs.access),
    )
    placement = proposed.placement
    if scheduler is not None:  # it may assign any of the nodes
        others = (node for node in inputs.nodes if node not in placement.nodes)
        placement = replace(placement, nodes=(*placement.nodes, *others))
    gpus, shares = choose_gpus(config, proposed.gpus, most_workers=placement.most_workers)
    if config.kv_store == "none":  # its programs choose their GPU by their local rank
        gpus, shares = None, ()
    options = script_options(config, gpus=gpus, shipped=inputs.is_shipped)
    slots = inputs.queue.slots_per_node if scheduler is not None else "auto"
    threads = choose_threads(placement, slots=0 if slots == "auto" else slots)
    choices = Choices(
        name=job_name(config.name, inputs.command or (inputs.script_name,)),
        scheduler=scheduler,
        placement=placement,
        reading=reading,
        words=words,
        options=tuple(options),
        gpus_per_worker=shares,
        threads=threads.count,
    )
    return Job(
        order=make_order(config, inputs, choices),
        config=config,
        threads=threads,
        gpus=gpus if not inputs.command and "--gpus" in options else None,
        reading=reading,
        credentials=inputs.credentials,
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


def _choose_engine(config: TrainConfig, inputs: JobInputs) -> TrainConfig:
    """[train] for the engine that starts the processes: its name, and only what it can do."""
    has_launcher = inputs.image is not None and inputs.image.launcher is not None
    started: Framework = "mxnet" if has_launcher else inputs.framework
    engine = find_engine(config.launcher, started)
    is_scheduled = config.launcher in SCHEDULERS
    return replace(
        config,
        launcher=engine.name,
        kv_store=config.kv_store if engine.uses_kv_store(started) else "none",
        kv_store_option=choose_kv_store_option(config.kv_store_option, inputs.program),
        on_node_loss="fail" if is_scheduled else config.on_node_loss,  # an allocation ends when it loses a node
        restarts_on_error=0 if is_scheduled else config.restarts_on_error,
    )


def _propose(config: TrainConfig, inputs: JobInputs) -> ProposedJob:
    """The job as it is checked."""
    data, program = inputs.data, inputs.program
    words = (*(inputs.command or config.args), *config.env.values(), *config.env_worker.values())
    return ProposedJob(
        config=config,
        placement=_place(config, inputs.nodes),
        framework=inputs.framework,
        library=inputs.library,
        shipped=inputs.script_name if inputs.is_shipped else None,
        command=inputs.command,
        data=data,
        survey=inputs.survey,
        nodes_credentials=inputs.access.of_nodes,
        volumes=inputs.volumes,
        trains_alone=inputs.framework == "pytorch" and trains_alone(program),
        names_data=inputs.is_shipped or data.url is None or names_data(data.url, program=program, words=words),
    )


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
