"""Chooses a job's defaults (threads, servers, GPUs, name), and renders its settings before each start. Pure."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING

from msgspec import Struct

from node.engines.schedulers import SCHEDULERS
from node.protocol import SHELL, Order
from provision.model import count
from train.job.config import TrainConfig
from train.job.placement import Placement, share_gpus
from train.job.reading import render_reading

if TYPE_CHECKING:
    from bootstrap.apply import ReadyNode
    from train.job.job_plan import Job

KV_STORE_OPTION = "--kv-store"
"""The option for kv_store of this project's own scripts."""
_SCRIPT_OPTION = "--gpus"
PYTHON = re.compile(r"python[0-9.]*")
_CODE = re.compile(r"-([A-Za-z]*c)?")
"""An option after which a program's text follows, as in `python -c`, `bash -lc` and `python -`."""
SHELL_NAME = re.compile(r"(ba|da|k|z)?sh")
_SHELL_SYNTAX = frozenset(("!", "(", "{", ".", "[", "[[", "case", "cd", "exec", "for", "if", "set", "until", "while"))


class Threads(Struct, frozen=True, kw_only=True):
    """OMP_NUM_THREADS of every process. cores, processes: of the node with the fewest cores per process."""

    count: int
    cores: int
    processes: int


def choose_threads(placement: Placement, *, slots: int = 0) -> Threads:
    """Divides the cores of a node among the job's processes there; the node with the fewest per process decides.

    Without the variable, every process uses all cores, and they slow each other down: 17-28 s instead of 4 on 2 cores.
    slots: those of each node that a batch scheduler assigns; 0: all.
    """
    cores = {node.host.name: min(node.facts.cores, slots or node.facts.cores) for node in placement.nodes}
    shares = [
        Threads(count=max(1, cores[name] // processes), cores=cores[name], processes=processes)
        for name, processes in placement.processes.items()
    ]
    return min(shares, key=lambda share: share.count)


def choose_servers(nodes: Sequence[ReadyNode], workers: int) -> int:
    """One server per worker while a node has a core for each process, and at least one on every node.

    More processes cost time: 4 workers on 2 nodes of 2 cores start a sixth sooner with 2 servers than with the 4 of
    launch.py's default (bench/RESULTS.md).
    """
    cores = {node.host.name: node.facts.cores for node in nodes}
    most_workers = -(-workers // len(cores))
    of_node = max(1, min(most_workers, min(cores.values()) - most_workers))
    return min(workers, of_node * len(cores))


def choose_processes(config: TrainConfig, node: ReadyNode) -> int:
    """The number of processes on a node for [train] processes: for "auto", one for each GPU that the job uses, or 1."""
    if config.processes != "auto":
        return config.processes
    if config.gpus == "auto":
        has_cuda = node.torch is None or node.torch.has_cuda
        return len(node.facts.gpus) or 1 if has_cuda else 1
    return 1 if config.gpus == "none" else len(config.gpus)


def choose_gpus(
    config: TrainConfig, gpus: Mapping[str, int], *, most_workers: int
) -> tuple[str | None, tuple[tuple[int, ...], ...]]:
    """The value of --gpus for a script, None for none; and the GPUs that each worker of a node sees, () for all.

    A worker sees its GPUs as 0, 1, ...: --gpus is the same for all workers.
    """
    if config.gpus == "none":
        return None, ()
    if config.gpus != "auto":
        return ",".join(map(str, config.gpus)), ()
    fewest = min(gpus.values(), default=0)
    shares = share_gpus(fewest, most_workers) if most_workers > 1 else ()
    count = len(shares[0]) if shares else fewest
    return ",".join(map(str, range(count))) or None, shares


def script_options(config: TrainConfig, *, gpus: str | None, shipped: bool) -> list[str]:
    """The options added after a script's arguments. gpus: from choose_gpus.

    The user's own script gets --gpus only if [train] gpus lists GPUs: it may not have the option.
    """
    option = KV_STORE_OPTION if shipped else config.kv_store_option
    words = [option, config.kv_store] if option and config.kv_store != "none" else []
    if config.gc_type != "none":
        words += ["--gc-type", config.gc_type, "--gc-threshold", repr(config.gc_threshold)]
    own = find_option(config.args, _SCRIPT_OPTION)
    if gpus is not None and own is None and (shipped or config.gpus != "auto"):
        words += [_SCRIPT_OPTION, gpus]
    return words


def find_option(words: Sequence[str], name: str) -> str | None:
    """The last value of an option among words; None if the option is not among them. Pure."""
    found = None
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == name:
            found = value if equals else "".join(words[index + 1 : index + 2])
    return found


def render_settings(job: Job) -> list[str]:
    """The job in a few lines: its defaults, with their reasons."""
    order = job.order
    used = count(len(set(order.train.hosts)), "node")
    if order.train.kv_store == "none":
        where = f"{count(order.spec.workers, 'process', 'processes')} on {used}"
    else:
        processes = f"{count(order.spec.workers, 'worker')}, {count(order.spec.servers, 'server')}"
        where = f"{processes} on {used}, kv_store {order.train.kv_store}"
    launcher = f", launcher {order.train.launcher}" if order.train.launcher != "ssh" else ""
    launcher += f", on nodes from {SCHEDULERS[order.spec.scheduler].title}" if order.spec.scheduler else ""
    lines = [
        _script(order),
        _image(order),
        _selection(order),
        _threads(job),
        _gpus(job),
        _s3(job),
        job.credentials,
        f"results: {order.spec.output_url}" if order.spec.output_url else "",
    ]
    return [f"job {order.spec.id}: {where}{launcher}: {order.spec.name}", *(f"  {line}" for line in lines if line)]


def _script(order: Order) -> str:
    kinds = {"shipped": "ships with cluster", "project": "yours"}
    return f"script: {order.spec.script} ({kinds[order.spec.script_source]})" if order.spec.script_source else ""


def _image(order: Order) -> str:
    engines = sorted({" ".join(one.engine) for one in order.containers.values()})
    return f"image: {order.spec.image} ({' and '.join(engines)})" if order.spec.image is not None else ""


def _selection(order: Order) -> str:
    if order.spec.selection == "current":
        return ""
    if order.spec.scheduler:
        return f'nodes = "{order.spec.selection}": those that {SCHEDULERS[order.spec.scheduler].title} assigns'
    names = ", ".join(host.name for host in order.hosts if host.workers or host.servers)
    return f'nodes = "{order.spec.selection}": {names}'


def _threads(job: Job) -> str:
    setting = f"OMP_NUM_THREADS={_shown(job, 'OMP_NUM_THREADS')}"
    if "OMP_NUM_THREADS" in job.config.env:
        return f"{setting} (yours)"
    threads = job.threads
    return (
        f"{setting} ({count(threads.cores, 'core')} for {count(threads.processes, 'process', 'processes')} on a node)"
    )


def _gpus(job: Job) -> str:
    option = [f"--gpus {job.gpus}"] if job.gpus is not None else []
    shares = " | ".join(",".join(map(str, share)) for share in job.order.gpus_per_worker)
    return "; ".join([*option, *([f"GPUs of each worker on a node: {shares}"] if shares else [])])


def _s3(job: Job) -> str:
    if "S3_REGION" not in job.order.env:
        return ""
    endpoint = f" at {_shown(job, 'S3_ENDPOINT')}" if "S3_ENDPOINT" in job.order.env else ""
    return f"S3: {_shown(job, 'S3_REGION')}{endpoint}; {render_reading(job.reading)}"


def _shown(job: Job, name: str) -> str:
    """The value of a variable, masked if the user hid it."""
    return job.order.spec.env[name]


def job_name(name: str, command: Sequence[str]) -> str:
    """[train] name; for "auto", the name of the program: train_mnist for `python train_mnist.py`."""
    if name != "auto":
        return name
    program = find_program(command) or "job"
    plain = unicodedata.normalize("NFKD", program.rpartition("/")[2].removesuffix(".py")).encode("ascii", "ignore")
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", plain.decode()).strip("._-")
    return base[:64] or "job"


def find_program(command: Sequence[str]) -> str | None:
    """The program of a command: the script or module of `python train.py` or `sh run.sh`, or the first word. Pure."""
    words = _without_env(command)
    line = find_line(words)
    words = (_words_of_line(line) if line is not None else []) or words
    name = words[0].rpartition("/")[2] if words else ""
    if PYTHON.fullmatch(name) or SHELL_NAME.fullmatch(name):
        return _program(words[1:]) or words[0]
    return words[0] if words else None


def find_folder(command: Sequence[str]) -> str:
    """The folder that a command's shell line enters first, as in `sh -c "cd a && python b.py"`; "" for none. Pure."""
    line = find_line(_without_env(command))
    words = _split_line(line) if line is not None else []
    return words[1].removesuffix(";") if len(words) > 1 and words[0] == "cd" else ""


def _without_env(command: Sequence[str]) -> list[str]:
    """The words of a command that are not empty, without `env A=B` before them."""
    words = [word for word in command if word]
    if not words or words[0].rpartition("/")[2] != "env":
        return words
    return list(dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:])) or words


def find_line(words: Sequence[str]) -> str | None:
    """The shell line of `bash -c LINE` and `bash -lc LINE`."""
    is_line = len(words) == len(SHELL) + 1 and SHELL_NAME.fullmatch(words[0].rpartition("/")[2])
    return words[-1] if is_line and words[1] != "-" and _CODE.fullmatch(words[1]) else None


def _split_line(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # quotes that only a shell understands
        return line.split()


def _words_of_line(line: str) -> list[str]:
    """The words of a shell line; in "cd a && python b.py", those from `python` on; none of shell syntax."""
    words = _split_line(line)
    pythons = [index for index, word in enumerate(words[:-1]) if PYTHON.fullmatch(word.rpartition("/")[2])]
    if pythons:
        return words[pythons[0] :]
    return words if words and words[0] not in _SHELL_SYNTAX else []


def _program(words: Sequence[str]) -> str | None:
    """The script or -m MODULE in Python's arguments; None if there is neither."""
    for index, word in enumerate(words):
        if word == "-m":
            return next(iter(words[index + 1 :]), None)
        if not word.startswith("-"):
            return word
        if _CODE.fullmatch(word):
            return None
    return None
