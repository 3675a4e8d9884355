"""The environments of gymnax 1.x.

`step` here is the library's `step_env`, which knows nothing of resets; its own `step` would start a new episode. It
gives the natural end; the time limit is asked of `is_truncated`, with the limit written into the parameters. An end
that falls on the limit is a termination.

Numeric fields of the library's `EnvParams` are the leaves, so they can be traced: `make("gymnax/CartPole-v1",
gravity=12.0)`. Arguments of the environment's constructor are static: `make("gymnax/Catch-bsuite", rows=12)`. The
bounds in the spec are those of the parameters given to `make`; they do not follow a leaf that is changed later.

Two habits of the library to know: `CartPole-v1` keeps `total_mass` and `polemass_length` as parameters of their own,
which do not follow `masspole`; and `MemoryChain-bsuite` returns the observation of before the step, by design. MinAtar
draws in zeros and ones and returns float32; here it is bool, a quarter of the memory in a rollout.
"""

import dataclasses
import functools
import inspect
from importlib.metadata import version
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field, strongly_typed
from jaxppo.envs.carry import carry_types, cast
from jaxppo.envs.leaves import like, with_parameters
from jaxppo.envs.registry import Listing, check_parameters
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete, Space

PyTree = Any

_LIMIT = "max_steps_in_episode"
_UNPLAYABLE = {
    "MNISTBandit-bsuite": "needs a download: gymnax fetches the MNIST images when it makes the environment",
}
_RESETS = {"SimpleBandit-bsuite": "optimistic", "Swimmer-misc": "pool"}
"""The strategies that are not `fresh`, as measured by experiments/reset_strategies.py (docs/results/resets.csv)."""


def listing() -> list[Listing]:
    """Every environment that the installed gymnax registers."""
    _check_version()
    return [Listing(name, name not in _UNPLAYABLE, _UNPLAYABLE.get(name, "")) for name in gymnax.registered_envs]


@dataclasses.dataclass(frozen=True, eq=False)
class _Game:
    """The constants of one environment; compared by identity, as part of the structure of `Gymnax`.

    library: gymnax's environment; defaults: its parameters, with the time limit; types: of (state, observation).
    """

    library: Any
    defaults: Any
    spec: EnvironmentSpec
    types: PyTree


@environment
class Gymnax:
    """One gymnax environment. `params`: the numeric fields of its `EnvParams` by name, without the time limit."""

    params: dict[str, Array]
    game: _Game = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        return self.game.spec

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The state is the library's own."""
        observation, state = self.game.library.reset_env(key, self._params())
        return cast((state, observation), self.game.types)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        params = self._params()
        observation, state, reward, terminated, _ = self.game.library.step_env(key, state, action, params)
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = jnp.asarray(self.game.library.is_truncated(state, params), bool).reshape(()) & ~terminated
        reward = jnp.asarray(reward).astype(jnp.float32).reshape(())
        state, observation = cast((state, observation), self.game.types)
        return state, Step(observation, reward, terminated, truncated)

    def _params(self) -> Any:
        return self.game.defaults.replace(**self.params)


def make(name: str, *, time_limit: int | None = None, **values: Any) -> Gymnax:
    """The environment that gymnax registers as `name`; `values` as in the module's docstring."""
    _check_version()
    factory = gymnax.registration._registry[name]
    static = set(inspect.signature(factory).parameters) - {"args", "kwargs"}
    given = {parameter: _tuple(value) for parameter, value in values.items() if parameter in static}
    leaves = {parameter: value for parameter, value in values.items() if parameter not in static}
    with jax.ensure_compile_time_eval():  # the constants outlive a trace in which `make` may be called
        try:
            library = _construct(name, **given)
            params = _numeric(library.default_params)
            check_parameters(f"gymnax/{name}", leaves, {*params, *static})
            for parameter, value in leaves.items():
                like(parameter, f"gymnax/{name}", params[parameter], value)
            concrete = tuple(
                (p, _tuple(np.asarray(v, np.float32).tolist()))
                for p, v in sorted(leaves.items())
                if not isinstance(v, Tracer)
            )
            game = _game(name, library, time_limit, concrete)
        except UserError:
            raise
        except (TypeError, ValueError, AssertionError, ArithmeticError, IndexError) as error:
            raise UserError(f"gymnax/{name} refuses {values}: {str(error).splitlines()[0]}") from error
    return with_parameters(Gymnax(params, game), **leaves)  # type: ignore[return-value]


@functools.cache
def _construct(name: str, **given: Any) -> Any:
    """gymnax's environment, one for each choice: equal choices are one structure for jit."""
    library, _ = gymnax.make(name, **given)
    for method in ("step_env", "reset_env", "is_truncated"):
        if not hasattr(library, method):
            raise UserError(f"gymnax/{name} has no {method}: it is not an environment of gymnax 1.x")
    return library


@functools.cache
def _game(name: str, library: Any, time_limit: int | None, values: tuple[tuple[str, Any], ...]) -> _Game:
    """What follows from the structure and, for the bounds of the spaces, from the parameter values."""
    own_limit = getattr(library.default_params, _LIMIT)
    limit = int(own_limit) if time_limit is None else time_limit
    defaults = library.default_params.replace(**{_LIMIT: type(own_limit)(limit)})
    numeric = _numeric(defaults)
    params = defaults.replace(**{**numeric, **{p: jnp.asarray(v, numeric[p].dtype) for p, v in values}})
    action = _space(library.action_space(params))

    def reset(key):
        observation, state = library.reset_env(key, params)
        return state, observation

    def step(key, state, action):
        outcome = library.step_env(key, state, action, params)
        return outcome[1], outcome[0]

    types = carry_types(reset, step, jax.ShapeDtypeStruct(action.shape, action.dtype))
    if not type(library).__module__.startswith("gymnax."):
        _check_step(name, library, params, types[0], action)
    if name.endswith("-MinAtar"):
        types = types[0], jax.ShapeDtypeStruct(types[1].shape, bool)
    observation = _observation_space(library.observation_space(params), types[1])
    strategy = _RESETS.get(name, "fresh")
    spec = EnvironmentSpec(f"gymnax/{name}", observation, action, time_limit=limit, reset=strategy)
    return _Game(library, defaults, spec, types)


def _check_version() -> None:
    installed = version("gymnax")
    if int(installed.split(".")[0]) < 1:
        raise UserError(
            f"gymnax {installed} does not tell truncation from termination; pip install 'jaxppo[gymnax]' (1.0 or later)"
        )


def _check_step(name: str, library: Any, params: Any, state: PyTree, action: Space) -> None:
    """The six-tuple of gymnax 1.x, with the final observation; asked once, for environments from elsewhere."""
    key = jax.random.key(0)
    given = jax.ShapeDtypeStruct(action.shape, action.dtype)
    outcome = jax.eval_shape(lambda state, action: library.step(key, state, action, params), state, given)
    if len(outcome) != 6 or "final_observation" not in outcome[-1]:
        raise UserError(f"gymnax/{name} does not step as gymnax 1.x does: {len(outcome)} values instead of 6")


def _numeric(params: Any) -> dict[str, Array]:
    """The parameters that are leaves, as arrays."""
    fields = [f.name for f in dataclasses.fields(params) if f.metadata.get("pytree_node", True) and f.name != _LIMIT]
    return strongly_typed({name: getattr(params, name) for name in fields})


def _tuple(nested: Any) -> Any:
    """A hashable form of nested lists."""
    return tuple(map(_tuple, nested)) if isinstance(nested, list) else nested


def _space(space: Any) -> Space:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    return _box(space, tuple(space.shape), np.dtype(np.float32))


def _observation_space(space: Any, types: PyTree) -> PyTree:
    """The library's bounds on what it really returns: MinAtar declares float32 and gives bool."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "shape"):
        return _box(space, types.shape, types.dtype)
    return jax.tree.map(lambda leaf: Box(leaf.shape, dtype=np.dtype(leaf.dtype)), types)


def _box(space: Any, shape: tuple[int, ...], dtype: Any) -> Box:
    try:
        bounds = [np.broadcast_to(_infinite(b), shape).ravel() for b in (space.low, space.high)]
    except ValueError:  # declared for another shape than the one returned
        return Box(shape, dtype=np.dtype(dtype))
    low, high = (float(b[0]) if (b == b[0]).all() else tuple(map(float, b)) for b in bounds)
    return Box(shape, low, high, np.dtype(dtype))


def _infinite(bound: Any) -> np.ndarray:
    """The largest float32 stands for no bound."""
    bound = np.asarray(bound, np.float32)
    return np.where(np.abs(bound) >= np.finfo(np.float32).max, np.copysign(np.inf, bound), bound)
