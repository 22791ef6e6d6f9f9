"""Runs a package of AOTInductor without holding Python's lock.

torch's own loader keeps the lock for the whole forward, in which neither the event loop nor a decode thread moves: with
it the decode threads filled batches with 1.9 images on average (bench/LOG.md, 2026-11-30). The library in a package has
a C interface (torch/csrc/inductor/aoti_runtime/interface.h), and a call through ctypes gives the lock back.
"""

import ctypes
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_OUTPUTS = 2


class CpuPackage:
    """A compiled graph for a CPU, loaded: `Program.run`.

    Args:
        package: a .pt2 file of `torch._inductor.aoti_compile_and_package`.
        lanes: threads that may run it at the same time; they share its weights.

    Raises:
        zipfile.BadZipFile, OSError, RuntimeError: the file is no such package, or was made for another machine.
    """

    def __init__(self, package: Path, lanes: int = 1) -> None:
        # The library is mapped into memory; its file need not outlive that.
        with tempfile.TemporaryDirectory(prefix="warmlane-") as folder:
            with zipfile.ZipFile(package) as archive:
                archive.extractall(folder)
            libraries = list(Path(folder).rglob("*.so"))
            if len(libraries) != 1:
                raise RuntimeError(f"{package.name} holds {len(libraries)} libraries, not 1")
            self._library = ctypes.CDLL(str(libraries[0]))
            self._container = ctypes.c_void_p()
            created = self._library.AOTInductorModelContainerCreateWithDevice(
                ctypes.byref(self._container), ctypes.c_size_t(lanes), b"cpu", None
            )
        if created != 0:
            raise RuntimeError(f"the library in {package.name} cannot be started")

    def __call__(self, canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        """See `Program.run`.

        Raises:
            RuntimeError: the forward failed; torch has written why to standard error.
        """
        inputs = [canvas, geometry]
        # The handles are new tensors over the same memory, which the library takes over, as it hands over its results.
        capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(inputs)
        handles = (ctypes.c_void_p * len(inputs))(*(_capsule_pointer(capsule, None) for capsule in capsules))
        results = (ctypes.c_void_p * _OUTPUTS)()
        code = self._library.AOTInductorModelContainerRun(
            self._container, handles, ctypes.c_size_t(len(inputs)), results, ctypes.c_size_t(_OUTPUTS), None, None
        )
        if code != 0:
            raise RuntimeError("the compiled forward failed")
        scores, indices = (
            torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_new_capsule(result, None, None))
            for result in results
        )
        return scores, indices


class CpuPackages:
    """Packages by the batch size that each was compiled for: `Program.run` of those sizes.

    Args:
        by_size: of every size from 1 to the largest batch.
    """

    def __init__(self, by_size: Mapping[int, CpuPackage]) -> None:
        self._by_size = by_size

    def __call__(self, canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        """See `CpuPackage`."""
        return self._by_size[len(canvas)](canvas, geometry)
