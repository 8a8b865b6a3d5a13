"""The head's program that accepts an order, started before the order is known."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from cluster.submission.preparation import Submission
from job_channels import FakeHead, channel, make_order
from job_world import node
from train.follow.run import submit

STARTED = b'{"job":"j1","state":"starting"}\n'


@pytest.mark.parametrize(
    ("is_same", "is_new", "asked"), [(True, False, 1), (True, True, 2), (False, False, 2)], ids=str
)
def test_a_submission_begins_before_its_order(*, is_same: bool, is_new: bool, asked: int) -> None:
    """Not on another node than the head, nor on a head where set-up commands have run since; then it ends."""
    fake, other = FakeHead(lambda _: channel(STARTED)), FakeHead(lambda _: channel(STARTED))
    submission = Submission(follow=True)
    submission.begin(cast("Any", fake if is_same else other))
    head = replace(node(0), connection=cast("Any", fake), is_new=is_new)
    program = submission.take(fake.make(), head)
    assert submit(fake.make(), make_order(), follow=True, program=program) == ("starting", program)
    assert [*fake.asked, *other.asked] == [["submit", "--follow"]] * asked
    early = (fake if is_same else other).channels[0]
    assert early.closed == (asked == 2)
