"""Checks a job's data before the job starts. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from train.job.survey import Data
from train.s3.url import is_s3


class Problem(NamedTuple):
    """An error or warning about a job, and what to do. certain: no program can read [data] url like this."""

    message: str
    hint: str = ""
    certain: bool = True


def find_problems(data: Data, url: str, *, region: str | None, nodes_credentials: bool) -> Iterator[Problem]:
    """The problems of a job's data at [data] url.

    region: the nodes'. nodes_credentials: the job uses the nodes' credentials.
    """
    setting, of_s3 = f'data.url = "{url}"', is_s3(url)
    put = f"cluster data put FOLDER {url}" if of_s3 else f"cluster cp LOCAL_FOLDER node-0:{url}"
    if not data.exists:
        create = f"cluster data put --create-bucket FOLDER {url}"
        yield Problem(f"{setting}: there is no such {'bucket' if of_s3 else 'folder'}", create if of_s3 else put)
        return
    if None not in (data.region, region) and data.region != region:
        yield Problem(
            f"{setting}: the bucket is in {data.region}, but the nodes are in {region} and read S3 there",
            f'set [provision] region = "{data.region}" for a new cluster, or copy the data to a bucket in {region}: '
            "cluster data get, then cluster data put --create-bucket",
            certain=data.at_aws,
        )
    if data.refused is not None and not nodes_credentials:
        yield Problem(
            f"{setting}: the job gets your credentials, and with them {data.refused}",
            "cluster iam-policy prints the permissions that you need; or let the nodes use [provision] "
            "instance_profile",
        )
    if data.is_empty:
        yield Problem(f"{setting}: there is nothing to read", put)
