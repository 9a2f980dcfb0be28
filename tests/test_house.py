"""The plan of the house: who may import whom, how long a file may be, what is public, what is never read."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bayesattn_fast

ROOT = Path(__file__).parents[1]
PACKAGE, KERNELS = ROOT / "bayesattn_fast", ROOT / "kernels"

# Highest first. A unit (a folder or a file of the package) imports from the rows below its own, and from itself.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"commands"},
    {"reproduce", "verification", "bench"},
    {"__init__"},
    {"api", "integrations", "patching"},
    {"sweeps"},
    {"dynamics"},
    {"training"},
    {"report"},
    {"analysis", "evaluation", "statistics"},
    {"models"},
    {"tunnels"},
    {"posteriors"},
    {"ops"},
    {"backends", "extensions", "storage"},
    {"kernels"},
]
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
LONGEST = 400
LONGER_FOR_A_REASON = {
    "kernels/_native/packs.h": "every vector operation once for each instruction set",
}


def _python_files(folder: Path) -> list[Path]:
    # bayesattn_fast/kernels is a link to kernels/, which is looked at on its own.
    return [
        file for file in sorted(folder.rglob("*.py")) if "kernels" not in file.relative_to(PACKAGE.parent).parts[1:]
    ]


def _own_imports(file: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """Modules of this project that `file` imports, as paths below the package: ("ops", "attention")."""
    package = file.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "bayesattn_fast":
                    yield tuple(name.name.split(".")[1:]) or ("__init__",)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                module = tuple((node.module or "").split("."))
                if module[0] != "bayesattn_fast":
                    continue
                base = module[1:]
            else:
                base = package[: len(package) - node.level + 1] + tuple(
                    (node.module or "").split(".") if node.module else ()
                )
            yield from ((*base, name.name) for name in node.names)


def _unit(path: tuple[str, ...]) -> str:
    return path[0] if (PACKAGE / path[0]).is_dir() or (PACKAGE / f"{path[0]}.py").is_file() else "__init__"


@pytest.mark.parametrize("file", _python_files(PACKAGE), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_arrows_point_down(file: Path) -> None:
    own = _unit(file.relative_to(PACKAGE).with_suffix("").parts)
    assert own in FLOOR_OF, f"{own} is new in the house: give it a floor in {Path(__file__).name} and CONTRIBUTING.md"
    for path in _own_imports(file, PACKAGE):
        other = _unit(path)
        # The version is the one name of the package itself that everybody may read.
        if other != own and path[-1] != "__version__":
            assert FLOOR_OF[other] > FLOOR_OF[own], (
                f"{file.relative_to(ROOT)} imports {'.'.join(path)}, which is above it"
            )


@pytest.mark.parametrize("file", sorted(KERNELS.rglob("*.py")), ids=lambda file: str(file.relative_to(KERNELS)))
def test_kernels_know_nothing_of_the_package_and_implementations_nothing_of_each_other(file: Path) -> None:
    implementations = {"native", "forward", "backward"} - {file.stem}
    for path in _own_imports(file, KERNELS):
        below = path[1:] if path[0] == "kernels" else path
        assert below, f"{file.relative_to(ROOT)} imports kernels as a whole"
        assert (KERNELS / below[0]).exists(), f"{file.relative_to(ROOT)} reaches out of kernels/: {'.'.join(path)}"
        if below[0] == file.parent.name and file.stem in {"native", "forward", "backward", "reference"}:
            assert below[1] not in implementations, f"{file.relative_to(ROOT)} leans on {'.'.join(path)}"


def test_files_can_be_read_in_one_sitting() -> None:
    sources = [
        file
        for folder in (PACKAGE, KERNELS, ROOT / "tests", ROOT / "bench", ROOT / "examples")
        for kind in ("*.py", "*.cpp", "*.h")
        for file in folder.rglob(kind)
    ]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in sources}
    longer = {name for name, length in lengths.items() if length > LONGEST}
    assert longer == set(LONGER_FOR_A_REASON)


def test_public_names_exist_and_say_what_they_are() -> None:
    assert sorted(bayesattn_fast.__all__) == bayesattn_fast.__all__
    assert set(bayesattn_fast.__all__) == {*bayesattn_fast._HOMES, "__version__"}
    for name in bayesattn_fast.__all__:
        value = getattr(bayesattn_fast, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize(
    "package", [*sorted({*bayesattn_fast._PACKAGES} - {"integrations"}), "integrations.transformers"]
)
def test_public_packages_list_names_that_exist(package: str) -> None:
    module = importlib.import_module(f"bayesattn_fast.{package}")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"auto\w+:: bayesattn_fast\.(\w+)$", page, flags=re.MULTILINE))
    assert listed == {*bayesattn_fast.__all__} - {"__version__"}


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'atention'"):
        bayesattn_fast.atention  # noqa: B018


@pytest.mark.parametrize("folder", ["bayesattn_fast", "kernels", "bench", "examples"])
def test_nothing_reads_pickles(folder: str) -> None:
    """Files from elsewhere must not run code: safetensors, JSON and Parquet only."""
    for file in (ROOT / folder).rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        found = re.search(r"\b(pickle|cloudpickle|joblib|dill|torch\.load|allow_pickle)\b", text)
        assert found is None, f"{file.relative_to(ROOT)} uses {found and found.group()}"
