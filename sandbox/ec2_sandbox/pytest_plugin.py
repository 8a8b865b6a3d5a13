"""The fixture `ec2_sandbox` for pytest, which finds it in every environment that has the distribution ec2-sandbox.

    def test_up(ec2_sandbox):
        ec2 = ec2_sandbox.client("ec2")      # or boto3.client("ec2"), or a program that the test starts

    @pytest.mark.ec2_sandbox(region="eu-west-1", quotas={"L-1216C47A": 8}, faults=["throttle action=RunInstances"])
    def test_throttled(ec2_sandbox): ...

A process has one sandbox, which starts with the first test that uses it (2 s) and ends with the session, however that
ends. Each test begins with a sandbox as after its start. With pytest-xdist, each worker has a sandbox of its own.

Without root, pytest runs itself again in the user's namespaces as soon as it has collected a test that uses the
fixture. Workers of pytest-xdist cannot: run `ec2-sandbox shell -- pytest -n 2`.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ec2_sandbox import Sandbox

FIXTURE = "ec2_sandbox"


def pytest_configure(config: pytest.Config) -> None:
    """Documents the marker, for `pytest --markers`."""
    text = "settings of the fixture ec2_sandbox: the parameters of ec2_sandbox.Sandbox; a test's go before its module's"
    config.addinivalue_line("markers", f"{FIXTURE}(region=, hosts=, faults=, ...): {text}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Runs pytest again in the user's namespaces if a collected test needs them."""
    if any(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items):
        enter_namespaces(session.config)


def enter_namespaces(config: pytest.Config) -> None:
    """Runs pytest again in the user's namespaces. Returns if that is not needed, or not possible in this process."""
    from ec2_sandbox import rootless  # noqa: PLC0415 - only for tests that use the fixture
    from ec2_sandbox.cli.commands import print_event  # noqa: PLC0415 - as above
    from ec2_sandbox.errors import SandboxError  # noqa: PLC0415 - as above
    from ec2_sandbox.progress import Event  # noqa: PLC0415 - as above

    arguments = list(config.invocation_params.args)
    is_program = sys.argv[1:] == arguments  # else another program, or a worker of pytest-xdist, called pytest.main
    if config.option.collectonly or not is_program or not rootless.is_ordinary_user():
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)  # gives back the file descriptors 0 to 2
    os.chdir(config.invocation_params.dir)
    print_event(Event(kind="info", what="running pytest again in your namespaces, for the sandbox"))
    try:
        rootless.enter(config.invocation_params.dir, start=True, report=print_event)
    except SandboxError as error:
        raise pytest.UsageError(f"{error.message}\n  {error.hint or ''}".rstrip()) from None


class OneSandbox:
    """The sandbox of this process. It is started for a test, and kept for those that want the same settings."""

    def __init__(self) -> None:
        self.sandbox: Sandbox | None = None
        self._settings: dict[str, Any] = {}

    def prepare(self, settings: dict[str, Any]) -> "Sandbox":
        """Returns a sandbox as after its start. Raises SandboxError, once for one that has crashed."""
        from ec2_sandbox import Sandbox  # noqa: PLC0415 - only for tests that use the fixture
        from ec2_sandbox.errors import SandboxError  # noqa: PLC0415 - as above

        if self.sandbox is not None and self._settings == settings:
            try:
                self.sandbox.clear()
            except SandboxError as error:
                self.stop()
                raise SandboxError(error.message, hint="run this test again; the next ones get a new sandbox") from None
            return self.sandbox
        self.stop()
        sandbox = Sandbox(**settings)
        sandbox.start()
        self.sandbox, self._settings = sandbox, settings
        return sandbox

    def stop(self) -> None:
        """Removes the sandbox, if there is one."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            sandbox.stop()


@pytest.fixture(scope="session")
def _ec2_sandbox_of_process() -> Iterator[OneSandbox]:
    one = OneSandbox()
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def ec2_sandbox(
    request: pytest.FixtureRequest, _ec2_sandbox_of_process: OneSandbox, monkeypatch: pytest.MonkeyPatch
) -> "Sandbox":
    """A local EC2 and S3 (ec2_sandbox.Sandbox), as after its start: no instance, no bucket, no fault.

    During the test, boto3 and all AWS tools that it starts use this sandbox. The marker `ec2_sandbox` has its settings.
    """
    from ec2_sandbox.errors import SandboxError  # noqa: PLC0415 - only for tests that use the fixture

    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(FIXTURE))):  # the test's own is the last
        settings |= marker.kwargs
    faults = settings.pop("faults", ())
    try:
        sandbox = _ec2_sandbox_of_process.prepare(settings)
    except SandboxError as error:
        pytest.fail(f"{error.message}\n  try: {_find_hint(request.config, error)}", pytrace=False)
    for fault in faults:
        sandbox.faults.add(fault)
    set_environment(sandbox, monkeypatch)
    return sandbox


def _find_hint(config: pytest.Config, error: Any) -> str:
    """Returns the next command: for a worker of pytest-xdist, that of the user."""
    from ec2_sandbox import rootless  # noqa: PLC0415 - only for tests that use the fixture

    if not rootless.is_ordinary_user():
        return error.hint or "ec2-sandbox list"
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    arguments = worker["mainargv"][1:] if "mainargv" in worker else config.invocation_params.args
    return shlex.join(["ec2-sandbox", "shell", "--", "pytest", *map(str, arguments)])


def set_environment(sandbox: "Sandbox", monkeypatch: pytest.MonkeyPatch) -> None:
    """Directs boto3, and all AWS tools in child processes, to the sandbox until the test ends."""
    import boto3  # noqa: PLC0415 - only for tests that use the fixture

    environment = sandbox.environment
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)
    for name, value in environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it may have another account's credentials
