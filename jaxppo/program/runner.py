"""The host loop over chunks of updates: metrics out, checkpoints, evaluations, signals.

A chunk is one compiled program for up to `chunk_length` updates. How many of them the loop asks for follows the clock
and changes no number: the same updates run, whatever the chunks. Evaluations have keys of their own and fall on fixed
updates, so they change none either, and a resumed run evaluates where the uninterrupted one does.

Several processes go through this loop together. What follows the clock or a signal is agreed upon in their `Crew`.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxppo.config import PPOConfig
from jaxppo.environment import strongly_typed
from jaxppo.errors import UserError
from jaxppo.program import checkpoint, configuration
from jaxppo.program.checkpoint import Checkpoint
from jaxppo.program.configuration import RunConfig
from jaxppo.program.crew import ALONE, Crew
from jaxppo.program.metrics_table import MetricsTable, NoTable, Position, Row, Sink
from jaxppo.program.progress import Progress, Report
from jaxppo.program.run_directory import RunDirectory
from jaxppo.program.signals import Interrupted, Signals
from jaxppo.sharding import make_mesh, shardings, spec
from jaxppo.training import place_state
from jaxppo.types import Algorithm

PyTree = Any

CHUNK_SECONDS = 1.5  # work between two looks at the clock
SAVE_SHARE = 0.05  # most of the time that may go into checkpoints: chunks grow until one costs no more
LONGEST_CHUNK = 256  # updates
EVALUATION_STREAM = 0x65766131  # folded into the seed's key; far from the few that training splits from it
EVALUATION = ("evaluation_return", "evaluation_deviation", "evaluation_length", "evaluation_finished")


@dataclass(frozen=True)
class Switches:
    """How the process behaves; not part of the run."""

    profile: bool = False
    """Write a profiler trace of one chunk into the run directory (view it in TensorBoard or Perfetto)."""
    debug_nans: bool = False
    """Look for NaNs after each update and find the operation that makes the first one. Slow."""
    quiet: bool = False
    """Show no progress."""
    devices: int = 0
    """Devices that the environments are spread over; 0 for as many as there are and as divide the blocks."""
    processes: int = 1
    """Processes to start on this machine that train the run together (docs/devices.md)."""
    distributed: bool = False
    """This is one of several processes that a cluster or a script has started (docs/devices.md)."""


class Outcome(NamedTuple):
    """Where a run ended."""

    state: PyTree
    steps: int
    seconds: float
    report: Report | None


def build(run: RunConfig, mesh: Mesh | None = None) -> Algorithm:
    """The algorithm of a run. Raises UserError where environment, configuration and numbers do not fit."""
    from jaxppo.algorithms.ppo import ppo
    from jaxppo.envs import make

    configuration.check(run)
    return ppo(run.config, make(run.env, **run.env_parameters), mesh=mesh)


def choose_mesh(run: RunConfig, devices: int) -> Mesh | None:
    """A mesh of that many devices, 0 for as many as divide the blocks of environments; None for a single one.

    Several processes train on all devices of all of them. Raises UserError where there are not so many.
    """
    if jax.process_count() > 1:
        if devices not in (0, jax.device_count()):
            raise UserError(
                f"devices={devices}, but several processes train on all their devices, {jax.device_count()} here; "
                f"leave --devices out"
            )
        return make_mesh()
    if not devices:
        devices = max(k for k in range(1, len(jax.devices()) + 1) if run.config.num_blocks % k == 0)
    mesh = make_mesh(devices)
    return mesh if devices > 1 else None


def initial_state(algorithm: Algorithm, run: RunConfig, mesh: Mesh | None = None) -> PyTree:
    """The state before the first update, in its place."""

    def initialise(key):
        return place_state(algorithm, _initialise(algorithm, run)(key), mesh)

    return jax.jit(initialise)(jax.random.key(run.seed))


def state_template(algorithm: Algorithm, run: RunConfig) -> PyTree:
    """Shapes and types of the run's state."""
    return jax.eval_shape(_initialise(algorithm, run), jax.random.key(run.seed))


def _initialise(algorithm: Algorithm, run: RunConfig) -> Callable[[jax.Array], PyTree]:
    return lambda key: strongly_typed(algorithm.init(key, run.hyper))


def chunk_length(config: PPOConfig) -> int:
    """Updates that the compiled chunk has room for."""
    return max(1, min(LONGEST_CHUNK, config.num_updates))


def columns(algorithm: Algorithm, template: PyTree) -> tuple[str, ...]:
    """The columns of the run's metrics table."""
    _, metrics = jax.eval_shape(algorithm.update, template)
    return ("update", "steps", "seconds", *metrics, *EVALUATION)


class Runner:
    """Trains one run to its end: `Runner(...).train(state)`.

    directory: the run's, held by the leader of the crew. mesh: the one that `algorithm` was built with.
    table: open at the state's position; further sinks get the same rows.
    seconds: wall time that the run has taken before.
    """

    def __init__(
        self,
        run: RunConfig,
        algorithm: Algorithm,
        directory: RunDirectory,
        table: MetricsTable | NoTable,
        progress: Progress,
        *,
        switches: Switches = Switches(),
        mesh: Mesh | None = None,
        crew: Crew = ALONE,
        sinks: tuple[Sink, ...] = (),
        seconds: float = 0.0,
    ):
        self.run, self.algorithm, self.directory, self.table, self.mesh = run, algorithm, directory, table, mesh
        self.crew = crew
        self.progress, self.switches, self.sinks, self.seconds = progress, switches, sinks, seconds
        self._chunk = self._make_chunk()
        self._evaluate = jax.jit(
            functools.partial(algorithm.evaluate, mode=True, episodes=run.watch.episodes),
            out_shardings=None if mesh is None else NamedSharding(mesh, spec(None)),
        )
        self._score: float | None = None  # of the newest checkpoint's updates
        self._best = max((e.score for e in checkpoint.find(directory.checkpoints) if e.score is not None), default=None)
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._shown: dict[str, float] = {}  # the last known return, spread and length

    def train(self, state: PyTree) -> Outcome:
        """Runs the updates that are left, saves the end and returns it.

        Raises Interrupted after a signal (all is saved then), UserError for a NaN under `debug_nans`, OSError where
        the run cannot be saved.
        """
        if self.mesh is not None:
            state = self.crew.spread(state, shardings(self.mesh, self.algorithm.axes(state)))
        size = self.run.config.steps_per_update
        update, samples = int(state.updates), int(state.samples)
        last = update + max(0, -(-(self.run.config.total_steps - samples) // size))
        every = -(-self.run.watch.evaluate_every // size)
        self._saved_update = update  # a state that was read is saved already
        if self.crew.agree(not checkpoint.find(self.directory.checkpoints)):
            self._save(state)
        count, chunks, stop, report = 1, 0, 0, None
        with Signals() as signals:
            while update < last:
                stop = self.crew.highest(signals.received or 0)
                if stop:
                    break
                count = self.crew.agree(min(count, last - update, every - update % every if every else count))
                state, metrics, elapsed = self._advance(
                    state, count, trace=self.switches.profile and chunks == 1 and self.crew.leads
                )
                rows = self._rows(metrics, count, update, samples, elapsed)
                update, samples, chunks = update + count, samples + count * size, chunks + 1
                self._score = _mean(metrics, "episode_return", count)
                evaluation = None
                if every and (update % every == 0 or update == last):
                    evaluation = self._evaluation(state, update)
                    rows[-1].update(evaluation)
                if every:
                    self._score = evaluation["evaluation_return"] if evaluation else None
                if self._score is not None and not math.isfinite(self._score):
                    self._score = None  # a NaN is no score, and would be the best for ever
                for sink in (self.table, *self.sinks):
                    sink.write(rows)
                self._keep(state, final=update == last or signals.received is not None)
                report = self._report(metrics, count, samples, samples + (last - update) * size, elapsed, evaluation)
                self.progress.show(report if chunks > 1 else dataclasses.replace(report, compiled=elapsed))
                count = self._paced(count, elapsed)
        if self._saved_update != update:  # a signal may come between the decision to save and the end of the loop
            self._save(state)
        if stop:
            done = f"stopped at {samples:,} steps, saved"
            raise Interrupted(stop, f"{done}; `jaxppo resume {self.directory.path}` goes on")
        return Outcome(state, samples, self.seconds, report)

    def _paced(self, count: int, elapsed: float) -> int:
        """The updates of the next chunk, after one of `count` updates that took `elapsed` seconds."""
        wanted = max(CHUNK_SECONDS, self._save_seconds / SAVE_SHARE)
        return max(1, min(int(wanted * count / elapsed), 8 * count, chunk_length(self.run.config)))

    def _make_chunk(self) -> Callable[[PyTree, int], tuple[PyTree, PyTree]]:
        if self.switches.debug_nans:
            from jaxppo.program.debugging import watched_chunk

            return watched_chunk(self.algorithm)
        from jaxppo.training import make_chunk

        return make_chunk(self.algorithm, chunk_length(self.run.config), self.mesh)

    def _advance(self, state: PyTree, count: int, *, trace: bool) -> tuple[PyTree, PyTree, float]:
        """(state, metrics on the host, wall seconds) after `count` updates."""
        start = time.monotonic()
        if trace:
            jax.profiler.start_trace(self.directory.profile)
        state, metrics = self._chunk(state, count)
        metrics = jax.device_get(metrics)
        if trace:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
        return state, metrics, max(time.monotonic() - start, 1e-9)

    def _rows(self, metrics: PyTree, count: int, update: int, samples: int, elapsed: float) -> list[Row]:
        """One row for each of the `count` updates after `update`."""
        rows: list[Row] = []
        for i in range(count):
            row: Row = {
                "update": update + i + 1,
                "steps": samples + (i + 1) * self.run.config.steps_per_update,
                "seconds": self.seconds + elapsed * (i + 1) / count,
            }
            row |= {name: _value(mean.total[i], mean.count[i]) for name, mean in metrics.items()}
            rows.append(row | dict.fromkeys(EVALUATION))
        self.seconds += elapsed
        return rows

    def _evaluation(self, state: PyTree, update: int) -> dict[str, float]:
        start = time.monotonic()
        stream = jax.random.fold_in(jax.random.key(self.run.seed), EVALUATION_STREAM)
        result = jax.device_get(self._evaluate(state, jax.random.fold_in(stream, update)))
        self.seconds += time.monotonic() - start
        return summarise_evaluation(result)

    def _keep(self, state: PyTree, *, final: bool) -> None:
        """Saves `state` if it is the last, the best evaluated one so far, or time to."""
        score = self._score if self.run.watch.evaluate_every else None
        best = score is not None and (self._best is None or score > self._best)
        # A chunk of the usual length is always followed by a checkpoint; those that an evaluation cut short share one.
        usual = max(CHUNK_SECONDS, self._save_seconds / SAVE_SHARE) / 2
        due = time.monotonic() - self._saved_at >= max(self.run.watch.checkpoint_every, usual)
        if self.crew.agree(final or best or due):
            self._save(state)

    def _save(self, state: PyTree) -> None:
        start = time.monotonic()
        whole = self.crew.gather(state)
        if self.crew.leads:
            checkpoint.save(
                self.directory.checkpoints,
                whole,
                steps=int(state.samples),
                updates=int(state.updates),
                score=self._score if self._score is not None and math.isfinite(self._score) else None,
                extra={
                    "run": configuration.to_json(self.run),
                    "metrics": self.table.position._asdict(),
                    "seconds": self.seconds,
                },
            )
        if self._score is not None:
            self._best = self._score if self._best is None else max(self._best, self._score)
        self._saved_update = int(state.updates)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start

    def _report(
        self,
        metrics: PyTree,
        count: int,
        samples: int,
        total: int,
        elapsed: float,
        evaluation: Mapping[str, float] | None,
    ) -> Report:
        speed = count * self.run.config.steps_per_update / elapsed
        mean = _mean(metrics, "episode_return", count)
        if mean is not None:
            square = _mean(metrics, "episode_return_square", count)
            self._shown = {
                "episode_return": mean,
                "spread": 0.0 if square is None else math.sqrt(max(0.0, square - mean**2)),
                "episode_length": _mean(metrics, "episode_length", count) or 0.0,
            }
        return Report(samples, total, speed, (total - samples) / speed, evaluation=evaluation, **self._shown)


def summarise_evaluation(evaluation: Any) -> dict[str, float]:
    """The columns of an evaluation from its valid episodes; NaN where there is none."""
    valid = np.asarray(evaluation.valid, bool)
    if not valid.any():
        return dict.fromkeys(EVALUATION, math.nan)
    episodes = np.asarray(evaluation.episode_return, np.float64)[valid]
    return {
        "evaluation_return": float(episodes.mean()),
        "evaluation_deviation": float(episodes.std()),
        "evaluation_length": float(np.asarray(evaluation.episode_length)[valid].mean()),
        "evaluation_finished": float(np.asarray(evaluation.finished)[valid].mean()),
    }


def reopen(entry: Checkpoint, directory: RunDirectory, names: tuple[str, ...]) -> MetricsTable:
    """The run's metrics table, cut back to where the checkpoint `entry` was written. Raises UserError and OSError."""
    try:
        position = Position(**entry.extra["metrics"])
    except (KeyError, TypeError):
        raise UserError(f"{entry.path / 'manifest.json'} is damaged: it does not know the metrics table") from None
    return MetricsTable.reopen(directory.metrics, names, position)


def _value(total: float, count: float) -> float | None:
    return float(total) / float(count) if count > 0 else None


def _mean(metrics: PyTree, name: str, count: int) -> float | None:
    """The mean of a metric over the first `count` updates of a chunk; None where nothing was counted."""
    if name not in metrics:
        return None
    mean = metrics[name]
    return _value(np.sum(mean.total[:count], dtype=np.float64), np.sum(mean.count[:count], dtype=np.float64))
