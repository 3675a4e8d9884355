"""What goes wrong because of what the user asked for, said in the user's words."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A request that cannot be met: what was wrong, where, and what would be right, in one line.

    The command line prints it without a traceback and leaves with exit code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """The error for a name that is not among `known`, with the nearest ones."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not near:
        near = [k for k in known if name.lower() in k.lower() or k.lower().endswith(name.lower())][:3]
    suggestion = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known[:12])}"
    if not near and len(known) > 12:
        suggestion += f" and {len(known) - 12} more"
    return UserError(f"unknown {kind} {name!r}{suggestion}{' ' + hint if hint else ''}")
