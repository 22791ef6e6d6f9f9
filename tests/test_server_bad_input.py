"""Every kind of file over real gRPC, to `python -m server` with the default model: the right reply or status."""

import gc
import io
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from PIL import Image

from pipeline.request import Request
from tests.images.corpus import Sample, bad, by_name, good
from tests.images.make import STORED_AS, encode
from tests.serving import Process, eventually, in_process, process, raw_stub
from warmlane import errors
from warmlane.client import Client
from warmlane.results import Classification
from warmlane.v1 import classifier_pb2 as pb

CAT = (Path(__file__).parent.parent / "bench" / "images" / "cat.jpg").read_bytes()
TIGER_CAT, EGYPTIAN_CAT = 282, 285
# What may stay allocated after a warm-up. Measured: 1 MiB after 1,000 bad images, of which a kept copy each would be
# 8 MiB; up to 50 MiB, which then stay, in blocks that malloc keeps for each thread, after 40 images of 16 MiB.
GROWTH_BYTES = 4 << 20
GROWTH_OF_LARGE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Process) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def is_cat(answer: object) -> bool:
    return isinstance(answer, Classification) and answer.predictions[0].index in (TIGER_CAT, EGYPTIAN_CAT)


@pytest.mark.parametrize("sample", good(), ids=str)
def test_good(client: Client, sample: Sample) -> None:
    assert_answered(client, sample)


def assert_answered(client: Client, sample: Sample) -> None:
    answer = client.classify(sample.data, explain=True)
    assert len(answer.predictions) == 5
    said = answer.explanation
    assert said is not None
    assert (said.format, said.width, said.height, said.orientation) == (
        sample.format,
        *sample.size,
        sample.orientation,
    )
    assert said.decoder == sample.decoded_by
    for note in sample.notes:
        assert any(note in conversion for conversion in said.conversions), said.conversions


@pytest.mark.parametrize("sample", bad(), ids=str)
def test_bad(client: Client, sample: Sample) -> None:
    assert_refused(client, sample)


def assert_refused(client: Client, sample: Sample) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        client.classify(sample.data)
    for words in sample.words:
        assert words in refused.value.details
    assert "\n" not in refused.value.details


def test_an_image_of_too_many_pixels_is_told_limit_value_and_setting(client: Client) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        client.classify(by_name("png of 144 megapixels").data)
    assert refused.value.details == (
        "the image (12000x12000) is 144000000 pixels, over the limit of 50000000 pixels (--max-image-pixels)"
    )


def test_an_image_of_too_many_bytes_is_told_limit_value_and_setting(client: Client) -> None:
    padding = bytes((16 << 20) - len(CAT))
    assert is_cat(client.classify(CAT + padding)), "at the limit"
    with pytest.raises(errors.InvalidArgument) as refused:
        client.classify(CAT + padding + b"\0")
    assert refused.value.details == ("the file is 16777217 bytes, over the limit of 16777216 bytes (--max-image-bytes)")


def test_a_message_over_64_mib_is_refused_by_grpc_itself(server: Process, client: Client) -> None:
    request = pb.ClassifyRequest(image=bytes(64 << 20))
    with raw_stub(server.target) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Classify(request)
        in_stream = pb.ClassifyStreamRequest(id=1, request=request)
        with pytest.raises(grpc.RpcError) as stream_refused:
            list(stub.ClassifyStream(iter([in_stream])))
    for error in (refused.value, stream_refused.value):
        failed: Any = error
        assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in failed.details()
        # Without it nobody sends 64 MiB again.
        assert "grpc-retry-pushback-ms" not in dict(iter(failed.trailing_metadata()))
    assert is_cat(client.classify(CAT))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_give_one_answer(client: Client, orientation: int) -> None:
    upright = client.classify(encode(Image.open(io.BytesIO(CAT)), "PNG"), 3)
    stored = Image.open(io.BytesIO(CAT))
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = stored.transpose(STORED_AS[orientation]) if orientation in STORED_AS else stored
    answer = client.classify(encode(turned, "JPEG", quality=98, subsampling=0, exif=exif), 3, explain=True)
    assert answer.explanation is not None
    assert answer.explanation.orientation == orientation
    assert {p.index for p in answer.predictions} == {p.index for p in upright.predictions}
    expected = {p.index: p.score for p in upright.predictions}
    assert {p.index: p.score for p in answer.predictions} == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("top_k", "predictions"), [(0, 5), (1, 1), (5, 5), (100, 100)])
def test_top_k(client: Client, top_k: int, predictions: int) -> None:
    answer = client.classify(CAT, top_k)
    scores = [p.score for p in answer.predictions]
    assert len(scores) == predictions
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("top_k", [-1, 101, 2**31 - 1, -(2**31)])
def test_top_k_out_of_range(client: Client, top_k: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"top_k is {top_k}; it must be 0 to 100"):
        client.classify(CAT, top_k)
    ((_, in_stream),) = client.classify_stream([CAT], top_k)
    (in_batch,) = client.classify_batch([CAT], top_k)
    for outcome in (in_stream, in_batch):
        assert isinstance(outcome, errors.InvalidArgument)


def test_unknown_model(server: Process) -> None:
    with Client(server.target, model="x" * 10_000) as client:
        for call in (client.model, lambda: client.classify(CAT)):
            with pytest.raises(errors.ModelNotFound, match="only 'efficientnet-lite0'") as refused:
                call()
            assert len(refused.value.details) < 300
        (outcome,) = client.classify_batch([CAT])
        assert isinstance(outcome, errors.ModelNotFound)
        ((_, outcome),) = client.classify_stream([CAT])
        assert isinstance(outcome, errors.ModelNotFound)


def test_the_served_model_by_name(server: Process) -> None:
    with Client(server.target, model="efficientnet-lite0") as client:
        assert is_cat(client.classify(CAT))


@pytest.mark.parametrize("images", [0, 65])
def test_a_batch_of_no_images_or_too_many(client: Client, images: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=rf"has {images} images; 1 to 64 are taken \(--max-batch-images\)"):
        client.classify_batch([b"x"] * images)


def test_a_full_batch(client: Client) -> None:
    assert all(map(is_cat, client.classify_batch([CAT] * 64)))


def test_one_bad_image_in_a_batch(client: Client) -> None:
    images = [CAT] * 8
    images[3] = by_name("jpeg cut in half").data
    outcomes = client.classify_batch(images, request_id="mates")
    bad_one = outcomes.pop(3)
    assert isinstance(bad_one, errors.InvalidArgument)
    assert "truncated JPEG" in bad_one.details
    assert bad_one.request_id == "mates/3"
    assert all(map(is_cat, outcomes))
    assert len(outcomes) == 7


def test_one_bad_image_in_a_stream(client: Client) -> None:
    outcomes = dict(client.classify_stream([CAT, b"", CAT]))
    assert isinstance(outcomes[1], errors.InvalidArgument)
    assert is_cat(outcomes[0])
    assert is_cat(outcomes[2])


def send_bad(server: Process, client: Client, images: Iterable[bytes]) -> int:
    """The server's memory afterwards."""
    for data in images:
        with pytest.raises(errors.InvalidArgument):
            client.classify(data)
    return server.memory_bytes()


def test_bad_images_leave_no_memory_behind(server: Process, client: Client) -> None:
    images = cycle([sample.data for sample in bad() if len(sample.data) < 1 << 20])
    before = send_bad(server, client, islice(images, 300))
    growth = send_bad(server, client, islice(images, 1000)) - before
    assert growth < GROWTH_BYTES, f"{growth / 2**20:.1f} MiB more after 1,000 bad images"
    assert is_cat(client.classify(CAT))
    assert "Traceback" not in server.log()


def test_images_over_the_byte_limit_leave_no_memory_behind(server: Process, client: Client) -> None:
    image = by_name("over the byte limit").data
    before = send_bad(server, client, [image] * 25)
    growth = send_bad(server, client, [image] * 40) - before
    assert growth < GROWTH_OF_LARGE_BYTES, f"{growth / 2**20:.1f} MiB more after 40 images of 16 MiB"


@pytest.fixture(scope="module")
def here() -> Iterator[Client]:
    """Of a server in this process, whose objects can be counted."""
    with in_process() as server, Client(server.target) as client:
        yield client


@pytest.mark.parametrize("image", [b"no image", by_name("jpeg cut in half").data], ids=["no image", "truncated"])
@pytest.mark.parametrize("call", [Client.classify, Client.classify_batch, Client.classify_stream])
def test_refused_images_are_freed_without_the_garbage_collector(here: Client, call: Any, image: bytes) -> None:
    """Else the largest images would stay until it comes by, which in a process of many objects is seldom."""
    gc.collect()
    gc.disable()
    others = requests_alive()
    try:
        for _ in range(10):
            refuse(here, call, image)
        most = others + 1
        assert eventually(lambda: requests_alive() <= most), f"{requests_alive() - others} of 10 are still there"
    finally:
        gc.enable()


def refuse(client: Client, call: Any, image: bytes) -> None:
    if call is Client.classify:
        with pytest.raises(errors.InvalidArgument):
            client.classify(image)
    else:
        outcomes = list(call(client, [image]))
        assert len(outcomes) == 1


def requests_alive() -> int:
    return sum(type(found) is Request for found in gc.get_objects())
