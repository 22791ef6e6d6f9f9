"""Settings: where they come from, how they are explained, and how a bad one is refused."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from server.settings import Settings, command
from tests.serving import settings_of

# One that differs from the default, on the command line and as read.
GIVEN: dict[str, tuple[str, Any]] = {
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("1234", 1234),
    "model": ("resnet50", "resnet50"),
    "weights": ("none", "none"),
    "labels": ("labels.txt", Path("labels.txt")),
    "activation": ("sigmoid", "sigmoid"),
    "resize": ("240,320", (240, 320)),
    "crop": ("192", (192,)),
    "interpolation": ("bicubic", "bicubic"),
    "mean": ("0.1,0.2,0.3", (0.1, 0.2, 0.3)),
    "std": ("1,2,3", (1.0, 2.0, 3.0)),
    "batch_size": ("4", 4),
    "graph_sizes": ("4,2", (4, 2)),
    "max_wait_ms": ("1.5", 1.5),
    "canvas": ("544", 544),
    "slots": ("500", 500),
    "threads": ("3", 3),
    "decode_threads": ("5", 5),
    "frontends": ("2", 2),
    "frontend_port": ("9000", 9000),
    "devices": ("cpu", ("cpu",)),
    "dtype": ("bf16", "bf16"),
    "lanes": ("2", 2),
    "strict": ("", True),
    "compile": ("", False),
    "compile_cache": ("cache", Path("cache")),
    "exif": ("ignore", "ignore"),
    "decode": ("gpu", "gpu"),
    "prescale": ("", False),
    "max_image_bytes": ("1000", 1000),
    "max_image_pixels": ("2000", 2000),
    "max_image_frames": ("7", 7),
    "max_decoded_bytes": ("1000000", 1_000_000),
    "decode_timeout_s": ("2.5", 2.5),
    "max_undecoded_bytes": ("99000000", 99_000_000),
    "max_calls": ("12", 12),
    "max_batch_images": ("9", 9),
    "stream_window": ("11", 11),
    "max_connection_age_s": ("60", 60.0),
    "engine_timeout_s": ("3.5", 3.5),
    "frontend_timeout_s": ("5.5", 5.5),
    "drain_s": ("2.5", 2.5),
    "metrics_port": ("9100", 9100),
    "admin_port": ("9200", 9200),
    "log_level": ("debug", "debug"),
    "log_json": ("", True),
    "null_engine": ("", True),
    "skip_decode": ("", True),
}
# For the settings whose default cannot be written down.
OTHER = {
    "labels": "other.txt",
    "frontend_port": "0",
    "devices": "auto",
    "resize": "100",
    "crop": "99",
    "interpolation": "bilinear",
    "mean": "0,0,0",
    "std": "9,9,9",
}
NAMES = [setting.name for setting in fields(Settings)]


def flags(name: str) -> list[str]:
    flag = name.replace("_", "-")
    text, value = GIVEN[name]
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", text]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of a bad command line: one line, and the server is not run."""
    with pytest.raises(SystemExit) as ended:
        command(lambda _: pytest.fail("the server was run")).main(list(arguments), prog_name="python -m server")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said.count("\n") == 1
    return said


def test_defaults() -> None:
    assert settings_of() == Settings()


@pytest.mark.parametrize("name", NAMES)
def test_command_line_over_environment_over_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = GIVEN[name]
    if name == "frontend_port":
        monkeypatch.setenv("WARMLANE_FRONTENDS", "1")
    default = getattr(Settings(), name)
    assert value != default
    monkeypatch.setenv(f"WARMLANE_{name.upper()}", str(value) if isinstance(value, bool) else text)
    assert getattr(settings_of(), name) == value
    monkeypatch.setenv(f"WARMLANE_{name.upper()}", OTHER.get(name, str(default)))
    assert getattr(settings_of(*flags(name)), name) == value


@pytest.fixture(scope="module")
def explained() -> dict[str, str]:
    """Each setting's part of --help, by its name, as one line."""
    cli = command(lambda _: 0)
    with cli.make_context("python -m server", [], resilient_parsing=True) as context:
        text = cli.get_help(context)
    parts = re.split(r"\n  --", text[text.index("Options:") :])[1:]
    return {re.split("[ /,]", part)[0].replace("-", "_"): " ".join(part.split()) for part in parts}


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_setting(explained: dict[str, str], name: str) -> None:
    part = explained[name]
    assert f"env var: WARMLANE_{name.upper()}" in part
    assert "default: " in part
    default = getattr(Settings(), name)
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if default is not None and not isinstance(default, bool):
        assert f"default: {default}" in part


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--port abc", "--port"),
        ("--port 65536", "65536"),
        ("--batch-size -1", "--batch-size"),
        ("--batch-size 513", "512"),
        ("--max-wait-ms -1", "--max-wait-ms"),
        ("--slots 0", "--slots"),
        ("--mean 1,2", "'1,2' has 2 numbers, not 3"),
        ("--mean a,b,c", "'a,b,c' is not 3 numbers"),
        ("--resize 1,2,3", "'1,2,3' has 3 numbers, not 1 or 2"),
        ("--graph-sizes 0", "--graph-sizes"),
        ("--graph-sizes 1,two", "'two' is not a valid integer"),
        ("--activation relu", "softmax"),
        ("--devices cpu,cpu", "--frontends"),
        ("--frontend-port 9000", "--frontends"),
        ("--frontend-port 65536 --frontends 1", "65536"),
        ("--frontend-port 65534 --frontends 3", "lead past port 65535"),
        ("--max-connection-age-s inf", "'inf' is not a finite number"),
        ("--max-wait-ms nan", "'nan' is not a finite number"),
        ("--max-batch-images 2147483648", "--max-batch-images"),
        ("--devices cpu,", "'cpu,' has an empty name"),
        ("--max-undecoded-bytes 1000", "--max-undecoded-bytes 1000 is less than --max-image-bytes"),
        ("--slots 8", "--slots 8 is less than --max-batch-images 64"),
        ("--no-such-setting", "--no-such-setting"),
        ("stray", "stray"),
    ],
)
def test_a_bad_value_gives_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, *arguments.split())


def test_a_bad_value_of_the_environment_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARMLANE_DRAIN_S", "soon")
    said = refusal(capsys)
    assert "soon" in said
    assert "--drain-s" in said


def test_the_exit_status_is_that_of_the_run() -> None:
    with pytest.raises(SystemExit) as ended:
        command(lambda _: 7).main([], prog_name="python -m server")
    assert ended.value.code == 7


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_preprocess_overrides_are_those_that_were_set() -> None:
    assert Settings().preprocess_overrides() == {}
    given = settings_of("--resize", "256", "--crop", "224", "--interpolation", "bicubic").preprocess_overrides()
    assert given == {"resize": 256, "crop": (224, 224), "interpolation": "bicubic"}
    assert settings_of("--resize", "240,320", "--crop", "1,2").preprocess_overrides() == {
        "resize": (240, 320),
        "crop": (1, 2),
    }
