"""One registry for everything that is swapped by name: surrogates, advantage estimators, distributions, …

An entry is a function and a row of facts about it. Entries come from inside, from a decorator in the user's script, or
from another installed package through an entry point (group `jaxppo.<kind>s`), and are treated alike.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from jaxppo.errors import UserError, unknown


@dataclass(frozen=True)
class Entry:
    """A registered function and its facts.

    name: the key; full names decide, acronyms clash.
    function: what is called.
    paper: title and number of the source.
    summary: first line of the function's docstring.
    continuous: valid for continuous actions. False where a probability must be at most 1.
    requires: names of what the recipe must provide beyond the usual (see `jaxppo.losses.surrogates.REQUIREMENTS`).
    numbers: its hyperparameters with their defaults: the keyword-only arguments that have one.
    verified: the formula was read in the paper or in its authors' code; False: from second hand or memory.
    aliases: other names of the same function.
    facts: what only one kind of entry has.
    """

    name: str
    function: Callable[..., Any]
    paper: str
    summary: str
    continuous: bool
    requires: frozenset[str]
    numbers: dict[str, Any]
    verified: bool
    aliases: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def resolve(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """All hyperparameters: the defaults, overwritten by `numbers`. Raises UserError for an unknown one."""
        for name in numbers:
            if name not in self.numbers:
                known = ", ".join(self.numbers) or "none"
                raise UserError(f"{self.name} has no number {name!r}; it has: {known}")
        return {**self.numbers, **numbers}

    @property
    def keywords(self) -> frozenset[str]:
        """Keyword-only arguments without a default: what the recipe hands in (state, key, gamma, …)."""
        parameters = inspect.signature(self.function).parameters.values()
        return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


class Registry:
    """Named entries of one kind."""

    def __init__(self, kind: str, requirements: frozenset[str] = frozenset()):
        self.kind = kind
        self.requirements = requirements
        self._entries: dict[str, Entry] = {}
        self._names: dict[str, str] = {}
        self._discovered = False

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        continuous: bool = True,
        requires: tuple[str, ...] = (),
        verified: bool = True,
        aliases: tuple[str, ...] = (),
        **facts: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator. Raises UserError where the name is taken by another function or a requirement is unknown."""
        for requirement in requires:
            if requirement not in self.requirements:
                raise unknown(f"requirement of {self.kind} {name}", requirement, self.requirements)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            parameters = inspect.signature(function).parameters.values()
            numbers = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
            summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
            entry = Entry(
                name, function, paper, summary, continuous, frozenset(requires), numbers, verified, aliases, facts
            )
            for key in (name, *aliases):
                taken = self._names.get(key)
                # A notebook cell that is run twice registers the same name again: that replaces its own entry.
                if taken is not None and _place(self._entries[taken].function) != _place(function):
                    raise UserError(f"{self.kind} {key!r} is already registered")
            self._entries[name] = entry
            self._names.update(dict.fromkeys((name, *aliases), name))
            return function

        return decorate

    def _discover(self) -> None:
        if not self._discovered:
            self._discovered = True
            for point in entry_points(group=f"jaxppo.{self.kind}s"):
                try:
                    point.load()  # importing it runs its decorators
                except Exception as error:
                    raise UserError(f"entry point {point.name} of {point.group} cannot be loaded: {error}") from error

    def get(self, name: str) -> Entry:
        """The entry called `name`, or by one of its aliases. Raises UserError with the nearest names."""
        self._discover()
        if name not in self._names:
            raise unknown(self.kind, name, self._names)
        return self._entries[self._names[name]]

    def listing(self) -> list[Entry]:
        """All entries, by name."""
        self._discover()
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self.listing())
