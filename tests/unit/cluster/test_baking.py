from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.nodes import baking
from foundation.errors import ClusterError
from provision.config import ProvisionConfig
from provision.preflight.machines import Image


@pytest.mark.parametrize(("recipe", "hint"), [("", "another --name"), ("x", "another --name; cluster image rm one")])
def test_a_name_that_another_image_has(monkeypatch: pytest.MonkeyPatch, recipe: str, hint: str) -> None:
    """`cluster image rm` deletes only those that `bake` has made."""
    image = Image(
        image_id="ami-1", name="one", architecture="x86_64", state="available", root_device="/dev/sda1",
        root_size_gib=8, created_at=datetime(2030, 1, 1, tzinfo=UTC), recipe=recipe,
    )  # fmt: skip
    config = ProvisionConfig()
    fakes: dict[str, Any] = {
        "describe_types": {config.instance_type: None}, "find_words": "", "find_recipe": "", "describe_baked": (image,),
    }  # fmt: skip
    for name, result in fakes.items():
        monkeypatch.setattr(baking, name, lambda *_, result=result: result)
    app: Any = SimpleNamespace(config=SimpleNamespace(name="demo", provision=config), clients=SimpleNamespace(ec2=None))
    with pytest.raises(ClusterError) as caught:
        baking.bake(app, name="one", yes=True)
    assert caught.value.hint == hint
