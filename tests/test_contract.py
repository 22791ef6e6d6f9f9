"""The contract may grow, never change: a caller built against contract_v1.json must still be understood.

Adding is free. Removing or renaming anything, another number, type or label, another rpc signature: a failure.
After an addition is released, record it, so that it is kept too: `python -m tests.test_contract`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from warmlane.v1 import classifier_pb2

GOLDEN = Path(__file__).with_name("contract_v1.json")

Contract = dict[str, Any]


def described() -> Contract:
    """The contract as nested dictionaries whose every leaf an old caller relies on."""
    file = FileDescriptorProto()
    classifier_pb2.DESCRIPTOR.CopyToProto(file)
    return {
        "package": file.package,
        "messages": messages(file.message_type),
        "services": {
            service.name: {
                rpc.name: {
                    "request": rpc.input_type,
                    "response": rpc.output_type,
                    "client_streaming": rpc.client_streaming,
                    "server_streaming": rpc.server_streaming,
                }
                for rpc in service.method
            }
            for service in file.service
        },
    }


def messages(described_messages: Iterable[DescriptorProto], prefix: str = "") -> Contract:
    found: Contract = {}
    for message in described_messages:
        name = prefix + message.name
        # By number, which is all that the wire carries: a renumbered field is one that is missing.
        found[name] = {str(field.number): field_of(message, field) for field in message.field}
        found |= messages(message.nested_type, f"{name}.")
    return found


def field_of(message: DescriptorProto, field: FieldDescriptorProto) -> Contract:
    return {
        "name": field.name,
        "type": FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower(),
        "label": FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower(),
        "message": field.type_name,
        "oneof": message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
    }


def broken(old: Any, new: Any, path: str = "contract") -> list[str]:
    """What of `old` is gone or different in `new`, one line each."""
    if not isinstance(old, dict):
        return [] if old == new else [f"{path}: was {old!r}, is {new!r}"]
    lines = [f"{path}.{key}: gone" for key in old if key not in new]
    return sum((broken(old[key], new[key], f"{path}.{key}") for key in old if key in new), lines)


def golden() -> Contract:
    contract: Contract = json.loads(GOLDEN.read_text())
    return contract


def test_old_callers_are_still_understood() -> None:
    assert not broken(golden(), described())


def test_an_addition_is_allowed() -> None:
    new = deepcopy(golden())
    new["messages"]["ClassifyRequest"]["99"] = {"name": "extra"}
    new["messages"]["Extra"] = {}
    new["services"]["Classifier"]["Extra"] = {}
    assert not broken(golden(), new)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["messages", "ClassifyRequest", "2", "name"], "count"),
        (["messages", "ClassifyRequest", "2", "type"], "int64"),
        (["messages", "ClassifyResponse", "1", "label"], "optional"),
        (["messages", "ClassifyResponse", "2", "message"], ".warmlane.v1.Other"),
        (["messages", "ClassifyResult", "1", "oneof"], ""),
        (["messages", "Model.VersionsEntry", "2", "type"], "bytes"),
        (["messages", "ClassifyRequest", "2"], None),
        (["messages", "Timings"], None),
        (["services", "Classifier", "Classify"], None),
        (["services", "Classifier", "Classify", "response"], ".warmlane.v1.Other"),
        (["services", "Classifier", "ClassifyStream", "client_streaming"], False),
        (["services", "Classifier"], None),
        (["package"], "warmlane.v2"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, list) else str(value),
)
def test_a_change_is_noticed(path: list[str], value: Any) -> None:
    new = deepcopy(golden())
    *parents, last = path
    place = new
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    (line,) = broken(golden(), new)
    assert line.startswith(f"contract.{'.'.join(path)}: ")


def test_a_renumbered_field_is_noticed() -> None:
    new = deepcopy(golden())
    fields = new["messages"]["ClassifyRequest"]
    fields["9"] = fields.pop("2")
    assert broken(golden(), new) == ["contract.messages.ClassifyRequest.2: gone"]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(described(), indent=2) + "\n")
