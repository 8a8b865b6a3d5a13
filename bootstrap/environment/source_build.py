"""MXNet from source: the head builds a wheel, the user's machine caches it, and every node gets it.

The steps follow MXNet's own guide (docs/static_site/src/pages/get_started/build_from_source.md, v1.7.x; in earlier
versions, docs/install/build_from_source.md). They have been tested only with a small repository of the same layout.
"""

import hashlib
import json
import re
import shlex
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from bootstrap.config import BootstrapConfig
from bootstrap.environment.bundle import Bundle
from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile, describe_file, fetch_once, find_kept
from bootstrap.environment.steps import InstallPackages, MakeEnvironment, NodePlan, script_task, setup_digest
from bootstrap.environment.target import SOURCE_PREFIX, ChosenPython, WheelTarget, choose_wheels
from bootstrap.runtime.code import FOLDER, runtime_digest
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import parse_message, read_program
from bootstrap.transfer.distribute import Distribution, SetUp
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from foundation.remote_command import RemoteCommand, run_program
from provision.oracle.tables import show

SETUPTOOLS = "setuptools>=70.1,<81"
"""The setuptools that makes the wheel: from the first with its own bdist_wheel to the last with pkg_resources."""
SILENCE_S = 3600
"""How long a build may print nothing, in seconds. nvcc can take a quarter of an hour for one file."""
KEEP_S = 600
"""How long the search for a finished wheel may take, in seconds. It reads the whole wheel once."""
CUDA_PATH = "/usr/local/cuda"
DEFAULT_OPTIONS = {"USE_DIST_KVSTORE": "1", "USE_S3": "1", "USE_OPENCV": "1", "USE_BLAS": "openblas"}
GPU_OPTIONS = {"USE_CUDA": "1", "USE_CUDNN": "1", "USE_CUDA_PATH": CUDA_PATH}
OFF = ("0", "OFF", "")
T = TypeVar("T")
# (Debian's package, Fedora's). Every node needs the packages of the options, because the library is linked with them.
TOOLS = (("g++", "gcc-c++"), ("git", "git"), ("make", "make"), ("cmake", "cmake"))
BY_OPTION = {
    "USE_OPENCV": (("libopencv-dev", "opencv-devel"),),
    "USE_S3": (("libcurl4-openssl-dev", "libcurl-devel"), ("libssl-dev", "openssl-devel")),
}
OPENBLAS = (("libopenblas-dev", "openblas-devel"), ("liblapack-dev", "lapack-devel"))
EXPORT = """
import shlex, sys
for name, value in sorted(merge(os.environ, read(sys.argv[1], sys.argv[2])).items()):
    if name.isidentifier() and os.environ.get(name) != value:
        print(f"export {name}={shlex.quote(value)}")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBuild:
    """A build for one kind of node. `ref` is a branch, a tag or a commit; `options` are options of make.

    glibc: that of the building node, the oldest that the wheel runs with. cudart: the CUDA runtime that the build
    finds, or None.
    """

    url: str
    ref: str
    options: tuple[tuple[str, str], ...]
    machine: str
    glibc: tuple[int, int]
    system: str
    cudart: str | None

    @property
    def key(self) -> str:
        """Identifies all inputs of the build, except later commits of a branch."""
        content = [self.url, self.ref, self.options, self.machine, self.glibc, self.system, self.cudart]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def cuda_path(self) -> str | None:
        """The folder of the build's CUDA; None for a build without GPUs."""
        options = dict(self.options)
        return options.get("USE_CUDA_PATH", CUDA_PATH) if options.get("USE_CUDA", "0") not in OFF else None


def find_ref(mxnet: str) -> str | None:
    """The branch, tag or commit in "source@v1.7.x"; None if [bootstrap] mxnet is anything else. Pure."""
    return mxnet.removeprefix(SOURCE_PREFIX) if mxnet.startswith(SOURCE_PREFIX) else None


def choose_build(facts: NodeFacts, *, ref: str, url: str, options: Sequence[str]) -> SourceBuild:
    """The build for a node; `options` are [bootstrap] build_options, which override the defaults. Pure."""
    usual = {**DEFAULT_OPTIONS, **(GPU_OPTIONS if facts.gpus else {})}
    named = dict(option.split("=", 1) for option in options)
    chosen = {**usual, **named}
    cuda_path = chosen.get("USE_CUDA_PATH", CUDA_PATH)
    there = next((place.names for place in facts.cuda_dirs if place.path.startswith(f"{cuda_path}/")), frozenset[str]())
    return SourceBuild(
        url=url,
        ref=ref,
        options=tuple(sorted(chosen.items())),
        machine=facts.machine,
        glibc=facts.glibc,
        system=facts.system,
        cudart=next((name for name in sorted(there) if name.startswith("libcudart.so.")), None),
    )


def choose_packages(build: SourceBuild) -> tuple[tuple[str, str], ...]:
    """The system packages that the wheel is linked with, (Debian's name, Fedora's); every node needs them. Pure."""
    options = dict(build.options)
    needed = [package for name, its in BY_OPTION.items() if options.get(name, "0") not in OFF for package in its]
    return (*needed, *(OPENBLAS if options.get("USE_BLAS", "") in {"openblas", "open"} else ()))


def label_built(build: SourceBuild, wheel_name: str) -> str:
    """The label of a built wheel, used in place of a requirement, such as source@v1.7.x+cu112. Pure."""
    match = re.search(r"-1_(cu[0-9]+)_", wheel_name)
    return f"{SOURCE_PREFIX}{build.ref}" + (f"+{match[1]}" if match else "")


def render_build(build: SourceBuild, *, python: str, node_python: str, setup: str | None) -> str:
    """The shell script that builds the wheel, and stores it complete in ~/.cluster/built/KEY. Pure.

    python: the path, in ~/.cluster, of a Python with setuptools. setup: the digest of the set-up commands; the build
    gets the variables that they export.
    After a kill, the build starts from scratch, since object files may be incomplete. After a failure, it continues.
    """
    lines = [
        *render_start(setup),
        "export GIT_TERMINAL_PROMPT=0",
        'mkdir -p "$cluster/building"; cd "$cluster/building"',
        f"[ -f {build.key}/resumable ] || rm -rf {build.key}",
        f"mkdir -p {build.key}; cd {build.key}; rm -f resumable",
        "if [ ! -d source ]; then",
        f"    git clone --quiet --no-checkout -- {shlex.quote(build.url)} source.new",
        f"    git -C source.new checkout --quiet {shlex.quote(build.ref)} --",
        "    git -C source.new submodule --quiet update --init --recursive",
        "    mv source.new source",
        "fi",
        "commit=$(git -C source rev-parse --short=12 HEAD)",
        "tag=1_cpu_$commit",
        *_cuda(build),
        "cd source",
        *_compile(build),
        "rm -rf ../dist; cd python",
        f'"$cluster"/{python} setup.py --quiet bdist_wheel -d ../../dist; cd ../..',
        "for library in source/lib/libmxnet.so source/build/libmxnet.so; do [ ! -f $library ] || break; done",
        shlex.join([node_python, "-c", read_program("build_wheel.py"), "pack", build.key, "dist", "source"])
        + ' "$library" "$tag"',
        f"cd ..; rm -rf {build.key}",
    ]
    return "\n".join([*lines, ""])


def render_start(setup: str | None) -> list[str]:
    """The first lines of a build's script. They set `$cluster` and the variables that the set-up commands export. Pure.

    setup: the digest of the set-up commands, or None.
    """
    lines = ["set -eu", "umask 077", 'cluster="$HOME/.cluster"']
    if setup is not None:
        program = shlex.quote(read_program("setup_env.py") + EXPORT)
        lines.append(f'exports=$("$cluster/{FOLDER}/{runtime_digest()}/bin/python" -c {program} "$cluster" {setup})')
        lines.append('eval "$exports"')
    return lines


def render_find_built(key: str, *, node_python: str) -> RemoteCommand:
    """The command that describes the finished wheel as JSON; it prints nothing if there is none. Pure."""
    return run_program(node_python, "-c", read_program("build_wheel.py"), "tell", key)


def _compile(build: SourceBuild) -> list[str]:
    make = shlex.join(f"{name}={value}" for name, value in build.options)
    cmake = shlex.join(f"-D{name}={value}" for name, value in build.options)
    return [
        "if [ -f Makefile ]; then",
        # Without .DELETE_ON_ERROR, the next make would mistake the partial output of a failed command for complete.
        f'    make --eval=.DELETE_ON_ERROR: -j"$(nproc)" {make} || {{ touch ../resumable; exit 1; }}',
        "else",
        f"    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release {cmake} &&",
        '        cmake --build build -j "$(nproc)" || { touch ../resumable; exit 1; }',
        "fi",
    ]


def _cuda(build: SourceBuild) -> list[str]:
    if build.cuda_path is None:
        return []
    nvcc = shlex.quote(f"{build.cuda_path}/bin/nvcc")
    missing = shlex.quote(
        f"{build.cuda_path}/bin/nvcc is missing, which a build for GPUs needs: use an image with CUDA, install it with "
        '[bootstrap] setup, set another folder ("USE_CUDA_PATH=...") or no CUDA ("USE_CUDA=0") in build_options'
    )
    return [
        f"[ -x {nvcc} ] || {{ echo {missing} >&2; touch resumable; exit 1; }}",
        rf"cuda=$({nvcc} --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')",
        "tag=1_cu${cuda}_$commit",
    ]


def parse_requirements(metadata: str) -> tuple[str, ...]:
    """A wheel's requirements, from the Requires-Dist lines of its METADATA, without those of extras. Pure."""
    lines = metadata.partition("\n\n")[0].splitlines()
    found = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("requires-dist:")]
    return tuple(requirement for requirement in found if "extra ==" not in requirement)


def is_valid_answer(answer: Mapping[str, object]) -> bool:
    """Whether a node's answer has a valid name of a wheel and a valid SHA-256. Pure."""
    name, sha256 = str(answer.get("name")), str(answer.get("sha256"))
    return bool(re.fullmatch(r"[A-Za-z0-9_.+-]+\.whl", name) and re.fullmatch(r"[0-9a-f]{64}", sha256))


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A built wheel on this machine."""

    build: SourceBuild
    file: BundleFile

    @property
    def label(self) -> str:
        """The label of the wheel, used in place of a requirement."""
        return label_built(self.build, self.file.name)

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements of the wheel, from the package index. Raises ClusterError for an invalid wheel."""
        try:
            with zipfile.ZipFile(self.file.path) as wheel:
                name = next((name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")), "METADATA")
                return parse_requirements(wheel.read(name).decode("utf-8", "replace"))
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            raise ClusterError(
                f"{self.file.path} is not a valid wheel: {error}",
                hint=f"rm -r {shlex.quote(str(self.file.path.parent))}, then run the command again",
            ) from error


class FromHead(Generic[T]):
    """A result of the head that other nodes wait for."""

    def __init__(self) -> None:
        self._made: Future[T] = Future()

    @contextmanager
    def awaited(self, host: Host) -> Iterator[None]:
        """Wraps a node's set-up: if the head fails in it, the nodes that wait for its result fail as well."""
        try:
            yield
        except BaseException as error:
            if host.is_head:
                with suppress(InvalidStateError):  # the head failed after it had produced the result
                    self._made.set_exception(error)
            raise


class Builds(FromHead[Built]):
    """The build of MXNet during a set-up, shared by all nodes. Safe to use from several threads."""

    def __init__(
        self,
        config: BootstrapConfig,
        *,
        cache: Path,
        distribution: Distribution,
        find_tools: Callable[[WheelTarget], Bundle],
        report: Report,
    ) -> None:
        super().__init__()
        self._config = config
        self._cache = cache
        self._distribution = distribution
        self._find_tools = find_tools
        self._report = report

    def get(self, connection: NodeConnection, facts: NodeFacts, *, python: ChosenPython) -> Built | None:
        """The wheel for a node; None if MXNet is not built from source.

        Uses the wheel in this machine's cache, if there is one. Otherwise the head builds it, unless it still has it
        from an earlier build, and the other nodes wait until the head succeeds or fails (`awaited`).
        Raises ClusterError.
        """
        ref = find_ref(self._config.mxnet)
        if ref is None:
            return None
        host = connection.host
        url, options = self._config.source_url, self._config.build_options
        build = choose_build(facts, ref=ref, url=url, options=options)
        kept = find_kept(self._cache, f"built/{build.key}", report=self._report)
        if kept:
            built = Built(build=build, file=kept[0])
        elif host.is_head:
            run = partial(self._build, connection, facts, build, python)
            file = build_and_take(connection, facts, build.key, run, cache=self._cache, report=self._report)
            built = Built(build=build, file=file)
        else:
            built = self._made.result()
            check_fit(built.build, facts, node=host.name)
        if host.is_head:
            self._made.set_result(built)
        return built

    def _build(self, connection: NodeConnection, facts: NodeFacts, build: SourceBuild, python: ChosenPython) -> None:
        """Has the head build MXNet. Raises ClusterError with the last lines of the build."""
        name = connection.host.name
        target = choose_wheels(facts, python=python, mxnet=self._config.mxnet, packages=(), node=name)
        tools = self._find_tools(replace(target, requirements=(SETUPTOOLS,)))
        plan = plan_tools(facts, build, tools, python)
        text = render_build(
            build,
            python=f"env/{tools.digest}/bin/python",
            node_python=facts.python,
            setup=setup_digest(self._config.setup),
        )
        what = f"the build of MXNet {build.ref} from {build.url}"
        tasks = [
            script_task(plan.steps, what="the script that prepares the build of MXNet", python=facts.python),
            {"kind": "script", "what": what, "text": text, "silence_s": SILENCE_S},
        ]
        started = time.monotonic()
        wanted = SetUp(python=facts.python, files=plan.files, holds=facts.files, tasks=tasks)
        self._distribution.set_up(connection, wanted)
        self._report(Event(kind="done", what=what, where=name, duration_s=time.monotonic() - started))


def plan_tools(facts: NodeFacts, build: SourceBuild, tools: Bundle, python: ChosenPython) -> NodePlan:
    """The steps that prepare a head for a build; `tools` is an environment that can make wheels. Pure."""
    packages = InstallPackages(packages=(*TOOLS, *choose_packages(build)))
    if tools.digest in facts.envs:
        return NodePlan(steps=(packages,))
    return NodePlan(
        files=tuple(file for file in tools.files if file.sha256 not in facts.files),
        steps=(packages, MakeEnvironment(bundle=tools, python=python.path)),
    )


def check_fit(build: SourceBuild, facts: NodeFacts, *, node: str) -> None:
    """Raises ClusterError if another node's wheel does not run here. Pure."""
    if facts.machine != build.machine or facts.glibc < build.glibc:
        raise ClusterError(
            f"{node}: MXNet was built on the head, for {build.machine} and glibc {show(build.glibc)} or later; "
            f"this node has {facts.machine} and glibc {show(facts.glibc)}",
            hint="use the same image for all nodes ([provision] ami)",
        )


def build_and_take(
    connection: NodeConnection, facts: NodeFacts, key: str, build: Callable[[], object], *, cache: Path, report: Report
) -> BundleFile:
    """Copies the wheel that a node has built under a key to this machine's cache. Calls `build` if the node has none.

    Raises ConnectError, NodeCommandError, ClusterError.
    """
    node = connection.host.name
    answer = _ask(connection, facts, key)
    if answer is None:
        build()
        answer = _ask(connection, facts, key)
    if answer is None:
        raise ClusterError(
            f"{node}: the wheel that was built there is missing or damaged",
            hint="run the command again: it builds the wheel again",
        )
    name, sha256 = answer["name"], answer["sha256"]

    def take(directory: Path) -> None:
        connection.get(f".cluster/built/{key}/{name}", directory / name)
        if describe_file(directory / name).sha256 != sha256:
            raise ClusterError(f"{node}: {name} was damaged on the way", hint="run the command again")

    [file] = fetch_once(cache, f"built/{key}", take, what=f"taking {name} from {node}", report=report)
    return file


def _ask(connection: NodeConnection, facts: NodeFacts, key: str) -> dict[str, str] | None:
    """The name and SHA-256 of a finished wheel on a node; None if there is none.

    Raises ConnectError, NodeCommandError, ClusterError.
    """
    command = render_find_built(key, node_python=facts.python)
    what = "the program that finds a built wheel"
    answer = parse_message(connection.run(command, timeout_s=KEEP_S, what=what).last_line.encode())
    if answer is None:
        return None
    if not is_valid_answer(answer):
        raise ClusterError(f"{connection.host.name}: its built wheel has an invalid name")
    return answer
