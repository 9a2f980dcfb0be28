"""Files of one's own, imported before a command runs: tunnels and models that they register exist then.

`bayesattn --load coin.py train coin` names them; BAYESATTN_LOAD hands the names on to worker processes.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "BAYESATTN_LOAD"


def files() -> list[Path]:
    """The files named so far, in order."""
    return [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def add(names: Iterable[str]) -> None:
    """Name more files. ValueError where one is not a Python file."""
    named = files()
    for name in names:
        path = Path(name).resolve()
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(f"--load takes a Python file; got {name}")
        named.append(path)
    os.environ[VARIABLE] = os.pathsep.join(map(str, dict.fromkeys(named)))


def load() -> None:
    """Import the files that are named, each as a module of its own name, so that workers find its classes by it."""
    for path in files():
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        try:
            module = importlib.import_module(path.stem)
        except Exception as error:
            raise ImportError(f"--load {path}: {type(error).__name__}: {error}") from error
        if getattr(module, "__file__", None) is None or Path(module.__file__ or "").resolve() != path.resolve():
            raise ImportError(f"--load {path}: another module is called {path.stem}; rename the file")
