"""Trainings that get a notice at a random moment train every epoch.

Those without a notice have a file of their own, since the tests of a file run one after another.
"""

import re
from collections.abc import Callable

import pytest

from project import Project
from spot_trainings import interrupt_at_a_random_moment, summarize

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.mark.parametrize("number", range(50))
def test_interruptions_with_notice(
    with_data: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    number: int,
) -> None:
    shown = interrupt_at_a_random_moment(with_data, monkeypatch, number)

    lost = re.search(r"lost batches: (\d+)", shown)
    assert lost is not None, shown
    assert int(lost[1]) <= 1
    record_property("result", f"interruption {number} with notice: {summarize(shown)}")
