"""Engines: the same shards from both, and nothing lost to a kill, a full disk, a damaged file or a second driver."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayesattn_fast.storage import read_table
from bayesattn_fast.sweeps import Store, run_sweep, sweep_of
from bayesattn_fast.sweeps.store import MANIFEST, SHARDS
from tests.sweeps.tiny import tiny

ROOT = Path(__file__).parents[2]
LONGER = tiny(models=["mlp"], seeds="0:12", settings={**tiny()["settings"], "steps": 150, "eval_every": 150})


def contents(folder: Path) -> dict[tuple, dict]:
    rows = [row for path in Store(folder).shards for row in read_table(path)]
    return {(row["tunnel"], row["model"], row["seed"]): row for row in rows}


def names(folder: Path) -> set[str]:
    return {path.name for path in Store(folder).shards}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "local"
    run_sweep(sweep_of(tiny()), folder, workers=2, pack=2)
    return folder


def test_ray_writes_the_same_shards(local: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    # In a process of its own: Ray's handlers and threads stay behind in the one that starts it.
    script = (
        "import sys; from pathlib import Path; from bayesattn_fast.sweeps import run_sweep, sweep_of; "
        "from tests.sweeps.tiny import tiny; "
        "run_sweep(sweep_of(tiny()), Path(sys.argv[1]), engine='ray', workers=2, pack=2)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "ray")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "ray") == names(local)
    assert len(contents(local)) == 2 * 3 * 4
    assert contents(tmp_path / "ray") == contents(local)


def test_a_finished_sweep_is_not_trained_again_and_more_seeds_are_added(local: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(local, tmp_path / "copy")
    planned: list[int] = []
    run_sweep(sweep_of(tiny()), tmp_path / "copy", workers=1, resume=True, on_plan=lambda p: planned.append(p.seeds))
    more = tiny(seeds="0:5", models=["mlp", "lstm", "transformer"])
    run_sweep(sweep_of(more), tmp_path / "copy", workers=1, resume=True, on_plan=lambda p: planned.append(p.seeds))
    assert planned == [0, 6]
    assert len(contents(tmp_path / "copy")) == 30


def test_a_damaged_shard_is_set_aside_and_made_again(local: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(local, tmp_path / "copy")
    victim = Store(tmp_path / "copy").shards[1]
    victim.write_bytes(victim.read_bytes()[:-40])
    run_sweep(sweep_of(tiny()), tmp_path / "copy", workers=1, pack=2, resume=True)
    assert contents(tmp_path / "copy") == contents(local)
    assert victim.with_suffix(".damaged").exists()


def _driver(folder: Path, *flags: str) -> subprocess.Popen:
    script = (
        "import sys; from pathlib import Path; from bayesattn_fast.sweeps import run_sweep, sweep_of; "
        "from tests.sweeps.test_engines import LONGER\n"
        "if __name__ == '__main__': run_sweep(sweep_of(LONGER), Path(sys.argv[1]), workers=2, pack=1, resume=True)"
    )
    path = folder.with_suffix(".py")
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder), *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )


def _wait_for_shards(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(Store(folder).shards) < count:
        assert time.monotonic() < deadline, "no shard appeared"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    """Workers of a driver; the pool's own tracker of resources is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone meanwhile
            continue
    return found


def test_a_killed_worker_costs_its_pack_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    driver = _driver(folder)
    _wait_for_shards(folder, 2)
    os.kill(_children(driver.pid)[0], signal.SIGKILL)
    assert driver.wait(180) == 0
    assert len(contents(folder)) == 24


def test_a_killed_driver_leaves_whole_shards_and_no_workers(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    driver = _driver(folder)
    _wait_for_shards(folder, 3)
    workers = _children(driver.pid)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    kept = {name: (folder / SHARDS / name).stat().st_mtime_ns for name in names(folder)}
    assert 3 <= len(kept) < 24
    again = _driver(folder)
    assert again.wait(180) == 0
    assert len(contents(folder)) == 24
    assert kept == {name: (folder / SHARDS / name).stat().st_mtime_ns for name in kept}


def test_a_full_disk_stops_the_sweep_and_loses_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    # A limit on the size of files fails as a full disk does, with an OSError at some write.
    folder, sweep = tmp_path / "sweep", sweep_of(tiny(models=["mlp"]))
    run_sweep(sweep_of(tiny(models=["mlp"], seeds="0:2")), folder, workers=1, pack=2)
    kept = contents(folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, before[1]))
    try:
        with pytest.raises(OSError):
            run_sweep(sweep, folder, workers=1, pack=2, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert contents(folder) == kept
    run_sweep(sweep, folder, workers=1, pack=2, resume=True)
    assert len(contents(folder)) == 8
    assert {key: contents(folder)[key] for key in kept} == kept


def test_a_second_driver_is_refused_and_leaves_the_manifest_alone(local: Path) -> None:
    from bayesattn_fast.training.run import locked

    before = (local / MANIFEST).read_bytes()
    with locked(local), pytest.raises(ValueError, match="in use by another process"):
        run_sweep(sweep_of(tiny(seeds=50)), local, workers=1, resume=True)
    assert (local / MANIFEST).read_bytes() == before


def test_a_disk_without_room_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"needs about [\d,]+ bytes and its disk has 1,000 free"):
        run_sweep(sweep_of(tiny()), tmp_path / "full", workers=1)
    assert not Store(tmp_path / "full").shards


def test_a_folder_of_something_else_is_refused(local: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="already holds a sweep; add --resume"):
        run_sweep(sweep_of(tiny()), local, workers=1)
    with pytest.raises(ValueError, match="cells that this sweep has not"):
        run_sweep(sweep_of(tiny(models=["lstm"])), local, workers=1, resume=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty and holds no sweep"):
        run_sweep(sweep_of(tiny()), tmp_path, workers=1)
