"""Trainings that get a notice at a random moment train every epoch; test_kills.py has losses without a notice."""

from collections.abc import Callable

import pytest

from project import Project
from spot_trainings import interrupt_at_a_random_moment

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.mark.parametrize("number", range(50))
def test_interruptions_with_notice(
    with_data: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    number: int,
) -> None:
    lost = interrupt_at_a_random_moment(with_data, monkeypatch, number)

    assert lost is not None
    assert lost <= 1
    record_property("result", f"interruption {number} with notice: {lost} batches lost")
