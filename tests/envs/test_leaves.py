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


@pytest.mark.parametrize("value", ["heavy", None, True, [9.8], jnp.ones(2), {"a": 1.0}], ids=repr)
def test_values_of_another_shape_or_kind_are_refused(value):
    with pytest.raises(UserError, match=r"gravity=.* of jaxppo/cartpole does not fit: it takes one number, now 9\.8"):
        with_parameters(make("jaxppo/cartpole"), gravity=value)


def test_part_of_a_whole_number_is_not_cut_off():
    with pytest.raises(UserError, match=r"life=3\.5 of jaxppo/counting does not fit: it takes one whole number"):
        with_parameters(make("jaxppo/counting"), life=3.5)


def test_traced_values_of_the_right_shape_are_welcome_wherever_they_are_given():
    def gravity(value):
        made = parameters(make("jaxppo/cartpole", gravity=value))["gravity"]
        return made + parameters(with_parameters(make("jaxppo/cartpole"), gravity=value, length=0.5))["gravity"]

    np.testing.assert_array_equal(jax.jit(jax.vmap(gravity))(jnp.arange(3.0)), [0.0, 2.0, 4.0])
    life = jax.jit(lambda life: parameters(make("jaxppo/counting", life=life))["life"])(jnp.int32(3))
    assert life == 3 and life.dtype == jnp.int32
