"""What is in S3, by the fastest way that is sure: obstore where it can tell, botocore where it cannot or S3 refuses."""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from train.s3.client import S3Object, read_object
from train.s3.exchange import UnsureError
from train.s3.url import S3Url
from train.s3.wire import Wire


class Listing:
    """Asks S3 what there is.

    obstore shows an object `a/` that has content as `a`. That is noticed where it is the listed folder's own, or where
    something is below it, and else by whoever asks for `a`. exact: ask botocore, as before something is deleted.
    """

    def __init__(self, wire: Wire, *, exact: bool = False) -> None:
        self._wire = wire
        self._exact = exact

    def find_object(self, url: S3Url) -> S3Object | None:
        """The object of exactly this name. Raises ClusterError's kinds."""
        try:
            return self._wire.find_object(url)
        except UnsureError:
            found = self._ask_botocore(url, limit=1)
        # A key sorts before every longer one that begins with it.
        return found[0] if found and found[0].url == url else None

    def list_objects(self, folder: S3Url, *, only: Collection[S3Url] | None = None) -> Sequence[S3Object]:
        """The objects whose keys begin with the URL's, sorted, with markers of folders. Raises ClusterError's kinds.

        only: those of these names, so that the others take no memory.
        """
        if self._exact:
            return self._ask_botocore(folder, only=only)
        try:
            found = [item for item in self._wire.list_folder(folder) if only is None or item.url in only]
        except UnsureError:
            return self._ask_botocore(folder, only=only)
        if _has_files_that_are_folders(found):
            return self._ask_botocore(folder, only=only)
        return sorted(found, key=lambda item: item.url)

    def list_some(self, folder: S3Url) -> Sequence[S3Object]:
        """A few of them: for who wants to know whether it is allowed, and whether there is such a bucket."""
        try:
            return list(islice(self._wire.list_folder(folder), 1))
        except UnsureError:
            return self._ask_botocore(folder, limit=1)

    def _ask_botocore(
        self, folder: S3Url, limit: int | None = None, only: Collection[S3Url] | None = None
    ) -> list[S3Object]:
        request: dict[str, Any] = {"Bucket": folder.bucket, "Prefix": folder.key, "MaxKeys": limit or 1000}
        found: list[S3Object] = []
        while True:
            page = self._wire.call("list_objects_v2", **request)
            objects = (read_object(folder.bucket, item) for item in page.get("Contents", ()))
            found += [item for item in objects if only is None or item.url in only]
            if limit or not page.get("IsTruncated"):
                return found
            request["ContinuationToken"] = page["NextContinuationToken"]


def _has_files_that_are_folders(found: Iterable[S3Object]) -> bool:
    keys = {item.url.key for item in found}
    folders: set[str] = set()
    for key in keys:
        end = key.rfind("/")
        while end > 0 and (folder := key[:end]) not in folders:
            folders.add(folder)
            end = folder.rfind("/")
    return not keys.isdisjoint(folders)
