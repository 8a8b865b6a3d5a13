"""The wheel of an MXNet from source: the head builds it, the user's machine keeps it, every node gets it."""

import shlex
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bootstrap.bundle import Bundle
from bootstrap.config import BootstrapConfig
from bootstrap.connection import Host, NodeConnection
from bootstrap.distribute import Distribution, SetUp
from bootstrap.facts import NodeFacts
from bootstrap.node_program import parse_message
from bootstrap.plan import InstallPackages, MakeEnvironment, NodeStep, SendFile
from bootstrap.pythons import ChosenPython
from bootstrap.script import render_script, silence_s
from bootstrap.setup import setup_digest
from bootstrap.shelf import BundleFile, describe_file, fetch_once, find_kept
from bootstrap.source import (
    KEEP_S,
    SETUPTOOLS,
    SILENCE_S,
    TOOLS,
    SourceBuild,
    check_told,
    choose_build,
    choose_packages,
    find_ref,
    label_built,
    parse_requirements,
    render_build,
    render_tell,
)
from bootstrap.wheels import WheelTarget, choose_wheels
from provision.errors import ClusterError
from provision.oracle.gpus import show
from provision.progress import Event, Report


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A wheel that was built, as it lies on this machine."""

    build: SourceBuild
    file: BundleFile

    @property
    def label(self) -> str:
        """What it is called where others have a requirement."""
        return label_built(self.build, self.file.name)

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it needs from the package index. Raises ClusterError for what is no wheel."""
        try:
            with zipfile.ZipFile(self.file.path) as wheel:
                name = next((name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")), "METADATA")
                return parse_requirements(wheel.read(name).decode("utf-8", "replace"))
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            raise ClusterError(
                f"{self.file.path} is no wheel: {error}",
                hint=f"rm -r {shlex.quote(str(self.file.path.parent))}, and the same command again",
            ) from error


class Builds:
    """The one build of a set-up, however many nodes wait for it. Safe to use from several threads."""

    def __init__(
        self,
        config: BootstrapConfig,
        *,
        cache: Path,
        distribution: Distribution,
        find_tools: Callable[[WheelTarget], Bundle],
        report: Report,
    ) -> None:
        self._config = config
        self._cache = cache
        self._distribution = distribution
        self._find_tools = find_tools
        self._report = report
        self._made: Future[Built] = Future()

    def get(self, connection: NodeConnection, facts: NodeFacts, *, python: ChosenPython) -> Built | None:
        """The wheel for a node; None where none is built from source.

        What this machine has kept, nobody waits for. Else the head builds it, unless it has it already, and the
        others wait for the head, or for its failure (`awaited`). Raises ClusterError.
        """
        ref = find_ref(self._config.mxnet)
        if ref is None:
            return None
        host = connection.host
        url, options = self._config.source_url, self._config.build_options
        build = choose_build(facts, ref=ref, url=url, options=options)
        kept = find_kept(self._folder(build), report=self._report)
        if kept:
            built = Built(build=build, file=kept[0])
        elif host.is_head:
            built = self._make(connection, facts, build, python)
        else:
            built = self._made.result()
            check_fit(built.build, facts, node=host.name)
        if host.is_head:
            self._made.set_result(built)
        return built

    @contextmanager
    def awaited(self, host: Host) -> Iterator[None]:
        """A node's set-up: should the head fail in it, those who wait for its build fail as well."""
        try:
            yield
        except BaseException as error:
            if host.is_head:
                with suppress(InvalidStateError):  # it has built, and failed later
                    self._made.set_exception(error)
            raise

    def _folder(self, build: SourceBuild) -> Path:
        return self._cache / "built" / build.key

    def _make(self, connection: NodeConnection, facts: NodeFacts, build: SourceBuild, python: ChosenPython) -> Built:
        told = _ask(connection, facts, build)
        if told is None:
            self._build(connection, facts, build, python)
            told = _ask(connection, facts, build)
        if told is None:
            raise ClusterError(
                f"{connection.host.name}: the wheel of MXNet that was built is gone, or damaged",
                hint="the same command again, which builds it anew",
            )
        name, sha256 = told["name"], told["sha256"]

        def take(directory: Path) -> dict[str, Any]:
            connection.get(f".cluster/built/{build.key}/{name}", directory / name)
            if describe_file(directory / name).sha256 != sha256:
                raise ClusterError(
                    f"{connection.host.name}: {name} has not arrived as it was sent", hint="the same command again"
                )
            return {"url": build.url, "ref": build.ref, "options": dict(build.options)}

        what = f"taking {name} from {connection.host.name}"
        [file] = fetch_once(self._folder(build), take, what=what, report=self._report)
        return Built(build=build, file=file)

    def _build(self, connection: NodeConnection, facts: NodeFacts, build: SourceBuild, python: ChosenPython) -> None:
        """Have the head build it. Raises ClusterError with the last lines of what failed."""
        name = connection.host.name
        target = choose_wheels(facts, python=python, mxnet=self._config.mxnet, packages=(), node=name)
        tools = self._find_tools(replace(target, requirements=(SETUPTOOLS,)))
        steps = plan_tools(facts, build, tools, python)
        text = render_build(
            build,
            python=f"env/{tools.digest}/bin/python",
            node_python=facts.python,
            setup=setup_digest(self._config.setup),
        )
        what = f"the build of MXNet {build.ref} from {build.url}"
        tasks = [
            {
                "kind": "script",
                "what": "the script that makes ready for a build of MXNet",
                "text": render_script(steps),
                "silence_s": silence_s(steps),
            },
            {"kind": "script", "what": what, "text": text, "silence_s": SILENCE_S},
        ]
        files = [step.file for step in steps if isinstance(step, SendFile)]
        started = time.monotonic()
        self._distribution.set_up(connection, SetUp(python=facts.python, files=files, holds=facts.files, tasks=tasks))
        self._report(Event(kind="done", what=what, where=name, duration_s=time.monotonic() - started))


def plan_tools(facts: NodeFacts, build: SourceBuild, tools: Bundle, python: ChosenPython) -> tuple[NodeStep, ...]:
    """The steps to a head that can build; `tools` is an environment with what makes wheels. Pure."""
    packages = (*TOOLS, *choose_packages(build))
    steps: list[NodeStep] = [InstallPackages(packages=packages, node_python=facts.python)]
    if tools.digest not in facts.envs:
        steps += [SendFile(file=file) for file in tools.files if file.sha256 not in facts.files]
        steps.append(MakeEnvironment(bundle=tools, python=python.path, node_python=facts.python))
    return tuple(steps)


def check_fit(build: SourceBuild, facts: NodeFacts, *, node: str) -> None:
    """Raise ClusterError where a wheel that another node has built does not run. Pure."""
    if facts.machine != build.machine or facts.glibc < build.glibc:
        raise ClusterError(
            f"{node}: MXNet was built on the head, for {build.machine} and glibc {show(build.glibc)} or later; "
            f"here it is {facts.machine} and glibc {show(facts.glibc)}",
            hint="take the same image for all nodes ([provision] ami)",
        )


def _ask(connection: NodeConnection, facts: NodeFacts, build: SourceBuild) -> dict[str, str] | None:
    """The name and SHA-256 of a finished wheel on a node. Raises ConnectError, NodeCommandError, ClusterError."""
    command = render_tell(build, node_python=facts.python)
    what = "the program that looks for a wheel of MXNet that was built"
    said = connection.run(command, timeout_s=KEEP_S, what=what).stdout.strip()
    if not said:
        return None
    # A user's .bashrc may print something of its own, before it.
    told = parse_message(said.splitlines()[-1].encode())
    if told is None:
        return None
    if not check_told(told):
        raise ClusterError(f"{connection.host.name}: its built wheel has a name that wheels cannot have")
    return told
