import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import NetworkConfig
from jaxppo.environment import EnvironmentSpec, split_mask
from jaxppo.errors import UserError
from jaxppo.networks import dummy_observation, observation_spaces
from jaxppo.normalisation import init_observation_statistics, normalise_observation, update_observation_statistics
from jaxppo.policies import feed_forward
from jaxppo.spaces import Box, Discrete, MultiDiscrete

SMALL = NetworkConfig(hidden=(8,), channels=(4,))


def policy_and_parameters(spec, **changes):
    policy = feed_forward(dataclasses.replace(SMALL, **changes), "auto", spec)
    return policy, policy.init(jax.random.key(0))


def sizes(parameters):
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)}


@pytest.mark.parametrize("view", ["vector", "image", "dict"])
@pytest.mark.parametrize("changes", [{}, {"shared": True}, {"layer_norm": True}, {"compute": "bfloat16"}])
def test_every_observation_gives_float32_outputs_and_float32_parameters(view, changes, toy):
    env = toy(view=view)
    policy, parameters = policy_and_parameters(env.spec, **changes)
    observation = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 5))[1]
    output = policy.apply(parameters, observation, None, (), None)
    assert {leaf.dtype for leaf in jax.tree.leaves((parameters, output))} == {jnp.dtype(jnp.float32)}
    assert (output.distribution.log_probs.shape, output.value.shape) == ((5, 3), (5,))
    single = policy.apply(parameters, jax.tree.map(lambda x: x[2], observation), None, (), None)
    atol = 1e-2 if changes.get("compute") else 1e-6
    np.testing.assert_allclose(output.value[2], single.value, rtol=1e-3, atol=atol)
    assert any("Conv" in name for name in sizes(parameters)) == (view == "image")


@pytest.mark.parametrize("torso", ["auto", "mlp", "cnn"])
@pytest.mark.parametrize("view", ["vector", "image", "dict"])
def test_every_torso_is_what_it_is_called_or_refused(view, torso, toy):
    spec = toy(view=view).spec
    if torso == "cnn" and view != "image":
        with pytest.raises(
            UserError, match=r"network\.torso=cnn needs an observation of three axes .* \(3,\); use mlp"
        ):
            policy_and_parameters(spec, torso=torso)
        return
    names = sizes(policy_and_parameters(spec, torso=torso)[1])
    assert any("Conv" in name for name in names) == (view == "image" and torso != "mlp")


def test_one_image_among_other_things_is_enough_for_a_cnn():
    spec = EnvironmentSpec("x", {"map": Box((6, 6, 2)), "speed": Box((3,))}, Discrete(2))
    assert any("Conv" in name for name in sizes(policy_and_parameters(spec, torso="cnn")[1]))


def test_bfloat16_is_close_to_float32_but_not_the_same(toy):
    env = toy()
    observation = jax.random.normal(jax.random.key(1), (64, 3))
    outputs = []
    for compute in ("float32", "bfloat16"):
        policy, parameters = policy_and_parameters(env.spec, compute=compute)
        outputs.append(policy.apply(parameters, observation, None, (), None).value)
    assert 0 < float(jnp.abs(outputs[0] - outputs[1]).max()) < 0.05


def test_layer_norm_and_sharing_change_the_parameters(toy):
    names = {key: sizes(policy_and_parameters(toy().spec, **{key: True})[1]) for key in ("layer_norm", "shared")}
    plain = sizes(policy_and_parameters(toy().spec)[1])
    assert any("LayerNorm" in n for n in names["layer_norm"]) and not any("LayerNorm" in n for n in plain)
    assert any("critic_torso" in n for n in plain) and not any("critic_torso" in n for n in names["shared"])


def test_layer_norm_makes_the_features_indifferent_to_the_scale_of_the_input(toy):
    policy, parameters = policy_and_parameters(toy().spec, layer_norm=True)
    x = jax.random.normal(jax.random.key(0), (4, 3))
    values = [policy.apply(parameters, scale * x, None, (), None).value for scale in (100.0, 1e4)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-2, atol=1e-3)


def test_discrete_leaves_are_one_hot(toy):
    """Two values of a discrete leaf are as far apart as any other two: the first kernel has one row a choice."""
    parameters = policy_and_parameters(toy(view="dict").spec)[1]
    first = parameters["params"]["actor_torso"]["Layer_0"]["Dense_0"]["kernel"]
    assert first.shape == (4 + (2 + 3) + 3, 8)


def test_initialisation_is_orthogonal_with_the_gains_of_ppo():
    spec = EnvironmentSpec("x", Box((8,)), Discrete(3))
    parameters = policy_and_parameters(spec)[1]["params"]
    hidden = parameters["actor_torso"]["Layer_0"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(hidden.T @ hidden, 2.0 * np.eye(8), atol=1e-5)
    actor, critic = parameters["actor"]["kernel"], parameters["critic"]["kernel"]
    np.testing.assert_allclose(actor.T @ actor, 1e-4 * np.eye(3), atol=1e-8)
    np.testing.assert_allclose(jnp.linalg.norm(critic), 1.0, rtol=1e-5)


def test_standard_deviation_is_one_parameter_or_an_output():
    spec = EnvironmentSpec("x", Box((3,)), Box((2,)))
    x = jax.random.normal(jax.random.key(0), (5, 3))
    for dependent in (False, True):
        policy, parameters = policy_and_parameters(
            spec, state_dependent_std=dependent, initial_log_std=-0.7, actor_gain=1.0
        )
        log_std = policy.apply(parameters, x, None, (), None).distribution.log_std
        assert log_std.shape == (5, 2)
        assert (float(jnp.ptp(log_std, axis=0).max()) > 1e-3) == dependent
        assert ("log_std" in parameters["params"]) != dependent
        centre = policy.apply(parameters, jnp.zeros((1, 3)), None, (), None).distribution.log_std
        np.testing.assert_allclose(centre, -0.7, rtol=1e-5)


def test_gradients_of_a_shared_torso_come_from_both_heads(toy):
    policy, parameters = policy_and_parameters(toy().spec, shared=True, actor_gain=1.0)
    x = jax.random.normal(jax.random.key(0), (5, 3))

    def gradient(of):
        g = jax.grad(lambda p: of(policy.apply(p, x, None, (), None)))(parameters)
        return float(jnp.abs(g["params"]["actor_torso"]["Layer_0"]["Dense_0"]["kernel"]).max())

    assert gradient(lambda out: out.value.sum()) > 0
    assert gradient(lambda out: out.distribution.log_probs[:, 0].sum()) > 0


def test_masks_reach_the_distribution(toy):
    env = toy(masked=True)
    view, mask = split_mask(env.spec, jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 5))[1])
    policy, parameters = policy_and_parameters(env.spec)
    probabilities = jnp.exp(policy.apply(parameters, view, mask, (), None).distribution.log_probs)
    assert (np.asarray(probabilities) == 0).tolist() == (~np.asarray(mask)).tolist()


def test_observation_spaces_are_in_the_order_of_the_leaves(toy):
    space = toy(view="dict").spec.observation
    assert observation_spaces(space) == (Discrete(4), MultiDiscrete((2, 3)), Box((3,)))
    assert [x.shape for x in jax.tree.leaves(dummy_observation(space))] == [(), (2,), (3,)]


def test_images_are_scaled_to_one_once():
    spec = EnvironmentSpec("x", Box((6, 6, 2), 0, 255, np.dtype(np.uint8)), Discrete(2))
    policy, parameters = policy_and_parameters(spec, activation="relu")
    bright = policy.apply(parameters, jnp.full((1, 6, 6, 2), 255, jnp.uint8), None, (), None)
    ones = policy.apply(parameters, jnp.full((1, 6, 6, 2), 1.0), None, (), None)
    np.testing.assert_allclose(bright.value, ones.value, rtol=1e-5)
    assert float(jnp.abs(bright.value).max()) < 10


def test_standardised_images_are_not_scaled_again():
    spec = EnvironmentSpec("x", Box((6, 6, 2), 0, 255, np.dtype(np.uint8)), Discrete(2))
    images = jax.random.randint(jax.random.key(0), (64, 6, 6, 2), 0, 256).astype(jnp.uint8)
    statistics = update_observation_statistics(init_observation_statistics(spec, True), images)
    standardised = normalise_observation(statistics, images)
    as_floats = EnvironmentSpec("x", Box((6, 6, 2)), Discrete(2))
    outputs = []
    for s in (spec, as_floats):
        policy, parameters = policy_and_parameters(s)
        outputs.append(policy.apply(parameters, standardised, None, (), None).value)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4)
