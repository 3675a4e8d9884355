import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.losses import value_loss

VALUE, TARGET, OLD = jnp.array([1.0, 2.0, -3.0, 0.5]), jnp.array([0.0, 2.5, 5.0, 0.5]), jnp.array([0.9, 1.0, -3.0, 0.0])


def gradient(**kwargs):
    return jax.grad(lambda v: value_loss(v, TARGET, OLD, **kwargs).sum())(VALUE)


def test_gradient_is_the_error():
    np.testing.assert_allclose(gradient(), VALUE - TARGET, rtol=1e-6)


def test_huber_bounds_the_gradient_and_is_squared_inside():
    np.testing.assert_allclose(gradient(kind="huber", huber_delta=1.0), jnp.clip(VALUE - TARGET, -1, 1), rtol=1e-6)
    np.testing.assert_allclose(gradient(kind="huber", huber_delta=1e6), gradient(), rtol=1e-6)


def test_a_wide_clip_changes_nothing_and_a_narrow_one_never_helps():
    plain = value_loss(VALUE, TARGET, OLD)
    np.testing.assert_allclose(value_loss(VALUE, TARGET, OLD, clip=1e6), plain, rtol=1e-6)
    assert (value_loss(VALUE, TARGET, OLD, clip=0.1) >= plain - 1e-6).all()


def test_clipping_stops_a_value_that_has_gone_far_enough_towards_its_target():
    """Element 1 went from 1 to 2 towards 2.5: beyond .2 its gradient is 0. Element 0 moves away: not stopped."""
    g = gradient(clip=0.2)
    assert float(g[1]) == 0.0
    assert float(g[0]) == pytest.approx(1.0)


def test_shapes_must_agree():
    with pytest.raises(AssertionError):
        value_loss(jnp.zeros((4, 1)), jnp.zeros(4), jnp.zeros(4))
