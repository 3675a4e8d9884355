"""Files that are whole or absent: written beside their place and renamed into it."""

import json
import os
from pathlib import Path
from typing import Any

from jaxppo.errors import UserError


def write_atomically(path: Path, content: str) -> None:
    """Writes the text file `path` through a temporary neighbour, so that no reader ever sees half of it.

    Raises OSError where the disk is full or the directory cannot be written; `path` is then as it was before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as readable JSON. Raises as `write_atomically` does."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`. Raises UserError, naming the file, where it is missing, cut or no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: no {what} here") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, it holds no {what} ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged, it holds no {what} (not a JSON object)")
    return content


def in_words(error: OSError) -> str:
    """What the machine refused, in one line: `runs/a: No space left on device`."""
    if error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
