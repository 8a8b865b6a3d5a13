"""The JSON schema of a table of settings, for editors: msgspec's, with what only this project's annotations say."""

from typing import Any, get_args, get_origin

from msgspec import json

from foundation.setting_types import ALONE, Settings, Shape
from foundation.settings import Setting, describe_settings, split

DIALECT = "http://json-schema.org/draft-07/schema#"
"""What editors' TOML plug-ins understand."""


def make_schema(kind: type[Settings], *, title: str) -> dict[str, Any]:
    """Returns the schema of a file that `kind` describes. Pure."""
    schema = json.schema(kind)
    definitions = {name: {**table, "additionalProperties": False} for name, table in schema["$defs"].items()}
    _refine_table(kind, definitions)
    return {"$schema": DIALECT, "title": title, "$ref": schema["$ref"], "$defs": definitions}


def _refine_table(kind: type[Settings], definitions: dict[str, Any]) -> None:
    properties = definitions[kind.__name__]["properties"]
    for name, setting in describe_settings(kind).items():
        properties[name] = _refine(setting, properties[name])
        if setting.table is not None:
            _refine_table(setting.table, definitions)


def _refine(setting: Setting, schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a key. The default of a table is that of its keys; no key can be null in TOML."""
    base, notes = split(setting.annotation)
    branches = [branch for branch in schema.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **branches[0]}
    if setting.table is not None or schema.get("default", "") is None:
        schema.pop("default", None)
    _add_pattern(setting.annotation, schema)
    if get_origin(base) is tuple and setting.table is None:
        _add_pattern(get_args(base)[0], schema["items"])
    if ALONE in notes:
        kept: dict[str, Any] = {key: schema.pop(key) for key in ("description", "default") if key in schema}
        return {**kept, "anyOf": [schema["items"], schema]}
    return schema


def _add_pattern(annotation: Any, schema: dict[str, Any]) -> None:
    shape = next((note for note in split(annotation)[1] if isinstance(note, Shape)), None)
    if shape is not None and schema.get("type") == "string":
        schema["pattern"] = f"^({shape.pattern})$"
