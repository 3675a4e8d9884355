import numpy as np

from jaxppo.envs import make
from jaxppo.envs.time_limit import any_action


def test_bootstrapped_returns_are_the_known_value(play):
    """Σ_{t<L} γᵗ + γᴸ·value = value: the limit cuts nothing off where the final observation is valued."""
    env, gamma = make("jaxppo/time_limit", time_limit=7), 0.9
    _, _, step = play(env, steps=7, policy=any_action)
    value = env.value(gamma)
    cut = (gamma ** np.arange(7)[:, None] * np.asarray(step.reward)).sum(0)
    np.testing.assert_allclose(cut + gamma**7 * value, value, rtol=1e-6)
    np.testing.assert_allclose(value, 10.0, rtol=1e-6)
    assert not step.terminated.any() and step.truncated[-1].all()
