import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import ClusterError
from train.data.idx import decode_idx, encode_idx


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
def test_what_is_encoded_is_decoded(shape: list[int], data: st.DataObject) -> None:
    size = 1
    for side in shape:
        size *= side
    content = data.draw(st.binary(min_size=size, max_size=size))
    assert decode_idx(encode_idx(shape, content), name="x") == (tuple(shape), content)


def test_the_header_is_mnists() -> None:
    assert encode_idx((2, 1, 3), b"abcdef") == bytes.fromhex("00000803 00000002 00000001 00000003") + b"abcdef"


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\0\0\x08",
        bytes.fromhex("00000d01 00000001") + b"abcd",  # floats
        bytes.fromhex("00000803 00000002"),
        encode_idx((2, 2), b"abcd") + b"e",
        encode_idx((2, 2), b"abcd")[:-1],
    ],
)
def test_what_is_no_idx_file_is_refused(file: bytes) -> None:
    with pytest.raises(ClusterError, match=r"^images: .*idx"):
        decode_idx(file, name="images")


def test_content_must_fill_the_shape() -> None:
    with pytest.raises(ValueError, match="3 bytes do not fill"):
        encode_idx((2, 2), b"abc")
