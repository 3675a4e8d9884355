import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.envs import listing, make, parameters, with_parameters
from jaxppo.errors import UserError

pytest.importorskip("brax")

ROWS = {row.name: row for row in listing() if row.name.startswith("brax/")}
LIGHT = ["brax/fast", "brax/inverted_pendulum", "brax/reacher"]


def test_everything_registered_is_playable():
    from brax import envs

    assert set(ROWS) == {f"brax/{name}" for name in envs._envs}
    assert all(row.playable for row in ROWS.values())


@pytest.mark.parametrize("name", [n if n in LIGHT else pytest.param(n, marks=pytest.mark.slow) for n in ROWS])
def test_contract(name, check_contract):
    env = make(name)
    assert env.spec.time_limit == 1000
    check_contract(env)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ROWS) - set(LIGHT)))
def test_plays(name, play):
    first, _, step = play(make(name), steps=2)
    for leaf in jax.tree.leaves((first, step)):
        assert np.isfinite(leaf).all()
    assert not step.truncated.any()


def test_plays_as_brax_does(play):
    """Against brax's own episode wrapper, from the same start with the same actions: ends and observations."""
    from brax.envs.wrappers.training import EpisodeWrapper

    env = make("brax/inverted_pendulum", time_limit=6)
    theirs = EpisodeWrapper(env.simulator.library, 6, 1)

    def both(key, actions):
        state, _ = env.reset(key)

        def step(carry, action):
            mine, their = carry
            mine, outcome = env.step(key, mine, action)
            their = theirs.step(their, action)
            return (mine, their), (outcome, their.obs, their.reward, their.done, their.info["truncation"])

        return jax.lax.scan(step, (state, theirs.reset(key)), actions)[1]

    keys = jax.random.split(jax.random.key(0), 4)
    push = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0, 1.0])[:, None, None], (4, 6, 1))
    outcome, observation, reward, done, truncation = jax.jit(jax.vmap(both))(keys, push)
    np.testing.assert_allclose(outcome.observation, observation, atol=1e-5)
    np.testing.assert_allclose(outcome.reward, reward)
    np.testing.assert_array_equal(outcome.terminated | outcome.truncated, done == 1)
    np.testing.assert_array_equal(outcome.truncated, truncation == 1)
    assert outcome.truncated[0, 5] and not outcome.truncated[:, :5].any()
    assert len(np.unique(observation[:, 0], axis=0)) == 4, "starts differ"


def test_falling_is_a_termination(play):
    """Pushed to one side the pendulum falls, and the observation is the one of the fall."""
    _, _, step = play(make("brax/inverted_pendulum"), steps=40, policy=lambda _: jnp.ones(1))
    assert step.terminated.any(axis=0).all() and not step.truncated.any()
    at = np.argmax(step.terminated, axis=0)
    assert (np.abs(step.observation[at, np.arange(2), 1]) > 0.2).all()


def test_length_is_the_limit(play, check_limit):
    env = make("brax/fast", time_limit=5)
    _, _, step = play(env, steps=7)
    check_limit(env, step)


def test_the_callers_state_stays_as_it_was():
    """brax writes into the dicts of the state that it is given."""
    env = make("brax/reacher")

    def metrics(key):
        state, _ = env.reset(key)
        env.step(key, state, jnp.ones(2))
        return state.simulation.metrics

    assert all((value == 0).all() for value in jax.jit(metrics)(jax.random.key(0)).values())


@pytest.mark.slow
def test_physics_can_be_traced():
    env = make("brax/inverted_pendulum", physics={"gravity": [0.0, 0.0, -9.81]})
    assert set(parameters(env)) == {"gravity"}
    state, _ = env.reset(jax.random.key(0))

    def fall(gravity):
        heavier = with_parameters(env, **{"gravity": jnp.zeros(3).at[2].set(gravity)})
        return heavier.step(jax.random.key(0), state, jnp.zeros(1))[1].observation[3]

    falls = jax.jit(jax.vmap(fall))(jnp.array([-9.81, -9.81, -50.0]))
    assert falls[0] == falls[1] != falls[2]


@pytest.mark.parametrize("path", ["gravity", "opt.timestep", "link.inertia.mass"])
def test_physics_by_flat_name_is_the_physics_of_the_mapping(path):
    value = {"gravity": [0.0, 1.0, -5.0], "opt.timestep": 0.005, "link.inertia.mass": [2.0, 3.0]}[path]
    flat = make("brax/inverted_pendulum", **{f"physics.{path}": value})
    mapped = make("brax/inverted_pendulum", physics={path: value})
    assert jax.tree.structure(flat) == jax.tree.structure(mapped)
    np.testing.assert_array_equal(parameters(flat)[path], parameters(mapped)[path])
    np.testing.assert_allclose(jax.tree.leaves(flat)[0], value)


def test_equal_lists_of_a_constructor_are_one_environment():
    first, second = (make("brax/hopper", healthy_z_range=kind((0.7, 9.0))) for kind in (list, np.array))
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_making_is_quiet(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make("brax/inverted_pendulum", n_frames=1)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (dict(name="brax/reacher", backend="sprng"), "did you mean spring"),
        (dict(name="brax/ant", ctrl_cost=1.0), "did you mean ctrl_cost_weight"),
        (dict(name="brax/reachr"), "did you mean brax/reacher"),
        (dict(name="brax/reacher", time_limit=-1), "at least 1"),
        (dict(name="brax/fast", physics={"gravity": 1.0}), "has no 'gravity'"),
        (
            dict(name="brax/reacher", physics=5),
            "physics=5 of brax/reacher must name what to set, as in physics.gravity",
        ),
        (dict(name="brax/reacher", physics="gravity"), "physics='gravity'"),
        ({"name": "brax/reacher", "physics.gravty": 5}, "did you mean gravity"),
        ({"name": "brax/reacher", "physics.": 5}, "unknown physics of brax/reacher ''"),
        ({"name": "brax/reacher", "physics.link": 5}, "did you mean link"),
        ({"name": "brax/reacher", "physics.gravity.shape": 5}, "did you mean gravity"),
        ({"name": "brax/reacher", "physics.opt.iterations": 5}, "unknown physics"),
        ({"name": "brax/reacher", "physics.gravity": -5.0}, "it takes 3 numbers, now 0,0,"),
        ({"name": "brax/reacher", "physics.gravity": [0, 0, "heavy"]}, "it takes 3 numbers"),
        ({"name": "brax/reacher", "physics.gravity": [0, 0, float("nan")]}, "must be a finite number"),
        (dict(name="brax/reacher", n_frames=[1, 2]), "n_frames=(1, 2) of brax/reacher must be a whole number"),
        (dict(name="brax/reacher", n_frames=0), "n_frames=0"),
        (dict(name="brax/reacher", n_frames=1.5), "n_frames=1.5"),
        (dict(name="brax/reacher", debug=[1]), "debug=(1,) of brax/reacher must be true or false"),
        (dict(name="brax/reacher", debug={"a": [1]}), "debug={'a': [1]} of brax/reacher must be"),
        (dict(name="brax/reacher", backend=["spring"]), "unknown brax backend"),
        (
            dict(name="brax/ant", ctrl_cost_weight=[1, 2]),
            "ctrl_cost_weight=(1, 2) of brax/ant does not fit: it takes one",
        ),
        (dict(name="brax/ant", ctrl_cost_weight="heavy"), "ctrl_cost_weight='heavy' of brax/ant does not fit"),
        (dict(name="brax/ant", healthy_z_range=0.2), "it takes 2 numbers, now 0.2,1"),
        (dict(name="brax/swimmer", backend="spring"), "Unsupported backend"),
    ],
)
def test_bad_input(request_, message):
    values = {name: value for name, value in request_.items() if name != "name"}
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        make(request_["name"], **values)
    assert "\n" not in str(caught.value)
