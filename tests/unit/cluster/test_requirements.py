"""The requirements in pyproject.toml that other files have to agree with."""

import sys
import tomllib

import pytest

from foundation.errors import ClusterError
from project import REPOSITORY
from train.data import encode

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_the_extra_has_what_packing_images_needs() -> None:
    assert PROJECT["optional-dependencies"]["pack"] == [encode.REQUIREMENT]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ClusterError, match="cv2") as caught:
        encode.check_library()
    own = sys.executable  # uv's environments have no pip
    assert caught.value.hint == f"{own} -m uv pip install --python {own} '{encode.REQUIREMENT}', or --pass-through"


def test_no_requirement_repeats_a_pin_of_s3fs() -> None:
    """s3fs pins each of these; a second requirement for one of them makes pip 23 and 24 fail."""
    names = {requirement.split(">")[0].split("[")[0] for requirement in PROJECT["dependencies"]}
    assert "s3fs" in names
    assert names.isdisjoint({"boto3", "botocore", "aiobotocore", "fsspec"})
