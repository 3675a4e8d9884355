"""Programs compiled once stay compiled: JAX's persistent cache, in the user's cache directory.

A program for one processor may fail on another, and a home directory may be shared, so there is one cache for each
processor model and version of jaxlib.
"""

import hashlib
import os
import platform
from pathlib import Path

SWITCH = "JAXPPO_COMPILATION_CACHE"
"""Environment variable: `off`, or a directory to take instead of the user's."""


def enable() -> Path | None:
    """Switches the cache on and returns its directory; None where it is switched off or JAX has another one already."""
    import jax

    wanted = os.environ.get(SWITCH, "")
    if wanted == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return None
    folder = (Path(wanted) if wanted else user_directory()) / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # a run does not need it
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def user_directory() -> Path:
    """$XDG_CACHE_HOME/jaxppo, or ~/.cache/jaxppo."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxppo"


def _machine() -> str:
    """Sixteen digits for the processor and the compiler."""
    import jaxlib

    facts = [platform.machine(), platform.processor(), jaxlib.__version__]
    try:
        with open("/proc/cpuinfo") as lines:
            facts += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        pass
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
