"""Lists of images, compared with im2rec.py's, and errors in them."""

import subprocess
from pathlib import Path

import pytest

from folders import write_files
from foundation.errors import ClusterError, NotFoundError, UsageError
from real_mxnet import real_mxnet, run_mxnet
from train.data.image_list import divide, list_folder, read_list, render_line, shuffle


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    names = ("z/1.jpg", "a/2.PNG", "a/10.jpg", "a/deep/x.jpeg", "top.jpg", "a/note.txt", "B/b.jpg", "a/é ü.jpg")
    write_files(folder, dict.fromkeys(names, b""))
    return folder


def test_subfolders_are_labels(photos: Path) -> None:
    listed = list_folder(photos)
    assert listed.label_names == (".", "B", "a", "a/deep", "z")
    assert [(image.record_id, image.labels, image.path) for image in listed.images[:4]] == [
        (0, (0.0,), "top.jpg"), (1, (1.0,), "B/b.jpg"), (2, (2.0,), "a/10.jpg"), (3, (2.0,), "a/2.PNG"),
    ]  # fmt: skip


def test_hidden_files_and_folders_are_no_labels(photos: Path) -> None:
    names = (".ipynb_checkpoints/1.jpg", "__MACOSX/z/._1.jpg", "a/._10.jpg", "z/.git/deep/b.jpg", "z/.note.txt")
    write_files(photos, dict.fromkeys(names, b""))
    listed = list_folder(photos)
    assert listed.label_names == (".", "B", "a", "a/deep", "z")
    assert listed.hidden == (".ipynb_checkpoints", "__MACOSX", "a/._10.jpg", "z/.git")


@pytest.mark.slow
def test_im2rec_makes_the_same_lists(photos: Path) -> None:
    (tool,) = run_mxnet("import os; print(os.path.join(os.path.dirname(mx.__file__), 'tools', 'im2rec.py'))")
    splits: tuple[list[str], ...] = ([], ["--train-ratio", "0.5", "--test-ratio", "0.2"])
    for ratios in splits:
        words = [tool, "--list", "--recursive", *ratios, str(photos.parent / "theirs"), str(photos)]
        subprocess.run([real_mxnet(), *words], check=True, capture_output=True)
        listed = shuffle(list_folder(photos), seed=100)
        train, test = (0.5, 0.2) if ratios else (1.0, 0.0)
        for name, images in divide(listed.images, train_ratio=train, test_ratio=test).items():
            theirs = photos.parent / f"theirs{'_' if name else ''}{name}.lst"
            assert theirs.read_text() == "".join(map(render_line, images))


@pytest.mark.parametrize(
    ("text", "width", "kind", "message"),
    [
        ("", None, NotFoundError, "the list is empty"),
        ("0\t1\ta\nx\t1\ta.jpg\n", None, ClusterError, "line 2: not an index"),
        ("18446744073709551616\t1\ta.jpg\n", None, ClusterError, "line 1: not an index"),
        ("1\tcat\ta.jpg\n", None, ClusterError, "line 1: not an index, labels"),
        ("1\t16777218.0\ta.jpg\n1\t1e39\ta.jpg\n", None, ClusterError, "line 2: not an index, labels"),
        ("1\tnan\ta.jpg\n", None, ClusterError, "line 1: not an index, labels"),
        ("1\t2\t3\ta\n", None, UsageError, "has 2 labels"),
        ("1\t2\t3\ta\n", 3, UsageError, "has 2 labels, fewer than --label-width 3"),
    ],
)
def test_errors_in_a_list_name_the_line(
    tmp_path: Path, text: str, width: int | None, kind: type[ClusterError], message: str
) -> None:
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(kind, match=f"a.lst.*{message}"):
        read_list(tmp_path / "a.lst", root=tmp_path, label_width=width)


def test_folders_that_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no files that end with"):
        list_folder(tmp_path)
    (tmp_path / "a\tb.jpg").touch()
    with pytest.raises(ClusterError, match="a tab or a line break"):
        list_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_list(tmp_path / "a.lst", root=tmp_path, label_width=None)


@pytest.mark.parametrize(("train", "test"), [(0.0, 0.0), (0.7, 0.4), (1.5, 0.0), (0.5, -0.1)])
def test_impossible_ratios(train: float, test: float) -> None:
    with pytest.raises(UsageError, match="--train-ratio"):
        divide((), train_ratio=train, test_ratio=test)


def test_no_image_is_lost_to_rounding(photos: Path) -> None:
    images = list_folder(photos).images
    parts = divide(images, train_ratio=0.9, test_ratio=0.1)
    assert sorted(parts) == ["train"]
    assert parts["train"] == images
