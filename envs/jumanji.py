"""The single-agent environments of jumanji 1.1.2, with the ends of their episodes told apart.

jumanji calls every end a termination. Here each environment is built with its time limit noted and then moved out of
reach, so that whatever end the library still reports is a true one; the limit is counted beside it, from the step count
in the state, and a true end that falls on the limit stays a termination. FlatPack, whose limit is a rule of the game
and cannot be moved, is told apart by its state (see `_flat_pack_finished`).

Transitions draw from the key in the library's state (Game2048, PacMan, Snake and Tetris do), so `step` writes its own
key there first: two environments dealt the same pooled state part ways.

Observations are plain dicts of the library's fields, in the library's dtypes. A joint mask over several components
(Minesweeper, Sudoku, BinPack, FlatPack, Tetris) cannot be split into masks of the components, so there the action space
is `Discrete(product)`, row-major; JobShop masks each machine by itself and stays `MultiDiscrete`, as does RubiksCube,
which has no mask. FlatPack alone can present a mask without a valid action before the episode ends.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import jumanji.environments
import numpy as np
from jumanji import specs
from jumanji.environments.logic.graph_coloring.generator import RandomGenerator as GraphGenerator
from jumanji.environments.logic.minesweeper.generator import UniformSamplingGenerator
from jumanji.environments.logic.rubiks_cube.generator import ScramblingGenerator
from jumanji.environments.logic.sliding_tile_puzzle.generator import RandomWalkGenerator
from jumanji.environments.packing.bin_pack.generator import RandomGenerator as BinPackGenerator
from jumanji.environments.packing.flat_pack.generator import RandomFlatPackGenerator
from jumanji.environments.packing.job_shop.generator import RandomGenerator as JobShopGenerator
from jumanji.environments.packing.knapsack.generator import RandomGenerator as KnapsackGenerator
from jumanji.environments.routing.cvrp.generator import UniformGenerator as CVRPGenerator
from jumanji.environments.routing.maze.generator import RandomGenerator as MazeGenerator
from jumanji.environments.routing.tsp.generator import UniformGenerator as TSPGenerator

from jaxppo.environment import (
    Environment,
    EnvironmentSpec,
    Masked,
    Step,
    environment,
    split_mask,
    static_field,
    strongly_typed,
)
from jaxppo.envs.registry import Listing
from jaxppo.envs.wrappers import TimeLimit
from jaxppo.errors import UserError, unknown
from jaxppo.spaces import Box, Discrete, MultiDiscrete, Space

Array = jax.Array
PyTree = Any

_OUT_OF_REACH = np.iinfo(np.int32).max


def _flat_pack_finished(state: PyTree) -> Array:
    """Every block is placed, or none fits any more: no reward can follow. The other ends of FlatPack come from its
    budget of `num_blocks` steps, spent on illegal actions."""
    return jnp.asarray(state.placed_blocks.all() | ~state.action_mask.any())


@dataclasses.dataclass(frozen=True)
class _Entry:
    """How one registered environment is made.

    generator, defaults: the library's generator of instances, and its arguments as registered.
    reset: the strategy, as measured by experiments/reset_strategies.py (docs/results/resets.csv).
    component_masks: the mask has one row for each component of the action; otherwise it is over all combinations.
    finished: for an environment whose limit cannot be moved: the ends that are true ones.
    limit: where such an environment keeps its limit.
    unset: discrete fields of the observation that start as -1, against the library's own specification.
    """

    reset: str = "fresh"
    generator: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    component_masks: bool = False
    finished: Callable[[PyTree], Array] | None = None
    limit: str = "time_limit"
    unset: tuple[str, ...] = ()


_ENTRIES: Mapping[str, _Entry] = {
    "Game2048-v1": _Entry(reset="optimistic"),
    "GraphColoring-v1": _Entry(
        reset="pool", generator=GraphGenerator, defaults=dict(num_nodes=20, edge_probability=0.8)
    ),
    "Minesweeper-v0": _Entry(
        reset="pool", generator=UniformSamplingGenerator, defaults=dict(num_rows=10, num_cols=10, num_mines=10)
    ),
    "RubiksCube-v0": _Entry(
        reset="pool", generator=ScramblingGenerator, defaults=dict(cube_size=3, num_scrambles_on_reset=100)
    ),
    "RubiksCube-partly-scrambled-v0": _Entry(
        reset="pool", generator=ScramblingGenerator, defaults=dict(cube_size=3, num_scrambles_on_reset=7)
    ),
    "SlidingTilePuzzle-v0": _Entry(
        reset="pool", generator=RandomWalkGenerator, defaults=dict(grid_size=5, num_random_moves=200)
    ),
    "Sudoku-v0": _Entry(),
    "Sudoku-very-easy-v0": _Entry(),
    "BinPack-v2": _Entry(
        reset="pool",
        generator=BinPackGenerator,
        defaults=dict(max_num_items=20, max_num_ems=40, split_num_same_items=2),
    ),
    "FlatPack-v0": _Entry(
        reset="optimistic",
        generator=RandomFlatPackGenerator,
        defaults=dict(num_row_blocks=5, num_col_blocks=5),
        finished=_flat_pack_finished,
        limit="num_blocks",
    ),
    "JobShop-v0": _Entry(
        reset="pool",
        generator=JobShopGenerator,
        defaults=dict(num_jobs=20, num_machines=10, max_num_ops=8, max_op_duration=6),
        component_masks=True,
    ),
    "Knapsack-v1": _Entry(
        reset="optimistic", generator=KnapsackGenerator, defaults=dict(num_items=50, total_budget=12.5)
    ),
    "Tetris-v0": _Entry(reset="optimistic"),
    "CVRP-v1": _Entry(
        reset="optimistic", generator=CVRPGenerator, defaults=dict(num_nodes=20, max_capacity=30, max_demand=10)
    ),
    "Maze-v0": _Entry(reset="pool", generator=MazeGenerator, defaults=dict(num_rows=10, num_cols=10)),
    "PacMan-v1": _Entry(),
    "Snake-v1": _Entry(reset="pool"),
    "TSP-v1": _Entry(generator=TSPGenerator, defaults=dict(num_cities=20), unset=("position",)),
}

_MULTI_AGENT = frozenset(
    "Cleaner-v0 Connector-v3 LevelBasedForaging-v0 MMST-v0 MultiCVRP-v0 RobotWarehouse-v0 SearchAndRescue-v0".split()
)
_NEEDS_DOWNLOAD = {"Sokoban-v0": "needs a download: its levels (InstaDeepAI/boxoban-levels) come from Hugging Face"}


def listing() -> list[Listing]:
    """Every environment that the installed jumanji registers, playable or with the reason why not."""

    def reason(name: str) -> str:
        if name in _ENTRIES:
            return ""
        if name in _MULTI_AGENT:
            return "multi-agent: not yet"
        return _NEEDS_DOWNLOAD.get(name, "not known to this adapter, which was written for jumanji 1.1.2")

    return [Listing(name, name in _ENTRIES, reason(name)) for name in sorted(jumanji.registered_environments())]


@dataclasses.dataclass(frozen=True, eq=False)
class _Game:
    """The constants of one environment; compared by identity, as part of the structure of `Jumanji`.

    components: sizes of the action's components where a joint mask made them one; otherwise empty.
    """

    library: Any
    spec: EnvironmentSpec
    components: tuple[int, ...]
    finished: Callable[[PyTree], Array] | None


@environment
class Jumanji:
    """One jumanji environment. It has no leaves: the parameters fix shapes, or are constants of the library's code."""

    game: _Game = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        return self.game.spec

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The state is the library's own."""
        state, first = self.game.library.reset(key)
        return strongly_typed(state), self._observe(first.observation)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        """The library's transition under `key`, in the dtypes of `state`."""
        if self.game.components:
            action = jnp.stack(jnp.unravel_index(action, self.game.components))
        next_state, timestep = self.game.library.step(state.replace(key=key), action)
        next_state = jax.tree.map(lambda new, old: jax.lax.convert_element_type(new, old.dtype), next_state, state)

        terminated = timestep.last()
        if self.game.finished is not None:
            terminated &= self.game.finished(next_state)
        truncated = jnp.zeros((), bool)
        if self.spec.time_limit is not None:
            truncated = (next_state.step_count >= self.spec.time_limit) & ~terminated
        reward = strongly_typed(jnp.asarray(timestep.reward, jnp.float32))
        return next_state, Step(self._observe(timestep.observation), reward, terminated, truncated)

    def _observe(self, observation: PyTree) -> PyTree:
        view = strongly_typed(_plain(observation))
        mask = view.pop("action_mask", None)
        return view if mask is None else Masked(view, mask.reshape(-1))


def make(name: str, **parameters: Any) -> Environment:
    """The environment that jumanji registers as `name`.

    Parameters are those of the library's constructor and of its generator of instances, by name: sizes, `time_limit`,
    probabilities. From Python a `generator` or a `reward_fn` object of the library can be given as well. A `time_limit`
    for an environment that has none is the wrapper's.
    """
    entries = {listed.name: listed for listed in listing()}
    if name not in entries:
        raise unknown("jumanji environment", name, entries)
    if not entries[name].playable:
        raise UserError(f"jumanji/{name} cannot be played: {entries[name].reason}")
    entry, own = _ENTRIES[name], dict(parameters)
    wanted = _time_limit(name, parameters)
    if "time_limit" not in _defaults(_constructor(name)):
        own.pop("time_limit", None)
    library = _build(name, entry, own)

    limit = getattr(library, entry.limit, None)
    observation = _space(library.observation_spec)
    observation |= {field: Box((), -1.0, observation[field].n - 1.0, np.dtype(np.int32)) for field in entry.unset}
    masked = observation.pop("action_mask", None) is not None
    sizes = tuple(int(n) for n in np.atleast_1d(library.action_spec.num_values))
    joint = masked and len(sizes) > 1 and not entry.component_masks
    action: Space = Discrete(math.prod(sizes)) if joint or len(sizes) == 1 else MultiDiscrete(sizes)
    spec = EnvironmentSpec(f"jumanji/{name}", observation, action, masked=masked, time_limit=limit, reset=entry.reset)
    if hasattr(library, "time_limit"):
        library.time_limit = _OUT_OF_REACH
    env = Jumanji(_Game(library, spec, sizes if joint else (), entry.finished))
    _check_shapes(env, parameters)
    if wanted is None or wanted == limit:
        return env
    if limit is not None:
        raise UserError(f"jumanji/{name} fixes its time limit at {limit}; time_limit={wanted} is not possible")
    return TimeLimit(env, time_limit=wanted)


def _constructor(name: str) -> Callable[..., Any]:
    """The library's class; every identifier starts with its name."""
    return getattr(jumanji.environments, name.split("-")[0])


def _build(name: str, entry: _Entry, parameters: Mapping[str, Any]) -> Any:
    """The library's environment, with each parameter given to whom it belongs."""
    own = _defaults(_constructor(name))
    generated = {} if entry.generator is None else _defaults(entry.generator) | dict(entry.defaults)
    for parameter, value in parameters.items():
        if parameter not in own | generated:
            raise unknown(f"parameter of jumanji/{name}", parameter, {*own, *generated, "time_limit"})
        _check(name, parameter, value, (generated | own)[parameter])
    clash = sorted(parameters.keys() & generated.keys()) if "generator" in parameters else []
    if clash:
        raise UserError(f"jumanji/{name}: {', '.join(clash)} and a generator were given; set it in the generator")

    given = {parameter: value for parameter, value in parameters.items() if parameter in own}
    try:
        if entry.generator is not None and "generator" not in parameters:
            chosen = {p: parameters.get(p, default) for p, default in generated.items()}
            given["generator"] = entry.generator(**chosen)
        library = jumanji.make(name, **given)
        jax.eval_shape(library.reset, jax.random.key(0))  # some sizes fail only here
    except (ValueError, TypeError, AssertionError, ZeroDivisionError, IndexError) as error:
        raise UserError(f"jumanji/{name} refuses {dict(parameters)}: {str(error).splitlines()[0]}") from error
    return library


def _defaults(constructor: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a constructor, with their defaults (None where there is none)."""
    known = inspect.signature(constructor).parameters.values()
    values = {p.name: None if p.default is p.empty else p.default for p in known}
    return {name: value for name, value in values.items() if name not in ("self", "viewer", "debug")}


_OBJECTS = ("generator", "reward_fn", "reward_function", "done_function", "observation", "target_dynamics")
"""Parameters that are the library's own objects: no number or word on a command line can be one."""


def _check(name: str, parameter: str, value: Any, default: Any) -> None:
    """Refuses a value of the wrong kind, which the library would let through and then misread."""
    if parameter in _OBJECTS and isinstance(value, (bool, int, float, str, tuple, list)):
        raise UserError(f"{parameter}={value!r} of jumanji/{name} must be an object of the library, from Python")
    whole = isinstance(default, int) and not isinstance(default, bool)
    if whole and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
        raise UserError(f"{parameter}={value!r} of jumanji/{name} must be a whole number")
    if isinstance(value, (int, float)) and not 0 <= value < math.inf:
        raise UserError(f"{parameter}={value!r} of jumanji/{name} must be finite and not negative")


def _time_limit(name: str, parameters: Mapping[str, Any]) -> int | None:
    """The limit asked for. (The library's Maze takes 0 for its default, and most others never check.)"""
    if "time_limit" not in parameters:
        return None
    value = parameters["time_limit"]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 < value < _OUT_OF_REACH:
        raise UserError(f"time_limit={value!r} of jumanji/{name} must be a whole number of steps, at least 1")
    return int(value)


def _check_shapes(env: Jumanji, parameters: Mapping[str, Any]) -> None:
    """Refuses parameters that do not fit each other, which the library builds all the same (BinPack: more empty spaces
    observed than there can be)."""
    first = jax.eval_shape(env.reset, jax.random.key(0))[1]
    view, mask = split_mask(env.spec, first)
    shapes = [leaf.shape for leaf in jax.tree.leaves(view)] + ([mask.shape] if mask is not None else [])
    spaces = jax.tree.leaves(env.spec.observation, is_leaf=lambda node: isinstance(node, (Box, Discrete)))
    expected = [space.shape for space in spaces]
    if mask is not None and not isinstance(env.spec.action, Box):
        expected.append((env.spec.action.num_logits,))
    if shapes != expected:
        raise UserError(f"{env.spec.name}: the sizes {dict(parameters)} do not fit each other")


def _plain(tree: PyTree) -> PyTree:
    """Named tuples and the library's dataclasses as dicts, all the way down."""
    if hasattr(tree, "_asdict"):
        return {name: _plain(value) for name, value in tree._asdict().items()}
    if dataclasses.is_dataclass(tree):
        return {field.name: _plain(getattr(tree, field.name)) for field in dataclasses.fields(tree)}
    return tree


def _space(spec: specs.Spec) -> PyTree:
    """The space of an observation's field; a dict of spaces for a nested one.

    A count of steps is a `Box`, although some environments call it discrete: at the end it equals its limit.
    """
    if not isinstance(spec, specs.Array):
        return {field: _space(inner) for field, inner in vars(spec).items() if isinstance(inner, specs.Spec)}
    if isinstance(spec, specs.DiscreteArray):
        counts = spec.name == "step_count"
        return Box((), 0.0, float(spec.num_values), np.dtype(spec.dtype)) if counts else Discrete(spec.num_values)
    bounds = (_bound(spec.minimum), _bound(spec.maximum)) if isinstance(spec, specs.BoundedArray) else ()
    return Box(spec.shape, *bounds, dtype=np.dtype(spec.dtype))


def _bound(bound: Any) -> float | tuple[float, ...]:
    values = np.asarray(bound, np.float32)
    return float(values) if values.ndim == 0 else tuple(values.ravel().tolist())
