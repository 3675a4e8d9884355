import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.optimisers import make_direction, optimiser_step, sum_of_gradients

HYPER = Hyperparameters().replace(learning_rate=0.01, max_grad_norm=0.5)
PARAMETERS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
GRADIENTS = [
    {"a": jnp.array([3.0, 4.0]), "b": jnp.array([[0.1]])},
    {"a": jnp.array([0.01, 0.0]), "b": jnp.array([[0.2]])},
]


def run(kind, hyper, gradients, go=None):
    config, parameters = PPOConfig(optimiser=kind), PARAMETERS
    state, reports = make_direction(kind, hyper).init(parameters), []
    for i, gradient in enumerate(gradients):
        wanted = jnp.bool_(True if go is None else go[i])
        parameters, state, report = optimiser_step(config, hyper, parameters, state, gradient, wanted)
        reports.append(report)
    return parameters, state, reports


@pytest.mark.parametrize(
    ("kind", "optax_rule"),
    [
        ("adam", lambda: optax.adam(0.01, b1=0.9, b2=0.999, eps=1e-5)),
        ("sgd", lambda: optax.sgd(0.01)),
        ("rmsprop", lambda: optax.rmsprop(0.01, decay=0.99, eps=1e-5)),
    ],
)
def test_steps_are_those_of_clipped_optax(kind, optax_rule):
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax_rule())
    parameters, state = PARAMETERS, rule.init(PARAMETERS)
    for gradient in GRADIENTS:
        updates, state = rule.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    ours = run(kind, HYPER, GRADIENTS)[0]
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(parameters), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_norm_is_reported_before_clipping():
    _, _, reports = run("sgd", HYPER, GRADIENTS)
    assert float(reports[0].norm) == pytest.approx(np.sqrt(25.01), rel=1e-5)
    moved = run("sgd", HYPER, GRADIENTS[:1])[0]
    length = optax.global_norm(jax.tree.map(lambda a, b: a - b, moved, PARAMETERS))
    assert float(length) == pytest.approx(0.01 * 0.5, rel=1e-3)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("kind", ["adam", "rmsprop", "sgd"])
def test_a_gradient_that_is_not_finite_changes_nothing(kind, bad, assert_trees_close):
    broken = {"a": jnp.array([1.0, bad]), "b": jnp.array([[0.2]])}
    sound = run(kind, HYPER, GRADIENTS)
    with_hole = run(kind, HYPER, [GRADIENTS[0], broken, GRADIENTS[1]])
    assert_trees_close(sound[:2], with_hole[:2], exact=True)
    assert [bool(r.applied) for r in with_hole[2]] == [True, False, True]


def test_steps_that_are_not_wanted_change_nothing(assert_trees_close):
    wanted = run("adam", HYPER, GRADIENTS[:1])
    stopped = run("adam", HYPER, [*GRADIENTS[:1], *GRADIENTS], go=[True, False, False])
    assert_trees_close(wanted[:2], stopped[:2], exact=True)


def test_learning_rate_may_be_swept():
    rates = jnp.array([0.01, 0.1])

    def one(rate):
        return run("adam", HYPER.replace(learning_rate=rate), GRADIENTS)[0]["a"]

    np.testing.assert_allclose(jax.vmap(one)(rates)[1], one(0.1), rtol=1e-6)


def test_sum_of_gradients():
    total = sum_of_gradients(GRADIENTS, jax.random.key(0))
    np.testing.assert_allclose(total["a"], [3.01, 4.0])
