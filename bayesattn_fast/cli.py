"""The `bayesattn` command: the list of commands and what becomes of an error.

A user's mistake is answered in one line on stderr and exit code 2; BAYESATTN_DEBUG=1 shows the traceback instead.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

COMMANDS = {
    "train": "train an ensemble on a wind tunnel, score it, write the report",
    "resume": "go on with an interrupted run",
    "eval": "score a run against the exact posterior again, at any length",
    "report": "write the page and the figures of a run again",
    "compare": "several runs side by side",
    "sweep": "many seeds of many cells: tunnels × models × settings, here or on Ray",
    "stats": "statistics of a sweep: intervals, profiles, comparisons, steps to a threshold",
    "dynamics": "how attention moves under gradient descent: em-vs-sgd, toy, two-timescale",
    "bench": "time every op beside its peers and the machine's limits",
    "verify": "compare every op with float64 on this device",
    "tune": "measure the tiles of the Triton kernels on this GPU",
    "reproduce": "the papers' tables and figures, claim by claim",
    "tunnels": "list the wind tunnels, their sizes, what each tests",
    "doctor": "versions, devices, compiler, and which implementation serves each op",
}

OVERVIEW = """usage: bayesattn [--load FILE] COMMAND [flags]

Train sequence models on tasks whose exact posterior is known, and compare them with it.

commands:
{commands}

examples:
  bayesattn tunnels
  bayesattn train bijection --seeds 3
  bayesattn train hmm --model lstm --seeds 0:8 --out runs/hmm-lstm
  bayesattn compare runs/bijection-transformer runs/bijection-lstm

bayesattn COMMAND --help explains the flags of a command.
--load FILE imports a Python file first: tunnels and models that it registers exist then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(OVERVIEW.format(commands="\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())))
        return 0
    from . import __version__, require_torch

    if words[0] == "--version":
        print(f"bayesattn {__version__}")
        return 0
    try:
        with _quitting_at_once():
            # torch's allocator then asks for large pages: steps with large activations take up to a tenth less time.
            os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
            require_torch()
            from . import extensions
            from .commands.parsing import UsageError, known

            while words[0] == "--load":
                if len(words) < 3:
                    raise UsageError("--load takes a Python file, and a command after it")
                extensions.add(words[1:2])
                words = words[2:]
            extensions.load()
            command = known(words[0], COMMANDS, "command")
            module = importlib.import_module(f".commands.{command}", __package__)
        return module.main(words[1:])
    except (ValueError, OSError, MemoryError, ImportError) as error:
        if os.environ.get("BAYESATTN_DEBUG"):
            raise
        print(f"bayesattn: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bayesattn: interrupted", file=sys.stderr)
        return 130


@contextmanager
def _quitting_at_once() -> Iterator[None]:
    """^C ends the process while libraries load: one that catches the exception itself would go on half imported."""

    def quit_(signum: int, frame: object) -> None:
        os.write(2, b"bayesattn: interrupted\n")
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, quit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _one_line(error: BaseException) -> str:
    if isinstance(error, BrokenPipeError):
        return "the reader of the output went away"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
