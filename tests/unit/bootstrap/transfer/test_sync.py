"""The files that [bootstrap] sync and exclude select, and how these files are read."""

import itertools
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bootstrap.transfer.sync import SyncFiles, find_below, find_files, read_sync_files
from bootstrap.transfer.tree import Tree, write_archive
from foundation.errors import ClusterError, ConfigError
from foundation.progress import Event, silent
from node_dir import NodeDir, content_of, start_placer, wanted_content


def fill(root: Path, *paths: str) -> Path:
    """Writes files whose content is their own path. A path that ends with / becomes a folder. Returns the root."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_text(path)
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    paths = ["cluster.toml", "train.py", "my/train.py", "my/net/model.py", "my/data/a.rec", "my/data/b.txt", "my/logs/"]
    paths += ["data/big.rec", "my/.git/config", "my/net/__pycache__/model.pyc", "my/x.pyc", "my/sub/.git"]
    paths += ["my/data/.cluster-get-1.part", "data/.cluster-pack/a.rec"]  # of commands at work, or killed
    paths += ["report-20261129-101320-81bbe2.html", "run.capsule", "cluster-debug.tar.gz"]
    return fill(tmp_path / "project", *paths, ".ssh/id_rsa", ".aws/credentials", ".cluster/ssh/id_ed25519")


def find(project: Path, sync: tuple[str, ...], exclude: tuple[str, ...] = ()) -> SyncFiles:
    return find_files(project, sync=sync, exclude=exclude)


def read(project: Path, *sync: str, exclude: tuple[str, ...] = ()) -> Tree:
    found = find(project, sync or (".",), exclude)
    return read_sync_files(found, project_dir=project, report=silent)


MY = ["my/data/a.rec", "my/data/b.txt", "my/logs/", "my/net/model.py", "my/sub/", "my/train.py"]


@pytest.mark.parametrize(
    ("sync", "exclude", "chosen"),
    [
        ((), (), []),
        (("./my", "my/", "my/net/", "my/train.py"), (), MY),
        (("my/logs", "train.py"), (), ["my/logs/", "train.py"]),
        ((".",), (), ["cluster.toml", "data/big.rec", *MY, "train.py"]),
        ((".",), ("my/",), ["cluster.toml", "data/big.rec", "train.py"]),
        (("my",), ("data/*", "logs"), MY[:2] + MY[3:]),
        (("my",), ("# not a comment is needed", "*.rec", "!.git", "!*.pyc"), MY[1:]),
    ],
)
def test_selected_files(project: Path, sync: tuple[str, ...], exclude: tuple[str, ...], chosen: list[str]) -> None:
    found = find(project, sync, exclude)
    assert sorted([*found.files, *(f"{path}/" for path in found.folders)]) == sorted(chosen)
    assert found.left_out == []


PATTERNS = ["*.rec", "data/", "/data", "my/*", "**/net", "my/**/b.txt", "[a-m]*.py", "!train.py", "*", "!my/", "net/**"]
PATTERNS += ["\\!x", "*.py ", "?.rec", "my/data/a.rec", "!*/", "my/**", "!my/net", "*/", "/my/data/*", "da*"]


def test_patterns_match_as_in_git(project: Path) -> None:
    """Compares every pattern alone, and before patterns that take back its effect."""
    for folder in ("my/.git", "my/sub"):
        shutil.rmtree(project / folder)
    subprocess.run(("git", "init", "-q", "."), cwd=project, check=True)
    left_out = {"my/net/__pycache__/model.pyc", "my/x.pyc", ".ssh/id_rsa", ".aws/credentials"}
    left_out |= {".cluster/ssh/id_ed25519", "report-20261129-101320-81bbe2.html", "run.capsule"}
    left_out |= {"cluster-debug.tar.gz", "my/data/.cluster-get-1.part", "data/.cluster-pack/a.rec", ""}
    exclude = project.parent / "exclude"
    command = ("git", "ls-files", "-o", "-z", f"--exclude-from={exclude}")
    for first, second in itertools.product(PATTERNS, ("", "!*.rec", "my/**")):
        exclude.write_text(f"{first}\n{second}\n")
        listed = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout
        wanted = set(listed.split("\0")) - left_out
        assert set(find(project, (".",), (first, second)).files) == wanted, (first, second)


@pytest.mark.parametrize(
    ("sync", "exclude", "message"),
    [
        (("no-such/",), (), "there is no such file or folder in"),
        (("data/",), ("data/",), "nothing would be sent, since data is excluded"),
        (("my/net/model.py",), ("net",), "nothing would be sent, since my/net is excluded"),
        ((".ssh",), (), r"nothing would be sent, since \.ssh is excluded"),
    ],
)
def test_empty_entries_are_refused(
    project: Path, sync: tuple[str, ...], exclude: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"bootstrap.sync.*{message}"):
        find(project, sync, exclude)


@pytest.mark.parametrize("below", ["", "work"])
def test_a_whole_home_folder_is_refused(project: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project / below))
    (project / below).mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="your whole home folder, keys and passwords too"):
        find(project, (".",))
    assert "my/train.py" in find(project, ("my",)).files


def test_links_are_followed_within_the_project(project: Path) -> None:
    (project / "my" / "link.py").symlink_to("../train.py")
    (project / "my" / "latest").symlink_to("net", target_is_directory=True)
    tree = read(project, "my/link.py", "my/latest")
    assert [(file.path, file.source) for file in tree.files] == [
        ("my/latest/model.py", b"my/net/model.py"),
        ("my/link.py", b"train.py"),
    ]


@pytest.mark.parametrize(
    ("make", "exclude", "message"),
    [
        (lambda path: path.symlink_to("x"), (), "is a broken link"),
        (lambda path: path.symlink_to("../my"), (), "is a link to a folder that contains it"),
        (lambda path: path.symlink_to("../.ssh/id_rsa"), (), "is a link to an excluded path"),
        (lambda path: path.symlink_to("../data/big.rec"), ("data/",), "is a link to an excluded path"),
        (os.mkfifo, (), "is neither a file nor a folder"),
    ],
)
def test_unsendable_files_are_skipped_with_a_warning(
    project: Path, make: Callable[[Path], None], exclude: tuple[str, ...], message: str
) -> None:
    make(project / "my" / "x")
    found = find(project, ("my", "my/net"), exclude)
    assert "my/x" not in found.files
    events: list[Event] = []
    read_sync_files(found, project_dir=project, report=events.append)
    assert [(event.kind, event.what) for event in events] == [("warn", f"not sent: 'my/x' {message}")]


def test_a_link_to_the_outside_is_refused_unless_excluded(project: Path) -> None:
    (project / "my" / "x").symlink_to("/etc/passwd")
    with pytest.raises(ClusterError, match="my/x' is a link to '/etc/passwd', outside the folder") as caught:
        find(project, ("my",))
    assert caught.value.hint is not None
    assert "[bootstrap] exclude" in caught.value.hint
    assert "my/x" not in find(project, ("my",), ("/my/x",)).files


def test_a_name_that_is_not_utf_8_is_refused_unless_excluded(project: Path) -> None:
    with open(os.fsencode(project) + b"/my/b\xe9te", "w"):
        pass
    with pytest.raises(ClusterError, match=r"b\\xe9te: this name is not UTF-8"):
        find(project, ("my",))
    assert "my/train.py" in find(project, ("my",), ("b*te",)).files


def test_unusual_names_arrive_unchanged(project: Path) -> None:
    names = ["$(touch pwned)", "`id`", "it's", 'a "b" c', "two\nlines", "-rf", "a;b", "é日本", " ", "\\n", "x" * 255]
    fill(project, *[f"odd/{name}" for name in names])
    (project / "odd" / "it's").chmod(0o711)
    tree = read(project, "odd")
    with start_placer() as placer:
        node = NodeDir(home=project.parent / "node", cache=project.parent / "cache", placer=placer)
        assert node.send(tree) == {}
    assert content_of(node.path(tree)) == wanted_content(tree)
    assert {file.path for file in tree.files if file.mode == 0o755} == {"odd/it's"}


def test_scripts_may_be_edited_once_they_are_read(project: Path, tmp_path: Path) -> None:
    """`up` sends them when the nodes have started."""
    tree = read(project, "my")
    (project / "my" / "train.py").write_text("edited")
    with tarfile.open(write_archive(tree, tmp_path).path) as archive:
        sent = archive.extractfile("my/train.py")
        assert sent is not None
        assert sent.read() == b"my/train.py"


# -- sync = "auto" -----------------------------------------------------------------------------------------------------


def beside(project: Path, script: str, *exclude: str) -> SyncFiles:
    return find_below([str(Path(script).parent)], named=[script], project_dir=project, exclude=exclude)


def sent(project: Path, script: str, *exclude: str) -> set[str]:
    return set(beside(project, script, *exclude).files)


def test_auto_sends_the_folder_of_the_script(tmp_path: Path) -> None:
    files = ["cluster.toml", "notes.txt", "a/own.py", "a/mymod.py", "a/b/deep.py", "a/.git/config", "other/x.py"]
    files += ["a/env/pyvenv.cfg", "a/env/lib/site.py", "a/__pycache__/own.pyc"]
    project = fill(tmp_path, *files)
    below = {"a/own.py", "a/mymod.py", "a/b/deep.py"}
    assert sent(project, "a/own.py") == below
    assert sent(project, "notes.txt") == {"notes.txt", "other/x.py", *below}


def test_auto_ignores_the_same_files_as_git(tmp_path: Path) -> None:
    """The repository's root is above the folder of cluster.toml."""
    paths = ["own.py", "top.log", "keep.log", "other.log", "data/a.rec", "data/b.tmp", "data/b.rec", "build/x.py"]
    fill(tmp_path / "project", *paths, "sub/a.txt", "sub/deep/a.txt")
    (tmp_path / ".gitignore").write_text("*.rec\n/project/top.log\nbuild/\n")
    (tmp_path / "project/.gitignore").write_text("*.log\n!keep.log\nsub/*.txt\n")
    (tmp_path / "project/data/.gitignore").write_text("!a.rec\n*.tmp")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    words = ["git", "-C", str(tmp_path / "project"), "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert "keep.log" in listed
    assert sent(tmp_path / "project", "own.py") == set(listed)


def test_exclude_overrides_gitignore(tmp_path: Path) -> None:
    project = fill(tmp_path, "own.py", "a.log", "b.log", "big.bin")
    (project / ".gitignore").write_text("*.log\n")
    assert sent(project, "own.py", "big.bin", "!a.log") == {".gitignore", "own.py", "a.log"}


def test_auto_does_not_send_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "own.py", "diary.txt", "code/own.py", "code/mymod.py")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = beside(tmp_path, "own.py")
    assert set(found.files) == {"own.py"}
    assert "home folder" in found.left_out[0]
    assert sent(tmp_path, "code/own.py") == {"code/own.py", "code/mymod.py"}


@pytest.mark.parametrize("is_auto", [True, False])
def test_our_own_folders_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_auto: bool) -> None:
    """CI jobs have them below the project. Another command may write to them at the same time."""
    project = fill(tmp_path, "train.py", "state/cluster/a.costs.json", "state/other", "cache/cluster/wheels/a.whl")
    for name in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(project / name))
    found = beside(project, "train.py") if is_auto else find(project, (".",))
    assert sorted(found.files) == ["state/other", "train.py"]


SECRET = [".env", "my/.env.local", "my/id_rsa", "my/tls.pem"]
HARMLESS = [".env.example", "my/id_rsa.pub", "my/id_to_label.json", "my/train.py"]


@pytest.mark.parametrize("is_auto", [True, False])
def test_files_that_may_have_a_secret_are_not_sent(tmp_path: Path, *, is_auto: bool) -> None:
    """Neither by sync = "auto" nor by a folder that `sync` names; a notice names them."""
    project = fill(tmp_path, "train.py", *SECRET, *HARMLESS)
    (project / "my" / "link").symlink_to("id_rsa")
    found = beside(project, "train.py") if is_auto else find(project, (".",))
    assert sorted(found.files) == sorted(["train.py", *HARMLESS])
    events: list[Event] = []
    read_sync_files(found, project_dir=project, report=events.append)
    assert [event.what for event in events if "secret" in event.what] == [
        f'not sent, since they may have secrets: {", ".join(SECRET)} (to send one: [bootstrap] exclude = ["!.env"])'
    ]


def test_files_that_may_have_a_secret_are_sent_when_named(tmp_path: Path) -> None:
    project = fill(tmp_path, "train.py", *SECRET)
    named = find(project, (".", ".env", "my/id_rsa"), ("!*.pem",))
    assert sorted(named.files) == [".env", "my/id_rsa", "my/tls.pem", "train.py"]
    found = beside(project, "train.py", "!.env")
    assert sorted(found.files) == [".env", "train.py"]


def test_what_git_ignores_is_known(tmp_path: Path) -> None:
    project = fill(tmp_path, "train.py", "data/a/1.jpg", "data/2.jpg", "notes.log", ".cache/x")
    (project / ".gitignore").write_text("data/\n*.log\n.cache/\n.env\n")
    (project / ".env").write_text("its own notice is not needed")
    found = beside(project, "train.py")
    assert (found.secrets, {"data/", "notes.log"} <= set(found.ignored)) == ([], True)
