"""jaxppo eval: play episodes with a trained policy."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import tyro

from jaxppo.errors import UserError
from jaxppo.program import arguments as command_line
from jaxppo.program import checkpoint, runner
from jaxppo.program.commands.choose import chosen
from jaxppo.program.run_directory import RunDirectory


@dataclass(frozen=True)
class Evaluate:
    """Play episodes with the policy of a run."""

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: int = 64
    """Episodes to play, at the same time."""
    stochastic: bool = False
    """Draw actions from the policy instead of taking its mode."""
    checkpoint: Literal["last", "best"] = "last"
    """Which checkpoint to play."""
    seed: int = 0
    """Seed of the episodes."""
    json: bool = False
    """Print one JSON object with every episode."""


def run(arguments: Sequence[str]) -> None:
    """Evaluates a run and prints the result. Raises UserError."""
    evaluate = command_line.parse(Evaluate, arguments, command="eval")
    if evaluate.episodes < 1:
        raise UserError(f"episodes={evaluate.episodes} must be at least 1")
    if not 0 <= evaluate.seed < 2**32:
        raise UserError(f"seed={evaluate.seed} must be between 0 and 2^32 - 1")
    directory = RunDirectory(evaluate.run)
    recorded = directory.read()
    entry = chosen(directory, evaluate.checkpoint)
    algorithm = runner.build(recorded)
    state = checkpoint.load(entry, runner.state_template(algorithm, recorded))
    play = jax.jit(functools.partial(algorithm.evaluate, mode=not evaluate.stochastic, episodes=evaluate.episodes))
    result = jax.device_get(play(state, jax.random.key(evaluate.seed)))
    valid = np.asarray(result.valid, bool)
    if not valid.any():
        raise UserError(f"{recorded.env} gave a NaN or an infinity in each of the {len(valid)} episodes")
    returns = np.asarray(result.episode_return, np.float64)[valid]
    lengths, finished = np.asarray(result.episode_length)[valid], np.asarray(result.finished, bool)[valid]
    if evaluate.json:
        episodes = {"episode_return": returns.tolist(), "episode_length": lengths.tolist()}
        summary = {"run": str(evaluate.run), "steps": entry.steps, "stochastic": evaluate.stochastic}
        ends = {"finished": finished.tolist(), "invalid_episodes": int((~valid).sum())}
        print(json.dumps({**summary, **episodes, **ends}))
        return
    print(
        f"return {returns.mean():.5g} ± {returns.std():.3g} (from {returns.min():.5g} to {returns.max():.5g}), length "
        f"{lengths.mean():.4g}, {finished.sum()} of {len(finished)} episodes finished; "
        f"{'stochastic' if evaluate.stochastic else 'mode'} policy at {entry.steps:,} steps"
        f"{f'; left out: {(~valid).sum()} that met a NaN' if not valid.all() else ''}"
    )
