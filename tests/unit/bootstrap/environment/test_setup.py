"""The user's set-up commands in a real login shell."""

import os
import subprocess
from pathlib import Path

import pytest

from bootstrap.environment.steps import render_commands, setup_digest
from node.programs import program_words
from node.setup import setup_env
from node_facts import SYSTEM_PATH


def setup(home: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Runs commands as a node does, in the given home."""
    digest = str(setup_digest(commands))
    folder = home / ".cluster" / "setup" / os.uname().nodename
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{digest}.json").write_text(render_commands(commands))
    return subprocess.run(
        program_words("run_setup", str(folder), digest),
        env={"HOME": str(home), "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "LD_LIBRARY_PATH": "/opt/base/lib"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def kept(home: Path, *commands: str) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        return setup_env.read(str(setup_digest(commands)))


def test_commands_share_a_login_shell_and_exports_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text(
        "module() { export LD_LIBRARY_PATH=/opt/$2/lib:$LD_LIBRARY_PATH; }\n"
        f"export LD_LIBRARY_PATH=/opt/base/lib FROM_PROFILE=1 PATH=/opt/base:{SYSTEM_PATH}\n"
    )
    commands = (
        "module load cuda",
        "cd /; here=$PWD",
        'export HERE="$here" ODD="a \'b\'\n$c" PATH="$HOME/bin:$PATH:/opt/last"; unset FROM_PROFILE',
        "not_exported=1",
    )
    done = setup(tmp_path, *commands)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert kept(tmp_path, *commands) == {
        "set": {"HERE": "/", "ODD": "a 'b'\n"},
        "prepend": {"LD_LIBRARY_PATH": ["/opt/cuda/lib", "/opt/base/lib"], "PATH": [f"{tmp_path}/bin", "/opt/base"]},
        "append": {"PATH": ["/opt/last"]},
        "unset": ["FROM_PROFILE"],
    }
    digest = setup_digest(commands)
    env = {"HOME": str(tmp_path), "HERE": "/", "PATH": "/bin"}
    done = subprocess.run(program_words("setup_env", str(digest)), env=env, capture_output=True, text=True, check=True)
    path, libraries = f"PATH={tmp_path}/bin:/opt/base:/bin:/opt/last", "LD_LIBRARY_PATH=/opt/cuda/lib:/opt/base/lib"
    assert done.stdout == f"export {libraries}\nexport ODD='a '\"'\"'b'\"'\"'\n'\nexport {path}\n"
    folder = tmp_path / ".cluster" / "setup" / os.uname().nodename
    assert sorted(path.name for path in folder.iterdir()) == [f"{digest}.done", f"{digest}.env"]
    assert (folder / f"{digest}.env").stat().st_mode & 0o777 == 0o600


def test_exports_are_merged_into_a_jobs_environment() -> None:
    changes = {
        "set": {"CUDA_HOME": "/opt/cuda"},
        "prepend": {"PATH": ["/opt/cuda/bin"], "LD_LIBRARY_PATH": ["/opt/cuda/lib"]},
        "append": {"PATH": ["/opt/last"]},
        "unset": ["GONE"],
    }
    merged = setup_env.merge({"PATH": "/env/bin:/usr/bin:/opt/last", "GONE": "1", "STAYS": "2"}, changes)
    assert merged == {
        "PATH": "/opt/cuda/bin:/env/bin:/usr/bin:/opt/last",
        "LD_LIBRARY_PATH": "/opt/cuda/lib",
        "CUDA_HOME": "/opt/cuda",
        "STAYS": "2",
    }
    assert setup_env.merge(merged, changes) == merged


@pytest.mark.parametrize(
    ("commands", "code", "message"),
    [
        (("true", "sh -c 'exit 7'", "touch $HOME/reached"), 7, "setup command 2 of 3 ended with exit code 7"),
        (("echo 'unbalanced", "touch $HOME/reached"), 1, "setup command 1 of 2 ended with exit code"),
        (("exit 0", "touch $HOME/reached"), 1, "setup command 1 of 2 left the shell with `exit`"),
        (("kill -9 $$", "touch $HOME/reached"), 1, "setup command 1 of 2 was killed by signal 9"),
    ],
)
def test_the_first_failing_command_ends_the_set_up(
    tmp_path: Path, commands: tuple[str, ...], code: int, message: str
) -> None:
    done = setup(tmp_path, *commands)
    assert done.returncode == code or (code == 1 and done.returncode in {1, 2})
    assert message in done.stdout.splitlines()[-1]
    assert not (tmp_path / "reached").exists()
    assert not list((tmp_path / ".cluster" / "setup" / os.uname().nodename).glob("*.done"))
    assert not list((tmp_path / ".cluster" / "setup" / os.uname().nodename).glob(".run-*"))
