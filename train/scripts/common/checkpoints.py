"""Checkpoints that are complete or do not count. Does not import MXNet.

One of epoch 5 below the prefix P is P-0005.params, P-0005.states (the optimizer's, where it can be saved) and, last
of all, P-0005.json: a manifest with every file's size and SHA-256. Whatever kills the process, and whenever, a
checkpoint without its manifest, or whose files are not those that it names, is none. P-symbol.json, MXNet's
description of the network, is the same for all of them.
"""

import hashlib
import json
import os
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from common.errors import ScriptError
from common.places import Place

FORMAT = 1
Writer = Callable[[str], None]  # writes a file's content to a local path


class Checkpoint(NamedTuple):
    """A complete checkpoint. paths: its files on this machine, by what they hold: "params", "states"."""

    epoch: int
    manifest: Dict[str, Any]
    paths: Dict[str, str]
    name: str  # of its params, whole, for people

    @property
    def mark(self) -> int:
        """24 bits of what its weights are: other weights, almost surely another number."""
        files = self.manifest.get("files", {})
        return int(files["params"]["sha256"][:6], 16) if "params" in files else 0


def save(place: Place, epoch: int, writers: Dict[str, Writer], *, symbol: Optional[str], facts: Dict[str, Any]) -> str:
    """Write a checkpoint, the manifest last; returns its params' name.

    writers: what writes the content of each file, by "params" and "states". facts: what the manifest says beside the
    files. symbol: None where an earlier one of the same training has it. Raises ScriptError where it cannot be written.
    """
    began = time.time()
    # One that was there already stops to count when the first of its files is another. Nothing is deleted for that:
    # the role of an instance profile may not be allowed to.
    files = {kind: _write(place, file_name(place, epoch, kind), writer) for kind, writer in writers.items()}
    symbol_name = f"{place.base}-symbol.json"
    if symbol is not None:
        place.write(symbol_name, symbol.encode("utf-8"))
    manifest = dict(facts, format=FORMAT, epoch=epoch, files=files, written_at=began, symbol=symbol_name)
    place.write(_manifest(place, epoch), json.dumps(manifest, indent=1, sort_keys=True).encode("utf-8"))
    return place.url(file_name(place, epoch, "params"))


def find_newest(place: Place) -> Optional[Checkpoint]:
    """The complete checkpoint that was written last, every file of it compared with its manifest; None: no such."""
    sizes = place.sizes()
    for manifest in _complete(place, sizes):
        found = _checked(place, manifest)
        if found is not None:
            return found
    return None


def find_epoch(place: Place, epoch: int) -> Optional[Checkpoint]:
    """What was saved after an epoch, also by programs that write no manifest; None: nothing was.

    Raises ScriptError for a checkpoint that is not what its manifest says.
    """
    sizes = place.sizes()
    params = file_name(place, epoch, "params")
    if params not in sizes:
        return None
    if _manifest(place, epoch) in sizes:
        manifest = _read(place, _manifest(place, epoch))
        found = _checked(place, manifest) if manifest and _has_sizes(manifest, sizes) else None
        if found is None:
            raise ScriptError(
                f"{place.url(params)} is damaged: it is not what its manifest says; --resume leaves it out"
            )
        return found
    kinds = [kind for kind in ("params", "states") if file_name(place, epoch, kind) in sizes]
    paths = {kind: place.local(file_name(place, epoch, kind)) for kind in kinds}
    return Checkpoint(epoch, {}, paths, place.url(params))


def prune(place: Place, keep: int) -> List[int]:
    """Remove all complete checkpoints but the `keep` written last; returns the epochs of those removed."""
    epochs = []
    for manifest in _complete(place, place.sizes())[keep:]:
        place.delete(_manifest(place, manifest["epoch"]))
        for file in manifest["files"].values():
            place.delete(file["name"])
        epochs.append(manifest["epoch"])
    return epochs


def file_name(place: Place, epoch: int, kind: str) -> str:
    """MXNet's own name of a checkpoint's file."""
    return f"{place.base}-{epoch:04d}.{kind}"


def _manifest(place: Place, epoch: int) -> str:
    return file_name(place, epoch, "json")


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
    """The manifests whose files are there in their sizes, the one written last first."""
    pattern = re.compile(re.escape(place.base) + r"-\d{4,}\.json")
    manifests = [_read(place, name) for name in sizes if pattern.fullmatch(name)]
    complete = [manifest for manifest in manifests if manifest is not None and _has_sizes(manifest, sizes)]
    return sorted(complete, key=lambda manifest: (manifest["written_at"], manifest["epoch"]), reverse=True)


def _read(place: Place, name: str) -> Optional[Dict[str, Any]]:
    """A manifest, or None where a file of such a name is something else."""
    try:
        found = json.loads(place.read(name).decode("utf-8"))
        files = [(file["name"], int(file["size"]), str(file["sha256"])) for file in found["files"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    known = found.get("format") == FORMAT and "params" in found["files"]
    whole = isinstance(found.get("epoch"), int) and isinstance(found.get("written_at"), (int, float))
    return found if known and whole and all(name.startswith(place.base + "-") for name, _, _ in files) else None


def _has_sizes(manifest: Dict[str, Any], sizes: Dict[str, int]) -> bool:
    return all(sizes.get(file["name"]) == file["size"] for file in manifest["files"].values())


def _checked(place: Place, manifest: Dict[str, Any]) -> Optional[Checkpoint]:
    """The checkpoint, read; None where a file is not what the manifest says."""
    paths = {}
    for kind, file in manifest["files"].items():
        path = place.local(file["name"])
        if _sha256(path) != file["sha256"]:
            return None
        paths[kind] = path
    return Checkpoint(manifest["epoch"], manifest, paths, place.url(manifest["files"]["params"]["name"]))


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
