import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.environment import EnvironmentSpec, Masked, Step, environment, static_field
from jaxppo.envs import ActionRepeat, FlattenObservation, FrameStack, RescaleAction, TimeLimit, make
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete, MultiDiscrete


@environment
class Endless:
    """A masked environment with a nested observation and no limit: the count, as a picture and as a choice."""

    low: float = -2.0
    high: float = 6.0
    cost_fields: tuple = static_field(default=("cost",))

    @property
    def spec(self):
        view = {
            "picture": Box((2, 3, 1), 0.0, 255.0, np.dtype(np.uint8)),
            "choice": Discrete(4),
            "pair": MultiDiscrete((2, 3)),
        }
        return EnvironmentSpec("test/endless", view, Box((2,), -2.0, 6.0), masked=True, cost_fields=self.cost_fields)

    def reset(self, key):
        return jnp.int32(0), self._observe(jnp.int32(0))

    def step(self, key, state, action):
        t = state + 1
        extras = {"cost": jnp.float32(1.0), "action": action}
        return t, Step(self._observe(t), t.astype(jnp.float32), jnp.bool_(False), jnp.bool_(False), extras)

    def _observe(self, t):
        view = {
            "picture": jnp.full((2, 3, 1), t, jnp.uint8),
            "choice": t % 4,
            "pair": jnp.stack([t % 2, t % 3]),
        }
        return Masked(view, jnp.arange(4) <= t)


def after(env, action, steps=1):
    state, _ = env.reset(jax.random.key(0))
    for _ in range(steps):
        state, step = env.step(jax.random.key(0), state, action)
    return step


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: TimeLimit(env, 3),
        lambda env: ActionRepeat(env, 3),
        RescaleAction,
        lambda env: FrameStack(env, 3),
        FlattenObservation,
        lambda env: FlattenObservation(FrameStack(RescaleAction(ActionRepeat(TimeLimit(env, 7), 2)), 2)),
    ],
)
def test_contract(wrap, check_contract):
    check_contract(wrap(jax.tree.map(jnp.float32, Endless())))


def test_time_limit():
    env = TimeLimit(Endless(), 3)
    assert env.spec.time_limit == 3
    assert [bool(after(env, jnp.zeros(2), n).truncated) for n in (1, 2, 3)] == [False, False, True]


def test_action_repeat_sums_rewards_and_costs():
    env = ActionRepeat(Endless(), 3)
    step = after(env, jnp.zeros(2), 2)
    assert step.reward == 4 + 5 + 6 and step.extras["cost"] == 3
    assert step.observation.view["picture"].max() == 6


def test_action_repeat_stops_at_the_end():
    """Counting rewards 0, 1, 2, …; the limit of 7 falls into the third group of 3, whose first step ends it."""
    env = make("jaxppo/counting", time_limit=7, life=7, action_repeat=3)
    assert env.spec.time_limit == 3
    rewards = [float(after(env, jnp.int32(0), n).reward) for n in (1, 2, 3)]
    assert rewards == [0 + 1 + 2, 3 + 4 + 5, 6]
    last = after(env, jnp.int32(0), 3)
    assert (last.truncated | last.terminated) and last.observation[1] == 7


def test_rescale_action_maps_the_corners_and_clips():
    env = RescaleAction(Endless())
    assert env.spec.action == Box((2,), -1.0, 1.0)
    for given, taken in (([-1, 1], [-2, 6]), ([0, -9], [2, -2])):
        np.testing.assert_allclose(after(env, jnp.array(given, jnp.float32)).extras["action"], taken)


@pytest.mark.parametrize("name", ["jaxppo/cartpole", "jaxppo/lqr"])
def test_rescale_action_needs_bounds(name):
    with pytest.raises(UserError, match="finite bounds"):
        make(name, rescale_action=True)


def test_frame_stack_holds_the_last_frames_newest_at_the_end():
    env = FrameStack(Endless(), 3)
    assert env.spec.observation["picture"] == Box((2, 3, 3), 0.0, 255.0, np.dtype(np.uint8))
    assert env.spec.observation["choice"] == MultiDiscrete((4, 4, 4))
    assert env.spec.observation["pair"] == MultiDiscrete((2, 3) * 3)
    _, first = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(first.view["picture"], 0)
    view = after(env, jnp.zeros(2), 5).observation.view
    np.testing.assert_array_equal(view["picture"][0, 0], [3, 4, 5])
    np.testing.assert_array_equal(view["choice"], [3, 0, 1])
    np.testing.assert_array_equal(view["pair"], [1, 0, 0, 1, 1, 2])


def test_masks_pass_through():
    for env in (FrameStack(Endless(), 2), FlattenObservation(Endless()), ActionRepeat(Endless(), 2)):
        observation = after(env, jnp.zeros(2)).observation
        np.testing.assert_array_equal(
            observation.action_mask, np.arange(4) <= (2 if isinstance(env, ActionRepeat) else 1)
        )


def test_flatten_is_the_leaves_in_order():
    env = FlattenObservation(Endless())
    assert env.spec.observation.shape == (4 + 5 + 6,)
    low, high = env.spec.observation.bounds()
    np.testing.assert_array_equal(low, 0.0)
    np.testing.assert_array_equal(high, [1.0] * 9 + [255.0] * 6)
    flat = after(env, jnp.zeros(2), 2).observation.view
    np.testing.assert_array_equal(flat, [0, 0, 1, 0] + [1, 0] + [0, 0, 1] + [2] * 6)


def test_stacked_bounds_follow_the_frames():
    spec = make("jaxppo/counting", frame_stack=2).spec.observation
    np.testing.assert_array_equal(spec.bounds()[1], [2**20, 10, 2**20, 10])


def test_leaves_of_what_is_wrapped_can_be_swept(play):
    env = make("jaxppo/time_limit", frame_stack=2, action_repeat=2, flatten=True)

    def reward(value):
        swept = jax.tree.map(lambda _: value, env)
        return swept.step(jax.random.key(0), swept.reset(jax.random.key(0))[0], jnp.int32(0))[1].reward

    np.testing.assert_array_equal(jax.vmap(reward)(jnp.array([1.0, 2.0])), [2.0, 4.0])
