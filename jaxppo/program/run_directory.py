"""The directory of a run.

config.json         what the run is (`jaxppo.program.configuration`)
versions.json       with what and where it ran, and the versions of the formats
metrics.csv         one row an update (`jaxppo.program.metrics_table`)
checkpoints/        the last ones and the best (`jaxppo.program.checkpoint`)
learning_curve.png  drawn at the end
lock                held by the process that trains here
"""

import fcntl
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jaxppo.errors import UserError
from jaxppo.program import configuration
from jaxppo.program.configuration import RunConfig
from jaxppo.program.files import read_json, write_json


class RunDirectory:
    """The places in a run's directory; says nothing about whether they exist."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.versions = self.path / "versions.json"
        self.metrics = self.path / "metrics.csv"
        self.checkpoints = self.path / "checkpoints"
        self.learning_curve = self.path / "learning_curve.png"
        self.profile = self.path / "profile"

    def read(self) -> RunConfig:
        """The run's configuration. Raises UserError where this is no run, a damaged one, or one of a newer jaxppo."""
        if not self.path.is_dir():
            raise UserError(f"there is no run {self.path}; `jaxppo train --run {self.path}` makes one")
        self.check_formats()
        run = configuration.from_json(read_json(self.config, "run configuration"), str(self.config))
        configuration.check(run)
        return run

    def check_formats(self) -> None:
        """Raises UserError, naming the format, where a newer jaxppo wrote this run in one that cannot be read here.

        A run without versions.json passes: its configuration and its checkpoints say their versions, too.
        """
        if not self.versions.exists():
            return
        content = read_json(self.versions, "record of the versions")
        written, packages = content.get("formats"), content.get("packages")
        if not isinstance(written, dict) or not isinstance(packages, dict):
            raise UserError(f"{self.versions} is damaged, it holds no record of the versions")
        for name, ours in formats().items():
            theirs = written.get(name, 1)
            if not isinstance(theirs, int) or isinstance(theirs, bool) or theirs < 1:
                raise UserError(f"{self.versions} is damaged: {theirs!r} is no version of the {name} format")
            if theirs > ours:
                raise UserError(
                    f"{self.path} has its {name} in format version {theirs}, this jaxppo reads up to {ours} "
                    f"({self.versions}); it was written by jaxppo {packages.get('jaxppo')}, install that or a newer one"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this process. Raises UserError while another one trains in it."""
        with open(self.path / "lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise UserError(f"run {self.path} is in use by process {holder}") from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def check_free(self) -> None:
        """Raises UserError where a run, or anything else, is there already."""
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise UserError(
                f"{self.path} exists already; `jaxppo resume {self.path}` continues it, --run DIR takes another place"
            )

    @contextmanager
    def created(self, run: RunConfig) -> Iterator[None]:
        """Makes the directory of a new run and holds it for this process.

        Raises UserError where a run or anything else is there already, OSError where the disk is full or the place
        cannot be written. Of a run that could not be set up nothing is left behind.
        """
        self.check_free()
        mine = not self.path.exists()
        with ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(self.locked())
                self.checkpoints.mkdir()
                write_json(self.versions, versions())
                write_json(self.config, configuration.to_json(run))
            except OSError:
                for leftover in (self.config, self.versions, self.path / "lock"):
                    leftover.unlink(missing_ok=True)
                shutil.rmtree(self.path if mine else self.checkpoints, ignore_errors=True)
                raise
            yield


def default_path(env: str) -> Path:
    """runs/<env>-<time>, with a number where that exists already."""
    name = f"{env.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in range(1, 10_000))
    return next(path for path in numbered if not path.exists())


def formats() -> dict[str, int]:
    """The versions in which the parts of a run are written, which are the newest that are read."""
    from jaxppo.program import checkpoint, metrics_table

    return {"config": configuration.SCHEMA, "checkpoint": checkpoint.SCHEMA, "metrics": metrics_table.SCHEMA}


def versions() -> dict[str, Any]:
    """What the numbers of a run depend on beside its configuration."""
    import jax

    device = jax.devices()[0]
    return {
        "formats": formats(),
        "packages": {name: _installed(name) for name in ("jaxppo", "jax", "jaxlib", "flax", "optax", "numpy")},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this package's working tree, `+` where it has changes; None outside a git checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        status = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")
