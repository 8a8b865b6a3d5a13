"""The samples of a job's nodes, from the head: damaged and old ones do not count."""

import json

import pytest

from foundation.errors import ClusterError
from job_channels import FakeHead, channel
from job_records import make_record
from train.follow.samples import read_samples


def line(t: float, host: str = "node-0") -> bytes:
    return json.dumps({"t": t, "host": host, "over_s": 5}).encode() + b"\n"


def test_samples_come_in_the_order_of_their_times() -> None:
    made = channel(b'{"samples": true}\n', line(15), line(10, "node-1"), b'{"t": "damaged"}\n', line(10), line(5))
    head = FakeHead(lambda _: made).make()
    found = read_samples(make_record(1), head, results=None, region="us-east-1", since=5)
    assert [(sample.t, sample.host) for sample in found] == [(10, "node-0"), (10, "node-1"), (15, "node-0")]


def test_an_error_of_the_head_is_raised() -> None:
    head = FakeHead(lambda _: channel(b'{"error": "there is no job x"}\n')).make()
    with pytest.raises(ClusterError, match="node-0: there is no job x"):
        read_samples(make_record(1), head, results=None, region="us-east-1")


def test_without_the_head_and_s3_there_are_none() -> None:
    assert read_samples(make_record(1), None, results=None, region="us-east-1") == []
