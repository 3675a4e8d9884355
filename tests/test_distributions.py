"""Distributions against distrax, scipy and sampling. Densities are tested in the units that they are stored in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from jaxppo.distributions import (
    Beta,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    make_head,
    sample,
    tanh_log_det,
)
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete, MultiDiscrete

LOGITS = jnp.array([[0.3, -1.0, 2.0, 0.0], [5.0, 5.0, -5.0, 1.0]])
OTHER = jnp.array([[1.3, 0.0, -1.0, 0.5], [0.0, 1.0, 2.0, 3.0]])
MASK = jnp.array([[True, False, True, True], [True, True, False, True]])

EXAMPLES = {
    "categorical": lambda: Categorical.from_logits(LOGITS),
    "masked": lambda: Categorical.from_logits(LOGITS, MASK),
    "multi": lambda: MultiCategorical.from_logits(LOGITS, (1, 3), MASK),
    "gaussian": lambda: Gaussian(jnp.array([[0.5, -1.0]]), jnp.array([[-0.5, 0.3]])),
    "tanh_gaussian": lambda: TanhGaussian(Gaussian(jnp.array([[0.5, -1.0]]), jnp.array([[-0.5, 0.3]]))),
    "beta": lambda: Beta(jnp.array([[2.0, 5.0]]), jnp.array([[1.5, 1.2]])),
}


def test_categorical_equals_distrax():
    import distrax

    ours, other = Categorical.from_logits(LOGITS), Categorical.from_logits(OTHER)
    theirs, their_other = distrax.Categorical(LOGITS), distrax.Categorical(OTHER)
    action = jnp.array([2, 1])
    np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
    np.testing.assert_allclose(ours.kl(other), theirs.kl_divergence(their_other), rtol=1e-5)
    assert ours.mode().tolist() == theirs.mode().tolist()


def test_masked_categorical_equals_the_smaller_distribution_over_what_is_allowed():
    ours, other = Categorical.from_logits(LOGITS, MASK), Categorical.from_logits(OTHER, MASK)
    for row in range(2):
        allowed = np.flatnonzero(MASK[row])
        p, q = (np.exp(x[row][allowed] - np.logaddexp.reduce(x[row][allowed])) for x in (LOGITS, OTHER))
        assert float(ours.entropy()[row]) == pytest.approx(stats.entropy(p), rel=1e-5)
        assert float(ours.kl(other)[row]) == pytest.approx(stats.entropy(p, q), rel=1e-4)
        for i, a in enumerate(allowed):
            assert float(jnp.exp(ours.log_probs[row, a])) == pytest.approx(p[i], rel=1e-5)
        assert float(jnp.exp(ours.log_probs[row, ~MASK[row]]).sum()) == 0.0


@pytest.mark.parametrize("mask", [[True, False, False, False], [False, False, True, False]])
def test_one_allowed_action_is_certain(mask):
    d = Categorical.from_logits(LOGITS[0], jnp.array(mask))
    only = mask.index(True)
    keys = jax.random.split(jax.random.key(0), 200)
    assert set(np.asarray(jax.vmap(d.sample)(keys)).tolist()) == {only}
    assert (float(d.log_prob(jnp.int32(only))), float(d.entropy()), int(d.mode())) == (0.0, 0.0, only)


def test_where_nothing_is_allowed_everything_is():
    d, free = Categorical.from_logits(LOGITS, jnp.zeros_like(MASK)), Categorical.from_logits(LOGITS)
    np.testing.assert_array_equal(d.log_probs, free.log_probs)


@pytest.mark.parametrize("mask", [None, MASK, jnp.array([[True, False, False, False]] * 2), jnp.zeros_like(MASK)])
def test_gradients_of_masked_quantities_are_finite(mask):
    def total(logits):
        d, old = Categorical.from_logits(logits, mask), Categorical.from_logits(OTHER, mask)
        return (d.entropy() + d.kl(old) + old.kl(d) + d.log_prob(old.mode())).sum()

    gradient = jax.grad(total)(LOGITS)
    assert np.isfinite(gradient).all()
    if mask is not None and mask.any():
        assert (np.asarray(gradient)[~np.asarray(mask)] == 0).all()


def test_samples_have_the_probabilities_and_never_the_forbidden_actions():
    d = Categorical.from_logits(LOGITS[0], MASK[0])
    drawn = np.asarray(jax.vmap(d.sample)(jax.random.split(jax.random.key(1), 20_000)))
    counts, p = np.bincount(drawn, minlength=4), np.exp(np.asarray(d.log_probs))
    assert counts[1] == 0
    assert stats.chisquare(counts[p > 0], 20_000 * p[p > 0] / p.sum()).pvalue > 1e-3


def test_components_of_a_multi_categorical_are_independent_categoricals():
    d = EXAMPLES["multi"]()
    parts = [Categorical.from_logits(LOGITS[:, :1], MASK[:, :1]), Categorical.from_logits(LOGITS[:, 1:], MASK[:, 1:])]
    action = d.mode()
    assert action.shape == (2, 2)
    np.testing.assert_allclose(d.log_prob(action), sum(p.log_prob(action[:, i]) for i, p in enumerate(parts)))
    np.testing.assert_allclose(d.entropy(), sum(p.entropy() for p in parts))
    drawn = jax.vmap(d.sample)(jax.random.split(jax.random.key(2), 2000))
    np.testing.assert_allclose(drawn[:, 0, 1].mean(), jnp.exp(parts[1].log_probs[0]) @ jnp.arange(3), atol=0.05)


def test_gaussian_equals_scipy():
    d = EXAMPLES["gaussian"]()
    action = jnp.array([[0.1, 0.7]])
    normal = stats.norm(np.asarray(d.mean), np.exp(np.asarray(d.log_std)))
    np.testing.assert_allclose(d.log_prob(action), normal.logpdf(np.asarray(action)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(d.entropy(), normal.entropy().sum(-1), rtol=1e-5)


def test_beta_equals_scipy_and_stays_off_the_ends():
    d = EXAMPLES["beta"]()
    beta = stats.beta(np.asarray(d.alpha), np.asarray(d.beta))
    action = jnp.array([[0.3, 0.9]])
    np.testing.assert_allclose(d.log_prob(action), beta.logpdf(np.asarray(action)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(d.entropy(), beta.entropy().sum(-1), rtol=1e-3, atol=1e-4)
    extreme = Beta(jnp.full((1000,), 1.0001), jnp.full((1000,), 80.0)).sample(jax.random.key(0))
    assert 0.0 < float(extreme.min()) and float(extreme.max()) < 1.0


@pytest.mark.parametrize("outputs", [(0.0, 0.0), (-30.0, 2.0), (-5.0, -5.0), (-30.0, -30.0), (-200.0, -200.0)])
def test_mode_of_a_beta_policy_lies_inside_whatever_the_network_says(outputs):
    mode = make_head("beta", Box((1,), 0.0, 1.0)).build(jnp.asarray(outputs), None).mode()
    assert 0.0 <= float(mode[0]) <= 1.0


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, 0.5), (3.0, -0.5)])
def test_tanh_gaussian_is_a_density_on_the_squashed_action(mean, log_std):
    d = TanhGaussian(Gaussian(jnp.array([mean]), jnp.array([log_std])))

    def density(a):
        return float(jnp.exp(d.log_prob(jnp.arctanh(jnp.array([a], jnp.float32)))))

    grid = np.tanh(np.linspace(-8, 8, 4001))
    values = np.exp(np.asarray(jax.vmap(lambda x: d.log_prob(x[None]))(jnp.linspace(-8, 8, 4001))))
    assert integrate.trapezoid(values, grid) == pytest.approx(1.0, abs=2e-3)
    assert density(0.0) == pytest.approx(float(jnp.exp(d.gaussian.log_prob(jnp.zeros(1)))), rel=1e-5)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, 0.5), (3.0, -0.5), (0.5, 1.0)])
def test_tanh_gaussian_entropy_equals_monte_carlo(mean, log_std):
    d = TanhGaussian(Gaussian(jnp.array([mean]), jnp.array([log_std])))
    x = mean + np.exp(log_std) * np.random.default_rng(0).normal(size=(200_000, 1))
    estimate = -np.asarray(jax.jit(jax.vmap(d.log_prob))(jnp.asarray(x, jnp.float32)))
    assert float(d.entropy()) == pytest.approx(estimate.mean(), abs=4 * estimate.std() / np.sqrt(len(x)) + 5e-3)


def test_kl_of_tanh_gaussians_is_that_of_the_gaussians_by_monte_carlo():
    a = TanhGaussian(Gaussian(jnp.array([0.5]), jnp.array([-0.5])))
    b = TanhGaussian(Gaussian(jnp.array([0.0]), jnp.array([0.1])))
    x = jnp.asarray(0.5 + np.exp(-0.5) * np.random.default_rng(0).normal(size=(100_000, 1)), jnp.float32)
    difference = np.asarray(jax.jit(jax.vmap(lambda x: a.log_prob(x) - b.log_prob(x)))(x))
    assert float(a.kl(b)) == pytest.approx(difference.mean(), abs=4 * difference.std() / np.sqrt(len(x)))


def test_tanh_log_det_is_exact_in_the_tails():
    x = np.array([-40.0, -12.0, -3.0, 0.0, 0.5, 20.0])
    exact = 2 * (np.log(2.0) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x))))
    np.testing.assert_allclose(tanh_log_det(jnp.asarray(x, jnp.float32)), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_entropy_is_the_expected_surprise_and_kl_to_itself_is_zero(name):
    d = jax.tree.map(lambda x: x[:1], EXAMPLES[name]())
    drawn = jax.jit(jax.vmap(d.sample))(jax.random.split(jax.random.key(0), 20_000))
    surprise = -np.asarray(jax.jit(jax.vmap(d.log_prob))(drawn))[:, 0]
    assert float(d.entropy()[0]) == pytest.approx(
        surprise.mean(), abs=4 * surprise.std() / np.sqrt(len(surprise)) + 1e-3
    )
    assert float(d.kl(d)[0]) == pytest.approx(0.0, abs=1e-6)


def test_sample_depends_on_its_own_key_only():
    d = EXAMPLES["categorical"]()
    many = jax.tree.map(lambda x: jnp.tile(x[:1], (64, 1)), d)
    keys = jax.random.split(jax.random.key(3), 64)
    together = sample(many, keys)
    assert together[10:20].tolist() == sample(jax.tree.map(lambda x: x[10:20], many), keys[10:20]).tolist()
    assert len(set(together.tolist())) > 1


@pytest.mark.parametrize("name", ["gaussian", "tanh_gaussian", "beta"])
def test_actions_reach_the_environment_within_its_bounds(name):
    space = Box((2,), low=(-2.0, 0.0), high=(6.0, 1.0))
    head = make_head(name, space)
    d = head.build(jnp.full((500, head.size), 1.0), None)
    action = np.asarray(head.to_environment(d.sample(jax.random.key(0))))
    assert action.shape == (500, 2)
    assert (action >= [-2.0, 0.0]).all() and (action <= [6.0, 1.0]).all()
    middle = jnp.zeros((1, 2)) if name != "beta" else jnp.full((1, 2), 0.5)
    np.testing.assert_allclose(head.to_environment(middle), [[2.0, 0.5]], rtol=1e-6)


def test_unbounded_actions_pass_unchanged_and_shapes_are_restored():
    head = make_head("auto", Box((2, 3)))
    assert head.size == 12 and head.to_environment(jnp.full((5, 6), 7.0)).shape == (5, 2, 3)
    assert float(head.to_environment(jnp.full((1, 6), 7.0)).min()) == 7.0


@pytest.mark.parametrize(
    ("name", "space", "says"),
    [
        ("categorical", Box((1,)), "use gaussian"),
        ("gaussian", Discrete(2), "use categorical"),
        ("beta", Box((1,)), "needs bounded actions"),
        ("tanh_gaussian", MultiDiscrete((2, 2)), "use categorical"),
        ("betta", Box((1,)), "did you mean beta"),
    ],
)
def test_a_distribution_that_does_not_fit_is_refused(name, space, says):
    with pytest.raises(UserError, match=says):
        make_head(name, space)
