import functools
import itertools
import os
import platform
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from ec2_sandbox import control, start
from foundation.progress import silent
from preloaded import ADDRESS, preloaded, start_daemon
from project import REPOSITORY, Project, cluster_in, shipped

# A test process creates hundreds of AWS sessions. With one loader, it reads each service's description only once.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)

# A sandbox's daemon is forked from a process that has imported moto, which takes a second.
start.start_daemon = start_daemon

# In the background and under nohup these are ignored, and would be by every command that a test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    signal.signal(number, handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # as nohup wants it, but commands do not inherit this

os.environ.pop("COLUMNS", None)  # xdist sets it, and commands obey it

# No deadlines: on a busy machine, any process can be without a processor for a second.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


# All tests of a file run in one process, so the files that take longest start first.
LONGEST = (
    "replaced_nodes", "volume_crashes", "random_kills", "any_order", "leases", "jobs_in_containers", "torch_jobs",
    "end_to_end", "supervise", "jobs", "volumes", "attempts", "scheduled_jobs", "crashes", "installation",
    "scripts_on_nodes", "node_faults", "down", "costs_and_events", "existing_hosts", "interruptions",
    "networks", "baked_images",
)  # fmt: skip

# Of pytest-xdist's processes, as many set up `two_nodes`.
SHARERS = 2

# Long enough on two cores that run four other slow tests at the same time.
SLOW_TIMEOUT_S = 3 * 3600


class SharedNodes(LoadFileScheduling):  # type: ignore[misc]
    """One process runs a file's tests, and few processes run all files that use `two_nodes`, which each sets up."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._next = itertools.cycle(f"two_nodes {number}" for number in range(SHARERS))
        self._scopes: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file not in self._scopes:
            shares = "two_nodes: Project" in (REPOSITORY / file).read_text()
            self._scopes[file] = next(self._next) if shares else file
        return self._scopes[file]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedNodes | None:
    """Not for slow tests, of which few processes would take too long."""
    is_fast = config.getoption("dist") == "loadfile" and config.getoption("markexpr") == "not slow"
    return SharedNodes(config, log) if is_fast else None


def pytest_configure(config: pytest.Config) -> None:
    """The processes of pytest-xdist share one preloaded server, as each would import everything for its own."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[ADDRESS] = preloaded().address


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest files first, so that no process is left running one of them alone at the end.

    Slow tests get a longer timeout. Sandbox tests need root on Linux; elsewhere they are skipped with a reason.
    """
    order = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (order.get(item.path.name, len(order)), "tests/sandbox/" not in item.path.as_posix()))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S), append=False)
    if os.geteuid() == 0 and platform.system() == "Linux":
        return
    for item in items:
        if item.get_closest_marker("sandbox"):
            item.add_marker(pytest.mark.skip(reason="needs root on Linux: sudo make test"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the results that passed tests have recorded, and the processor time of all tests, without daemons."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "result":
                terminalreporter.write_line(value)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    terminalreporter.write_line(f"{sum(one.ru_utime + one.ru_stime for one in used):.0f} CPU seconds")


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A sandbox cluster of two nodes from the shipped cluster.toml; tests undo their changes to it.

    Slow tests that do not use it can run for more than an hour, after which its lease would end it.
    """
    with cluster_in(tmp_path_factory.mktemp("two-nodes"), shipped(idle="1d")) as project:
        yield project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project folder with the shipped cluster.toml; its sandbox, if a test starts it, is removed at the end."""
    made = Project(tmp_path)
    made.write(shipped())
    yield made
    if os.geteuid() == 0:
        control.reset(tmp_path, report=silent)
