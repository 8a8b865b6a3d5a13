"""Finds and opens record files as mxnet_cluster.sources does, with plain explanations of S3's errors."""

from collections.abc import Sequence

from mxnet_cluster import sources
from mxnet_cluster.sources import INDEX_FOLDER, Shard
from train.s3.url import is_s3, parse_url

__all__ = ["INDEX_FOLDER", "Shard", "Sources"]


class Sources(sources.Sources):
    """Finds and opens files. Raises UsageError for an invalid URL, AwsError."""

    def find(self, words: Sequence[str], *, suffix: str = ".rec") -> tuple[Shard, ...]:
        """As in the base class; also raises UsageError for an invalid s3:// URL."""
        for word in filter(is_s3, words):
            parse_url(word)
        return super().find(words, suffix=suffix)

    def explain(self, word: str, error: Exception) -> Exception:
        """The error to show for an error of botocore."""
        from train.s3.errors import explain  # noqa: PLC0415 - botocore: not needed for local files

        url = parse_url(word)
        return explain(error, "get_object", bucket=url.bucket, key=url.key)
