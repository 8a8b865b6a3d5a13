"""`cluster config`: mistakes with their lines, and the JSON schema."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.config import ClusterConfig, find_mistakes
from cluster.main import cli
from foundation.errors import ConfigError
from foundation.schema import make_schema
from foundation.settings import describe_settings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('name = "demo"\n', []),
        ("", [(None, "name")]),
        ('name = "demo"\n[provision]\nnodes = -1\nregin = "x"\n', [(3, "provision.nodes"), (4, "provision.regin")]),
        ('name = "demo"\nprovision.nodes = -1\n', [(2, "provision.nodes")]),
        ('name = "demo"\n[train]\nenv = { A = "1", "1" = "2" }\n', [(3, "train.env.1")]),
        (
            'name = "demo"\n[[volumes]]\nmount = "/a"\nsource = "head"\n[[volumes]]\nmount = "a"\n',
            [(5, "volumes[1].source"), (6, "volumes[1].mount")],
        ),
        ('name = "demo"\n[[train]]\nworkers = 1\n', [(2, "train")]),
        ('name = "demo"\n[lease]\nthen = "stop"\n', [(2, "lease")]),
        ('name = "demo"\nname = "two"\n', [(2, "")]),
        ("name = demo\n", [(1, "")]),
    ],
)
def test_mistakes_have_their_lines(tmp_path: Path, text: str, found: list[tuple[int | None, str]]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    assert [(one.line, one.key) for one in find_mistakes(path)] == found


def test_check_prints_mistakes_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.toml").write_text('name = "demo"\n[train]\nrestarts = "x"\n')
    plain, document = (CliRunner().invoke(cli, ["config", "check", *options]) for options in ([], ["--json"]))
    assert isinstance(plain.exception, ConfigError)
    assert isinstance(document.exception, ConfigError)
    assert plain.stdout.startswith('cluster.toml:3: train.restarts = "x": must be')
    [mistake] = json.loads(document.stdout)["mistakes"]
    assert (mistake["line"], mistake["key"]) == (3, "train.restarts")
    Path("cluster.toml").write_text('name = "demo"\n')
    done = CliRunner().invoke(cli, ["config", "check", "--json"])
    assert json.loads(done.stdout) == {"path": "cluster.toml", "valid": True, "mistakes": []}


SCHEMA = make_schema(ClusterConfig, title="cluster.toml")["$defs"]


def test_the_schema_has_every_key_with_its_description() -> None:
    keys = 0
    for name, setting in describe_settings(ClusterConfig).items():
        below = {name: setting} if setting.table is None else describe_settings(setting.table)
        table = SCHEMA["ClusterConfig" if setting.table is None else setting.table.__name__]
        assert table["additionalProperties"] is False
        for key, found in below.items():
            keys += 1
            shown = table["properties"][key]
            assert "$ref" in shown or shown["description"] == found.description
            assert {"type": "null"} not in shown.get("anyOf", [])
            assert (
                found.required or found.table or "default" in shown or key in {"url", "results", "webhook", "command"}
            )
    assert keys > 90
