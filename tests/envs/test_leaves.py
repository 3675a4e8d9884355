import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.envs import make, parameters, with_parameters
from jaxppo.errors import UserError


def test_parameters_by_name_through_wrappers():
    env = make("jaxppo/cartpole", gravity=5.0, frame_stack=2, flatten=True)
    assert parameters(env)["gravity"] == 5.0
    assert set(parameters(env)) == set(parameters(make("jaxppo/cartpole")))
    assert parameters(with_parameters(env, gravity=6.0, length=0.7))["gravity"] == 6.0


def test_setting_keeps_type_and_structure():
    env = make("jaxppo/counting", life=3)
    changed = with_parameters(env, life=4.0)
    assert parameters(changed)["life"].dtype == jnp.int32
    assert jax.tree.structure(changed) == jax.tree.structure(env)


def test_swept_under_vmap():
    env = make("jaxppo/time_limit")

    def reward(value):
        return with_parameters(env, reward=value).step(jax.random.key(0), jnp.int32(0), jnp.int32(0))[1].reward

    np.testing.assert_array_equal(jax.jit(jax.vmap(reward))(jnp.arange(3.0)), [0.0, 1.0, 2.0])


def test_unknown_names_and_values():
    env = make("jaxppo/cartpole")
    with pytest.raises(UserError, match="did you mean gravity"):
        with_parameters(env, gravty=1.0)
    with pytest.raises(UserError, match="does not fit"):
        with_parameters(env, gravity="heavy")
