"""`cluster train`: a script with its arguments, arguments for cluster.toml's script, and a command."""

from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from cluster.commands.job.train import train
from cluster.submission.request import Words, find_cwd, read_store, read_words
from foundation.errors import UsageError

LONG = "python own.py" + " --lr 0.1" * 30  # longer than a file's name can be


def test_an_unknown_option_may_be_the_scripts() -> None:
    with pytest.raises(UsageError, match="cluster train has no option --epochs") as raised:
        train.make_context("cluster train", ["-n", "2", "--epochs", "1"])
    assert raised.value.hint == "arguments of the script follow its name or --: cluster train -- --epochs 1"
    with pytest.raises(UsageError) as raised:
        train.make_context("cluster train", ["--epochs", "1", "own.py"])
    assert (raised.value.hint or "").endswith(": cluster train own.py --epochs 1")
    with pytest.raises(click.NoSuchOption, match="--kv-sotre"):
        train.make_context("cluster train", ["--kv-sotre", "dist_sync"])


@pytest.mark.parametrize(
    ("words", "is_command", "expected"),
    [
        ((), False, Words()),
        (("own.py", "--epochs", "1"), False, Words(script="sub/own.py", args=("--epochs", "1"))),
        (("../top.py",), False, Words(script="top.py")),
        (("train_mnist.py",), False, Words(script="train_mnist.py")),
        (("python own.py",), False, Words(command=("bash", "-c", "python own.py"))),
        ((LONG,), False, Words(command=("bash", "-c", LONG))),
        ((LONG,), True, Words(command=("bash", "-c", LONG))),
        (("my own.py",), False, Words(script="sub/my own.py")),
        (("python", "own.py", "--gpus", "0,1"), False, Words(command=("python", "own.py", "--gpus", "0,1"))),
        (("python", "train_mnist.py"), True, Words(script="train_mnist.py")),
        (("sh", "-c", "ls"), False, Words(command=("sh", "-c", "ls"))),
        (("--num-epochs", "1"), True, Words(args=("--num-epochs", "1"))),
    ],
)
def test_what_the_words_name(tmp_path: Path, words: tuple[str, ...], *, is_command: bool, expected: Words) -> None:
    here = make_files(tmp_path)
    assert read_words(words, is_command=is_command, here=here, project_dir=tmp_path, folder=here) == expected


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("pyhton", "own.py"), "a command follows --: cluster train -- pyhton own.py"),
        (("train_minst.py",), "cluster train train_mnist.py"),
        (("../tpo.py",), "cluster train ../top.py"),
        (("nothing/like/it.py",), "one of: my own.py, own.py, train_"),
    ],
)
def test_a_script_that_is_not_there(tmp_path: Path, words: tuple[str, ...], hint: str) -> None:
    here = make_files(tmp_path)
    with pytest.raises(UsageError, match="there is no such script in ") as raised:
        read_words(words, is_command=False, here=here, project_dir=tmp_path, folder=here)
    assert (raised.value.hint or "").startswith(hint)


@pytest.mark.parametrize("script", ["own.py", "train_mnist.py"])
def test_a_bare_script_after_dashes_is_refused(tmp_path: Path, script: str) -> None:
    """Before a queue holds the job for hours."""
    here = make_files(tmp_path)
    with pytest.raises(UsageError, match="needs its interpreter") as raised:
        read_words((script, "60"), is_command=True, here=here, project_dir=tmp_path, folder=here)
    assert raised.value.hint == f"cluster train {script} 60"


def make_files(folder: Path) -> Path:
    (folder / "top.py").touch()
    here = folder / "sub"
    here.mkdir()
    for name in ("own.py", "my own.py"):
        (here / name).touch()
    return here


@pytest.mark.parametrize(
    ("given", "configured", "at", "expected"),
    [
        (None, "auto", ".", "."),
        (None, "auto", "..", "."),  # as from `cluster -c project/cluster.toml train`
        (None, "sub", "..", "sub"),
        ("sub", "auto", ".", "sub"),
        ("..", "auto", "sub", "."),
        ("gone", "auto", ".", "--cwd gone: there is no such folder"),
        (None, "gone", ".", 'train.cwd = "gone": there is no such folder'),
    ],
)
def test_the_folder_where_a_job_runs(
    tmp_path: Path, given: str | None, configured: str, at: str, expected: str
) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    with pytest.raises(UsageError, match=f"^{expected}") if ":" in expected else nullcontext():
        assert find_cwd(given, configured, here=project / at, project_dir=project) == expected


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("--network lenet --kv-store dist_async", {"train.kv_store": "dist_async"}),
        ("--gc-type 2bit --gc-threshold 0.1", {"train.gc_type": "2bit", "train.gc_threshold": 0.1}),
        ("--kv-store mine --gc-type 3bit --gc-threshold x", {}),  # the script names the error
    ],
)
def test_a_shipped_scripts_arguments_set_the_store(line: str, settings: dict[str, object]) -> None:
    """launch.py's command lines have --kv-store after the script."""
    assert read_store(line.split()) == settings
