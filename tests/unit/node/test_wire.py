"""Lines of output are bounded."""

from node import wire


def test_endless_lines_do_not_fill_the_memory() -> None:
    buffer = wire.LineBuffer(limit=10)
    assert buffer.feed(b"x" * 25) == [b"x" * 10, b"x" * 10]
    assert buffer.flush() == [b"x" * 5]
