"""Which checkpoint of a run a command takes."""

from jaxppo.errors import UserError
from jaxppo.program import checkpoint
from jaxppo.program.checkpoint import Checkpoint
from jaxppo.program.run_directory import RunDirectory


def chosen(directory: RunDirectory, which: str) -> Checkpoint:
    """The `last` checkpoint of a run, or the `best` by return (the last where no return is known).

    Raises UserError where the run has none.
    """
    found = checkpoint.find(directory.checkpoints)
    if not found:
        raise UserError(f"{directory.path} has no checkpoint yet")
    return (checkpoint.best(found) or found[-1]) if which == "best" else found[-1]
