import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ec2_sandbox.cli.commands import cli
from ec2_sandbox.cli.examples import EXAMPLES
from ec2_sandbox.cli.settings import read_settings
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.errors import UsageError

FILE = """
[tool.ec2-sandbox]
region = "eu-west-1"
others = ["us-east-1"]
hosts = "none"
boot_delay_s = 2
quotas = { "L-1216C47A" = 8 }
faults = ["throttle action=RunInstances count=3"]
"""


def test_settings_come_from_the_file_and_the_command_line(tmp_path: Path) -> None:
    assert read_settings(tmp_path, {}) == FolderSettings()
    (tmp_path / "pyproject.toml").write_text(FILE)
    assert read_settings(tmp_path, {"hosts": "real"}) == FolderSettings(
        region="eu-west-1", others=("us-east-1",), boot_delay_s=2.0, quotas={"L-1216C47A": 8},
        faults=("throttle action=RunInstances count=3",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("boot_delay = 1", "unknown field `boot_delay`"),
        ("boot_delay_s = 7200", "Expected `float` <= 3600.0 - at `$.boot_delay_s`"),
        ("quotas = { L-1 = 8 }", "there is no quota L-1; allowed: L-1216C47A (Running On-Demand Standard"),
        ("faults = ['throtle']", 'did you mean "throttle"?'),
        ("faults = ['kill instance=i-1']", "kill: acts on an instance that runs"),
        ("packages = ['../x']", 'no package of Debian or Ubuntu has the name "../x"'),
        ("region = 'nowhere'", "AWS has no region nowhere"),
        ("hosts", "pyproject.toml: "),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.ec2-sandbox]\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_settings(tmp_path, {})
    assert message in caught.value.message
    assert str(tmp_path / "pyproject.toml") in caught.value.message


def test_a_full_stdout_is_an_error(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("ec2-sandbox")), "list", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_examples_can_be_parsed(name: str) -> None:
    lines = EXAMPLES[name].strip().splitlines()
    assert 2 <= len(lines) <= 6
    for line in lines:
        words = shlex.split(line.partition("   ")[0].removeprefix('eval "$(').removesuffix(')"'))
        end = min((words.index(word) for word in ("|", ">") if word in words), default=len(words))
        context = cli.make_context("ec2-sandbox", words[1:end])
        called, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
        assert "Examples:" in (command.epilog or "")
        command.make_context(called, rest, parent=context)
