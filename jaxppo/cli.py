"""The command line: `jaxppo train|resume|branch|eval|plot|bench|list`.

Whatever goes wrong because of what was asked for, or of the machine, is one line on standard error and exit code 2.
A command's module, and with it JAX, is imported only when that command runs.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from jaxppo.errors import UserError, unknown
from jaxppo.program.files import in_words

COMMANDS = {
    "train": ("train", "train a policy in a new run directory"),
    "resume": ("resume", "go on with a run, bit for bit"),
    "branch": ("branch", "start a new run from a checkpoint, under changed settings"),
    "eval": ("evaluate", "play episodes with a trained policy"),
    "plot": ("plot", "draw the learning curves of runs"),
    "bench": ("bench", "time the loop and its parts"),
    "list": ("listing", "list envs, presets, surrogates, advantages or distributions"),
}

COMPILING = ("train", "resume", "branch", "eval")
"""Commands whose programs are kept in the user's compilation cache."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0, 2 after an error, 130 or 143 after a signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else 2
    if words[0] == "--version":
        from importlib.metadata import version

        print(version("jaxppo"))
        return 0
    try:
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        _command(words[0])(words[1:])
    except UserError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(in_words(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("jaxppo"):
            raise
        return _fail(f"{error.name} is not installed; pip install 'jaxppo[run]'")
    except KeyboardInterrupt:
        print("jaxppo: interrupted", file=sys.stderr)
        return 130
    except SystemExit as leaving:  # after --help
        return int(leaving.code or 0)
    return 0


def _command(name: str):
    """The function that runs a command; a signal that it was told about becomes its exit code."""
    # Loading from the compilation cache, XLA for CPUs takes two tuning preferences of its own for features that the
    # processor lacks, and fills the screen with it. Whatever does fail comes as an exception.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX's default
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    module = importlib.import_module(f"jaxppo.program.commands.{COMMANDS[name][0]}")
    signals = importlib.import_module("jaxppo.program.signals")

    def run(words: Sequence[str]) -> None:
        if name in COMPILING:
            importlib.import_module("jaxppo.program.compilation_cache").enable()
        try:
            module.run(words)
        except signals.Interrupted as interrupted:
            print(f"jaxppo: {interrupted}", file=sys.stderr)
            raise SystemExit(interrupted.code) from None

    return run


def _fail(message: str) -> int:
    print(f"jaxppo: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _help() -> str:
    lines = [f"  {name:8}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: jaxppo COMMAND [OPTIONS]", "", *lines, "", "jaxppo COMMAND --help says more."])


if __name__ == "__main__":
    raise SystemExit(main())
