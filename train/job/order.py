"""Makes a job's order for the supervisor from what its plan chose. Pure."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import PreparedImage
from foundation.remote_command import HIDDEN
from node.engines import ENGINES
from node.engines.engine import Framework
from node.job_folder import mask
from node.protocol import AllocationRequest, Container, JobSpec, Order
from train.job.config import TrainConfig
from train.job.job_inputs import JobInputs
from train.job.placement import Placement, describe_hosts, rebase
from train.job.reading import Reading, plan_saved, plan_staged, reading_environment

IMAGE_PYTHON = "python3"
"""The program that runs scripts in an image with its own framework."""


class Choices(Struct, frozen=True, kw_only=True):
    """What a job's plan chose.

    scheduler: the batch scheduler that assigns its nodes. words: those of its command, or its script's arguments.
    options: the words that are added after a script's arguments. threads: OMP_NUM_THREADS. gpus_per_worker: see Order.
    """

    name: str
    scheduler: str | None
    placement: Placement
    reading: Reading
    words: tuple[str, ...]
    options: tuple[str, ...]
    threads: int
    gpus_per_worker: tuple[tuple[int, ...], ...]


def make_order(config: TrainConfig, inputs: JobInputs, choices: Choices) -> Order:
    """A job's order. config: [train] as the job's engine uses it."""
    head, image = inputs.head, inputs.image
    containers = plan_containers(image, inputs.framework, volumes=inputs.volumes)
    env = _environment(config, inputs, choices, containers)

    def folder(node: ReadyNode) -> str:
        return _work_folder(config, node, job_id=inputs.job_id)

    def words(node: ReadyNode) -> tuple[str, ...]:
        there = rebase(inputs.script, head=head, node=node, project_dir=folder(node))
        python = node.python if image is None or inputs.framework != "none" else IMAGE_PYTHON
        return inputs.command or (python, there, *choices.words, *choices.options)

    can_replace = choices.scheduler is None and config.on_node_loss == "requeue"
    return Order(
        spec=_make_spec(config, inputs, choices, command=words(head), cwd=folder(head), env=env),
        hosts=describe_hosts(choices.placement, words=words, folder=folder, prices=inputs.prices),
        tree=head.project_dir,
        env=env,
        env_server=config.env_server,
        env_worker=config.env_worker,
        secrets=dict(inputs.access.secrets),
        gpus_per_worker=choices.gpus_per_worker,
        volumes=inputs.volumes,
        request=_make_request(config, inputs, choices) if choices.scheduler is not None else None,
        containers=containers,
        image_launcher=image.launcher if image is not None else None,
        replace_command=head.client if can_replace else (),
        notify=inputs.notify,
        authorities=inputs.access.authorities,
    )


def _make_spec(
    config: TrainConfig,
    inputs: JobInputs,
    choices: Choices,
    *,
    command: tuple[str, ...],
    cwd: str,
    env: Mapping[str, str],
) -> JobSpec:
    head, placement = inputs.head, choices.placement
    train = _settle(config, choices.name, placement, hidden=inputs.hidden)
    return JobSpec(
        id=inputs.job_id,
        name=choices.name,
        workers=sum(placement.workers.values()),
        servers=sum(placement.servers.values()),
        train=train,
        command=command,
        script_source=None if inputs.command else "shipped" if inputs.is_shipped else "project",
        selection=str(config.nodes),
        scheduler=choices.scheduler,
        python=head.python,
        cwd=cwd,
        env={
            **_mask(env, inputs.hidden.get("env", ())),
            **{f"{key} (servers)": value for key, value in train.env_server.items()},
            **{f"{key} (workers)": value for key, value in train.env_worker.items()},
        },
        output_url=inputs.output_url,
        setup=head.setup,
        library=inputs.library,
        packages=head.bundle.packages if head.bundle is not None else (),
        image=inputs.image.reference if inputs.image is not None else None,
        code=_base(head.code_dir),
        project=_base(head.project_dir) if head.project_dir else None,
        owner=inputs.survey.owner,
        nodes_credentials=inputs.access.of_nodes,
    )


def _environment(
    config: TrainConfig, inputs: JobInputs, choices: Choices, containers: Mapping[str, Container]
) -> dict[str, str]:
    """The variables of a job's processes; those of the user win."""
    data, access, words, program = inputs.data, inputs.access, choices.words, inputs.program
    staged = plan_staged(data, inputs.framework, words, program=program, is_shipped=inputs.is_shipped)
    saved = plan_saved(data, words, program=program)
    urls = {
        "CLUSTER_DATA_URL": data.url,
        "CLUSTER_RESULTS_URL": data.results,
        "CLUSTER_OUTPUT_URL": inputs.output_url,
    }
    return {
        **_process_environment(config, choices.threads, containers, python=inputs.head.python),
        "CLUSTER_JOB_NAME": choices.name,
        **({"CLUSTER_VOLUMES": ":".join(inputs.volumes)} if inputs.volumes else {}),
        **{key: url for key, url in urls.items() if url is not None},
        **reading_environment(choices.reading, data, access, staged=staged, saved=saved),
        **access.env,
        **config.env,
    }


def _process_environment(
    config: TrainConfig, threads: int, containers: Mapping[str, Container], *, python: str
) -> dict[str, str]:
    """The variables that this project sets for a job's processes, except the job's name and its URLs."""
    path = next((one.path for one in containers.values()), "/usr/local/bin:/usr/bin:/bin")
    env = {
        "PATH": f"{python.rpartition('/')[0]}:{path}",
        "OMP_NUM_THREADS": str(threads),
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


def plan_containers(
    image: PreparedImage | None, framework: Framework, *, volumes: Sequence[str] = ()
) -> dict[str, Container]:
    """The containers on each node that has the image; {} without one. volumes: where [[volumes]] are mounted. Pure."""
    mounts = tuple((path, path, False) for path in volumes)
    return {
        name: replace(one, mounts=(*mounts, *one.mounts), has_environment=framework != "none")
        for name, one in (image.nodes.items() if image is not None else ())
    }


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


def _work_folder(config: TrainConfig, node: ReadyNode, *, job_id: str) -> str:
    """The folder on a node where the job's processes start: [train] sync_dst_dir, or one of the job's own."""
    home, folder = node.facts.home, config.sync_dst_dir
    expanded = f"{home}/{folder[2:]}" if folder.startswith("~/") else folder
    return expanded.rstrip("/") or f"{home}/.cluster/jobs/{job_id}/work"


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _make_request(config: TrainConfig, inputs: JobInputs, choices: Choices) -> AllocationRequest:
    queue = inputs.queue
    return AllocationRequest(
        job=inputs.job_id,
        name=choices.name,
        nodes=len(choices.placement.processes),
        queue=queue.name,
        walltime_s=queue.find_walltime_s(config.max_duration_s),
        account=queue.account,
        slots_per_node=0 if queue.slots_per_node == "auto" else queue.slots_per_node,
        options=queue.options,
    )
