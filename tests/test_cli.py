"""The `warmlane` command, run in this process against a real server (tests/fake_service.py)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_service import FakeClassifier, nobody_listening, serving
from warmlane.__main__ import main

TABLE = """\
{file}
  0.8213  281  tabby cat
  0.1010  282  tiger cat
  0.0040    7  cock
  decode 1.25  queue 0.05  transfer 0.11  forward 0.62  total 2.33 ms

"""


@pytest.fixture
def servicer() -> FakeClassifier:
    return FakeClassifier()


@pytest.fixture(autouse=True)
def target(servicer: FakeClassifier, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(servicer) as target:
        monkeypatch.setenv("WARMLANE_TARGET", target)
        yield target


@pytest.fixture
def cat(tmp_path: Path) -> str:
    return written(tmp_path / "cat.jpg", b"cat")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    return written(tmp_path / "bad.txt", b"fail INVALID_ARGUMENT")


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_classify_prints_an_aligned_table(cat: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", cat]) == 0
    assert capsys.readouterr() == (TABLE.format(file=cat), "")


def test_explain_says_what_was_done(cat: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--explain", "--top-k", "1", cat]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  0.8213  281  tabby cat",
        "  JPEG 500x375, decoded by libjpeg-turbo: EXIF orientation 6; converted CMYK to RGB; end marker missing",
    ]


def test_options_reach_the_server(cat: str, servicer: FakeClassifier) -> None:
    assert main(["classify", cat, "--top-k", "3", "--explain", "--model", "fakenet"]) == 0
    (request,) = servicer.requests
    assert (request.top_k, request.explain, request.model) == (3, True, "fakenet")


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"cat from a pipe")))
    assert main(["classify", "-"]) == 0
    assert capsys.readouterr().out == TABLE.format(file="-")


def test_a_bad_file_does_not_stop_the_others(cat: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", bad, f"{cat}.missing", cat]) == 1
    out, err = capsys.readouterr()
    assert out == TABLE.format(file=cat)
    first, second = err.splitlines()
    assert first.startswith(f"warmlane: {bad}: INVALID_ARGUMENT: as asked (request id ")
    assert second == f"warmlane: {cat}.missing: No such file or directory"


def test_json_is_one_object_a_line_for_each_file(cat: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--json", cat, bad, f"{cat}.missing"]) == 1
    good, refused, missing = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(good) == [
        "file",
        "predictions",
        "timings",
        "explanation",
        "model",
        "model_version",
        "request_id",
    ]
    assert good["predictions"][0] == {"index": 281, "label": "tabby cat", "score": 0.8213}
    assert good["timings"]["decode_ms"] == 1.25
    assert (refused["file"], refused["error"]["code"]) == (bad, "INVALID_ARGUMENT")
    assert missing["error"]["code"] == "FileNotFoundError"


def test_nonsense_top_k_is_one_line(cat: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", cat, "--top-k", str(2**40)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("command", [["classify", "{cat}", "{cat}"], ["health"], ["info"]])
def test_no_server_is_one_line_that_says_what_to_do(
    command: list[str], cat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with nobody_listening() as target:
        assert main([*(word.format(cat=cat) for word in command), "--target", target]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no server answers at {target}" in line
    assert "make serve" in line


@pytest.mark.parametrize(
    ("service", "code", "status"), [("", 0, "SERVING"), ("cold", 1, "NOT_SERVING"), ("x", 1, "SERVICE_UNKNOWN")]
)
def test_health(service: str, code: int, status: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--service", service]) == code
    assert capsys.readouterr().out == f"{status}\n"


def test_info_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert (
        capsys.readouterr().out
        == """\
model       fakenet (sha256:0123456789ab)
runs on     cpu, float32, eager: no GPU
batch size  8
classes     4 by softmax: tench, goldfish, great white shark, ...
input       resize shorter side to 256 (bilinear), crop 224x224 from the centre
an image    at most 16 MiB, 100,000,000 pixels, 1,000 frames
a batch     at most 64 images
a stream    32 images in work at a time
versions    python 3.11.7, torch 2.11.0
"""
    )


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["name"], len(info["labels"]), info["preprocessing"]["mean"][0]) == ("fakenet", 4, 0.485)


def test_info_of_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--model", "other"]) == 1
    assert capsys.readouterr().err.startswith("warmlane: NOT_FOUND: no model 'other'")


@pytest.mark.parametrize("arguments", [[], ["classify"], ["health", "--timeout-s", "0"], ["health", "--target", ""]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: warmlane" in capsys.readouterr().err


def test_the_client_loads_nothing_heavy() -> None:
    heavy = "torch", "numpy", "PIL", "server", "pipeline"
    script = f"import sys, warmlane.__main__; sys.exit(str([m for m in {heavy} if m in sys.modules] or ''))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True).stderr.strip() == b""
