"""Problems of a job's data, detected before it starts, and warnings about its shards."""

import shlex
from typing import Any

import pytest

from train.job.data_checks import (
    MIB,
    Problem,
    choose_count,
    find_costs,
    find_problems,
    render_split,
)
from train.job.survey import Data, Refusal

URL = "s3://bucket/x/"
CIFAR, MNIST = "train_cifar10.py", "train_mnist.py"
GIB = 1 << 30
GOOD = Data(objects=4, records=4, in_train=4, folder="train/", sizes=(MIB,) * 4, region="eu-west-1")
DENIED = Refusal(what="read", where="s3://bucket/x/train/a.rec", code="AccessDenied", words="not authorized")
ARCHIVED = Refusal(what="read", where="s3://bucket/x/train/a.rec", code="InvalidObjectState", words="storage class")


def with_(**more: Any) -> Data:
    fields = {name: getattr(GOOD, name) for name in GOOD.__dataclass_fields__}
    return Data(**{**fields, **more})


def problems(data: Data, *, script: str | None = CIFAR, nodes_credentials: bool = False) -> list[Problem]:
    found = find_problems(data, URL, region="eu-west-1", script=script, nodes_credentials=nodes_credentials)
    return list(found)


def test_good_data_raises_no_warning() -> None:
    for script in (CIFAR, MNIST, None):
        assert not problems(GOOD, script=script)
        assert not list(find_costs(GOOD, URL, workers={"node-0": 2, "node-1": 2}, script=script))


@pytest.mark.parametrize(
    ("more", "said", "hint", "certain"),
    [
        ({"bucket_exists": False}, "there is no such bucket", "put --create-bucket FOLDER s3://bucket/x/", True),
        ({"region": "us-west-2"}, "is in us-west-2, but the nodes are in eu-west-1", 'region = "us-west-2"', True),
        # Outside AWS, a region may be no more than a name.
        ({"region": "us-west-2", "at_aws": False}, "the bucket is in us-west-2", "cluster data get", False),
        ({"refused": DENIED}, "x/train/a.rec cannot be read: AccessDenied: not", "cluster iam-policy", True),
        ({"refused": ARCHIVED}, "is archived (Glacier)", "aws s3api restore-object", True),
        ({"not_records": "s3://bucket/x/train/a.rec"}, "a.rec is not a RecordIO file", "upload it again", True),
        ({"cut_short": "train/b.rec"}, "s3://bucket/x/train/b.rec is incomplete", "cluster data info", True),
        ({"others": ("a.idx", "a.lst")}, "x/train/ contains a.idx and 1 more next to", "name the .rec files", True),
        ({"others": ("part-0",)}, "x/train/ contains part-0 next to", "move the other files", False),
    ],
)  # fmt: skip
def test_each_problem_says_what_to_do(more: dict[str, Any], said: str, hint: str, *, certain: bool) -> None:
    (problem,) = problems(with_(**more))
    assert said in problem.message
    assert hint in problem.hint
    assert problem.certain == certain


def test_a_refusal_to_this_machine_does_not_concern_nodes_with_their_own_credentials() -> None:
    assert not problems(with_(refused=DENIED), nodes_credentials=True)
    assert problems(with_(refused=ARCHIVED), nodes_credentials=True)


def test_other_files_next_to_records_matter_to_programs_that_read_the_folder() -> None:
    assert problems(with_(others=("a.idx",)), script=None)[0].certain is False
    assert not problems(with_(others=("train-images-idx3-ubyte",)), script=MNIST)


@pytest.mark.parametrize(
    ("sizes", "workers", "said"),
    [
        ((MIB,) * 2, (1, 1, 1), "for 3 workers: several read parts of the same file (cluster data split s3://bucket/x/train/"),
        ((MIB,), (2, 0), "several read parts"),
        # MXNet divides the bytes evenly, regardless of the shards' sizes.
        ((MIB, 9 * MIB), (1, 1), None),
    ],
)  # fmt: skip
def test_warnings_about_shards(sizes: tuple[int, ...], workers: tuple[int, ...], said: str | None) -> None:
    nodes = {f"node-{index}": count for index, count in enumerate(workers)}
    costs = list(find_costs(with_(sizes=sizes), URL, workers=nodes, script=CIFAR))
    assert [said in cost for cost in costs] == ([True] if said else []) if said else not costs


def test_an_incomplete_listing_raises_no_warning() -> None:
    data = with_(sizes=(MIB,), complete=False)
    assert not list(find_costs(data, URL, workers={"node-0": 4}, script=CIFAR))


# -- the best number of shards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total_bytes", "workers", "nodes", "count"),
    [
        (0, 3, 3, 12),
        (10 << 20, 2, 2, 10),  # shards of at least 1 MiB, if that gives enough of them
        (100 << 20, 2, 2, 32),
        (10 * GIB, 2, 2, 32),
        (10 * GIB, 3, 2, 33),
        (10 * GIB, 16, 2, 32),
        (150 * GIB, 8, 8, 152),  # shards of at most 1 GiB
    ],
)
def test_there_are_enough_shards_and_the_same_number_for_each_worker(
    total_bytes: int, workers: int, nodes: int, count: int
) -> None:
    assert choose_count(total_bytes, workers=workers, nodes=nodes) == count


@pytest.mark.parametrize(
    ("url", "folder", "source", "destination", "new"),
    [
        ("s3://b/x/", "train/", "s3://b/x/train/", "s3://b/x-8-shards/train/", "s3://b/x-8-shards/"),
        ("s3://b/x", "", "s3://b/x/", "s3://b/x-8-shards/", "s3://b/x-8-shards/"),
        ("s3://b", "train/", "s3://b/train/", "s3://b/8-shards/train/", "s3://b/8-shards/"),
        ("s3://b/it's", "", "s3://b/it's/", "s3://b/it's-8-shards/", "s3://b/it's-8-shards/"),
    ],
)
def test_the_command_for_splitting_is_exact(url: str, folder: str, source: str, destination: str, new: str) -> None:
    said = render_split(url, folder, 8)
    command = said.partition(" and set [data]")[0].partition(", copy the")[0].rstrip(",")
    assert shlex.split(command) == ["cluster", "data", "split", source, destination, "--shards", "8"]
    assert said.endswith(f'and set [data] url = "{new}"')
