import jax
import jax.numpy as jnp

from jaxppo.benchmark.kernels import count_kernels

X = jnp.ones((64, 64))


def kernels(function, *arguments):
    return count_kernels(jax.jit(function).lower(*arguments).compile().as_text())


def test_two_products_are_one_more_than_one():
    one = kernels(lambda x: x @ x, X)
    assert one >= 1
    assert kernels(lambda x: jnp.tanh(x @ x) @ x, X) > one


def test_a_loop_counts_its_body_once():
    def loop(length):
        return kernels(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c @ x), None), x, None, length=length)[0], X)

    assert loop(3) == loop(50) >= 2


def test_scalars_and_nothing_are_free():
    assert kernels(lambda x: x + 1.0, jnp.float32(0)) == 0
    assert kernels(lambda x: x, X) <= 1  # a copy at most
