"""The packs of one command: each is written once, however many nodes ask for it, and is gone when the command ends."""

import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

from bootstrap.pack import Pack, plan_pack, write_pack
from bootstrap.shelf import BundleFile
from bootstrap.tree import Tree
from bootstrap.tree_cache import find_bases, remember_tree
from provision.errors import ClusterError

FORGOTTEN_AFTER_S = 24 * 3600.0


class TreePacks:
    """For any thread. A context manager; cache: provision.user_folders.cache_folder(), on whose disk the packs are.

    trees: all that the nodes are to have after this command.
    """

    def __init__(self, trees: Sequence[Tree], *, cache: Path) -> None:
        self.trees = tuple(trees)
        self._cache = cache
        self._lock = threading.Lock()
        self._files: dict[tuple[str, str | None], BundleFile] = {}
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        for tree in self.trees:
            remember_tree(tree, cache=self._cache)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def pack(self, tree: Tree, there: Collection[str]) -> tuple[BundleFile, dict[str, Any]]:
        """The file that a node needs for a tree, and the task for its agent.

        there: digests of the trees that the node has (NodeFacts.trees); none after it has said `base_changed`.
        Raises ClusterError as write_pack does.
        """
        with self._lock:
            pack = plan_pack(tree, find_bases(there, cache=self._cache))
            file = self._write(pack)
        return file, pack.order(file, keep=[tree.digest for tree in self.trees])

    def _write(self, pack: Pack) -> BundleFile:
        key = (pack.tree.digest, pack.base)
        if key not in self._files:
            if self._folder is None:
                self._folder = _make_folder(self._cache / "packs")
            self._files[key] = write_pack(pack, self._folder)
        return self._files[key]


def _make_folder(root: Path) -> Path:
    """A folder of this command's own; those of commands that were killed are removed. Raises ClusterError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in root.iterdir():
            if time.time() - folder.stat().st_mtime > FORGOTTEN_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)  # another command may be at it too
        return Path(tempfile.mkdtemp(dir=root))
    except OSError as error:
        raise ClusterError(
            f"{root}: files for the nodes cannot be packed there: {error.strerror}", hint="free some space on that disk"
        ) from error
