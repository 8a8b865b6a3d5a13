"""Checks a job's data before the job starts. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from train.job.survey import Data
from train.s3.url import is_s3

# This project's scripts that read the .rec files in train/.
RECORD_SCRIPTS = ("train_cifar10.py", "train_imagenet.py")


class Problem(NamedTuple):
    """An error or warning about a job, and what to do. certain: no program can read [data] url like this."""

    message: str
    hint: str = ""
    certain: bool = True


def find_problems(
    data: Data, url: str, *, region: str | None, script: str | None, nodes_credentials: bool
) -> Iterator[Problem]:
    """The problems of a job's data at [data] url.

    region: the nodes'. script: this project's script, if the job runs one. nodes_credentials: the job uses the nodes'
    credentials.
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
    if data.complete and not data.objects:
        yield Problem(f"{setting}: there is nothing to read", put)
    elif data.complete and of_s3 and not data.in_train and script in RECORD_SCRIPTS:
        yield Problem(f"{setting}: {script} reads .rec files in train/, and finds none", put)
    if data.others and (script is None or script in RECORD_SCRIPTS):
        first, more = data.others[0], len(data.others) - 1
        named = f"{first} and {more} more" if more else first
        yield Problem(
            f"{url.rstrip('/')}/ contains {named} next to .rec files: MXNet reads every file of a folder as records",
            "move the other files elsewhere, or name the .rec files: --data-train 's3://.../a.rec;s3://.../b.rec'",
            # Records may also be in a file such as "part-0", but not in one with another extension.
            certain=script in RECORD_SCRIPTS and any("." in name for name in data.others),
        )
