"""How shards fall on nodes, and how many there should be."""

import shlex

import pytest

from train.job.shards import choose_count, find_excess, find_fetched, render_split

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "workers", "fetched"),
    [
        ((10, 10), (1, 1), (10, 10)),
        ((10, 10, 10), (1, 1), (20, 20)),
        ((10, 10, 10), (1, 2), (10, 20)),
        ((30,), (1, 1), (30, 30)),
        ((30,), (2,), (30,)),
        ((5, 5, 80, 5, 5), (1, 1), (90, 90)),
        ((0, 10, 0, 10), (1, 1), (10, 10)),
        ((10, 12, 10, 12), (1, 1), (22, 22)),
        ((12, 10, 10, 12), (1, 1), (22, 22)),
        ((12, 10, 12, 10), (2, 2), (22, 22)),
        ((10, 12, 12, 10), (1, 1, 1, 1), (22, 12, 12, 22)),
    ],
)
def test_a_node_fetches_every_shard_that_its_workers_parts_touch(
    sizes: tuple[int, ...], workers: tuple[int, ...], fetched: tuple[int, ...]
) -> None:
    assert find_fetched(sizes, workers) == fetched


def test_the_excess_is_of_the_node_that_fetches_the_most_beyond_its_share() -> None:
    assert find_excess((10, 10, 10), (1, 1)) == (20 / 15, 5)
    assert find_excess((10, 10), (1, 1)) == (1.0, 0)
    assert find_excess((10, 10), (1, 0, 1)) == (1.0, 0)
    assert find_excess((), (1,)) == (1.0, 0)


@pytest.mark.parametrize(
    ("total_bytes", "workers", "nodes", "count"),
    [
        (0, 3, 3, 12),
        (10 << 20, 2, 2, 10),  # of a MiB at least, where these are enough
        (100 << 20, 2, 2, 32),
        (10 * GIB, 2, 2, 32),
        (10 * GIB, 3, 2, 33),
        (10 * GIB, 16, 2, 32),
        (150 * GIB, 8, 8, 152),  # of a GiB at most
    ],
)
def test_there_are_enough_shards_and_as_many_for_each_worker(
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
def test_the_command_is_exact(url: str, folder: str, source: str, destination: str, new: str) -> None:
    said = render_split(url, folder, 8)
    command = said.partition(" and [data]")[0].partition(", what lies")[0].rstrip(",")
    assert shlex.split(command) == ["cluster", "data", "split", source, destination, "--shards", "8"]
    assert said.endswith(f'and [data] url = "{new}"')
