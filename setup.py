"""Maps the top-level folder kernels/ to the package bayesattn_fast.kernels.

An importable top-level `kernels` would collide with another distribution of that name, so the folder has no
__init__.py and is installed under our own package; the committed link bayesattn_fast/kernels serves checkouts.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
kernel_folders = sorted(
    folder.relative_to(ROOT / "kernels").as_posix().replace("/", ".")
    for folder in (ROOT / "kernels").iterdir()
    if folder.is_dir() and not folder.name.startswith((".", "__pycache__"))
)
packages = [
    name for name in find_packages(include=["bayesattn_fast*"]) if not name.startswith("bayesattn_fast.kernels")
]

setup(
    packages=[*packages, "bayesattn_fast.kernels", *(f"bayesattn_fast.kernels.{name}" for name in kernel_folders)],
    package_dir={"bayesattn_fast.kernels": "kernels"},
    package_data={"": ["*.cpp", "*.h", "*.json", "*.html", "*.md", "py.typed"]},
)
