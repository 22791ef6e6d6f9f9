"""What is compiled, kept and loaded again, and what happens where that cannot be done.

One compilation is real, and all tests share it; one other test has two of its own.
"""

import logging
import os
import shutil
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import compiler
from pipeline.compiler import build_program
from pipeline.graph import Graph, Program, example_inputs
from tests.tiny_model import CANVAS, BranchesOnPixels, model

CPU = torch.device("cpu")
BATCH = 4


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(model(), CANVAS)


@pytest.fixture(scope="module")
def compiled(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Path]:
    """A program, and the folder that its package lies in."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("compiled") / "cache"
    return build(graph, folder), folder


@pytest.fixture
def cache(compiled: tuple[Program, Path], tmp_path: Path) -> Path:
    """A folder of the test's own with the compiled package in it."""
    return shutil.copytree(compiled[1], tmp_path / "cache")


@pytest.fixture
def no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling fails, both ways."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("nothing may be compiled here\nand a second line")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", refuse)
    monkeypatch.setattr(torch, "compile", refuse)


def build(graph: Graph, cache: Path | None, key: str = "key", batch: int = BATCH) -> Program:
    return build_program(graph, key, batch, CANVAS, CPU, cache)


def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, sampled at another scale and offset in each row."""
    pixels = torch.randint(0, 256, (batch, CANVAS, CANVAS, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    rows = [(1.2 - 0.05 * row, 0.5 * row, 46.0, 1.1, 2.0, 40.0 + row) for row in range(batch)]
    return pixels, torch.tensor(rows)


def assert_same_scores(run: Program, graph: Graph, batch: int) -> None:
    canvases, geometry = inputs(batch)
    with torch.inference_mode():
        scores, indices = run.run(canvases, geometry)
        expected, expected_indices = graph(canvases, geometry)
    by_class, expected_by_class = (
        values.gather(1, order.long().argsort(dim=1))
        for values, order in ((scores, indices), (expected, expected_indices))
    )
    apart = (by_class - expected_by_class).abs().max().item()
    assert apart < 1e-3, f"scores of {batch} are {apart} from the eager ones"
    assert indices.dtype == torch.int32


def test_all_batch_sizes_agree_with_eager(compiled: tuple[Program, Path], graph: Graph) -> None:
    program, _ = compiled
    assert program.execution == "compiled"
    assert program.compile_s > 0
    for batch in range(1, BATCH + 1):
        assert_same_scores(program, graph, batch)


@pytest.mark.usefixtures("compiled")  # which needs a compiler too
def test_small_batches_have_a_package_for_each_size(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = torch._inductor.aoti_compile_and_package

    def note(exported: Any, **options: Any) -> str:
        frozen = torch._inductor.config.freezing and not torch.is_grad_enabled()
        seen.append(f"batch of {exported.example_inputs[0][0].shape[0]}{', frozen' if frozen else ''}")
        return real(exported, **options)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", note)
    program = build(graph, tmp_path, batch=2)
    assert program.execution == "compiled"
    assert seen == ["batch of 1, frozen", "batch of 2, frozen"]
    assert len(list(tmp_path.glob("*.pt2"))) == 2
    for batch in (1, 2):
        assert_same_scores(program, graph, batch)
    assert build(graph, tmp_path, batch=2).execution == "compiled"
    assert len(seen) == 2, "the second start compiles nothing"


def test_a_second_start_compiles_nothing(cache: Path, graph: Graph, no_compilation: None) -> None:
    program = build(graph, cache)
    assert program.execution == "compiled"
    assert_same_scores(program, graph, BATCH)


def test_only_the_user_may_write_into_the_cache(compiled: tuple[Program, Path]) -> None:
    assert stat.S_IMODE(compiled[1].stat().st_mode) == 0o700


def test_a_cache_that_cannot_be_made_is_done_without(
    graph: Graph, tmp_path: Path, no_compilation: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    program = build(graph, tmp_path / "file" / "cache")
    assert "not using the compile cache" in caplog.text
    assert "Not a directory" in caplog.text
    assert program.execution.endswith("nothing may be compiled here"), "went on to compile"


def test_a_cache_that_can_only_be_read_serves_what_it_holds(
    cache: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch, no_compilation: None
) -> None:
    # Of the mode alone, as root may write whatever it says.
    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode != os.W_OK)
    assert build(graph, cache).execution == "compiled"


def test_what_a_cache_lacks_that_can_only_be_read_is_compiled_beside_it(
    compiled: tuple[Program, Path], graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package,) = compiled[1].iterdir()
    written: list[Path] = []

    def copy_instead(_graph: Graph, _inputs: object, target: Path, *, exact: bool) -> None:
        written.append(target)
        shutil.copy(package, target)

    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode != os.W_OK)
    monkeypatch.setattr("pipeline.compiler._compile_package", copy_instead)
    assert build(graph, tmp_path).execution == "compiled"
    assert [target.name for target in written] == [package.name]
    assert not list(tmp_path.iterdir())


def test_nothing_but_the_package_is_left(compiled: tuple[Program, Path]) -> None:
    assert [path.suffix for path in compiled[1].iterdir()] == [".pt2"]


def test_of_two_that_start_at_once_one_compiles(
    cache: Path, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilations: list[Path] = []
    (ready,) = cache.glob("*.pt2")

    def compile_slowly(graph: Graph, inputs: Any, package: Path, *, exact: bool) -> None:
        compilations.append(package)
        time.sleep(0.5)
        shutil.copy(ready, package)

    monkeypatch.setattr(compiler, "_compile_package", compile_slowly)
    monkeypatch.setattr(compiler, "_loads_in_a_child", lambda package: True)
    with ThreadPoolExecutor(2) as pool:
        programs = list(pool.map(build, [graph] * 2, [tmp_path / "new"] * 2))
    assert [program.execution for program in programs] == ["compiled"] * 2
    assert len(compilations) == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", None], ids=["empty", "rubbish", "cut"])
def test_a_damaged_package_is_compiled_anew(
    compiled: tuple[Program, Path], cache: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    (good,), (package,) = compiled[1].iterdir(), cache.iterdir()
    package.write_bytes(good.read_bytes()[:50_000] if content is None else content)
    calls = []

    def compile_again(exported: Any, *, package_path: str) -> str:
        calls.append(package_path)
        return shutil.copy(good, package_path)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_again)
    monkeypatch.setattr("pipeline.compiler._loads_in_a_child", lambda package: True)
    program = build(graph, cache)
    assert program.execution == "compiled"
    assert len(calls) == 1
    assert package.read_bytes() == good.read_bytes()
    assert_same_scores(program, graph, BATCH)


def test_a_package_that_no_process_survives_is_tried_once(
    compiled: tuple[Program, Path], tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = compiled[1].iterdir()
    calls = []

    def compile_again(exported: Any, *, package_path: str) -> str:
        calls.append(package_path)
        return shutil.copy(good, package_path)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_again)
    monkeypatch.setattr(subprocess, "run", lambda args, **_: subprocess.CompletedProcess(args, -11))
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    for _ in range(2):
        assert_same_scores(build(graph, tmp_path), graph, BATCH)
    assert len(calls) == 1


def test_other_settings_have_packages_of_their_own(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = []

    def note(exported: Any, *, package_path: str) -> str:
        Path(package_path).touch()
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", note)
    monkeypatch.setattr("pipeline.compiler._loads_in_a_child", lambda package: packages.append(package.name))
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    build(graph, tmp_path)
    build(graph, tmp_path, key="other weights")
    build(graph, tmp_path, batch=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    build(graph, tmp_path)
    torch.set_num_threads(threads)
    monkeypatch.setattr(torch, "__version__", "99.0")
    build(graph, tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another machine")
    build(graph, tmp_path)
    assert len(set(packages)) == 6


def test_without_a_compiler_it_is_eager_and_says_what_to_install(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    program = build(graph, tmp_path)
    assert program.execution.startswith("eager: no C++ compiler (/no/such/compiler not found): install g++")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "install g++" in caplog.text
    assert_same_scores(program, graph, BATCH)


def test_what_cannot_be_compiled_is_eager_and_says_why(graph: Graph, tmp_path: Path, no_compilation: None) -> None:
    program = build(graph, tmp_path)
    assert program.execution == "eager: could not be compiled: nothing may be compiled here"
    assert_same_scores(program, graph, BATCH)


def test_what_cannot_be_exported_is_compiled_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Dynamo's part is the one in question: inductor would compile its pieces for half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    graph = Graph(model(BranchesOnPixels()), CANVAS)
    program = build(graph, tmp_path)
    assert program.execution == "compiled"
    assert "not compiled ahead of time: " in caplog.text
    for batch in range(1, BATCH + 1):
        assert_same_scores(program, graph, batch)


def test_what_cannot_be_exported_nor_compiled_is_eager(tmp_path: Path, no_compilation: None) -> None:
    graph = Graph(model(BranchesOnPixels()), CANVAS)
    program = build(graph, tmp_path)
    assert program.execution.startswith("eager: could not be compiled: ")
    assert "\n" not in program.execution
    assert_same_scores(program, graph, BATCH)


def test_example_inputs_are_of_a_lanes_shapes_and_strides() -> None:
    pixels, geometry = example_inputs(2, CANVAS, CPU)
    assert pixels.shape == (2, 3, CANVAS, CANVAS)
    assert pixels.stride() == inputs(2)[0].stride()
    assert geometry.shape == (2, 6)
    assert geometry.dtype == torch.float32
