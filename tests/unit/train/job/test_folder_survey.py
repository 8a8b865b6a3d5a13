"""[data] url as a folder on a volume: the script that nodes run, and the problems that it reports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.config import parse_config
from foundation.decode import decode
from foundation.errors import ConfigError
from train.job.data_checks import find_problems
from train.job.folder_survey import MOST_FILES, SCRIPT, Look, summarize
from train.job.survey import MAGIC

RECORDS = MAGIC + bytes(4)


def look_at(folder: Path, *, most: int = MOST_FILES) -> Look:
    words = [sys.executable, "-c", SCRIPT, str(folder), str(most), str(len(MAGIC))]
    return decode(subprocess.run(words, capture_output=True, check=True).stdout, Look)


def problems(looks: dict[str, Look], *, script: str | None = None) -> list[str]:
    data = summarize("/shared/data", looks)
    found = find_problems(data, "/shared/data", region="us-east-1", script=script, nodes_credentials=False)
    return [problem.message for problem in found]


def test_a_folder_with_records(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.rec").write_bytes(RECORDS)
    (tmp_path / "val.rec").write_bytes(RECORDS)
    look = look_at(tmp_path)
    assert look.files == (("train/a.rec", 8), ("val.rec", 8))
    assert look.read == str(tmp_path / "train" / "a.rec")
    assert problems({"node-0": look, "node-1": look}, script="train_imagenet.py") == []
    data = summarize("/shared/data", {"node-0": look})
    assert (data.objects, data.in_train, data.complete, data.sizes) == (2, 1, True, (8,))


def test_files_that_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(b"12345")
    found = problems({"node-0": look_at(tmp_path)})
    assert found == [
        f"{tmp_path}/a.rec is not a RecordIO file: its first bytes are wrong",
        "/shared/data/a.rec is incomplete: the size of a .rec file is a multiple of four bytes",
    ]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    lacking = look_at(tmp_path / "lacking")
    assert problems({"node-0": lacking}) == ['data.url = "/shared/data": there is no such folder']
    (tmp_path / "file").write_text("1")
    there = look_at(tmp_path)
    assert problems({"node-0": there, "node-1": lacking}) == [
        'data.url = "/shared/data": node-1:/shared/data cannot be read: there is no such folder'
    ]
    assert problems({"node-0": look_at(tmp_path / "..", most=1)}) == []


def test_an_empty_folder(tmp_path: Path) -> None:
    assert problems({"node-0": look_at(tmp_path)}) == ['data.url = "/shared/data": there is nothing to read']


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    (tmp_path / "file").chmod(0)
    assert look_at(tmp_path).error == (str(tmp_path / "file"), "Permission denied")


def test_a_long_listing_is_cut(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"folder-{number}").mkdir()
        (tmp_path / f"folder-{number}" / "file").write_text("1")
    assert look_at(tmp_path, most=2).complete is False
    assert look_at(tmp_path, most=3).complete is True


VOLUMES = [{"mount": "/shared", "source": "nas:/export"}, {"mount": "/data", "source": "nas:/data", "read_only": True}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"url": "/elsewhere/data"}, 'data.url = "/elsewhere/data": not on a volume'),
        ({"url": "/shared2"}, "not on a volume"),
        ({"results": "/data/results"}, 'data.results = "/data/results": the volume /data is read_only'),
        ({"url": "/shared/../etc"}, "not a path"),
        ({"url": "shared/data"}, "not an S3 URL"),
    ],
)
def test_paths_that_are_refused(data: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"name": "demo", "cloud": "aws", "volumes": VOLUMES, "data": data}, source="cluster.toml")
    assert said in raised.value.message


def test_paths_on_volumes() -> None:
    data = {"url": "/data/digits/", "results": "/shared/results"}
    config = parse_config({"name": "demo", "cloud": "aws", "volumes": VOLUMES, "data": data}, source="cluster.toml")
    assert (config.data.url, config.data.s3_url, config.data.s3_results) == ("/data/digits/", None, None)
