"""The values that [bootstrap] accepts and rejects."""

import pytest

from cluster.config import parse_config
from foundation.errors import ConfigError


def read(key: str, value: object) -> None:
    parse_config({"name": "x", "bootstrap": {key: value}}, source="cluster.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("python", value) for value in ("auto", "3.9", "/usr/bin/python3")),
        *(("mxnet", value) for value in ("~/a/b.whl", "s3://b/a b.whl", "https://example.com:8080/mxnet-1.whl")),
        *(("framework", value) for value in ("mxnet", "pytorch", "none")),
        ("project", "../mine"),
    ],
)
def test_valid_values(key: str, value: object) -> None:
    read(key, value)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("python", ["3.7", "3.15", "3", "3.1", "python3", "", "3.11.2"], "bootstrap.python"),
        ("mxnet", ["source@v1.7.x", "http://example.com/m.whl", "m.zip"], "bootstrap.mxnet"),
        ("framework", ["torch", ""], "bootstrap.framework = "),
        ("torch", ["2.13.0", "torch", "torch>=2", "torch==2.13.0; x"], "bootstrap.torch"),
        ("setup", [[""], ["  "], ["a\0b"]], "bootstrap.setup"),
        ("sync", [["/abs"]], 'bootstrap.sync[0] = "/abs": must be relative to the folder of cluster.toml'),
        ("sync", [["x", "~/x"]], 'bootstrap.sync[1] = "~/x": must be relative'),
        ("sync", [["../x"], ["x/../../y"]], "must be in the folder of cluster.toml, without .."),
        ("sync", [[""], ["a\0b"]], "not a path"),
        ("sync", ["my/"], "bootstrap.sync"),
        ("exclude", [["*.rec", "!"]], 'bootstrap.exclude[1] = "!": not a .gitignore pattern'),
        ("exclude", [[""], ["/"]], "excludes nothing"),
    ],
)
def test_invalid_values(key: str, values: list[object], message: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            read(key, value)
        assert message in caught.value.message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"torch": "torch==2.13.0"}, 'remove torch, or set framework = "pytorch"'),
        ({"framework": "none", "torch": "torch==2.13.0"}, 'torch is for framework = "pytorch"'),
        ({"framework": "pytorch", "mxnet": "mxnet==1.9.1"}, 'remove mxnet, or set framework = "mxnet"'),
        ({"mxnet": "installed"}, 'set python to its absolute path, such as "/home/ubuntu/venv/bin/python"'),
        ({"mxnet": "installed", "python": "3.11"}, 'python is "3.11"'),
        ({"python": "3.13"}, "MXNet works with 3.9 to 3.12"),
    ],
)
def test_contradictions_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"name": "x", "bootstrap": table}, source="cluster.toml")
    assert message in caught.value.message
