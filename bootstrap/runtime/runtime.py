"""The runtime of our own programs: their code, a Python, and the packages that they import.

It is placed on a node before anything else runs there.

On a node it is ~/.cluster/runtime/DIGEST/, a virtual environment without pip:

    bin/python, pyvenv.cfg     the image's Python if it is 3.10 or newer, otherwise one that this machine sends
    lib/python3.X/site-packages/   the packages
    bootstrap/..., node/...    our code, with the folders of this project

DIGEST depends only on this version's code and packages: it is the same on all nodes, whatever their Pythons.
"""

import platform
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.environment.bundle import fetch_python
from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.lock import HINT
from bootstrap.environment.steps import plan_python, script_task
from bootstrap.environment.target import MANAGED_PYTHONS
from bootstrap.environment.uv import UvError, run_for_nodes
from bootstrap.runtime.code import FOLDER, PACKAGES, read_code, runtime_digest, runtime_path
from bootstrap.ssh.connection import NodeConnection
from bootstrap.step import step
from bootstrap.transfer.distribute import Distribution, SetUp
from bootstrap.transfer.tree import EXECUTABLE, PLAIN, Tree, TreeArchives, TreeFile, file_of_bytes, make_tree
from foundation.errors import ClusterError
from foundation.progress import Report
from foundation.thread_pool import Once
from foundation.user_folders import home_folder
from provision.oracle.tables import Version, show

COMPLETE = ".complete"
"""Marks a folder in ~/.cluster as complete."""
OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 14)
LINUX, OLDEST_LINUX = "manylinux_2_28", {"x86_64": "manylinux_2_17"}
"""The oldest Linux for which all of PACKAGES have wheels, by machine."""
KEPT_RUNTIMES = 3
"""How many runtimes of other versions stay on a node, apart from those in use."""


class Runtime(Struct, frozen=True, kw_only=True):
    """A runtime as one kind of node gets it. packed: its Python, if this machine sends one.

    python: the path of its Python: absolute, or relative to ~/.cluster for the packed one.
    """

    tree: Tree
    python: str
    packed: BundleFile | None


def python_place(packed: BundleFile | None, version: Version) -> str:
    """The path in ~/.cluster of a Python that this machine sends. Pure."""
    if packed is None:
        raise ValueError("no Python was packed")
    return f"python/{packed.sha256}/bin/python{show(version)}"


class RuntimePlacing:
    """Places the runtime on nodes. It is made once for each kind of node. Safe to use from several threads.

    cache: foundation.user_folders.cache_folder(), where the packages are kept.
    """

    def __init__(self, cache: Path, archives: TreeArchives, distribution: Distribution) -> None:
        self._cache = cache
        self._archives = archives
        self._distribution = distribution
        self._made: Once[tuple[Version, str, bool], tuple[Tree, BundleFile | None]] = Once()

    def place(self, connection: NodeConnection, facts: NodeFacts) -> NodeFacts:
        """Places the runtime on a node that lacks it. Returns the node's facts, with it. Raises ClusterError."""
        digest = runtime_digest()
        if digest in facts.runtimes:
            return facts
        name = connection.host.name
        runtime = self.find(facts)
        needed, steps = plan_python(facts, runtime.packed)
        file, task = self._archives.write(runtime.tree)
        files = [*needed, file]
        size_mb = sum(file.size_bytes for file in files) / 1e6
        tasks = [script_task(steps, what="unpacking Python")] if steps else []
        tasks.append({**task, "folder": FOLDER, "python": runtime.python, "keep": [digest], "newest": KEPT_RUNTIMES})
        wanted = SetUp(python=facts.python, files=files, holds=facts.files, tasks=tasks)
        what, done = f"copying {size_mb:.0f} MB of our own programs", "our own programs are there"
        with step(self._distribution.report, what, where=name, done=done):
            self._distribution.set_up(connection, wanted)
        return replace(facts, runtimes=facts.runtimes | {digest})

    def find(self, facts: NodeFacts) -> Runtime:
        """The runtime for a node. Raises ClusterError if a package cannot be fetched."""
        found = next((one for one in facts.pythons if OLDEST_PYTHON <= one.version <= NEWEST_PYTHON), None)
        version = found.version if found is not None else MANAGED_PYTHONS[0]
        key = (version, facts.machine, found is None)
        tree, packed = self._made.get(key, partial(self._make, *key))
        python = found.path if found is not None else python_place(packed, version)
        return Runtime(tree=tree, python=python, packed=packed)

    def _make(self, version: Version, machine: str, is_packed: bool) -> tuple[Tree, BundleFile | None]:  # noqa: FBT001
        report = self._distribution.report
        tree = make_tree((*read_code().files, *_find_packages(version, machine, cache=self._cache, report=report)))
        packed = fetch_python(version, machine=machine, cache=self._cache, report=report) if is_packed else None
        return Tree(files=tree.files, folders=(), digest=runtime_digest()), packed


def _find_packages(version: Version, machine: str, *, cache: Path, report: Report) -> list[TreeFile]:
    """The packages as uv installs them, which builds none. Raises ClusterError with its output.

    They stay in `cache`, for when this machine reaches no index. On a head that sets up a node, they are those of its
    own runtime.
    """
    site = f"lib/python{show(version)}/site-packages"
    own = Path(runtime_path(str(home_folder())))
    if machine == platform.machine() and (own / COMPLETE).exists() and (own / site).is_dir():
        return _read(own, site)
    words = ["pip", "install", "--quiet", "--only-binary", ":all:", "--python-version", show(version), *PACKAGES]
    words += ["--python-platform", f"{machine}-{OLDEST_LINUX.get(machine, LINUX)}"]
    # Whatever the user's settings of uv say.
    words += ["--link-mode", "copy", "--no-require-hashes", "--cache-dir", str(cache / "uv")]
    with (
        step(report, "fetching our own programs' packages"),
        tempfile.TemporaryDirectory(prefix="cluster-runtime-") as folder,
    ):
        words += ["--prefix", folder]
        try:  # in a folder where uv finds the user's uv.toml alone
            with suppress(UvError):
                run_for_nodes([*words, "--offline"], folder=Path("/"))
                return _read(Path(folder), site)
            run_for_nodes(words, folder=Path("/"))
        except UvError as error:
            raise ClusterError(f"uv cannot install the packages of our own programs{error}", hint=HINT) from error
        return _read(Path(folder), site)


def _read(folder: Path, site: str) -> list[TreeFile]:
    """The files of a folder of packages, with `site` as the path of site-packages."""
    found = []
    for part, place, mode in (("lib/python3*/site-packages", site, PLAIN), ("bin", "bin", EXECUTABLE)):
        for top in folder.glob(part):
            for path in top.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
                    file = file_of_bytes(f"{place}/{path.relative_to(top).as_posix()}", path.read_bytes())
                    found.append(replace(file, mode=mode))
    return found
