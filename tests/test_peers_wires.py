"""What goes over the wire, read by something else than what wrote it; and the reference with random weights."""

import asyncio
import email.parser
import email.policy
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from bench.peers.kserve import METHOD
from bench.peers.reference import make_reference
from bench.peers.wires import CallError, Wire, open_line
from bench.ports import free_port

FILE = b"\xff\xd8 a JPEG, as far as anybody looks \r\n--\xff\xd9"
# Field 6 with 20 bytes: five int32, of which the first is 281.
RESPONSE = b"\x32\x14" + (281).to_bytes(4, "little") + bytes(16)


def test_a_form_holds_the_file_as_it_was() -> None:
    line = open_line(Wire("multipart"), 1)
    head = b"Content-Type: multipart/form-data; boundary=warmlane-bench-peers\r\n\r\n"
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + line.encode(FILE))
    (part,) = message.iter_parts()
    assert part.get_payload(decode=True) == FILE
    assert part.get_param("name", header="content-disposition") == "images"


def test_a_body_is_the_file() -> None:
    assert open_line(Wire("http"), 1).encode(FILE) == FILE


async def triton(seen: list[bytes], response: bytes) -> AsyncIterator[int]:
    """A KServe service that writes down what it is sent; its port."""

    async def infer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        seen.append(request)
        if not response:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        return response

    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(infer)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(None)


async def ask(response: bytes, seen: list[bytes]) -> int:
    found = -1
    async for port in triton(seen, response):
        async with open_line(Wire("kserve", "classifier", port), 2) as line:
            found = await line.call(line.encode(FILE))
    return found


def test_a_triton_server_is_sent_the_model_the_shape_and_the_bytes() -> None:
    seen: list[bytes] = []
    assert asyncio.run(ask(RESPONSE, seen)) == 281
    (request,) = seen
    tensor = b"\x0a\x05image" + b"\x12\x05BYTES" + b"\x1a\x02\x01\x01"
    raw = len(FILE).to_bytes(4, "little") + FILE
    fields = (b"\x0a", b"classifier"), (b"\x2a", tensor), (b"\x3a", raw)
    assert request == b"".join(tag + bytes([len(content)]) + content for tag, content in fields)


def test_a_status_is_an_error_by_its_name() -> None:
    with pytest.raises(CallError, match="NOT_FOUND"):
        asyncio.run(ask(b"", []))
    with pytest.raises(CallError, match="UNAVAILABLE"):
        asyncio.run(_call_nobody())


async def _call_nobody() -> None:
    async with open_line(Wire("warmlane", port=free_port()), 1) as line:
        await line.call(line.encode(FILE))


def test_random_weights_tell_images_apart_and_are_kept_for_all(tmp_path: Path) -> None:
    reference = make_reference("resnet18", "none", "small", tmp_path)
    assert len({*reference.mix_top1, *reference.photograph_top1}) == len(reference.mix_top1) + len(
        reference.photographs
    )
    assert reference.photographs.keys() >= {"cat.jpg", "camera.jpg"}
    again = make_reference("resnet18", reference.weights, "small", tmp_path)
    assert again == reference
