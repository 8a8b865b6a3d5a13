"""What places.py needs of S3, by the functions that `cluster data put, ls and rm` call."""

from collections.abc import Sequence
from pathlib import Path

from provision.errors import NotFoundError
from provision.progress import Report
from train.s3 import operations
from train.s3.client import S3Object
from train.s3.transfer import Unwatched


class S3Bucket:
    """S3 from this machine. create: make the bucket where there is none."""

    def __init__(self, *, region: str, create: bool, report: Report) -> None:
        self._region = region
        self._create = create
        self._report = report

    def list_names(self, folder: str) -> Sequence[str]:
        """What of each key below the folder follows its URL; nothing where there is no such bucket."""
        try:
            entries = operations.ls(folder, region=self._region, recursive=True)
        except NotFoundError:
            return ()
        return [str(entry.url).removeprefix(folder) for entry in entries if isinstance(entry, S3Object)]

    def put_folder(self, source: Path, folder: str) -> None:
        """Copy what a local folder holds to the folder."""
        operations.put(
            [f"{source}/"],
            folder,
            region=self._region,
            create_bucket=self._create,
            report=self._report,
            watch=lambda _: Unwatched(),
        )

    def delete(self, urls: Sequence[str]) -> None:
        """Delete objects."""
        operations.rm(urls, region=self._region)
