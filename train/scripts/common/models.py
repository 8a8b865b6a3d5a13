"""Saves and restores a training's state in checkpoints: weights and the optimizer's state."""

import argparse
import json
import logging
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx

from common import ScriptError, checkpoints
from common.checkpoints import Checkpoint, open_place
from common.options import settings_of_network
from common.workers import Workers, exchange, share_file

logger = logging.getLogger()
UPDATE_ON_SERVERS = "MXNET_UPDATE_ON_KVSTORE"  # MXNet's own: with "0", the workers update
Arrays = Dict[str, mx.nd.NDArray]


class Start(NamedTuple):
    """Where training begins. epoch: the number of finished epochs. states: the optimizer's file; None: a new state.

    batch: the finished batches of the next epoch. found: the checkpoint; None: from the beginning.
    """

    epoch: int = 0
    batch: int = 0
    arg_params: Optional[Arrays] = None
    aux_params: Optional[Arrays] = None
    states: Optional[str] = None
    found: Optional[Checkpoint] = None


class Position(NamedTuple):
    """Where a training is in its data, and what this depends on.

    batches: per epoch. workers, batch_size, seed, data: they determine the order of records. passes: the number of
    batches in each worker's part, by rank; 0: not known yet.
    """

    batches: int
    workers: int
    batch_size: int
    seed: int
    data: str
    passes: List[int]


def find_start(options: argparse.Namespace, workers: Workers, network: mx.sym.Symbol) -> Start:
    """Where training begins with --resume and --load-epoch; the same for all workers.

    Raises ScriptError if the checkpoint does not exist, is of another network, or workers find different ones in S3.
    """
    if not options.resume and not options.load_epoch:
        return Start()
    found = checkpoints.find_wanted(
        options, advice="with several nodes, each of them must be able to read it, as on s3://"
    )
    found = _agree(found, workers, options.model_prefix)
    if found is None:
        logger.info("No complete checkpoint %s-*: training begins with epoch 0", options.model_prefix)
        return Start()
    arrays = _load(found, options, network)
    states = _usable_states(found, options)
    logger.info("Loaded %s", found.name)
    logger.info(checkpoints.words_of_start(found))
    logger.info(
        "Epoch[%d] is next, of %d; the optimizer %s", found.epoch, options.num_epochs,
        "continues from its saved state" if states else "starts from scratch: its state is not in the checkpoint",
    )  # fmt: skip
    return Start(found.epoch, found.batch, arrays[0], arrays[1], states, found)


def find_position(start: Start, now: Position) -> Optional[Position]:
    """The saved training's position in its data; None if this training has another order of records."""
    saved = (start.found.manifest if start.found is not None else {}).get("position")
    if not isinstance(saved, dict) or set(saved) != set(Position._fields):
        return None
    then = Position(**saved)
    return then if then._replace(passes=now.passes) == now else None


def find_batch(start: Start, batches: int) -> int:
    """The batch with which to continue in an epoch of `batches`: after the same part of it as in the saved training."""
    saved = (start.found.manifest if start.found is not None else {}).get("position")
    then = saved.get("batches") if isinstance(saved, dict) else None
    return start.batch * batches // then if then else 0


def keeps_states(options: argparse.Namespace) -> bool:
    """Whether the workers, not the servers, have the optimizer's state: servers do not give it to workers.

    With dist_async the servers must have it; with compressed gradients, workers that update wait forever (MXNet 1.7).
    """
    if not options.kv_store.startswith("dist"):
        return True
    wanted = os.environ.get(UPDATE_ON_SERVERS, "0") == "0"
    return wanted and options.kv_store != "dist_async" and options.gc_type == "none"


class Saver:
    """Saves checkpoints of a training; only on worker 0."""

    def __init__(self, options: argparse.Namespace, module: mx.mod.Module, start: Start) -> None:
        self._options = options
        self._module = module
        self._sequence = checkpoints.Sequence(start.found)
        self._last: Optional[Tuple[int, int, str]] = None
        self._place = open_place(options.model_prefix, to_write=True)
        self._has_symbol = False
        self._pruner = checkpoints.Pruner(self._place, options.keep_checkpoints)

    def save(self, epoch: int, batch: int, position: Position, metrics: List[List[float]]) -> str:
        """Saves a checkpoint after these epochs and batches, once; returns the name of its params. Raises ScriptError.

        metrics: of the batches of an unfinished epoch.
        """
        if self._last is not None and self._last[:2] == (epoch, batch):
            return self._last[2]
        arg_params, aux_params = self._module.get_params()
        arrays = {f"arg:{name}": value for name, value in arg_params.items()}
        arrays.update({f"aux:{name}": value for name, value in aux_params.items()})
        writers = {"params": lambda path: _write_arrays(path, arrays)}
        if keeps_states(self._options):
            writers["states"] = self._module.save_optimizer_states
        described = None if self._has_symbol else self._module.symbol.tojson()
        facts = dict(_facts(self._options), position=position._asdict(), metrics=metrics)
        schedule = getattr(self._module.optimizer, "m_schedule", None)
        if schedule is not None:
            facts["m_schedule"] = float(schedule)
        name = checkpoints.save(
            self._place, epoch, writers, symbol=described, facts=facts, **self._sequence.next(batch)
        )
        self._has_symbol = True
        self._last = (epoch, batch, name)
        logger.info("Saved checkpoint to %s", name)
        if not batch:
            self._pruner.prune()
        return name


def _write_arrays(path: str, arrays: Arrays) -> None:
    try:
        mx.nd.save(path, arrays)
        # MXNet ignores errors while it closes the file, which is when a full disk shows.
        complete = len(mx.nd.load(path)) == len(arrays)
    except mx.base.MXNetError as error:
        raise ScriptError(f"{path} was not written completely: is the disk full?") from error
    if not complete:
        raise ScriptError(f"{path} was not written completely: is the disk full?")


def _facts(options: argparse.Namespace) -> Dict[str, Any]:
    chosen = {name: value for name, value in vars(options).items() if value not in (None, [], False)}
    return {
        "network": dict(settings_of_network(options)),
        "optimizer": _optimizer_facts(options),
        "options": chosen,
        "mxnet": mx.__version__,
    }


def _optimizer_facts(options: argparse.Namespace) -> Dict[str, Any]:
    return {"name": options.optimizer, "devices": max(1, len(options.gpus)), "dtype": options.dtype}


def _agree(found: Optional[Checkpoint], workers: Workers, prefix: str) -> Optional[Checkpoint]:
    """The checkpoint with which all workers continue: the newest of those on their own disks.

    Only worker 0 saves, and in a later attempt of a job, it may run on another node. Raises ScriptError if the workers
    have found different ones in S3, or the newest one has no manifest.
    """
    theirs = exchange(workers, "checkpoint", _numbers(found))
    if all(other == theirs[0] for other in theirs):
        return found
    newest = max(theirs)
    listed = ", ".join(f"worker {rank} {_words_of_place(numbers)}" for rank, numbers in enumerate(theirs))
    if prefix.startswith("s3://") or not newest[0]:
        raise ScriptError(
            f"the workers do not find the same checkpoint {prefix}-*: {listed}; "
            "--model-prefix must be a place that all of them share, such as s3://bucket/model"
        )
    owner = theirs.index(newest)
    logger.info("Checkpoints on the workers' own disks: %s; all continue with that of worker %d", listed, owner)
    try:
        return _share(found, workers, owner, prefix)
    except OSError as error:
        raise ScriptError(f"the checkpoint of worker {owner} cannot be copied here: {error.strerror}") from error


def _numbers(found: Optional[Checkpoint]) -> List[int]:
    """A checkpoint as numbers below 2**24, the time of writing first, in milliseconds; all 0 without one."""
    if found is None:
        return [0] * 5
    written_ms = int(float(found.manifest.get("written_at", 0)) * 1000)
    return [written_ms >> 24, written_ms & 0xFFFFFF, found.epoch, found.mark, found.batch]


def _words_of_place(numbers: List[int]) -> str:
    _, _, epoch, mark, batch = numbers
    if not mark and not epoch:
        return "none"
    return f"epoch {epoch} batch {batch}" if batch else f"epoch {epoch}"


def _share(found: Optional[Checkpoint], workers: Workers, owner: int, prefix: str) -> Checkpoint:
    """The owner's checkpoint; the other workers get copies of its files. Raises OSError, ScriptError."""
    folder = checkpoints.make_temporary_folder()
    is_owner = workers.part.index == owner
    path = os.path.join(folder, "manifest")
    if is_owner and found is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found.manifest, file)
    size = exchange(workers, "manifest-size", [os.path.getsize(path) if is_owner else 0])[owner][0]
    share_file(workers, "manifest", path, owner=owner, size=size)
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    paths = {}
    for kind, of_kind in sorted(manifest["files"].items()):
        paths[kind] = found.paths[kind] if is_owner and found is not None else os.path.join(folder, kind)
        share_file(workers, f"checkpoint-{kind}", paths[kind], owner=owner, size=of_kind["size"])
    name = open_place(prefix, to_write=False).url(manifest["files"]["params"]["name"])
    shared = checkpoints.check_files(manifest, paths, name)
    if shared is None:
        raise ScriptError(f"the checkpoint of worker {owner} was damaged while it was copied here")
    return shared


def _load(found: Checkpoint, options: argparse.Namespace, network: mx.sym.Symbol) -> Tuple[Arrays, Arrays]:
    """The checkpoint's weights. Raises ScriptError if they are another network's."""
    if "torch" in found.manifest:
        raise ScriptError(f"{found.name} is a model of PyTorch: use another --model-prefix")
    saved_as = found.manifest.get("network", {})
    for name, value in settings_of_network(options):
        # As JSON stores it: tuples become lists.
        now = json.loads(json.dumps(value))
        if name in saved_as and saved_as[name] != now:
            raise ScriptError(
                f"{found.name} was trained with --{name.replace('_', '-')} {_words(saved_as[name])}, not {_words(now)}"
            )
    split: Tuple[Arrays, Arrays] = ({}, {})
    for name, value in mx.nd.load(found.paths["params"]).items():
        kind, _, own_name = name.partition(":")
        split[kind == "aux"][own_name] = value
    known = network.list_arguments() + network.list_auxiliary_states()
    missing = [name for name in known if name not in split[0] and name not in split[1]]
    missing = [name for name in missing if name not in ("data", "softmax_label")]
    if missing:
        raise ScriptError(f"{found.name} is of another network: it has no {missing[0]}")
    return split


def _usable_states(found: Checkpoint, options: argparse.Namespace) -> Optional[str]:
    """The file of the optimizer's state, if this optimizer can continue with it."""
    saved_as = found.manifest.get("optimizer", _optimizer_facts(options))
    if not keeps_states(options) or saved_as != _optimizer_facts(options):
        return None
    return found.paths.get("states")


def _words(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
