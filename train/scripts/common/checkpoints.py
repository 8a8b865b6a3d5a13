"""Checkpoints that are either complete or ignored. Does not import MXNet.

A checkpoint of epoch 5 with the prefix P is P-0005.params, P-0005.states (the optimizer's, if it can be saved) and,
written last, P-0005.json: a manifest with every file's size and SHA-256. A checkpoint without a manifest, or whose
files do not match it, does not count, so the process may be killed at any moment. P-symbol.json, MXNet's description
of the network, is the same for all checkpoints; PyTorch has none.

Checkpoints within an epoch take turns as P-batch-0 and P-batch-1: one of them is complete while the other is written,
and nothing needs to be deleted, which a job may not do in S3. Their manifests say which batch of which epoch they are.

S3 is accessed by this project's own client, in the same tree on the nodes: not every MXNet wheel supports S3.
"""

import abc
import argparse
import atexit
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from common import ScriptError
from common.options import JOB_ID

logger = logging.getLogger()
_CODE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
_TEMPORARY = ".partial"
_TICK_S = 0.001
FORMAT = 1
Writer = Callable[[str], None]  # writes a file's content to a local path


class Checkpoint(NamedTuple):
    """A complete checkpoint. paths: its files on this machine, by their content: "params", "states".

    epoch, batch: the finished epochs, and the finished batches of the next one.
    """

    epoch: int
    manifest: Dict[str, Any]
    paths: Dict[str, str]
    name: str  # the full name of its params, for messages

    @property
    def batch(self) -> int:
        """The finished batches of the epoch that was being trained; 0 between two epochs."""
        return int(self.manifest.get("batch", 0))

    @property
    def mark(self) -> int:
        """24 bits of the digest of its weights: different weights almost certainly have a different number."""
        files = self.manifest.get("files", {})
        return int(files["params"]["sha256"][:6], 16) if "params" in files else 0


class Place(abc.ABC):
    """Files whose names begin with a prefix. `base` is its last part, with which file names begin.

    Methods raise ScriptError if the place refuses.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.base = prefix.rpartition("/")[2]

    def url(self, name: str) -> str:
        """The file's full name, for messages."""
        return self.prefix[: len(self.prefix) - len(self.base)] + name

    @abc.abstractmethod
    def prepare(self) -> None:
        """Prepares the place for writing."""

    @abc.abstractmethod
    def sizes(self) -> Dict[str, int]:
        """The size of every file in bytes, by name."""

    @abc.abstractmethod
    def draft(self, name: str) -> str:
        """A local path to write a new file's content to."""

    @abc.abstractmethod
    def put(self, name: str) -> None:
        """Turns the draft of this name into the file, atomically and durably."""

    @abc.abstractmethod
    def local(self, name: str) -> str:
        """A local path with the file's current content."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Removes the file."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        path = self.draft(name)
        try:
            with open(path, "wb") as file:
                file.write(content)
        except OSError as error:
            raise _refused(self, name, error) from error
        self.put(name)

    def read(self, name: str) -> bytes:
        """A small file's content."""
        with open(self.local(name), "rb") as file:
            return file.read()


class Folder(Place):
    """A local folder. The next process that saves removes half-written files of a killed one."""

    def __init__(self, prefix: str) -> None:
        super().__init__(os.path.abspath(prefix))
        self._folder = os.path.dirname(self.prefix)

    def prepare(self) -> None:
        """As in Place; removes half-written files."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if name.startswith(f".{self.base}-") and name.endswith(_TEMPORARY):
                    os.remove(os.path.join(self._folder, name))
        except OSError as error:
            raise ScriptError(f"--model-prefix: the folder {self._folder} cannot be used: {error.strerror}") from error

    def sizes(self) -> Dict[str, int]:
        """As in Place."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(self, self.base, error) from error
        paths = {name: os.path.join(self._folder, name) for name in names if name.startswith(self.base + "-")}
        return {name: os.path.getsize(path) for name, path in paths.items() if os.path.isfile(path)}

    def draft(self, name: str) -> str:
        """As in Place."""
        return os.path.join(self._folder, f".{name}{_TEMPORARY}")

    def put(self, name: str) -> None:
        """As in Place; the file is on the disk when this returns."""
        try:
            with open(self.draft(name), "rb") as file:
                os.fsync(file.fileno())
            os.rename(self.draft(name), self.url(name))
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _refused(self, name, error) from error

    def local(self, name: str) -> str:
        """As in Place."""
        return self.url(name)

    def delete(self, name: str) -> None:
        """As in Place."""
        try:
            os.remove(self.url(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refused(self, name, error) from error


class Bucket(Place):
    """Objects in S3. store: an s3.Store of node. renewed: opens one with current credentials.

    A job that may write but not delete overwrites an object with an empty one, which is free and does not count.
    Drafts and copies are in a temporary folder until the process ends.
    """

    def __init__(self, prefix: str, store: Any, renewed: Callable[[], Any]) -> None:
        super().__init__(prefix)
        self._store = store
        self._renewed = renewed
        self._folder = make_temporary_folder()

    def prepare(self) -> None:
        """As in Place; there is nothing to prepare."""

    def sizes(self) -> Dict[str, int]:
        """As in Place."""
        folder = self.url("")
        listed = self._ask(self.base, lambda store: list(store.list(folder, below=False)))
        sizes = {entry.url.rpartition("/")[2]: entry.size_bytes for entry in listed if entry.size_bytes}
        return {name: size for name, size in sizes.items() if name.startswith(self.base + "-")}

    def draft(self, name: str) -> str:
        """As in Place."""
        return os.path.join(self._folder, name)

    def put(self, name: str) -> None:
        """As in Place."""
        self._ask(name, lambda store: store.put_file(self.draft(name), self.url(name)))
        os.remove(self.draft(name))

    def local(self, name: str) -> str:
        """As in Place."""
        path = os.path.join(self._folder, "read-" + name)
        self._ask(name, lambda store: store.get_file(self.url(name), path))
        return path

    def delete(self, name: str) -> None:
        """As in Place."""
        self._ask(name, lambda store: _delete(store, self.url(name)))

    def _ask(self, name: str, request: Callable[[Any], Any]) -> Any:
        """Returns the request's result; retries with new credentials if those of the job's start have expired."""
        try:
            return request(self._store)
        except OSError as error:
            if getattr(error, "code", "") not in ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"):
                raise _refused(self, name, error) from error
            expired = error
        try:
            self._store = self._renewed()
            return request(self._store)
        except OSError as error:
            raise _refused(self, name, expired) from error


def save(
    place: Place,
    epoch: int,
    writers: Dict[str, Writer],
    *,
    batch: int = 0,
    turn: int = 0,
    written_at: Optional[float] = None,
    symbol: Optional[str] = None,
    has_symbol: bool = True,
    facts: Dict[str, Any],
) -> str:
    """Writes a checkpoint, the manifest last; returns the name of its params.

    batch, turn: the finished batches of the next epoch, and which of the two names to use. written_at: the current
    time, in seconds; later than that of every other checkpoint. writers: functions that write the content of "params"
    and "states". facts: more entries for the manifest. symbol: None if the training wrote it with an earlier
    checkpoint. has_symbol: False for frameworks other than MXNet. Raises ScriptError if a file cannot be written.
    """
    stem = f"batch-{turn}" if batch else f"{epoch:04d}"
    began = time.time() if written_at is None else written_at
    # An existing checkpoint of this epoch stops counting once its first file is replaced. It is not deleted first: the
    # role of an instance profile may not be allowed to.
    files = {kind: _write(place, f"{place.base}-{stem}.{kind}", writer) for kind, writer in writers.items()}
    symbol_name = f"{place.base}-symbol.json"
    if symbol is not None:
        place.write(symbol_name, symbol.encode("utf-8"))
    manifest = dict(facts, format=FORMAT, epoch=epoch, files=files, written_at=began)
    if batch:
        manifest["batch"] = batch
    if os.environ.get(JOB_ID):
        manifest["job"] = os.environ[JOB_ID]
    if has_symbol:
        manifest["symbol"] = symbol_name
    place.write(f"{place.base}-{stem}.json", json.dumps(manifest, indent=1, sort_keys=True).encode("utf-8"))
    return place.url(files["params"]["name"])


def find_newest(place: Place, job: Optional[str] = None) -> Optional[Checkpoint]:
    """The complete checkpoint that was written last, with every file verified; None if there is none.

    job: the id of the job that wrote it; None: any job.
    """
    sizes = place.sizes()
    for manifest in _complete(place, sizes):
        if job is not None and manifest.get("job") != job:
            continue
        found = _checked(place, manifest)
        if found is not None:
            return found
    return None


def find_epoch(place: Place, epoch: int) -> Optional[Checkpoint]:
    """The checkpoint of an epoch, even of a program that writes no manifest; None if there is none.

    Raises ScriptError for a checkpoint that does not match its manifest.
    """
    sizes = place.sizes()
    params = file_name(place, epoch, "params")
    if params not in sizes:
        return None
    if file_name(place, epoch, "json") in sizes:
        manifest = _read(place, file_name(place, epoch, "json"))
        found = _checked(place, manifest) if manifest and _has_sizes(manifest, sizes) else None
        if found is None:
            raise ScriptError(f"{place.url(params)} is damaged: it does not match its manifest; --resume ignores it")
        return found
    kinds = [kind for kind in ("params", "states") if file_name(place, epoch, kind) in sizes]
    paths = {kind: place.local(file_name(place, epoch, kind)) for kind in kinds}
    return Checkpoint(epoch, {}, paths, place.url(params))


def prune(place: Place, keep: int) -> List[int]:
    """Removes the complete checkpoints of epochs except the last `keep`; returns the epochs of the removed ones."""
    epochs = []
    complete = [manifest for manifest in _complete(place, place.sizes()) if not manifest.get("batch")]
    for manifest in complete[keep:]:
        place.delete(file_name(place, manifest["epoch"], "json"))
        for file in manifest["files"].values():
            place.delete(file["name"])
        epochs.append(manifest["epoch"])
    return epochs


def words_of_start(found: Checkpoint) -> str:
    """The line that a resumed training prints; `cluster train` reads it to count the lost batches."""
    return f"Resumed from epoch {found.epoch} batch {found.batch}"


def find_wanted(options: argparse.Namespace, *, advice: str) -> Optional[Checkpoint]:
    """The checkpoint of --load-epoch or, with --resume, the newest one; None if --resume finds none.

    A later attempt of a job with --load-epoch has both: it begins with that epoch if its job has saved nothing newer.
    advice: for the user, if the checkpoint of --load-epoch does not exist. Raises ScriptError.
    """
    place = open_place(options.model_prefix, to_write=False)
    if options.resume:
        newest = find_newest(place, options.only_job)
        if newest is not None or not options.load_epoch:
            return newest
    found = find_epoch(place, options.load_epoch)
    if found is None:
        raise ScriptError(f"no saved model {place.url(file_name(place, options.load_epoch, 'params'))}; {advice}")
    return found


class Sequence:
    """Assigns each checkpoint of a training its time and its turn.

    newest: the checkpoint that the training continues from. Its time counts, not only this node's clock: the clock of a
    node that replaced another may be behind, although its checkpoints are newer.
    """

    def __init__(self, newest: Optional[Checkpoint]) -> None:
        manifest = newest.manifest if newest is not None else {}
        self._last = float(manifest.get("written_at", 0))
        name = manifest["files"]["params"]["name"] if manifest.get("batch") else ""
        self._turn = 0 if name.endswith("-batch-0.params") else 1

    def next(self, batch: int) -> Dict[str, Any]:
        """The arguments of `save` for the next checkpoint."""
        self._last = max(time.time(), self._last + _TICK_S)
        if batch:
            self._turn = 1 - self._turn
        return {"batch": batch, "turn": self._turn, "written_at": self._last}


class Pruner:
    """Removes all but the newest `keep` checkpoints; 0 keeps all."""

    def __init__(self, place: Place, keep: int) -> None:
        self._place = place
        self._keep = keep

    def prune(self) -> None:
        """Removes older checkpoints, unless the place has refused a removal."""
        if not self._keep:
            return
        try:
            removed = prune(self._place, self._keep)
        except ScriptError as error:
            # A job that may write may not be allowed to delete: that is no reason to end the training.
            logger.warning("Keeping all checkpoints from now on: %s", error)
            self._keep = 0
        else:
            for epoch in removed:
                logger.info("Removed the checkpoint of epoch %d", epoch)


def file_name(place: Place, epoch: int, kind: str) -> str:
    """MXNet's name for a checkpoint's file."""
    return f"{place.base}-{epoch:04d}.{kind}"


def _write(place: Place, name: str, writer: Writer) -> Dict[str, Any]:
    path = place.draft(name)
    try:
        writer(path)
        file = {"name": name, "size": os.path.getsize(path), "sha256": _sha256(path)}
    except OSError as error:
        raise ScriptError(f"--model-prefix: {place.url(name)} cannot be written: {error.strerror or error}") from error
    place.put(name)
    return file


def _complete(place: Place, sizes: Dict[str, int]) -> List[Dict[str, Any]]:
    """The manifests whose files exist with the right size, newest first."""
    pattern = re.compile(re.escape(place.base) + r"-(\d{4,}|batch-[01])\.json")
    manifests = [_read(place, name) for name in sizes if pattern.fullmatch(name)]
    complete = [manifest for manifest in manifests if manifest is not None and _has_sizes(manifest, sizes)]
    return sorted(complete, key=_age, reverse=True)


def _age(manifest: Dict[str, Any]) -> Tuple[float, int, int]:
    return manifest["written_at"], manifest["epoch"], manifest.get("batch", 0)


def _read(place: Place, name: str) -> Optional[Dict[str, Any]]:
    """A manifest, or None if the file is something else."""
    try:
        found = json.loads(place.read(name).decode("utf-8"))
        files = [(file["name"], int(file["size"]), str(file["sha256"])) for file in found["files"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    known = found.get("format") == FORMAT and "params" in found["files"]
    whole = isinstance(found.get("epoch"), int) and isinstance(found.get("written_at"), (int, float))
    whole = whole and type(found.get("batch", 0)) is int and found.get("batch", 0) >= 0
    return found if known and whole and all(name.startswith(place.base + "-") for name, _, _ in files) else None


def _has_sizes(manifest: Dict[str, Any], sizes: Dict[str, int]) -> bool:
    return all(sizes.get(file["name"]) == file["size"] for file in manifest["files"].values())


def _checked(place: Place, manifest: Dict[str, Any]) -> Optional[Checkpoint]:
    """The checkpoint, with verified files; None if one does not match the manifest."""
    paths = {kind: place.local(file["name"]) for kind, file in manifest["files"].items()}
    return check_files(manifest, paths, place.url(manifest["files"]["params"]["name"]))


def check_files(manifest: Dict[str, Any], paths: Dict[str, str], name: str) -> Optional[Checkpoint]:
    """The checkpoint with these files; None if one does not match the manifest. name: see Checkpoint."""
    if any(_sha256(paths[kind]) != file["sha256"] for kind, file in manifest["files"].items()):
        return None
    return Checkpoint(manifest["epoch"], manifest, paths, name)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


# -- places ------------------------------------------------------------------------------------------------------------


def open_place(prefix: str, *, to_write: bool) -> Place:
    """The place that --model-prefix names. Raises ScriptError if it cannot be used."""
    place: Place
    if not prefix.startswith("s3://"):
        place = Folder(prefix)
    else:
        if _CODE not in sys.path:
            sys.path.append(_CODE)
        from node.staging import s3  # noqa: PLC0415 - needs _CODE in sys.path

        try:
            place = Bucket(prefix, s3.Store(os.environ), lambda: s3.Store(os.environ, find_keys=s3.InstanceKeys()))
        except OSError as error:
            raise ScriptError(f"--model-prefix {prefix}: {error}") from error
    if to_write:
        place.prepare()
    return place


def make_temporary_folder() -> str:
    """A folder that is removed at the end of this process."""
    # In the job's own folder, which is removed with the job, even if this process is killed.
    own = os.environ.get("CLUSTER_OUTPUT_DIR", "")
    folder = tempfile.mkdtemp(prefix="checkpoint-", dir=own if os.path.isdir(own) else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _delete(store: Any, url: str) -> None:
    try:
        store.delete(url)
    except OSError as error:
        if getattr(error, "code", "") != "AccessDenied":
            raise
        store.put_bytes(b"", url)


def _refused(place: Place, name: str, error: OSError) -> ScriptError:
    reason = str(error) if hasattr(error, "code") else str(error.strerror or error)
    return ScriptError(f"--model-prefix: {place.url(name)}: {reason}")
