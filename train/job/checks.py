"""Whether a job makes sense, before anything of it starts: what is refused, and what is warned of. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from foundation.errors import ConfigError
from provision.model import count
from train.job.config import TrainConfig
from train.job.data_checks import Fault, find_costs, find_faults
from train.job.defaults import KV_STORE_OPTION, find_option, script_options
from train.job.placement import Placement, share_gpus
from train.job.reading import guess_ranks
from train.job.survey import Data

# launch.py's and the supervisor's own: a job with others of these would not find its scheduler, or not be found.
RESERVED = frozenset(
    {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "CLUSTER_JOB_ID"}
)
P3_SINCE = (1, 7)
# A kv-store that a command's words name, also those of a shell's program. nccl is of one machine, too.
_STORE_OF_COMMAND = re.compile(r"""(?:^|\s)(--kv[-_]?store)(?:=|\s+)['"]?((?:local|device|nccl|dist)\w*)""")


_OF_DATA = ("--data-dir", "--data-train", "--benchmark")
_WITH_CUDA = re.compile(r"mxnet-cu[0-9]|source@")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A job as it would be.

    library: "mxnet==1.7.0.post2", "source@v1.7.x". shipped: the name of this project's own script that it runs, None
    for what is the user's. command: the words that it runs in place of a script, () for none. data: what is in [data]
    url, None when that is not known or not set. region: the nodes'. nodes_credentials: the job has the nodes' own, and
    not those of this machine. staged: its data is read from files that are fetched to the nodes.
    """

    config: TrainConfig
    placement: Placement
    library: str
    shipped: str | None
    command: tuple[str, ...]
    has_files: bool
    data_url: str | None
    data: Data | None
    region: str | None
    nodes_credentials: bool
    staged: bool

    @property
    def workers(self) -> int:
        """How many there are in all."""
        return sum(self.placement.workers.values())

    @property
    def has_gpus(self) -> bool:
        """Whether its workers' nodes have any."""
        return any(node.facts.gpus for node in self.placement.of_workers)

    @property
    def gpus(self) -> Mapping[str, int]:
        """How many GPUs the library can use on each node with workers, by the node's name."""
        usable = _WITH_CUDA.match(self.library) is not None
        return {node.host.name: len(node.facts.gpus) if usable else 0 for node in self.placement.of_workers}

    @property
    def fewest_gpus(self) -> int:
        """On one of its workers' nodes."""
        return min(self.gpus.values(), default=0)

    @property
    def distributed(self) -> bool:
        """Whether gradients go over the network."""
        return self.config.kv_store.startswith("dist")

    @property
    def reads_something_else(self) -> bool:
        """Whether it is one of this project's scripts that has been told to."""
        return self.shipped is not None and any(word.partition("=")[0] in _OF_DATA for word in self.config.args)

    @property
    def reads_data_url(self) -> bool:
        """Whether it is one of this project's scripts that has not been told to read something else."""
        return self.data_url is not None and self.shipped is not None and not self.reads_something_else


def check(wanted: Wanted) -> tuple[str, ...]:
    """What the user should know of a job. Raises ConfigError, with all that is wrong, when it makes no sense."""
    faults: list[Fault] = []
    costs: list[str] = []
    if wanted.data is not None and wanted.data_url is not None and not wanted.reads_something_else:
        faults += find_faults(
            wanted.data,
            wanted.data_url,
            region=wanted.region,
            script=wanted.shipped,
            nodes_credentials=wanted.nodes_credentials,
        )
        if wanted.staged or not wanted.command:
            ranks = Counter(guess_ranks(wanted.placement))
            costs += find_costs(
                wanted.data, wanted.data_url, workers=ranks, script=wanted.shipped, staged=wanted.staged
            )
    problems = [problem for rule in _ERRORS for problem in rule(wanted)]
    # What a script of the user's reads is not known: for it, faults of the data are warnings.
    problems += [fault for fault in faults if fault.certain and wanted.reads_data_url]
    if problems:
        hint = next((problem.hint for problem in problems if problem.hint), None)
        raise ConfigError("\n".join(problem.said for problem in problems), hint=hint)
    warnings = [said for rule in _WARNINGS for said in rule(wanted)]
    return (*warnings, *(f"{fault.said} ({fault.hint})" for fault in faults), *costs)


def _kv_store(wanted: Wanted) -> Iterator[Fault]:
    setting = f'train.kv_store = "{wanted.config.kv_store}"'
    if wanted.distributed and wanted.workers == 1 and not wanted.command:
        yield Fault(
            f"{setting}: with one worker there is nobody to exchange gradients with",
            "cluster train --kv-store local, or more workers (-n 2), or more nodes",
        )
    if not wanted.distributed and wanted.workers > 1:
        yield Fault(
            f"{setting}: its {wanted.workers} workers would train {wanted.workers} models that know nothing of each "
            "other",
            "cluster train --kv-store dist_sync, or -n 1",
        )


def _compression(wanted: Wanted) -> Iterator[Fault]:
    config = wanted.config
    if config.gc_type != "none" and not wanted.distributed:
        yield Fault(
            f'train.gc_type = "{config.gc_type}": it compresses what goes over the network, and with '
            f'kv_store = "{config.kv_store}" nothing does',
            "cluster train --gc-type none, or --kv-store dist_sync",
        )


def _overridden(wanted: Wanted) -> Iterator[Fault]:
    """Of an option that stands there twice, scripts take the last: the one that is put behind [train] args."""
    args = wanted.config.args
    given = [] if wanted.command else script_options(wanted.config, gpus=None, shipped=wanted.shipped is not None)
    for option, value in zip(given[::2], given[1::2], strict=True):
        own = find_option(args, option)
        if own is not None and not _are_same(own, value):
            name = KV_STORE_OPTION if option == wanted.config.kv_store_option else option
            key = f"train.{name.removeprefix('--').replace('-', '_')}"
            yield Fault(
                f"train.args: {option} {own}: {option} {value} of {key} is put behind it, and goes over it",
                f"write it as {key}, or cluster train {name} {own}",
            )


def _are_same(one: str, other: str) -> bool:
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def _p3(wanted: Wanted) -> Iterator[Fault]:
    config = wanted.config
    if not config.p3:
        return
    # MXNet's src/kvstore/p3store_dist.h: no compression, and no update on the servers, which dist_async needs.
    if config.kv_store not in ("dist_sync", "dist_device_sync", "dist_sync_device"):
        yield Fault(
            f'train.p3 = true: it is for kv_store = "dist_sync" and "dist_device_sync" alone, not "{config.kv_store}"',
            "cluster train --kv-store dist_sync",
        )
    if config.gc_type != "none":
        yield Fault("train.p3 = true: MXNet's P3 knows no gradient compression", "cluster train --gc-type none")
    version = re.match(r"mxnet[^=]*==([0-9]+)\.([0-9]+)", wanted.library)
    if version is not None and (int(version[1]), int(version[2])) < P3_SINCE:
        yield Fault(
            f"train.p3 = true: {wanted.library} has no P3, which came with MXNet 1.7",
            'set mxnet = "mxnet==1.7.0.post2"',
        )


def _hosts(wanted: Wanted) -> Iterator[Fault]:
    head = wanted.placement.nodes[0].host
    others = [host for host in wanted.config.hosts if host.partition(":")[0] not in (head.name, head.private_ip)]
    if wanted.config.launcher == "local" and others:
        yield Fault(
            f'train.launcher = "local": it runs all on the head ({head.name}), and train.hosts names {others[0]}',
            "cluster train --launcher ssh",
        )


def _gpus(wanted: Wanted) -> Iterator[Fault]:
    gpus, workers = wanted.config.gpus, wanted.placement.workers
    if gpus == "none":
        return
    if gpus != "auto":
        missing = [f"{name} has {count or 'none'}" for name, count in sorted(wanted.gpus.items()) if count <= max(gpus)]
        if missing and wanted.has_gpus and not any(wanted.gpus.values()):
            yield Fault(
                f"train.gpus = {list(gpus)}: {wanted.library} has no code for GPUs",
                'set [bootstrap] mxnet = "auto", or cluster train --gpus none',
            )
        elif missing:
            yield Fault(f"train.gpus = {list(gpus)}: {', '.join(missing)}", "cluster train --gpus auto, or none")
        return
    if len(set(wanted.gpus.values())) > 1 and not wanted.fewest_gpus:
        without = ", ".join(name for name, count in sorted(wanted.gpus.items()) if not count)
        yield Fault(
            f'train.gpus = "auto": {without} has no GPU, other nodes have',
            "cluster train --gpus none, or -H with the nodes that have GPUs",
        )
    elif _do_not_share(wanted) and not wanted.command:
        name = max(workers, key=lambda name: workers[name])
        there = count(wanted.fewest_gpus, "GPU")
        yield Fault(
            f'train.gpus = "auto": the {there} of {name} cannot be shared equally among its {workers[name]} workers',
            f"cluster train -n {len(wanted.gpus)} (one worker for each node), or --gpus with what each worker takes",
        )


def _do_not_share(wanted: Wanted) -> bool:
    return bool(wanted.fewest_gpus) and not share_gpus(wanted.fewest_gpus, wanted.placement.most_workers)


def _files(wanted: Wanted) -> Iterator[Fault]:
    if wanted.config.sync_dst_dir and not wanted.has_files:
        yield Fault(
            f'train.sync_dst_dir = "{wanted.config.sync_dst_dir}": there are no files of yours to copy there',
            'name them: [bootstrap] sync = ["my_project/"]',
        )


def _reserved(wanted: Wanted) -> Iterator[Fault]:
    for key in ("env", "env_server", "env_worker"):
        for name in sorted(RESERVED & set(getattr(wanted.config, key))):
            yield Fault(f"train.{key}: {name} is set for each process by launch.py and the supervisor alone")


def _more_workers_than_nodes(wanted: Wanted) -> Iterator[str]:
    config, nodes = wanted.config, len(wanted.placement.of_workers)
    asked_for = config.launcher == "local" or len(set(config.hosts)) < len(config.hosts)
    if wanted.workers > nodes and not wanted.fewest_gpus and not asked_for:
        yield (
            f"{wanted.workers} workers on {count(nodes, 'node')} without GPUs share their cores: one worker for each "
            f"node (-n {nodes}) is seldom slower"
        )


def _idle_servers(wanted: Wanted) -> Iterator[str]:
    if not wanted.distributed and wanted.config.servers != "auto":
        yield f'train.servers = {wanted.config.servers}: kv_store = "{wanted.config.kv_store}" has none'


def _idle_threshold(wanted: Wanted) -> Iterator[str]:
    config = wanted.config
    if config.gc_type != "none":
        return
    # As likely as not what cluster.toml has for other jobs.
    if config.gc_threshold != TrainConfig().gc_threshold:
        yield f'train.gc_threshold = {config.gc_threshold}: it does nothing without train.gc_type = "2bit"'
    of_args = None if wanted.shipped is None else find_option(config.args, "--gc-threshold")
    if of_args is not None and find_option(config.args, "--gc-type") != "2bit":
        yield f"train.args: --gc-threshold {of_args}: it does nothing without --gc-type 2bit"


def _store_of_command(wanted: Wanted) -> Iterator[str]:
    """What a user's script makes of its words is not known."""
    # Where kv_store is put behind a script's arguments, _overridden has looked at them.
    added = wanted.shipped is not None or wanted.config.kv_store_option
    words = wanted.command or (() if added else wanted.config.args)
    found: list[tuple[str, str]] = _STORE_OF_COMMAND.findall(" ".join(words))
    if not found:
        return
    option, store = found[-1]
    where = "the command" if wanted.command else "train.args"
    said, setting = f"{option} {store} in {where}", f'train.kv_store = "{wanted.config.kv_store}"'
    workers, is_distributed = wanted.workers, store.startswith("dist")
    if not is_distributed and workers > 1:
        yield (
            f"{said}: its {workers} workers would train {workers} models that know nothing of each other ({option} "
            f"{wanted.config.kv_store} there, or cluster train -n 1 --kv-store local)"
        )
    elif not is_distributed and wanted.distributed:
        yield f"{said}, and {setting}: its servers have nothing to do (cluster train --kv-store local)"
    elif is_distributed and not wanted.distributed:
        yield f"{said}, and {setting}, for which no servers are started (cluster train -n 2 --kv-store dist_sync)"
    elif is_distributed and workers == 1:
        yield (
            f"{said}: with one worker there is nobody to exchange gradients with ({option} local there and --kv-store "
            "local before it, or more workers: -n 2)"
        )


def _device_store(wanted: Wanted) -> Iterator[str]:
    if "device" in wanted.config.kv_store and (not wanted.fewest_gpus or wanted.config.gpus == "none"):
        plain = "dist_sync" if wanted.distributed else "local"
        yield f'train.kv_store = "{wanted.config.kv_store}" adds gradients up on GPUs, and none are used: as "{plain}"'


def _gpu_warnings(wanted: Wanted) -> Iterator[str]:
    gpus, most = wanted.config.gpus, wanted.placement.most_workers
    if gpus == "none":
        return
    if wanted.has_gpus and not any(wanted.gpus.values()):
        yield f"{wanted.library} has no code for GPUs: the job runs on the processors alone"
    if isinstance(gpus, tuple) and most > 1:
        yield f"train.gpus = {list(gpus)}: up to {most} workers on a node use the same GPUs"
    if gpus == "auto" and wanted.command and _do_not_share(wanted):
        there = count(wanted.fewest_gpus, "GPU")
        yield f"up to {most} workers on a node see its {there}, all of them: they do not share out equally"
    if gpus == "auto" and len(set(wanted.gpus.values())) > 1 and wanted.fewest_gpus:
        yield f"the nodes have different numbers of GPUs: {wanted.fewest_gpus} of each are used"


def _not_passed_on(wanted: Wanted) -> Iterator[str]:
    config = wanted.config
    keys = ["gc_type"] * (config.gc_type != "none") + ["gpus"] * isinstance(config.gpus, tuple)
    if wanted.command and keys:
        yield f"train.{' and train.'.join(keys)}: not given to a command, which is passed on word for word"


_ERRORS: Sequence[Callable[[Wanted], Iterator[Fault]]] = (
    _kv_store,
    _compression,
    _overridden,
    _p3,
    _hosts,
    _gpus,
    _files,
    _reserved,
)
_WARNINGS: Sequence[Callable[[Wanted], Iterator[str]]] = (
    _more_workers_than_nodes,
    _idle_servers,
    _idle_threshold,
    _store_of_command,
    _device_store,
    _gpu_warnings,
    _not_passed_on,
)
