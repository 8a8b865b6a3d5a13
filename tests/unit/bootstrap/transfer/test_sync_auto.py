"""[bootstrap] sync = "auto": what is sent of the folder that the user's script lies in."""

import subprocess
from pathlib import Path

import pytest

from bootstrap.transfer.sync import find_beside


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def sent(project: Path, script: str, *exclude: str) -> set[str]:
    return set(find_beside(project / script, project_dir=project, exclude=exclude).files)


def test_the_folder_of_the_script_is_sent_and_no_other(tmp_path: Path) -> None:
    files = ["cluster.toml", "notes.txt", "a/own.py", "a/mymod.py", "a/b/deep.py", "a/.git/config", "other/x.py"]
    files += ["a/env/pyvenv.cfg", "a/env/lib/site.py", "a/__pycache__/own.pyc"]
    project = fill(tmp_path, dict.fromkeys(files, ""))
    below = {"a/own.py", "a/mymod.py", "a/b/deep.py"}
    assert sent(project, "a/own.py") == below
    assert sent(project, "notes.txt") == {"notes.txt", "other/x.py", *below}


def test_git_ignores_the_same(tmp_path: Path) -> None:
    """The repository's top is above the folder of cluster.toml."""
    files = {
        ".gitignore": "*.rec\n/project/top.log\nbuild/\n",
        "project/.gitignore": "*.log\n!keep.log\nsub/*.txt\n",
        "project/own.py": "",
        "project/top.log": "",
        "project/keep.log": "",
        "project/other.log": "",
        "project/data/a.rec": "",
        "project/data/.gitignore": "!a.rec\n*.tmp",
        "project/data/b.tmp": "",
        "project/data/b.rec": "",
        "project/build/x.py": "",
        "project/sub/a.txt": "",
        "project/sub/deep/a.txt": "",
    }
    fill(tmp_path, files)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    words = ["git", "-C", str(tmp_path / "project"), "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert "keep.log" in listed
    assert sent(tmp_path / "project", "own.py") == set(listed)


def test_exclude_goes_over_git_ignore(tmp_path: Path) -> None:
    project = fill(tmp_path, {".gitignore": "*.log\n", "own.py": "", "a.log": "", "b.log": "", "big.bin": ""})
    assert sent(project, "own.py", "big.bin", "!a.log") == {".gitignore", "own.py", "a.log"}


def test_what_cannot_be_sent_is_left_out_with_a_word(tmp_path: Path) -> None:
    project = fill(tmp_path / "project", {"own.py": "", ".gitignore": "\0[[["})
    (project / "outside").symlink_to("/etc/hosts")
    found = find_beside(project / "own.py", project_dir=project, exclude=())
    assert set(found.files) == {"own.py", ".gitignore"}
    [said] = found.left_out
    assert "outside" in said


def test_a_home_folder_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"own.py": "", "diary.txt": "", "code/own.py": "", "code/mymod.py": ""})
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_beside(tmp_path / "own.py", project_dir=tmp_path, exclude=())
    assert set(found.files) == {"own.py"}
    assert "home folder" in found.left_out[0]
    assert sent(tmp_path, "code/own.py") == {"code/own.py", "code/mymod.py"}
