import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.types import Counter, Mean


def test_mean_of_parts_adds_up_to_the_mean_of_all():
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    weight = (np.arange(30).reshape(6, 5) % 3).astype(np.float32)
    parts = [Mean.of(x[i], weight[i]) for i in range(6)]
    whole = Mean(sum(p.total for p in parts), sum(p.count for p in parts))
    assert float(whole.value) == pytest.approx(float((x * weight).sum() / weight.sum()), rel=1e-5)


def test_mean_of_nothing_is_a_count_of_zero():
    mean = Mean.of(jnp.full(3, jnp.nan), jnp.zeros(3))
    assert (float(mean.total), float(mean.count), float(mean.value)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("amount", [1, 7, 2**20 * 128, 2**31, 2**32 - 1, 2**32 + 5, 2**40 + 2**31])
def test_counter_counts_past_31_and_32_bits(amount):
    total, counter = 0, Counter.zero()
    add = jax.jit(lambda c: c.add(amount))
    for _ in range(40):
        counter, total = add(counter), total + amount
        assert int(counter) == total


def test_counter_crosses_the_boundaries_one_by_one():
    for boundary in (2**24, 2**31, 2**32, 2**33):
        counter = Counter.zero().add(boundary - 1)
        assert [int(counter := counter.add(1)) for _ in range(3)] == [boundary, boundary + 1, boundary + 2]


def test_counter_fraction_is_right_where_float32_has_stopped_counting():
    whole = 2.0**36
    for count in (0, 2**24 + 1, 2**31 + 2**20, 2**35, 2**36):
        assert float(Counter.zero().add(count).fraction_of(whole)) == pytest.approx(count / whole, rel=1e-6)
