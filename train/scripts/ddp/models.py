"""Saves and restores a training's state in checkpoints: weights and the optimizer's state."""

import argparse
import io
import logging
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from common import ScriptError, checkpoints
from common.checkpoints import Checkpoint, open_place

from ddp.ranks import Ranks

logger = logging.getLogger()
Tensors = Dict[str, torch.Tensor]


class Start(NamedTuple):
    """Where training begins. epoch, batch: the finished epochs, and the finished batches of the next one.

    found: the checkpoint; model: its state_dict(); momenta: SGD's state; all only on rank 0, and None if training
    starts from scratch.
    """

    epoch: int = 0
    batch: int = 0
    words: str = ""  # for the log
    facts: Optional[Dict[str, Any]] = None  # the manifest's entries that all ranks need
    model: Optional[Tensors] = None
    momenta: Optional[Tensors] = None
    found: Optional[Checkpoint] = None


def find_start(options: argparse.Namespace, ranks: Ranks) -> Start:
    """Where training begins with --resume and --load-epoch; the same for all ranks. Only rank 0 reads the checkpoint.

    Raises ScriptError, on all ranks, if the checkpoint does not exist, or is another network's or framework's.
    """
    own = Start()

    def load() -> List[Any]:
        nonlocal own
        own = _load_start(options)
        return [own.epoch, own.batch, own.words, own.facts]

    epoch, batch, words, facts = ranks.share(load)
    return own._replace(epoch=epoch, batch=batch, words=words, facts=facts)


def _load_start(options: argparse.Namespace) -> Start:
    if not options.resume and not options.load_epoch:
        return Start()
    found = checkpoints.find_wanted(options, advice="on the node of rank 0; all nodes can read one on s3://")
    if found is None:
        return Start(words=f"No complete checkpoint {options.model_prefix}-*: training begins with epoch 0")
    _check(found, options)
    model = _load(found.paths["params"], found)
    momenta = _load(found.paths["states"], found) if "states" in found.paths else None
    words = f"Loaded {found.name}\n{checkpoints.words_of_start(found)}"
    facts = {name: found.manifest[name] for name in ("position", "metrics") if name in found.manifest}
    return Start(found.epoch, found.batch, words, facts, model, momenta, found)


def find_batch(start: Start, position: Dict[str, int]) -> int:
    """The batch with which to continue in an epoch. position: this training's, as the manifest stores it.

    With a different number of ranks or batches, it is after the same part of the epoch as in the saved training.
    """
    then = (start.facts or {}).get("position")
    if not isinstance(then, dict) or not then.get("batches"):
        return 0
    return start.batch * position["batches"] // int(then["batches"])


def restore(start: Start, network: torch.nn.Module) -> None:
    """Loads the saved weights into the network, on rank 0; the other ranks get them from DistributedDataParallel.

    Raises ScriptError if they are another network's.
    """
    if start.model is not None:
        try:
            network.load_state_dict(start.model)
        except RuntimeError as error:
            raise ScriptError(f"the checkpoint is another network's: {error}") from error


def restore_momenta(start: Start, network: torch.nn.Module, optimizer: torch.optim.SGD, ranks: Ranks) -> None:
    """Loads the saved state into the optimizer, or zeros if it was not saved. Does nothing in a new training."""
    if not start.epoch and not start.batch:
        return
    for name, each in network.named_parameters():
        momentum = (start.momenta or {}).get(name)
        if momentum is None:
            momentum = torch.zeros(each.shape, dtype=each.dtype)
        optimizer.state[each]["momentum_buffer"] = ranks.broadcast(momentum).to(ranks.device)


class Saver:
    """Saves checkpoints of a training; only on rank 0."""

    def __init__(self, options: argparse.Namespace, start: Start) -> None:
        self._options = options
        self._sequence = checkpoints.Sequence(start.found)
        self._last: Optional[Tuple[int, int, str]] = None
        self._place = open_place(options.model_prefix, to_write=True)
        self._pruner = checkpoints.Pruner(self._place, options.keep_checkpoints)

    def save(
        self, epoch: int, batch: int, model: torch.nn.Module, optimizer: torch.optim.SGD, facts: Dict[str, Any]
    ) -> str:
        """Saves a checkpoint after these epochs and batches, once; returns the name of its params. Raises ScriptError.

        facts: entries for the manifest.
        """
        if self._last is not None and self._last[:2] == (epoch, batch):
            return self._last[2]
        writers = {
            "params": lambda path: _write(path, model.state_dict()),
            "states": lambda path: _write(path, _momenta(model, optimizer)),
        }
        facts = dict(_facts(self._options), **facts)
        name = checkpoints.save(
            self._place, epoch, writers, has_symbol=False, facts=facts, **self._sequence.next(batch)
        )
        self._last = (epoch, batch, name)
        logger.info("Saved checkpoint to %s", name)
        if not batch:
            self._pruner.prune()
        return name


def _momenta(model: torch.nn.Module, optimizer: torch.optim.SGD) -> Tensors:
    """SGD's state by the parameters' names; its settings come from the command line.

    Contains only tensors: weights_only of PyTorch 1.13 refuses the numbers of optimizer.state_dict().
    """
    found = {name: optimizer.state[each].get("momentum_buffer") for name, each in model.named_parameters()}
    return {name: momentum for name, momentum in found.items() if momentum is not None}


def _facts(options: argparse.Namespace) -> Dict[str, Any]:
    chosen = {name: value for name, value in vars(options).items() if value not in (None, [], False)}
    return {"network": {"network": options.network}, "options": chosen, "torch": torch.__version__}


def _check(found: Checkpoint, options: argparse.Namespace) -> None:
    if "mxnet" in found.manifest:
        raise ScriptError(f"{found.name} is a model of MXNet: use another --model-prefix")
    saved_as = found.manifest.get("network", {}).get("network", options.network)
    if saved_as != options.network:
        raise ScriptError(f"{found.name} was trained with --network {saved_as}, not {options.network}")


def _write(path: str, state: Tensors) -> None:
    buffer = io.BytesIO()  # torch.save to a file reports a full disk as a RuntimeError; file.write raises OSError
    torch.save(state, buffer)
    with open(path, "wb") as file:
        file.write(buffer.getbuffer())


def _load(path: str, found: Checkpoint) -> Tensors:
    try:
        # weights_only: a file from S3 cannot run code here.
        loaded: Tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever unpickling raises
        raise ScriptError(f"{found.name} cannot be loaded by PyTorch {torch.__version__}: {error}") from error
    return loaded
