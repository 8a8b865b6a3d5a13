"""Checks a job before it starts: finds errors, for which the job is refused, and warnings. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from bootstrap.apply import ReadyNode
from foundation.errors import ConfigError
from node.engines import ENGINES
from node.engines.engine import Framework
from node.train_settings import ENVIRONMENTS
from provision.model import count
from train.job.config import DataConfig, TrainConfig
from train.job.defaults import KV_STORE_OPTION, find_option, script_options
from train.job.placement import Placement, share_gpus
from train.job.survey import Data, Survey
from train.s3.url import is_s3

# launch.py and the supervisor set these. With other values, a job could not find its scheduler, or be found itself.
RESERVED = frozenset(
    {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "CLUSTER_JOB_ID"}
)
_DATA_OPTIONS = ("--data-dir", "--data-train", "--benchmark")
_WITH_CUDA = re.compile(r"mxnet[-_]cu[0-9]|.*\.whl$")


def check_framework(launcher: str, framework: Framework, *, has_image: bool = False) -> None:
    """Raises ConfigError for an engine that does not start programs of this framework. Pure.

    has_image: jobs run in a container, whose image may have the framework that "none" does not install.
    """
    if framework in ENGINES[launcher].frameworks or (has_image and framework == "none"):
        return
    fitting = [name for name, engine in ENGINES.items() if framework in engine.frameworks]
    raise ConfigError(
        f'train.launcher = "{launcher}" does not start programs of [bootstrap] framework = "{framework}"',
        hint=f"cluster train --launcher auto (or {', '.join(fitting)}), or change [bootstrap] framework",
    )


class Problem(NamedTuple):
    """An error or warning about a job, and what to do. certain: no program can read [data] url like this."""

    message: str
    hint: str = ""
    certain: bool = True


class ProposedJob(Struct, frozen=True, kw_only=True):
    """A job that has not been checked yet.

    library: such as "mxnet==1.7.0.post2", a wheel's file name or "torch==2.13.0+cpu". shipped: the name of this
    project's script that the job runs, None for the user's own. command: the command that it runs instead, or ().
    data: [data]. nodes_credentials: it uses the nodes' credentials, not this machine's. volumes: the folders where
    [[volumes]] are mounted. names_data: False if the user's own program is known not to read [data] url.
    trains_alone: see program.py.
    """

    config: TrainConfig
    placement: Placement
    framework: Framework
    library: str
    shipped: str | None
    command: tuple[str, ...]
    data: DataConfig
    survey: Survey
    nodes_credentials: bool
    volumes: tuple[str, ...] = ()
    names_data: bool = True
    trains_alone: bool = False

    @property
    def workers(self) -> int:
        """The number of workers on all nodes."""
        return sum(self.placement.workers.values())

    @property
    def has_gpus(self) -> bool:
        """Whether any node with workers has a GPU."""
        return any(node.facts.gpus for node in self.placement.of_workers)

    @property
    def gpus(self) -> Mapping[str, int]:
        """The number of GPUs that the library can use on each node with workers, by the node's name."""

        def is_usable(node: ReadyNode) -> bool:
            if self.framework == "mxnet":
                return _WITH_CUDA.match(self.library) is not None
            return node.torch is None or node.torch.has_cuda

        return {node.host.name: len(node.facts.gpus) if is_usable(node) else 0 for node in self.placement.of_workers}

    @property
    def fewest_gpus(self) -> int:
        """The smallest number of usable GPUs on a node with workers."""
        return min(self.gpus.values(), default=0)

    @property
    def distributed(self) -> bool:
        """Whether the job sends gradients over the network."""
        return self.config.kv_store.startswith("dist")

    @property
    def reads_something_else(self) -> bool:
        """Whether the job runs one of this project's scripts, with arguments that name other data."""
        return self.shipped is not None and any(word.partition("=")[0] in _DATA_OPTIONS for word in self.config.args)

    @property
    def reads_data_url(self) -> bool:
        """Whether the job runs one of this project's scripts, which reads [data] url."""
        return self.data.url is not None and self.shipped is not None and not self.reads_something_else


def check(job: ProposedJob) -> tuple[str, ...]:
    """The warnings about a job. Raises ConfigError, with all errors, if the job cannot work."""
    data_problems: list[Problem] = []
    found, url = job.survey.data, job.data.url
    if found is not None and url is not None and job.names_data and not job.reads_something_else:
        data_problems += find_data_problems(
            found, url, region=job.survey.region, nodes_credentials=job.nodes_credentials
        )
    problems = [problem for rule in _ERRORS for problem in rule(job)]
    # It is unknown what the user's own script reads: for it, problems with the data are warnings.
    problems += [problem for problem in data_problems if problem.certain and job.reads_data_url]
    if problems:
        hint = next((problem.hint for problem in problems if problem.hint), None)
        raise ConfigError("\n".join(problem.message for problem in problems), hint=hint)
    warnings = [where for rule in _WARNINGS for where in rule(job)]
    return (*warnings, *(f"{problem.message} ({problem.hint})" for problem in data_problems))


def find_data_problems(data: Data, url: str, *, region: str | None, nodes_credentials: bool) -> Iterator[Problem]:
    """The problems of a job's data at [data] url.

    region: the nodes'. nodes_credentials: the job uses the nodes' credentials.
    """
    setting, of_s3 = f'data.url = "{url}"', is_s3(url)
    put = f"cluster data put FOLDER {url}" if of_s3 else f"cluster cp LOCAL_FOLDER node-0:{url}"
    if not data.exists:
        create = f"cluster data put --create-bucket FOLDER {url}; cluster data demo FOLDER writes digits to try it with"
        yield Problem(f"{setting}: there is no such {'bucket' if of_s3 else 'folder'}", create if of_s3 else put)
        return
    if None not in (data.region, region) and data.region != region:
        yield Problem(
            f"{setting}: the bucket is in {data.region}, but the nodes are in {region} and read S3 there",
            f'set [provision] region = "{data.region}" for a new cluster, or copy the data to a bucket in {region}: '
            "cluster data get, then cluster data put --create-bucket",
            certain=data.at_aws,
        )
    if data.refused is not None and not nodes_credentials:
        yield Problem(
            f"{setting}: the job gets your credentials, and with them {data.refused}",
            "cluster iam-policy prints the permissions that you need; or let the nodes use [provision] "
            "instance_profile",
        )
    if data.is_empty:
        yield Problem(f"{setting}: there is nothing to read", put)


def _kv_store(job: ProposedJob) -> Iterator[Problem]:
    setting = f'train.kv_store = "{job.config.kv_store}"'
    engine = ENGINES[job.config.launcher]
    if job.config.kv_store == "none" and not engine.uses_slots:
        yield Problem(
            f'{setting}: train.launcher = "{job.config.launcher}" starts nothing else than workers of a kv-store',
            "cluster train --launcher env, or --launcher mpi, or --kv-store dist_sync",
        )
    if job.distributed and job.workers == 1 and not job.command:
        yield Problem(
            f"{setting} needs two or more workers, and this job has one",
            "cluster train --kv-store local, or more workers (-n 2), or more nodes",
        )
    if not job.distributed and job.config.kv_store != "none" and job.workers > 1:
        yield Problem(
            f"{setting} is for one worker: {job.workers} workers would train {job.workers} separate models",
            "cluster train --kv-store dist_sync, or -n 1",
        )


def _overridden(job: ProposedJob) -> Iterator[Problem]:
    """Scripts use the last value of a repeated option: the one that is added after [train] args."""
    args = job.config.args
    given = [] if job.command else script_options(job.config, gpus=None, shipped=job.shipped is not None)
    for option, value in zip(given[::2], given[1::2], strict=True):
        own = find_option(args, option)
        if own is not None and not _are_same(own, value):
            name = KV_STORE_OPTION if option == job.config.kv_store_option else option
            key = f"train.{name.removeprefix('--').replace('-', '_')}"
            yield Problem(
                f"train.args: {option} {own} has no effect: {key} adds {option} {value} after it",
                f"set {key}, or cluster train {name} {own}",
            )


def _are_same(one: str, other: str) -> bool:
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def _p3(job: ProposedJob) -> Iterator[Problem]:
    config = job.config
    if not config.p3:
        return
    # MXNet's src/kvstore/p3store_dist.h: no compression, and no update on the servers, which dist_async needs.
    if config.kv_store not in ("dist_sync", "dist_device_sync", "dist_sync_device"):
        yield Problem(
            f'train.p3 = true needs kv_store = "dist_sync" or "dist_device_sync", not "{config.kv_store}"',
            "cluster train --kv-store dist_sync",
        )
    if config.gc_type != "none":
        yield Problem(
            "train.p3 = true: MXNet's P3 does not support gradient compression", "cluster train --gc-type none"
        )


def _gpus(job: ProposedJob) -> Iterator[Problem]:
    gpus, workers = job.config.gpus, job.placement.workers
    if gpus == "none":
        return
    if gpus != "auto":
        missing = [f"{name} has {count or 'none'}" for name, count in sorted(job.gpus.items()) if count <= max(gpus)]
        if missing and job.has_gpus and not any(job.gpus.values()):
            yield Problem(
                f"train.gpus = {list(gpus)}: {job.library} has no GPU support",
                'set [bootstrap] mxnet = "auto", or cluster train --gpus none',
            )
        elif missing:
            yield Problem(f"train.gpus = {list(gpus)}: {', '.join(missing)}", "cluster train --gpus auto, or none")
        return
    if len(set(job.gpus.values())) > 1 and not job.fewest_gpus:
        without = ", ".join(name for name, count in sorted(job.gpus.items()) if not count)
        yield Problem(
            f'train.gpus = "auto": {without} has no GPU, but other nodes have',
            "cluster train --gpus none, or -H with the nodes that have GPUs",
        )
    elif _do_not_share(job) and not job.command:
        name = max(workers, key=lambda name: workers[name])
        there = count(job.fewest_gpus, "GPU")
        yield Problem(
            f'train.gpus = "auto": the {there} of {name} cannot be shared equally among its {workers[name]} workers',
            f"cluster train -n {len(job.gpus)} (one worker per node), or --gpus with the GPUs of each worker",
        )


def _do_not_share(job: ProposedJob) -> bool:
    if job.config.kv_store == "none":  # each process sees all GPUs of its node
        return False
    return bool(job.fewest_gpus) and not share_gpus(job.fewest_gpus, job.placement.most_workers)


def find_results_problems(found: Data | None, url: str | None, train: TrainConfig) -> Iterator[Problem]:
    """The problems of [data] results, whose bucket nothing creates later. found: its state, if it is known. Pure."""
    is_elsewhere = any(key in train.env for key in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT"))
    if found is not None and not found.exists and not is_elsewhere:
        yield Problem(
            f'data.results = "{url}": there is no such bucket', f"cluster data put --create-bucket FILE {url}"
        )


def _reserved(job: ProposedJob) -> Iterator[Problem]:
    for key in ENVIRONMENTS:
        for name in sorted(RESERVED & set(getattr(job.config, key))):
            yield Problem(f"train.{key}: {name} is reserved: the cluster sets it for each process")


def _separate_models(job: ProposedJob) -> Iterator[str]:
    words = (*job.command, *job.config.args)
    if ENGINES[job.config.launcher].ports is None or job.workers == 1 or any("$CLUSTER_" in word for word in words):
        return
    if job.trains_alone:
        yield (
            f"{job.workers} processes would train {job.workers} separate models: the program joins no process group "
            "(torch.distributed.init_process_group and DistributedDataParallel; or cluster train -n 1)"
        )


def _gpu_warnings(job: ProposedJob) -> Iterator[str]:
    if job.config.gpus != "none" and job.has_gpus and not any(job.gpus.values()):
        yield f"{job.library} has no GPU support: the job runs on CPUs only"


def _not_passed_on(job: ProposedJob) -> Iterator[str]:
    config = job.config
    has_option = config.kv_store != "none" and isinstance(config.gpus, tuple)  # otherwise, a variable
    keys = ["gc_type"] * (config.gc_type != "none") + ["gpus"] * has_option
    if job.command and keys:
        yield f"train.{' and train.'.join(keys)} not passed on: a command runs word for word"


def _checkpoints_on_a_node(job: ProposedJob) -> Iterator[str]:
    """A new node cannot read checkpoints that were saved on the disk of another one."""
    config, prefix = job.config, find_option(job.config.args, "--model-prefix")
    nodes = [node for node in job.placement.of_workers if not node.host.spec]
    if job.shipped is None or not prefix or config.on_node_loss == "fail" or len(nodes) < 2:
        return
    if prefix == "auto" and job.data.results:
        return
    if prefix.startswith(("s3://", *(f"{mount}/" for mount in job.volumes))):
        return
    why = ", since [data] results is not set" if prefix == "auto" else ""
    remedy = 'set [data] results = "s3://..."' if prefix == "auto" else "use s3:// or a volume, or auto"
    yield (
        f"--model-prefix {prefix} saves checkpoints on the disk of one node{why}: if the job loses a node, it starts "
        f"again from epoch 0 ({remedy})"
    )


_ERRORS: Sequence[Callable[[ProposedJob], Iterator[Problem]]] = (
    _kv_store,
    _overridden,
    _p3,
    _gpus,
    lambda job: find_results_problems(job.survey.results, job.data.results, job.config),
    _reserved,
)
_WARNINGS: Sequence[Callable[[ProposedJob], Iterator[str]]] = (
    _separate_models,
    _gpu_warnings,
    _not_passed_on,
    _checkpoints_on_a_node,
)
