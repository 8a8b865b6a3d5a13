"""The ledger as JSON, and its file on this machine, which `down` does not remove."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from foundation.decode import decode
from foundation.errors import ClusterError
from foundation.file_lock import locked
from foundation.files import write_whole
from provision.cost.ledger import Ledger


def ledger_path(root: Path) -> Path:
    """Returns the path of the ledger of the cluster with the folder `root`: next to it, because `down` removes it."""
    return root.with_name(f"{root.name}.costs.json")


def read(root: Path) -> Ledger:
    """Returns the ledger of the cluster with this folder; an empty one without a file. Raises ClusterError."""
    path = ledger_path(root)
    try:
        return decode(path.read_bytes(), Ledger)
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise ClusterError(
            f"{path} is damaged: {error}", hint=f"mv {path} {path}.damaged; the costs before today are in it"
        ) from error
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}", hint="check its owner and permissions") from error


def update(root: Path, change: Callable[[Ledger], Ledger]) -> Ledger:
    """Changes the ledger of the cluster with this folder, and returns it. Raises ClusterError."""
    path = ledger_path(root)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            before = read(root)
            after = change(before)
            if after != before:
                data = msgspec.json.encode(after, order="deterministic")
                write_whole(path, msgspec.json.format(data, indent=1), to_disk=True)
    except OSError as error:
        raise ClusterError(
            f"cannot write {path}: {error.strerror}", hint="check its owner, its permissions and the free disk space"
        ) from error
    return after
