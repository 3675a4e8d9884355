"""Command lines from dataclasses (tyro), with errors of one line."""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from jaxppo.config import Hyperparameters
from jaxppo.errors import UserError, unknown
from jaxppo.program.configuration import read_number, read_text

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], *, command: str, default: T | None = None) -> T:
    """An instance of the dataclass `kind` from the command line; with `--help`, prints that and leaves.

    default: an instance whose values hold where no flag is given.
    Raises UserError, in one line, for an unknown flag (with the nearest names), a missing and a wrong value.
    """
    import tyro

    options: dict[str, Any] = {"prog": f"jaxppo {command}", "args": list(arguments)}
    if default is not None:
        options["default"] = default
    if not {"-h", "--help"} & set(arguments):
        _check_flags(kind, arguments)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, **options)
    except SystemExit as leaving:
        if leaving.code in (0, None):
            raise
        raise UserError(f"{_first_paragraph(said.getvalue())} (jaxppo {command} --help)") from None


def peek(arguments: Sequence[str], flag: str) -> str | None:
    """The last value of `--flag VALUE` or `--flag=VALUE`, before anything is parsed."""
    found = None
    for i, word in enumerate(arguments):
        if word == f"--{flag}" and i + 1 < len(arguments):
            found = arguments[i + 1]
        elif word.startswith(f"--{flag}="):
            found = word.partition("=")[2]
    return found


def pairs(flag: str, words: Sequence[str]) -> dict[str, str]:
    """`("gravity", "9.8", "length", "1")` as a dict. Raises UserError where a value is missing."""
    if len(words) % 2:
        raise UserError(f"--{flag} takes NAME VALUE pairs, but {words[-1]!r} has no value")
    return dict(zip(words[::2], words[1::2], strict=True))


def parameters(words: Sequence[str]) -> dict[str, Any]:
    """Environment parameters from NAME VALUE pairs: numbers, true or false, words."""
    return {name: read_text(text) for name, text in pairs("env-parameters", words).items()}


def numbers(flag: str, words: Sequence[str]) -> dict[str, Any]:
    """Numbers or schedules from NAME VALUE pairs."""
    return {name: read_number(f"{flag}.{name}", text) for name, text in pairs(flag, words).items()}


def assignments(words: Iterable[str]) -> dict[str, str]:
    """`("num_envs=8", "learning_rate=1e-4:0")` as a dict. Raises UserError where there is no `=`."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"--set takes NAME=VALUE, got {word!r}")
        found[name.strip().replace("-", "_")] = value
    return found


def hyperparameters(texts: Mapping[str, str], base: Hyperparameters) -> Hyperparameters:
    """`base` with the numbers that `texts` gives by field name. Raises UserError."""
    return dataclasses.replace(base, **{name: read_number(name, text) for name, text in texts.items()})


def field_documents(kind: type) -> dict[str, str]:
    """Field name to the text that follows it in the source of the dataclass `kind`."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, following in itertools.pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            found[ast.unparse(statement.target)] = ast.literal_eval(following.value)
    return found


def _check_flags(kind: type, arguments: Sequence[str]) -> None:
    """Refuses the first flag that the dataclass `kind` does not give."""
    known = {"--help", *flags(kind)}
    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and flag not in known:
            raise unknown("flag", flag, known)


def flags(kind: type, prefix: str = "") -> Iterator[str]:
    """The flags of a dataclass; a nested one puts its field's name before its own, unless annotated with no name."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        flag = name.replace("_", "-")
        if isinstance(bare, type) and dataclasses.is_dataclass(bare):
            yield from flags(bare, prefix if hint is not bare else f"{prefix}{flag}.")
        else:
            yield f"--{prefix}{flag}"
            if bare is bool:
                yield f"--{prefix}no-{flag}"


def _first_paragraph(box: str) -> str:
    """The message in the box that tyro draws."""
    lines = []
    for line in box.splitlines():
        text = line.strip("│ ").strip()
        if text.startswith(("╭", "╰")):
            continue
        if text.startswith("─"):
            break
        lines.append(text)
    return " ".join(lines).rstrip(".") or "the command line cannot be read"
