import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.envs import make, with_parameters
from jaxppo.envs.cartpole import balance


def test_balance_attains_the_limit(play):
    _, _, step = play(make("jaxppo/cartpole"), steps=500, envs=64, policy=balance)
    assert not step.terminated.any()
    assert step.truncated[-1].all() and not step.truncated[:-1].any()
    np.testing.assert_array_equal(step.reward.sum(0), 500.0)


def test_a_step_equals_gyms():
    """One step from (0.02, −0.3, 0.05, 0.4), pushed right; computed by hand in float64 with Gym's formulas."""
    x, x_dot, theta, theta_dot = 0.02, -0.3, 0.05, 0.4
    push = (10.0 + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    theta_acc = (9.8 * np.sin(theta) - np.cos(theta) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(theta) ** 2 / 1.1))
    x_acc = push - 0.05 * theta_acc * np.cos(theta) / 1.1
    expected = [x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc]
    env = make("jaxppo/cartpole")
    state, _ = env.reset(jax.random.key(0))
    state = state._replace(physics=jnp.array([x, x_dot, theta, theta_dot]))
    _, step = env.step(jax.random.key(0), state, jnp.int32(1))
    np.testing.assert_allclose(step.observation, expected, rtol=1e-5)


def test_gravity_can_be_swept():
    env = make("jaxppo/cartpole")
    state, _ = env.reset(jax.random.key(0))

    def speed(gravity):
        _, step = with_parameters(env, gravity=gravity).step(jax.random.key(0), state, jnp.int32(1))
        return step.observation[3]

    speeds = jax.jit(jax.vmap(speed))(jnp.array([0.0, 9.8, 1000.0]))
    assert len(np.unique(speeds)) == 3
