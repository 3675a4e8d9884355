"""Epochs and minibatches on a loss that is simple enough to follow by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import Hyperparameters
from jaxppo.improvement import gradients_of, improve
from jaxppo.optimisers import make_direction, sum_of_gradients

HYPER = Hyperparameters().replace(learning_rate=0.1, max_grad_norm=1e6)
START = {"w": jnp.array([0.0, 0.0])}


def terms(parameters, batch, summary=()):
    """Two losses whose sum is least at the mean of the samples; `approximate_kl` is how far w has gone."""
    w = parameters["w"]
    losses = {"left": jnp.square(w[0] - batch["x"]).mean(), "right": 2 * jnp.square(w[1] - batch["x"]).mean()}
    return losses, {"approximate_kl": jnp.abs(w).sum(), "w": w, "seen": batch["x"].sum()}


def run(tiny, hyper=HYPER, combine=sum_of_gradients, loss=terms, by_epoch=None, **changes):
    config = tiny(optimiser="sgd", **changes)
    x = jnp.sqrt(jnp.arange(64.0)).reshape(8, 8) / 8  # no two sums of samples are alike
    return jax.jit(
        lambda hyper: improve(
            config,
            hyper,
            START,
            make_direction("sgd", hyper).init(START),
            jax.random.key(0),
            by_epoch or (lambda parameters, epoch: {"x": x}),
            loss,
            combine,
        )
    )(hyper)


def test_steps_follow_the_gradient_of_each_minibatch(tiny):
    parameters, _, out = run(tiny, epochs=3, minibatches=4)
    w = np.zeros(2)
    for epoch in range(3):
        for i in range(4):
            np.testing.assert_allclose(out["w"][epoch, i], w, rtol=1e-4, atol=1e-6)
            mean = float(out["seen"][epoch, i]) / 16
            w = w - 0.1 * np.array([2.0, 4.0]) * (w - mean)
    np.testing.assert_allclose(parameters["w"], w, rtol=1e-4)
    np.testing.assert_allclose(out["seen"].sum(1), np.sqrt(np.arange(64)).sum() / 8, rtol=1e-5)
    assert len(set(np.asarray(out["seen"]).ravel().tolist())) == 12  # every epoch and minibatch is another


def test_nothing_moves_after_the_kl_has_tripped(tiny):
    parameters, _, out = run(tiny, HYPER.replace(target_kl=0.4), epochs=4, minibatches=4)
    w, taken, kl = out["w"].reshape(16, 2), out["steps_taken"].ravel(), out["approximate_kl"].ravel()
    first = int(np.argmax(np.asarray(kl) > 0.4))
    assert 0 < first < 12
    assert taken.tolist() == [1.0] * first + [0.0] * (16 - first)
    for later in w[first:]:
        np.testing.assert_array_equal(later, w[first])
    np.testing.assert_array_equal(parameters["w"], w[first])
    free = run(tiny, epochs=4, minibatches=4)[2]["w"].reshape(16, 2)
    np.testing.assert_array_equal(free[: first + 1], w[: first + 1])
    assert not np.array_equal(free[first + 1], w[first])


def test_a_kl_that_is_not_a_number_does_not_stop(tiny):
    def broken(parameters, batch, summary):
        losses, diagnostics = terms(parameters, batch)
        return losses, diagnostics | {"approximate_kl": jnp.float32(jnp.nan)}

    assert float(run(tiny, HYPER.replace(target_kl=0.1), loss=broken)[2]["steps_taken"].sum()) == 4


def test_minibatches_without_a_finite_gradient_are_skipped_and_counted(tiny):
    def broken(parameters, batch, summary):
        losses, diagnostics = terms(parameters, batch)
        hole = jnp.where(batch["x"][0] > 0.5, jnp.nan, 0.0)
        return {"left": losses["left"] + hole * parameters["w"][0], "right": losses["right"]}, diagnostics

    parameters, _, out = run(tiny, loss=broken, epochs=4, minibatches=8)
    skipped, taken = float(out["skipped_updates"].sum()), float(out["steps_taken"].sum())
    assert np.isfinite(parameters["w"]).all() and np.isfinite(out["grad_norm"]).all()
    assert skipped > 0 and taken > 0 and skipped + taken == 32


def test_the_list_of_gradients_sums_to_the_plain_gradient(tiny, assert_trees_close):
    def listed(gradients, key):
        assert len(gradients) == 2
        return sum_of_gradients(gradients, key)

    fast, slow = run(tiny), run(tiny, combine=listed)
    assert_trees_close(fast, slow)


def test_gradients_apart_are_one_for_each_term():
    batch = {"x": jnp.array([1.0, 3.0])}
    apart = gradients_of(lambda p: terms(p, batch), START, apart=True)
    np.testing.assert_allclose([g["w"] for g in apart.each], [[-4.0, 0.0], [0.0, -8.0]])
    together = gradients_of(lambda p: terms(p, batch), START, apart=False)
    np.testing.assert_allclose([g["w"] for g in together.each], [[-4.0, -8.0]])


def test_combination_decides_what_is_followed(tiny):
    parameters, _, _ = run(tiny, combine=lambda gradients, key: gradients[1])
    assert parameters["w"][0] == 0 and parameters["w"][1] != 0


def weighted(parameters, batch, summary):
    """A loss with weights, a moment of the whole minibatch, a maximum and two terms."""
    w, weight, x = parameters["w"], batch["weight"], batch["x"]
    mean = (weight * jnp.square(w[0] * summary - x)).sum() / weight.sum()
    losses = {"a": mean, "b": (weight * jnp.square(w[1] - x)).sum() / weight.sum()}
    return losses, {"approximate_kl": (weight * x).sum() / weight.sum(), "ratio_deviation": x.max()}


@pytest.mark.parametrize("combine", [sum_of_gradients, lambda gradients, key: gradients[1]], ids=["sum", "one"])
@pytest.mark.parametrize("microbatches", [2, 4])
def test_microbatches_add_up_to_the_minibatch(tiny, combine, microbatches, assert_trees_close):
    t, n = jnp.arange(8.0)[:, None], jnp.arange(8.0)
    samples = {"x": jnp.sqrt(t * 8 + n) / 8, "weight": (t + 3 * n) % 5 + 0.5}

    def whole(microbatches):
        config = tiny(optimiser="adam", epochs=2, minibatches=2, microbatches=microbatches)
        return jax.jit(
            lambda: improve(
                config,
                HYPER,
                START,
                make_direction("adam", HYPER).init(START),
                jax.random.key(3),
                lambda parameters, epoch: samples,
                weighted,
                combine,
                summarise=lambda minibatch: minibatch["x"].mean(),
                weigh=lambda samples: samples["weight"].sum(),
            )
        )()

    assert_trees_close(whole(1), whole(microbatches), atol=1e-5)


def test_every_epoch_asks_for_its_batch_with_the_current_parameters(tiny):
    def by_epoch(parameters, epoch):
        return {"x": jnp.full((8, 8), epoch.astype(jnp.float32)) + parameters["w"][0]}

    out = run(tiny, by_epoch=by_epoch, epochs=3, minibatches=2)[2]
    expected = np.arange(3.0) + np.asarray(out["w"])[:, 0, 0]
    np.testing.assert_allclose(out["seen"] / 32, np.broadcast_to(expected[:, None], (3, 2)), rtol=1e-5)


@pytest.mark.parametrize("minibatches", [1, 64])
def test_one_minibatch_and_minibatches_of_one(tiny, minibatches):
    _, _, out = run(tiny, epochs=1, minibatches=minibatches, num_envs=1, num_steps=64, blocks=1)
    assert out["seen"].shape == (1, minibatches)
    assert len(set(np.asarray(out["seen"]).ravel().tolist())) == minibatches
