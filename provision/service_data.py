"""botocore's descriptions of AWS's services, kept on this machine in short.

botocore reads them anew for every session: for EC2 4 MB of packed JSON, of whose 750 operations one is called, and
before each the folders of all 400 services. That takes longer than the call. So what was read once is kept in a folder,
without the operations that are not called. To botocore this is its own loader, with other ways to read files.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore
from botocore.loaders import JSONFileLoader, Loader

from provision.whole_file import write_whole

Operations = Mapping[str, frozenset[str]]
"""Those that are called, by service."""


def find_loader(folder: Path, operations: Operations) -> Loader:
    """A loader that keeps what it reads in a folder; the services that are not named are kept as they are."""
    # A later version of this program may call others, which what is kept for this one does not have.
    called = json.dumps({service: sorted(names) for service, names in sorted(operations.items())})
    digest = hashlib.sha256(called.encode()).hexdigest()[:12]
    files = KeptFiles(folder / f"botocore-{botocore.__version__}-{digest}", operations)
    return ShortLoader(file_loader=files)


class ShortLoader(Loader):
    """Does not look into a service's folder for no more than to know that it is there."""

    def list_available_services(self, type_name: str) -> list[str]:
        """All services, whether they have a file of that type or not: botocore asks for that, too, when it reads it."""
        del type_name
        folders = (folder for folder in self.search_paths if os.path.isdir(folder))  # noqa: PTH112 - botocore's strings
        return sorted({name for folder in folders for name in os.listdir(folder)})  # noqa: PTH208 - as above


class KeptFiles(JSONFileLoader):
    """botocore's own files in short; those that the user has put at ~/.aws/models are read as they are."""

    def __init__(self, folder: Path, operations: Operations) -> None:
        self._folder = folder
        self._operations = operations

    def load_file(self, file_path: str) -> Any:
        """A file's content, None where there is none. file_path: without its ending."""
        place = Path(file_path)
        if not place.is_relative_to(Loader.BUILTIN_DATA_PATH):
            return super().load_file(file_path)
        name = place.relative_to(Loader.BUILTIN_DATA_PATH)
        kept = self._folder / f"{'.'.join(name.parts)}.json"
        with suppress(OSError, ValueError):  # not there yet, or a power failure's
            return json.loads(kept.read_bytes())
        found = super().load_file(file_path)
        if found is None:
            return None
        operations = self._operations.get(name.parts[0]) if name.name == "service-2" else None
        short = found if operations is None else shorten(found, operations)
        with suppress(OSError):  # on a full disk, say: then it takes as long as ever
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps(short, separators=(",", ":")).encode())
        return short


def shorten(model: Mapping[str, Any], operations: frozenset[str]) -> dict[str, Any]:
    """A service's description with these operations alone, and the shapes that they need. Pure."""
    wanted = {name: operation for name, operation in model["operations"].items() if name in operations}
    shapes: dict[str, Any] = {}
    waiting = list(_find_shapes(wanted))
    while waiting:
        name = waiting.pop()
        if name not in shapes:
            shapes[name] = model["shapes"][name]
            waiting.extend(_find_shapes(shapes[name]))
    return {**model, "operations": wanted, "shapes": shapes}


def _find_shapes(value: object) -> Iterator[str]:
    """The shapes that a part of a description names."""
    if isinstance(value, list):
        for item in value:
            yield from _find_shapes(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "shape" and isinstance(item, str):
                yield item
            else:
                yield from _find_shapes(item)
