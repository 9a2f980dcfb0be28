"""Compile a native kernel on first use, keep it in the user's cache, load it with ctypes.

The library's file name is a hash of everything that decides its bits: source, headers, flags, compiler version, CPU.
It is built under a temporary name and renamed, so that concurrent processes agree and a killed build leaves nothing.
Pointers and sizes cross by ctypes: no torch headers, hence no torch ABI and nothing to build at install time.
Built with -fopenmp and loaded after torch, it shares torch's OpenMP pool.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
# Reassociation lets reductions vectorise; finite-math-only is left out because NaN and inf must survive.
# Linking is a step of its own without any fast-math flag: g++ would otherwise add a start-up file that switches the
# whole process to flush-to-zero.
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fPIC", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"),
    *("-ffp-contract=fast", "-Wno-psabi"),
)
LINK_FLAGS = ["-shared", "-fopenmp"]
# A source whose first line is EXACT is compiled so that every float operation is rounded as written: such results have
# the same bits from every compiler, and from the reference.
EXACT = "// build: exact"
EXACT_FLAGS = ("-fsigned-zeros", "-fno-associative-math", "-fno-reciprocal-math", "-ffp-contract=off")


class NativeUnavailable(RuntimeError):
    """The native kernels cannot be used here; the message says why."""


def cache_folder() -> Path:
    """Folder of the compiled kernels: $BAYESATTN_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("BAYESATTN_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bayesattn-fast"


@functools.cache
def compiler() -> tuple[str, str]:
    """Path of the C++ compiler ($CXX, else g++, c++, clang++) and the first line of its --version."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        raise NativeUnavailable(f"no C++ compiler found (looked for {', '.join(names)})")
    try:
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailable(f"the C++ compiler {path} does not run: {error}") from None
    return path, version.splitlines()[0] if version else "unknown version"


@functools.cache
def cpu_identity() -> str:
    """What -march=native depends on: the CPU's model and feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})) or platform.machine()


@functools.cache
def load(source: Path) -> ctypes.CDLL:
    """The compiled library of `source` (a native.cpp). Raises NativeUnavailable with the reason."""
    path, version = compiler()
    headers = [*sorted(HERE.glob("*.h")), *sorted(source.parent.glob("*.h"))]
    recipe = [file.read_bytes() for file in (source, *headers)]
    recipe += [text.encode() for text in (*flags_of(source), *LINK_FLAGS, path, version, cpu_identity())]
    name = f"{source.parent.name}-{hashlib.sha256(b'|'.join(recipe)).hexdigest()[:20]}.so"
    for folder in (cache_folder(), _private_folder()):
        library = folder / name
        if not library.exists():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _build(source, library, path)
            except OSError as error:
                _say(f"cannot write compiled kernels to {folder} ({error.strerror}); using a temporary folder")
                continue
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            raise NativeUnavailable(f"the compiled kernel {library} does not load: {error}") from None
    raise NativeUnavailable(f"no writable folder for compiled kernels (tried {cache_folder()})")


def flags_of(source: Path) -> list[str]:
    """The compiler's flags for `source`."""
    exact = source.read_text(encoding="utf-8").startswith(EXACT)
    return [*FLAGS, *(EXACT_FLAGS if exact else ())]


def _build(source: Path, library: Path, compiler_path: str) -> None:
    """Compile to a temporary folder beside `library`, then rename. OSError where the folder cannot be written."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as scratch:
        made, shared = Path(scratch) / "kernel.o", Path(scratch) / library.name
        for command in (
            [compiler_path, *flags_of(source), f"-I{HERE}", "-c", str(source), "-o", str(made)],
            [compiler_path, *LINK_FLAGS, str(made), "-o", str(shared)],
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            except subprocess.SubprocessError as error:
                raise NativeUnavailable(f"building {source.parent.name} failed: {error}") from None
            if done.returncode != 0:
                detail = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
                raise NativeUnavailable(f"building {source.parent.name} failed: {detail.strip()}")
        os.replace(shared, library)
    seconds = time.perf_counter() - started
    _say(f"compiled the native {source.parent.name} kernel in {seconds:.1f} s (kept in {library.parent})")


@functools.cache
def _private_folder() -> Path:
    """A folder of this process alone, for machines whose cache cannot be written."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="bayesattn-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _say(text: str) -> None:
    print(f"bayesattn: {text}", file=sys.stderr, flush=True)
