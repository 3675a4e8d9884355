"""Time-limit conventions, each against an example that is worked out by hand.

One environment, three steps; the first is truncated. Rewards 1, 2, 3; values 10, 20, 30; true next values 40, 30, 50.
γ = 1/2, λ = 1. After the truncation: A_2 = 3 + 25 − 30 = −2, A_1 = 2 + 15 − 20 + (−2)/2 = −4.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.advantages import ADVANTAGES
from jaxppo.advantages.conventions import CONVENTIONS, apply_truncation
from jaxppo.config import Truncation
from jaxppo.types import CriticOutputs, Final, Rollout


def column(*values):
    return jnp.asarray(values, jnp.float32)[:, None]


def example(*, final=True):
    nothing = dict.fromkeys(Rollout._fields)
    rollout = Rollout(**nothing)._replace(
        reward=column(1, 2, 3),
        value=column(10, 20, 30),
        continuation=column(1, 1, 1),
        trace=column(0, 1, 1),
        weight=column(1, 1, 1),
        final=Final(None, None, column(1, 0, 0) > 0) if final else None,
    )
    return rollout, CriticOutputs(column(10, 20, 30), column(40, 30, 50), column(0, 0, 0))


@pytest.mark.parametrize(
    ("convention", "advantage", "target", "weight"),
    [
        ("bootstrap", 1 + 20 - 10, 1 + 20, 1),
        ("hold", 1 + 5 - 10, 1 + 5, 1),
        ("terminate", 1 - 10, 1, 1),
        ("mask", 0, 10, 0),
        ("zero", 0, 10, 1),
    ],
)
def test_each_convention_does_what_it_says(convention, advantage, target, weight):
    rollout, critic = apply_truncation(convention, *example(), 0.5)
    for name in ("gae", "monte_carlo"):
        entry = ADVANTAGES.get(name)
        numbers = {"lam": 1.0} if name == "gae" else {}
        out = entry.function(rollout, critic, gamma=0.5, **numbers)
        np.testing.assert_allclose(out.advantage[:, 0], [advantage, -4, -2], atol=1e-5)
        np.testing.assert_allclose(out.target[:, 0], [target, 16, 28], atol=1e-5)
        np.testing.assert_allclose(out.weight[:, 0], [weight, 1, 1])


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_nothing_changes_where_nothing_can_be_truncated(convention):
    rollout, critic = example(final=False)
    assert apply_truncation(convention, rollout, critic, 0.5) == (rollout, critic)


def test_the_configuration_names_exactly_these():
    assert set(CONVENTIONS) == set(Truncation.__args__)
