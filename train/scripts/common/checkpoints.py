"""Checkpoints below --model-prefix, which `cluster train` copies to and from S3. Does not import MXNet.

The checkpoint of epoch 5 with the prefix P is P-0005.params and P-0005.states (the optimizer's, if it can be saved);
those within an epoch are P-batch-0 and P-batch-1 in turn. P-checkpoints.json, written last, lists the complete ones
with the SHA-256 of every file. One that is not listed, or does not match, does not count, so the process may be killed
at any moment.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from common import ScriptError
from common.options import JOB_ID
from mxnet_cluster.interruption import Interruption

logger = logging.getLogger()
LIST = "-checkpoints.json"
Writer = Callable[[str], None]  # writes a file's content to a local path


class Checkpoint(NamedTuple):
    """A complete checkpoint. paths: its files on this machine, by their content: "params", "states".

    epoch, batch: the finished epochs, and the finished batches of the next one, which has `batches` in all. mark: equal
    for equal weights.
    """

    name: str
    paths: Dict[str, str]
    epoch: int
    batch: int = 0
    batches: int = 0
    mark: int = 0


class Checkpoints:
    """The checkpoints of one training. model: its framework and network. optimizer: what saved states depend on."""

    def __init__(self, options: argparse.Namespace, model: str, optimizer: str) -> None:
        if "://" in options.model_prefix:
            raise ScriptError(f"--model-prefix {options.model_prefix}: only `cluster train` saves to s3://")
        self._prefix = os.path.abspath(options.model_prefix)
        self._options = options
        self._common = {"job": os.environ.get(JOB_ID), "model": model, "optimizer": optimizer}
        self._listed: List[Dict[str, Any]] = []  # the complete ones, the newest last
        self._has_symbol = False

    def find(self) -> Optional[Checkpoint]:
        """The checkpoint of --resume, the newest, or of --load-epoch; None if --resume finds none. Raises ScriptError.

        A later attempt of a job with --load-epoch has both: it begins with that epoch if its job has saved none.
        """
        epoch, job, found = self._options.load_epoch, self._options.only_job, None
        if self._options.resume:
            found = self._find(lambda entry: job is None or entry["job"] == job)
        if found is None and epoch:
            found = self._find(lambda entry: (entry["epoch"], entry["batch"]) == (epoch, 0))
            found = found or self._find_foreign(epoch)
        return found

    def _find(self, is_wanted: Callable[[Dict[str, Any]], bool]) -> Optional[Checkpoint]:
        """The newest complete one that is wanted. Those that are listed after it are forgotten."""
        try:
            with open(self._prefix + LIST, encoding="utf-8") as file:
                listed = json.load(file)
        except FileNotFoundError:
            return None
        while listed:
            entry = listed[-1]
            paths = self._verified(entry["files"]) if is_wanted(entry) else None
            if paths is not None:
                self._listed = listed
                return self._opened(entry, paths)
            listed.pop()
        return None

    def _verified(self, files: Dict[str, List[str]]) -> Optional[Dict[str, str]]:
        """The local paths of files; None if one does not match."""
        paths = {kind: self._prefix + suffix for kind, (suffix, _) in files.items()}
        is_complete = all(
            os.path.isfile(paths[kind]) and _digest(paths[kind]) == digest for kind, (_, digest) in files.items()
        )
        return paths if is_complete else None

    def _opened(self, entry: Dict[str, Any], paths: Dict[str, str]) -> Checkpoint:
        suffix, digest = entry["files"]["params"]
        name = self._prefix + suffix
        if entry["model"] != self._common["model"]:
            raise ScriptError(f"{name} is a model of {entry['model']}, not of {self._common['model']}")
        if entry["optimizer"] != self._common["optimizer"]:
            paths.pop("states", None)
        return Checkpoint(name, paths, entry["epoch"], entry["batch"], entry["batches"], int(digest[:6], 16))

    def _find_foreign(self, epoch: int) -> Checkpoint:
        """The weights of an epoch, as any program saves them. Raises ScriptError."""
        name = f"{self._prefix}-{epoch:04d}.params"
        if not os.path.isfile(name):
            raise ScriptError(f"no saved model {name}")
        return Checkpoint(name, {"params": name}, epoch)

    def save(
        self, epoch: int, batch: int, batches: int, writers: Dict[str, Writer], symbol: Optional[str] = None
    ) -> str:
        """Saves a checkpoint after these epochs and batches; returns the name of its params.

        writers: they write "params" and, perhaps, "states". symbol: MXNet's description of the network. Raises OSError.
        """
        within = [entry["files"]["params"][0] for entry in self._listed if entry["batch"]]
        turn = 1 if within[-1:] == ["-batch-0.params"] else 0
        stem = f"-batch-{turn}" if batch else f"-{epoch:04d}"
        files = {}
        for kind, write in writers.items():
            files[kind] = [f"{stem}.{kind}", self._write(f"{stem}.{kind}", write)]
        if symbol is not None and not self._has_symbol:
            self._write_text("-symbol.json", symbol)
            self._has_symbol = True
        others = [entry for entry in self._listed if entry["files"]["params"][0] != f"{stem}.params"]
        entry = {"epoch": epoch, "batch": batch, "batches": batches, "files": files, **self._common}
        self._listed, removed = _prune([*others, entry], self._options.keep_checkpoints)
        self._write_text(LIST, json.dumps(self._listed, indent=1))
        for old in removed:
            for suffix, _ in old["files"].values():
                self._remove(self._prefix + suffix)
        logger.info("Saved checkpoint to %s%s.params", self._prefix, stem)
        return f"{self._prefix}{stem}.params"

    def _write(self, suffix: str, write: Writer) -> str:
        """Replaces a file atomically; returns its SHA-256."""
        path = self._prefix + suffix
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draft = path + ".partial"
        write(draft)
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        digest = _digest(draft)
        os.replace(draft, path)
        return digest

    def _write_text(self, suffix: str, text: str) -> None:
        def write(path: str) -> None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        self._write(suffix, write)

    @staticmethod
    def _remove(path: str) -> None:
        """Removes a file; empties one that is copied to S3, where a job may not delete its object."""
        if path.startswith(os.environ.get("CLUSTER_OUTPUT_DIR", "?")):
            open(path, "wb").close()
        else:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def _prune(listed: List[Dict[str, Any]], keep: Optional[int]) -> Any:
    """The checkpoints that stay, and the ones of epochs before the last `keep`. Pure."""
    epochs = [entry for entry in listed if not entry["batch"]]
    removed = epochs[:-keep] if keep else []
    return [entry for entry in listed if entry not in removed], removed


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


class Saver:
    """Saves a training when it is time, and after a notice that a node of the job will be interrupted.

    checkpoints: None if this process does not save. content: returns the arguments `writers` and `symbol` of
    `Checkpoints.save`. batches: per epoch. steps: per update; a checkpoint is between two updates.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        checkpoints: Optional[Checkpoints],
        content: Callable[[], Dict[str, Any]],
        *,
        batches: int,
        steps: int = 1,
    ) -> None:
        self._options = options
        self._checkpoints = checkpoints
        self._content = content
        self._batches = batches
        self._steps = steps
        self._interruption = Interruption()
        self._last = (0, 0, "")

    def after_batch(self, epoch: int, batch: int) -> None:
        """Called after a batch. epoch: finished epochs; batch: finished batches of the next one."""
        if batch == self._batches:  # after_epoch follows
            self._interruption.note_progress(epoch + 1, 0, self._batches)
            return
        self._interruption.note_progress(epoch, batch, self._batches)
        every = self._options.checkpoint_batches
        if batch % self._steps == 0 and (self._interruption.has_notice() or (every and batch % every == 0)):
            self._save(epoch, batch)

    def after_epoch(self, done: int) -> None:
        """Called after an epoch. done: finished epochs."""
        if done % self._options.save_period == 0 or done == self._options.num_epochs:
            self._save(done, 0)
        self.between_epochs(done)

    def between_epochs(self, done: int) -> None:
        """Called after an epoch, and after each batch of the validation that follows it."""
        if self._interruption.has_notice():
            self._save(done, 0)

    def _save(self, epoch: int, batch: int) -> None:
        if self._checkpoints is None:
            return
        if self._last[:2] != (epoch, batch):
            name = self._checkpoints.save(epoch, batch, self._batches, **self._content())
            self._last = (epoch, batch, name)
        if self._interruption.has_notice():
            self._interruption.note_progress(epoch, batch, self._batches, at_once=True)
            self._interruption.note_saved(self._last[2], epoch, batch)
            self._interruption.wait_for_end()
