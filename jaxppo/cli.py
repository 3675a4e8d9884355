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

TRAINING = ("train", "resume", "branch")
"""Commands that several processes can do together."""

COMPILING = (*TRAINING, "eval")
"""Commands whose programs are kept in the user's compilation cache."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0, 2 after an error, 130 or 143 after a signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in TRAINING:
        from jaxppo.program import crew

        if crew.summoned(words):
            return crew.serve(lambda: _answer(words, crew.rank()))
    return _answer(words)


def _answer(words: Sequence[str], rank: int = 0) -> int:
    """Runs a command and returns the exit code. rank: which of several processes this is; only the first speaks."""
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
        _command(words[0], rank)(words[1:])
    except UserError as error:
        return _fail(str(error), rank)
    except OSError as error:
        return _fail(in_words(error), rank)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("jaxppo"):
            raise
        return _fail(f"{error.name} is not installed; pip install 'jaxppo[run]'", rank)
    except KeyboardInterrupt:
        _say("interrupted", rank)
        return 130
    except SystemExit as leaving:  # after --help, or what the processes of a run have left with
        return int(leaving.code or 0)
    return 0


def _command(name: str, rank: int = 0):
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
            _say(str(interrupted), rank)
            raise SystemExit(interrupted.code) from None

    return run


def _fail(message: str, rank: int) -> int:
    """An error that a process alone has must be heard, too."""
    who = f"process {rank}: " if rank else ""
    print(f"jaxppo: error: {who}{' '.join(message.split())}", file=sys.stderr)
    return 2


def _say(message: str, rank: int) -> None:
    if not rank:
        print(f"jaxppo: {message}", file=sys.stderr)


def _help() -> str:
    lines = [f"  {name:8}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: jaxppo COMMAND [OPTIONS]", "", *lines, "", "jaxppo COMMAND --help says more."])


if __name__ == "__main__":
    raise SystemExit(main())
