"""Trainings that lose a node at a random moment train every epoch.

Those with a notice have a file of their own, since the tests of a file run one after another.
"""

from collections.abc import Callable

import pytest

from project import Project
from spot_trainings import interrupt_at_a_random_moment

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.mark.parametrize("number", range(50))
def test_interruptions_without_notice(
    with_data: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    number: int,
) -> None:
    lost = interrupt_at_a_random_moment(with_data, monkeypatch, number, notice=False)

    record_property("result", f"interruption {number} without notice: {lost} batches lost")
