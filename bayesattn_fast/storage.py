"""Files of a run: written whole or not at all, read with errors that name the file and what is wrong with it."""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path | str, write: Callable[[Path], None]) -> None:
    """Replace `path` by what `write` puts into the temporary file of the same folder that it is given.

    The new file is on the disk before it takes the name, so a reader, a crash or a power cut sees the old content or
    the new, never a part. A failure leaves `path` as it was and no temporary file. OSError names `path`.
    """
    path = Path(path)
    # Not tempfile: its files are readable by the owner alone, and would stay so under the final name.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # some writers make their file anew, readable by its owner alone
        _flush(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    finally:
        with suppress(OSError):  # an unreachable folder holds no temporary file, and has an error of its own
            temporary.unlink()
    with suppress(OSError):  # some file systems cannot flush a folder; the file itself is safe by then
        _flush(path.parent)


def holds_nothing(folder: Path) -> bool:
    """Whether a folder has no files of anybody: locks and what a killed writer left behind do not count."""
    return all(path.name == ".lock" or (path.name[:1] == "." and path.suffix == ".tmp") for path in folder.iterdir())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as indented JSON; ValueError for NaN and infinity, which JSON has no word for."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def write_text(path: Path | str, text: str) -> None:
    """Write `text` in UTF-8."""
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def read_json(path: Path | str) -> Any:
    """The value in a JSON file; ValueError when there is none or it does not parse."""
    path = _existing(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def write_table(path: Path | str, rows: Iterable[Mapping[str, Any]], about: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet: columns in the order of first appearance, null where a row lacks one.

    about: texts kept beside the rows, for `table_about`. ValueError where a column mixes kinds, such as text and
    numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"column {name!r} of {path} mixes kinds of values: {error}") from error
    table = pa.table(columns)
    if about:
        table = table.replace_schema_metadata(dict(about))
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def table_about(path: Path | str) -> dict[str, str]:
    """The texts that `write_table` kept beside the rows; ValueError where the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = _existing(path)
    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    return {key.decode(): value.decode() for key, value in found.items()}


def read_table(path: Path | str, required: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of a Parquet file; ValueError when it is missing, damaged, or lacks a column of `required`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = _existing(path)
    try:
        # Not pq.read_table, which takes folders named like seed=3 on the way for columns.
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    missing = [name for name in required if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return table.to_pylist()


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    return path
