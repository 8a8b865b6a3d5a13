"""How records fall on workers; that MXNet does the same is shown in test_reader.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.parts import Range, count_part, find_part

SIZES = st.lists(st.integers(1, 40).map(lambda words: 4 * words), min_size=1, max_size=5)


@given(SIZES, st.integers(1, 9))
def test_the_parts_are_the_files_without_gap_or_overlap(sizes: list[int], num_parts: int) -> None:
    ranges = [it for index in range(num_parts) for it in find_part(sizes, num_parts, index)]
    assert all(it.begin % 4 == 0 and it.end % 4 == 0 for it in ranges)
    for file, size in enumerate(sizes):
        mine = [(it.begin, it.end) for it in ranges if it.file == file]
        assert [begin for begin, _ in mine] == [0, *(end for _, end in mine[:-1])]
        assert mine[-1][1] == size


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ([100], 1, [[(0, 0, 100)]]),
        ([100], 3, [[(0, 0, 36)], [(0, 36, 72)], [(0, 72, 100)]]),
        ([40, 60], 2, [[(0, 0, 40), (1, 0, 12)], [(1, 12, 60)]]),
        ([4], 3, [[(0, 0, 4)], [], []]),
        ([8, 8], 2, [[(0, 0, 8)], [(1, 0, 8)]]),
    ],
)
def test_where_the_cuts_are(sizes: list[int], parts: int, expected: list[list[tuple[int, int, int]]]) -> None:
    found = [find_part(sizes, parts, index) for index in range(parts)]
    assert found == [tuple(Range(file=file, begin=begin, end=end) for file, begin, end in part) for part in expected]


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=20), min_size=1, max_size=4), st.integers(1, 9))
def test_every_record_is_in_one_part(words: list[list[int]], num_parts: int) -> None:
    starts = [[4 * sum(file[:number]) for number in range(len(file))] for file in words]
    sizes = [4 * sum(file) for file in words]
    counts = [count_part(starts, find_part(sizes, num_parts, index)) for index in range(num_parts)]
    assert sum(counts) == sum(map(len, words))


@pytest.mark.parametrize(("parts", "index"), [(0, 0), (2, 2), (2, -1)])
def test_a_part_that_is_none_is_refused(parts: int, index: int) -> None:
    with pytest.raises(ValueError, match="there is no part"):
        find_part([8], parts, index)
