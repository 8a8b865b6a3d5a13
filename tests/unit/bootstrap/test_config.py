"""The values that [bootstrap] accepts and rejects."""

import pytest

from cluster.config import parse_config
from foundation.errors import ConfigError


def read(key: str, value: object) -> None:
    parse_config({"name": "x", "bootstrap": {key: value}}, source="cluster.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("python", value) for value in ("auto", "3.9", "3.10", "3.12", "/usr/bin/python3")),
        ("mxnet", "source@v1.7.x"),
        ("build_options", ["USE_CUDA=1", "CUDA_ARCH=-gencode arch=compute_70,code=sm_70"]),
        *(("source_url", value) for value in ("https://example.com/a/mxnet.git", "file:///opt/mxnet")),
    ],
)
def test_valid_values(key: str, value: object) -> None:
    read(key, value)


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("python", ["3.7", "3.15", "3", "3.1", "python3", "", "3.11.2"], "bootstrap.python"),
        ("mxnet", ["source@", "source@--upload-pack=x", "source@v1.7.x;x"], "bootstrap.mxnet"),
        ("build_options", [["use=1"], ["X=$(shell x)"], ["X=1\ninstall:"], ["--eval=x"]], "bootstrap.build_options"),
        ("source_url", ["https://me:secret@example.com/mxnet.git", "ext::sh -c x", "-u"], "bootstrap.source_url"),
        ("setup", [[""], ["  "], ["a\0b"]], "bootstrap.setup"),
        ("sync", [["/abs"]], 'bootstrap.sync[0] = "/abs": must be relative to the folder of cluster.toml'),
        ("sync", [["x", "~/x"]], 'bootstrap.sync[1] = "~/x": must be relative'),
        ("sync", [["../x"], ["x/../../y"]], "must be in the folder of cluster.toml, without .."),
        ("sync", [[""], ["a\0b"]], "not a path"),
        ("sync", ["my/"], "bootstrap.sync"),
        ("exclude", [["*.rec", "!"]], 'bootstrap.exclude[1] = "!": not a .gitignore pattern'),
        ("exclude", [[""], ["/"]], "excludes nothing"),
        ("distribute", ["s3", "ftp"], "bootstrap.distribute = "),
        ("fetch", ["there"], 'bootstrap.fetch = "there": '),
    ],
)
def test_invalid_values(key: str, values: list[object], said: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            read(key, value)
        assert said in caught.value.message
