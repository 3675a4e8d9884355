"""docs/catalogue.md from the registries: what there is, where it comes from, what it needs.

python -m experiments.catalogue            # write
python -m experiments.catalogue --check    # exit 1 if the committed page is not what this would write
"""

import sys
from pathlib import Path

from jaxppo.advantages import ADVANTAGES
from jaxppo.distributions import DISTRIBUTIONS
from jaxppo.losses import SURROGATES
from jaxppo.registry import Registry

PAGE = Path(__file__).parents[1] / "docs" / "catalogue.md"


def section(registry: Registry) -> str:
    """One Markdown table, a row for each entry."""
    rows = [
        f"## {registry.kind.capitalize()}s",
        "",
        "| name | what it is | numbers | needs | actions | source |",
        "|---|---|---|---|---|---|",
    ]
    for entry in registry.listing():
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
        numbers = ", ".join(f"{k}={'–' if v is None else v}" for k, v in entry.numbers.items()) or "–"
        needs = ", ".join(sorted(entry.requires)) or "–"
        source = entry.paper + ("" if entry.verified else " (formula not verified)")
        summary = entry.summary.replace("|", "\\|")
        rows.append(
            f"| {names} | {summary} | {numbers} | {needs} | {'any' if entry.continuous else 'discrete'} | {source} |"
        )
    return "\n".join(rows) + "\n"


def page() -> str:
    return "\n".join(
        [
            "# Catalogue",
            "",
            "Written by `python -m experiments.catalogue` from the registries; a test keeps it true.",
            "",
            *(section(registry) for registry in (SURROGATES, ADVANTAGES, DISTRIBUTIONS)),
        ]
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
