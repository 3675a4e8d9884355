"""Relations that hold for every registered surrogate; a new entry is tested the moment it is registered.

Facts that an entry may declare: `on_policy_scale` (gradient at r = 1 over A; 1), `kernel` (score: the gradient is what
counts, not the value), `limits` (numbers at which it is the importance-weighted policy gradient).
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxppo
from jaxppo.distributions import Categorical, Gaussian
from jaxppo.environment import EnvironmentSpec
from jaxppo.errors import UserError
from jaxppo.losses import SURROGATES, SurrogateInputs
from jaxppo.losses.assembly import make_surrogate, moments, standardise, weighted_mean
from jaxppo.losses.surrogates import listing, ppo_clip, ratio, spo
from jaxppo.spaces import Box, Discrete

B = 24
NAMES = [entry.name for entry in listing()]
RATIO_KERNELS = [e.name for e in listing() if e.facts.get("kernel", "ratio") == "ratio"]


def inputs_of(log_prob, behaviour, advantage):
    """Inputs for one sample each, [B, 1], with stand-ins for what an entry may ask for.

    The KL is that of unit-variance Gaussians whose log ratio at the sample is its mean shift: smooth, 0 at r = 1.
    """
    shift = log_prob - behaviour
    return SurrogateInputs(
        log_prob=log_prob,
        behaviour_log_prob=behaviour,
        advantage=advantage,
        kl_old_new=0.5 * jnp.square(shift),
        kl_new_old=0.5 * jnp.square(shift),
        entropy=jnp.ones_like(shift),
    )


def losses(name, log_ratio, advantage, numbers=None, state=None, behaviour=-1.0):
    """One loss a sample as a function of the log ratio."""
    entry = SURROGATES.get(name)
    resolved = entry.resolve(numbers or {})
    keywords = {}
    if "state" in entry.keywords:
        keywords["state"] = entry.facts["initial_state"](**resolved) if state is None else state
    behaviour = jnp.full_like(log_ratio, behaviour)
    out = entry.function(inputs_of(behaviour + log_ratio, behaviour, advantage), **keywords, **resolved)
    return out[0] if isinstance(out, tuple) else out


def gradients(name, log_ratio, advantage, **kwargs):
    """d objective / d log π, one a sample."""
    return -jax.grad(lambda l: losses(name, l, advantage, **kwargs).sum())(log_ratio)


def samples(spread=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(x, jnp.float32) for x in (spread * rng.normal(size=(B, 1)), rng.normal(size=(B, 1)))]


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_gradient_is_the_policy_gradient(name):
    log_ratio, advantage = samples(0.0)
    scale = SURROGATES.get(name).facts.get("on_policy_scale", 1.0)
    np.testing.assert_allclose(gradients(name, log_ratio, advantage), scale * advantage, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in NAMES if "limits" in SURROGATES.get(n).facts])
def test_declared_limits_give_the_importance_weighted_policy_gradient(name):
    log_ratio, advantage = samples()
    got = gradients(name, log_ratio, advantage, numbers=SURROGATES.get(name).facts["limits"])
    np.testing.assert_allclose(got, jnp.exp(log_ratio) * advantage, rtol=1e-3, atol=1e-4)


def test_limits_that_no_number_declares():
    log_ratio, advantage = samples()
    free = gradients("ppo_kl", log_ratio, advantage, state={"beta": jnp.float32(0.0)})
    np.testing.assert_allclose(free, jnp.exp(log_ratio) * advantage, rtol=1e-5)
    np.testing.assert_allclose(gradients("a2c", log_ratio, advantage), advantage, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_loss_a_sample_and_no_sample_looks_at_another(name):
    if SURROGATES.get(name).facts.get("coupling", "sample") != "sample":
        pytest.skip("couples samples on purpose")
    log_ratio, advantage = samples()
    order = np.random.default_rng(1).permutation(B)
    whole = losses(name, log_ratio, advantage)
    assert whole.shape == (B, 1)
    np.testing.assert_array_equal(losses(name, log_ratio[order], advantage[order]), whole[order])
    np.testing.assert_array_equal(losses(name, log_ratio[:7], advantage[:7]), whole[:7])


@pytest.mark.parametrize("name", NAMES)
def test_no_advantage_pushes_nowhere_but_back(name):
    log_ratio, _ = samples()
    g = gradients(name, log_ratio, jnp.zeros_like(log_ratio))
    assert np.isfinite(g).all()
    assert (g * log_ratio <= 1e-6).all()


# exp(±80) is representable, and a policy that has moved that far is lost; the recipe skips what is not finite.
@pytest.mark.parametrize("log_ratio", [-80.0, -20.0, 20.0, 40.0])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_finite_far_away(name, log_ratio):
    advantage = jnp.array([[1.0], [-1.0], [0.0]])
    l = jnp.full((3, 1), log_ratio)
    assert np.isfinite(losses(name, l, advantage)).all()
    assert np.isfinite(gradients(name, l, advantage)).all()


@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_never_nan(name, log_ratio):
    advantage = jnp.array([[1.0], [-1.0], [0.0]])
    l = jnp.full((3, 1), log_ratio)
    assert not np.isnan(losses(name, l, advantage)).any()
    assert not np.isnan(gradients(name, l, advantage)).any()


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name):
    log_ratio, advantage = samples()
    narrow = losses(name, log_ratio, advantage), gradients(name, log_ratio, advantage)
    with jax.enable_x64(True):
        wide_inputs = [jnp.asarray(np.asarray(x), jnp.float64) for x in (log_ratio, advantage)]
        wide = losses(name, *wide_inputs), gradients(name, *wide_inputs)
        assert wide[0].dtype == jnp.float64
    for a, b in zip(narrow, wide, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [e.name for e in listing() if e.continuous])
def test_units_of_the_action_do_not_matter(name):
    """Rescaled actions add one constant to both log-probabilities."""
    log_ratio, advantage = samples()
    one, two = (gradients(name, log_ratio, advantage, behaviour=b) for b in (-1.0, 3.0))
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_jit_vmap_and_grad_agree(name):
    log_ratio, advantage = samples()
    plain = losses(name, log_ratio, advantage)
    np.testing.assert_allclose(jax.jit(lambda l, a: losses(name, l, a))(log_ratio, advantage), plain, rtol=1e-5)
    one = jax.vmap(lambda l, a: losses(name, l[None], a[None])[0])(log_ratio, advantage)
    np.testing.assert_allclose(one, plain, rtol=1e-5)
    each = jax.vmap(jax.grad(lambda l, a: losses(name, l[None], a[None]).sum()))(log_ratio, advantage)
    np.testing.assert_allclose(-each, gradients(name, log_ratio, advantage), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RATIO_KERNELS)
def test_gradients_are_those_of_the_value(name):
    """Finite differences in float64, away from the kinks of the clips."""
    with jax.enable_x64(True):
        log_ratio, advantage = (jnp.asarray(np.asarray(x), jnp.float64) for x in samples())
        h = 1e-6
        difference = (losses(name, log_ratio + h, advantage) - losses(name, log_ratio - h, advantage)) / (2 * h)
        np.testing.assert_allclose(-difference, gradients(name, log_ratio, advantage), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["ppo_clip", "spo", "a2c"])
def test_a_positive_factor_on_the_advantage_is_a_factor_on_the_loss(name):
    log_ratio, advantage = samples()
    np.testing.assert_allclose(
        losses(name, log_ratio, 3.0 * advantage), 3.0 * losses(name, log_ratio, advantage), rtol=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_a_traced_leaf(name):
    """A sweep over each number is one call."""
    log_ratio, advantage = samples()
    for number, default in SURROGATES.get(name).numbers.items():
        values = jnp.array([0.1, 0.3]) + (0.0 if default is None else default)
        swept = jax.vmap(lambda v, n=number: losses(name, log_ratio, advantage, numbers={n: v}))(values)
        np.testing.assert_allclose(swept[1], losses(name, log_ratio, advantage, {number: values[1]}), rtol=1e-5)


def test_clip_has_no_gradient_exactly_beyond_the_bound_that_the_advantage_pushes_to():
    r = jnp.array([0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 3.0])[:, None]
    for sign in (1.0, -1.0):
        g = gradients("ppo_clip", jnp.log(r), jnp.full_like(r, sign))
        beyond = (r > 1.2) if sign > 0 else (r < 0.8)
        np.testing.assert_allclose(g, jnp.where(beyond, 0.0, sign * r), rtol=1e-5)
        _, diagnostics = ppo_clip(inputs_of(jnp.log(r), jnp.zeros_like(r), jnp.full_like(r, sign)))
        np.testing.assert_array_equal(diagnostics["clip_fraction"], beyond)


def test_clip_higher_moves_only_the_upper_bound():
    r = jnp.array([0.5, 0.75, 1.25, 1.3])[:, None]
    up = gradients("ppo_clip", jnp.log(r), jnp.ones_like(r), numbers={"epsilon_high": 0.28})
    np.testing.assert_allclose(up[:, 0], [0.5, 0.75, 1.25, 0.0], rtol=1e-5)
    down = gradients("ppo_clip", jnp.log(r), -jnp.ones_like(r), numbers={"epsilon_high": 0.28})
    np.testing.assert_allclose(down[:, 0], [0.0, 0.0, -1.25, -1.3], rtol=1e-5)


def test_dual_clip_bounds_what_a_bad_action_costs_and_nothing_else():
    r = jnp.array([0.9, 2.9, 3.1, 100.0])[:, None]
    for sign in (1.0, -1.0, 0.0):
        a = jnp.full_like(r, sign)
        dual = losses("ppo_clip", jnp.log(r), a, numbers={"dual_clip": 3.0})
        plain = losses("ppo_clip", jnp.log(r), a)
        np.testing.assert_allclose(dual, jnp.minimum(plain, 3.0) if sign < 0 else plain, rtol=1e-5)
    g = gradients("ppo_clip", jnp.log(r), -jnp.ones_like(r), numbers={"dual_clip": 3.0})
    np.testing.assert_allclose(g[:, 0], [-0.9, -2.9, 0.0, 0.0], rtol=1e-5)
    far = losses("ppo_clip", jnp.log(r), -jnp.ones_like(r), numbers={"dual_clip": 1e9})
    np.testing.assert_allclose(far, losses("ppo_clip", jnp.log(r), -jnp.ones_like(r)), rtol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_spo_turns_back_where_it_says(sign):
    turn = 1.0 + 0.2 * sign
    r = jnp.array([turn - 0.05, turn, turn + 0.05])[:, None]
    g = gradients("spo", jnp.log(r), jnp.full_like(r, sign))[:, 0]
    assert float(g[1]) == pytest.approx(0.0, abs=1e-5)
    assert float(g[0]) > 0 > float(g[2])


@pytest.mark.parametrize(("kl", "factor"), [(0.001, 0.5), (0.009, 1.0), (0.012, 1.0), (0.1, 2.0), (np.nan, 1.0)])
def test_beta_adapts_in_both_directions(kl, factor):
    entry = SURROGATES.get("ppo_kl")
    state = {"beta": jnp.float32(3.0)}
    new = entry.facts["update_state"](state, {"kl_old_new": jnp.float32(kl)}, beta=1.0, target=0.01)
    assert float(new["beta"]) == 3.0 * factor


def test_beta_stays_within_its_range():
    update = SURROGATES.get("ppo_kl").facts["update_state"]
    for kl, end in ((1.0, 1e6), (0.0, 1e-6)):
        state = {"beta": jnp.float32(1.0)}
        for _ in range(60):
            state = update(state, {"kl_old_new": jnp.float32(kl)}, beta=1.0, target=0.01)
        assert float(state["beta"]) == pytest.approx(end)


DISCRETE = EnvironmentSpec("d", Box((2,)), Discrete(4))
CONTINUOUS = EnvironmentSpec("c", Box((2,)), Box((2,)))


class Batch:
    """What `Surrogate.loss` reads of a minibatch."""

    def __init__(self, action, log_prob, distribution, weight):
        self.action, self.log_prob, self.distribution, self.weight = action, log_prob, distribution, weight


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_assembled_gradient_at_the_behaviour_policy_is_the_weighted_policy_gradient(name, kind):
    """Through a real distribution: at θ_old, ∂loss = −Σ w·A·∂log π / Σ w, whatever the surrogate."""
    entry = SURROGATES.get(name)
    if kind == "continuous" and not entry.continuous:
        pytest.skip("for probabilities only")
    rng = np.random.default_rng(0)
    outputs = jnp.asarray(rng.normal(size=(B, 4)), jnp.float32)
    build = Categorical.from_logits if kind == "discrete" else (lambda x: Gaussian(*jnp.split(x, 2, axis=-1)))
    old = build(outputs)
    action = old.sample(jax.random.key(0))
    weight = jnp.asarray(rng.integers(0, 2, B), jnp.float32)
    advantage = jnp.asarray(rng.normal(size=B), jnp.float32)
    batch = Batch(action, old.log_prob(action)[:, None], old, weight)
    surrogate = make_surrogate(entry, DISCRETE if kind == "discrete" else CONTINUOUS)
    numbers = entry.resolve({})

    def total(x):
        d = build(x)
        return surrogate.loss(d, d.entropy(), batch, advantage, surrogate.init(numbers), numbers)

    got, diagnostics = jax.grad(total, has_aux=True)(outputs)
    scale = entry.facts.get("on_policy_scale", 1.0)
    expected = -scale * jax.grad(lambda x: weighted_mean(advantage * build(x).log_prob(action), weight))(outputs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert float(diagnostics["ratio_deviation"]) == 0.0
    assert float(diagnostics["approximate_kl"]) == 0.0
    assert (np.asarray(got)[np.asarray(weight) == 0] == 0).all()


def test_what_weighs_nothing_is_not_seen_in_the_diagnostics():
    old = Categorical.from_logits(jnp.zeros((2, 4)))
    new = Categorical.from_logits(jnp.array([[0.0] * 4, [9.0, 0.0, 0.0, 0.0]]))
    action = jnp.zeros(2, jnp.int32)
    surrogate = make_surrogate(SURROGATES.get("ppo_clip"), DISCRETE)
    batch = Batch(action, old.log_prob(action)[:, None], None, jnp.array([1.0, 0.0]))
    _, diagnostics = surrogate.loss(new, new.entropy(), batch, jnp.ones(2), (), {})
    assert float(diagnostics["ratio_deviation"]) < 1e-6 and float(diagnostics["approximate_kl"]) < 1e-6


def test_impossible_combinations_are_refused_by_name():
    registry = SURROGATES
    names = ("test_mass", "test_reference", "test_all_actions")
    try:
        registry.register("test_mass", continuous=False)(lambda inputs: inputs.log_prob)
        registry.register("test_reference", requires=("reference",))(lambda i: i.log_prob * 1)
        registry.register("test_all_actions", requires=("distribution",))(lambda i: i.log_prob * 2)
        with pytest.raises(UserError, match=r"test_mass works with probabilities.*ppo_clip"):
            make_surrogate(registry.get("test_mass"), CONTINUOUS)
        with pytest.raises(UserError, match="test_reference needs reference"):
            make_surrogate(registry.get("test_reference"), DISCRETE)
        with pytest.raises(UserError, match="one discrete choice"):
            make_surrogate(registry.get("test_all_actions"), CONTINUOUS)
    finally:
        for name in names:
            registry._entries.pop(name, None)
            registry._names.pop(name, None)


def test_the_decorator_of_the_package_is_that_of_the_registry():
    assert jaxppo.register_surrogate == SURROGATES.register


def test_every_entry_has_a_formula_and_a_source():
    for entry in listing():
        assert entry.summary and entry.paper, entry.name
        assert len(inspect.getdoc(entry.function)) > len(entry.summary), f"{entry.name}: what are its limits?"


def test_weighted_mean_and_standardise():
    x, w = jnp.array([1.0, 5.0, 9.0, 100.0]), jnp.array([1.0, 1.0, 1.0, 0.0])
    assert float(weighted_mean(x, w)) == 5.0
    assert float(weighted_mean(x, jnp.zeros(4))) == 0.0
    out = standardise(x, moments(x, w))[:3]
    np.testing.assert_allclose([out.mean(), out.std()], [0.0, 1.0], atol=1e-5)
    assert float(standardise(jnp.array([3.0]), moments(jnp.array([3.0]), jnp.ones(1)))[0]) == 0.0
    assert np.isfinite(standardise(x, moments(x, jnp.zeros(4)))).all()


def test_ratio_is_one_for_the_same_policy():
    x = jnp.array([[-1.0], [-300.0]])
    np.testing.assert_array_equal(ratio(SurrogateInputs(x, x, jnp.ones_like(x))), 1.0)
    assert spo(SurrogateInputs(x, x, jnp.ones_like(x))).shape == (2, 1)
