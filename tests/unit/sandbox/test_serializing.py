"""The sandbox renders moto's answers as moto itself does."""

from typing import Any

import pytest
import xmltodict
from hypothesis import given
from hypothesis import strategies as st
from moto.core import serialize
from moto.core.utils import get_service_model

from sandbox.serializing import Picker, render_xml

NAMES = st.sampled_from(["item", "tagSet", "InstanceId", "a"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]))
PLAIN = st.none() | st.booleans() | st.integers() | TEXTS
ANSWERS = st.recursive(
    PLAIN,
    lambda inner: st.dictionaries(NAMES, inner, max_size=4) | st.dictionaries(NAMES, st.lists(inner, max_size=3)),
    max_leaves=12,
)


@given(ANSWERS, TEXTS)
def test_xml_is_that_of_xmltodict(answer: Any, namespace: str) -> None:
    document = {"Response": {"@xmlns": namespace, "found": answer, "requestId": "r-1"}}
    assert render_xml(document) == xmltodict.unparse(document, full_document=True, short_empty_elements=True)


class Instance:
    """Has values under several of the names that moto tries."""

    class Meta:
        serialization_aliases = {"Platform": "system"}  # noqa: RUF012

    id = "i-1"
    instance_type = "c5.xlarge"
    system = "linux"
    tags = ()
    state = {"Code": 16, "Name": "running"}  # noqa: RUF012


@pytest.mark.parametrize("values", [Instance(), {"InstanceId": "i-2", "state": {"Code": 0}}, {"id": "i-3"}, {}])
@pytest.mark.parametrize("operation", ["DescribeInstances", "RunInstances"])
def test_values_are_found_as_moto_finds_them(operation: str, values: Any) -> None:
    """Also the second time, when their names are known, and for a class that has them elsewhere."""
    model = get_service_model("ec2").operation_model(operation)
    result = {"Reservations": [{"Instances": [values, Instance(), values]}], "Instances": [values, values]}
    transformers = {"Instances.Instance.Tags": lambda tags: tags or None, "Instance.State": lambda _: {"Code": 48}}

    def body(picker: serialize.AttributePicker) -> Any:
        return serialize.EC2Serializer(operation_model=model, value_picker=picker).serialize(result)["body"]

    slow = serialize.XFormedAttributePicker(response_transformers=transformers)
    assert body(Picker(response_transformers=transformers)) == body(slow)
