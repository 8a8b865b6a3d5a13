"""The shards that a worker reads, compared step by step with dmlc's own rule on real records."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxnet_cluster.recordio import MAGIC, encode_record
from node.staging import plan
from node.staging.plan import Kept
from record_files import read_records


class DmlcReader:
    """dmlc-core's InputSplitBase for RecordIO: ResetPartition, and the records read and shards opened after it."""

    def __init__(self, shards: list[bytes]) -> None:
        self.shards = shards
        self.offsets = [sum(map(len, shards[:number])) for number in range(len(shards) + 1)]
        self.opened: set[int] = set()

    def read_part(self, index: int, count: int) -> list[bytes]:
        total = self.offsets[-1]
        step = -(-(-(-total // count)) // 4) * 4  # noqa: B002 - rounded up, twice
        begin, end = min(step * index, total), min(step * (index + 1), total)
        if begin == end:
            return []
        first, last = self.shard_at(begin), self.shard_at(end)
        if end != self.offsets[last]:
            end += self.seek(last, end - self.offsets[last])
        if begin != self.offsets[first]:
            begin += self.seek(first, begin - self.offsets[first])
        row = b"".join(self.shards)
        for number in range(len(self.shards)):
            if self.offsets[number] < end and self.offsets[number + 1] > begin:
                self.opened.add(number)
        return list(read_records(row[begin:end])) if begin < end else []

    def shard_at(self, offset: int) -> int:
        return max(number for number, begin in enumerate(self.offsets) if begin <= offset)

    def seek(self, number: int, at: int) -> int:
        self.opened.add(number)
        shard = self.shards[number]
        for here in range(at, len(shard) - 4, 4):
            flag = struct.unpack_from("<I", shard, here + 4)[0] >> 29
            if shard[here : here + 4] == MAGIC and flag in (0, 1):
                return here - at
        return len(shard) - at


@settings(max_examples=200)
@given(
    shards=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=9),
    count=st.sampled_from([1, 2, 3, 5, 16]),
)
def test_shards_that_a_part_opens(shards: list[list[int]], count: int) -> None:
    numbers = iter(range(1000))
    content = [
        b"".join(encode_record(b"%d" % next(numbers) + MAGIC * (size % 3) + bytes(size)) for size in sizes)
        for sizes in shards
    ]
    sizes = [len(shard) for shard in content]
    read = []
    for index in range(count):
        reader = DmlcReader(content)
        read += reader.read_part(index, count)
        touched = plan.find_touched(sizes, index, count)
        assert reader.opened <= set(touched)
        assert touched == sorted(touched)
    assert read == [record for shard in content for record in read_records(shard)]


@pytest.mark.parametrize(
    ("sizes", "index", "count", "touched"),
    [
        ([100, 100, 100], 0, 1, [0, 1, 2]),
        ([100, 100, 100], 1, 3, [1]),
        ([100, 100], 1, 3, [0, 1]),
        ([100, 100], 2, 3, [1]),
        ([8], 2, 3, []),  # 4 bytes for each of the first two
        ([], 0, 1, []),
        ([1 << 30] * 4, 1, 4, [1]),
    ],
)
def test_shards_by_example(sizes: list[int], index: int, count: int, touched: list[int]) -> None:
    assert plan.find_touched(sizes, index, count) == touched


@given(
    sizes=st.lists(st.integers(1, 30).map(lambda size: size * (1 << 20)), min_size=1, max_size=20),
    count=st.integers(1, 9),
    mib=st.integers(1, 64),
)
def test_shuffled_chunks_are_touched_too(sizes: list[int], count: int, mib: int) -> None:
    """iter_image_recordio_2.cc cuts each part further, and input_split_shuffle.h reads the pieces out of order."""
    pieces = -(-int(sum(sizes) * 1.1) // (count * (mib << 20)))
    for index in range(count):
        touched = plan.find_touched(sizes, index, count, shuffle_mib=mib)
        for piece in range(pieces):
            assert set(plan.find_touched(sizes, index * pieces + piece, count * pieces)) <= set(touched)


def test_the_least_recently_used_is_evicted() -> None:
    kept = [Kept(3.0, 10, "new", False), Kept(1.0, 10, "old", False), Kept(2.0, 10, "used", True)]  # noqa: FBT003
    assert plan.choose_evicted(kept, 10, 40) == []
    assert plan.choose_evicted(kept, 11, 40) == ["old"]
    assert plan.choose_evicted(kept, 30, 40) == ["old", "new"]
    assert plan.choose_evicted(kept, 31, 40) is None


@pytest.mark.parametrize("seed", range(20))
def test_evicted_objects_suffice_and_are_unused(seed: int) -> None:
    draw = random.Random(seed)
    kept = [Kept(draw.random(), draw.randrange(100), str(number), draw.random() < 0.3) for number in range(10)]
    needed, most = draw.randrange(300), draw.randrange(100, 600)
    leaving = plan.choose_evicted(kept, needed, most)
    stay = [item for item in kept if leaving is None or item[2] not in leaving]
    if leaving is None:
        assert sum(size for _, size, _, used in kept if used) + needed > most
    else:
        assert sum(size for _, size, _, _ in stay) + needed <= most
        assert not any(used for _, _, key, used in kept if key in leaving)
