"""cloud = "hosts" where sudo asks the user for a password, which nobody can type there."""

from collections.abc import Iterator

import pytest

from foundation.progress import silent
from own_hosts import OwnHosts, make_own_hosts
from sandbox import control
from sandbox_steps import enter, start_sandbox

pytestmark = pytest.mark.sandbox

CONFIG = """
name = "asks"
cloud = "hosts"

[hosts]
names = ["one", "two"]

[bootstrap]
framework = "none"
"""
ASKS = """
echo ubuntu:secret | chpasswd
grep -rl NOPASSWD /etc/sudoers /etc/sudoers.d | xargs sed -i 's/NOPASSWD://'
! su ubuntu -c 'sudo -n true' 2>/dev/null
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnHosts]:
    directory = tmp_path_factory.mktemp("asks")
    with pytest.MonkeyPatch.context() as monkeypatch:
        sandbox = start_sandbox(directory)
        try:
            enter(sandbox, monkeypatch)
            yield make_own_hosts(directory, {"one": "", "two": ASKS})
        finally:
            control.reset(directory, report=silent)


@pytest.mark.parametrize(
    "setting",
    [
        'setup = ["touch reached", "sudo true"]',
        pytest.param('setup = ["touch reached", "sudo -S true"]', marks=pytest.mark.slow),
        pytest.param('setup = ["touch reached", "echo 1 | sudo tee /etc/one"]', marks=pytest.mark.slow),
        '[[volumes]]\nmount = "/shared"\nsource = "one:/srv"\n',
    ],
)
def test_up_says_that_sudo_asks(hosts: OwnHosts, setting: str) -> None:
    hosts.project.run("down", "--yes", code=None)
    hosts.project.write(CONFIG + setting)
    reached = hosts.root("two") / "home/ubuntu/reached"
    reached.unlink(missing_ok=True)
    failed = hosts.project.run("up", code=1)
    assert "setup" not in setting or reached.exists()
    assert failed.stderr.splitlines()[-1].startswith("  try: sudo asks for a password on two: allow this user")
