"""`cluster verify` of [container] image."""

import pytest

from bootstrap.container import check
from bootstrap.container.config import ContainerConfig
from foundation.errors import ClusterError
from foundation.progress import silent


@pytest.mark.parametrize(
    ("message", "said", "cause"),
    [
        ("no x/train:1.4:\n  manifest unknown\n  more", "no x/train:1.4: manifest unknown",
         "manifest unknown more"),
        ("no engine", "no engine", None),
    ],
)  # fmt: skip
def test_a_failed_check_begins_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, message: str, said: str, cause: str | None
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ClusterError(message)

    monkeypatch.setattr(check, "prepare", fail)
    config = ContainerConfig(image="x/train:1.4")
    (found,) = check.check_containers((), config, find_login=lambda: None, uses_environment=False, report=silent)
    assert (found.status, found.said, found.cause) == ("failed", said, cause)
