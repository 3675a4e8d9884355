"""jaxppo list: what there is to choose from."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from jaxppo.errors import UserError, unknown
from jaxppo.program import arguments as command_line

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class List:
    """List what there is to choose from: envs, presets, surrogates, advantages or distributions."""

    kind: tyro.conf.Positional[str] = ""
    """envs, presets, surrogates, advantages or distributions."""
    json: bool = False
    """Print a JSON array."""


def _envs() -> Rows:
    from jaxppo.envs import listing

    return [{"name": e.name, "playable": e.playable, "reason": e.reason} for e in listing()]


def _presets() -> Rows:
    from jaxppo.presets import PRESETS

    return [{"name": name, "env": preset.env, "summary": preset.summary} for name, preset in PRESETS.items()]


def _surrogates() -> Rows:
    from jaxppo.losses import surrogates

    return [_entry(entry) for entry in surrogates.listing()]


def _advantages() -> Rows:
    from jaxppo import advantages

    return [_entry(entry) for entry in advantages.listing()]


def _distributions() -> Rows:
    from jaxppo.distributions import DISTRIBUTIONS

    return [_entry(entry) for entry in DISTRIBUTIONS.listing()]


KINDS: dict[str, Callable[[], Rows]] = {
    "envs": _envs,
    "presets": _presets,
    "surrogates": _surrogates,
    "advantages": _advantages,
    "distributions": _distributions,
}


def _entry(entry: Any) -> dict[str, Any]:
    """A registered surrogate or advantage estimator as JSON."""
    return {
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.paper,
        "continuous": entry.continuous,
        "requires": list(entry.requires),
        "numbers": dict(entry.numbers),
        "aliases": list(entry.aliases),
    }


def run(arguments: Sequence[str]) -> None:
    """Prints a list. Raises UserError for an unknown kind."""
    listing = command_line.parse(List, arguments, command="list")
    if not listing.kind:
        raise UserError(f"list what? {', '.join(KINDS)}")
    if listing.kind not in KINDS:
        raise unknown("list", listing.kind, KINDS)
    rows = KINDS[listing.kind]()
    if listing.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:{width}}  {_description(row)}".rstrip())


def _description(row: dict[str, Any]) -> str:
    if "playable" in row:
        return "" if row["playable"] else f"not playable: {row['reason']}"
    numbers = ", ".join(f"{name} {value}" for name, value in row.get("numbers", {}).items())
    texts = (
        row.get("env"),
        row.get("summary"),
        f"[{numbers}]" if numbers else "",
        row.get("paper"),
    )
    return "  ".join(text for text in texts if text)
