"""The journal of downloads' temporary files, where runs are long or are killed at awkward moments."""

import os
from pathlib import Path

import pytest

from train.s3 import download_journal
from train.s3.download_journal import DownloadJournal, Partial
from train.s3.local_folder import LocalFolder
from train.s3.partial_file import PartialFiles
from train.s3.plan import Download
from train.s3.url import S3Url


def partial(folder: Path, number: int) -> Partial:
    return Partial(
        folder=str(folder), name=f".x-{number}", destination="a", source="s3://bucket/a", etag="e", size_bytes=3
    )


def test_a_long_run_does_not_keep_all_that_it_has_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_journal, "_MAX_LINES", 10)
    journal = DownloadJournal(tmp_path)
    lasting = partial(tmp_path, -1)
    journal.begin(lasting)
    for number in range(100):
        journal.begin(partial(tmp_path, number))
        journal.end(partial(tmp_path, number))
    assert len(list(tmp_path.iterdir())) == 2
    assert journal.find_partials() == {lasting.path}
    assert DownloadJournal(tmp_path).take_abandoned() == []  # it is at work
    journal.end(lasting)
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_noted_twice_is_resumed_once(tmp_path: Path) -> None:
    """A run was killed when it had taken over what another one had left."""
    out = tmp_path / "out"
    out.mkdir()
    left = partial(out, 1)
    left.path.write_bytes(b"abc")
    for _ in range(2):
        journal = DownloadJournal(tmp_path / "journal")
        journal.begin(left)
        assert journal._notes is not None
        os.close(journal._notes._descriptor)  # as if it was killed
    download = Download(source=S3Url(bucket="bucket", key="a"), destination=out / "a", size_bytes=3, etag="e")
    folder = LocalFolder(out)
    files = PartialFiles(folder, DownloadJournal(tmp_path / "journal"))
    files.find_earlier([download], [download])
    file = files.open(download)
    assert os.pread(file.descriptor, 9, 0) == b"abc"
    file.publish()
    files.close()
    folder.close()
    assert [path.name for path in out.iterdir()] == ["a"]
    assert list((tmp_path / "journal").iterdir()) == []
