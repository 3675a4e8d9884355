import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.envs import listing, make, parameters, with_parameters
from jaxppo.errors import UserError

gymnax = pytest.importorskip("gymnax")

ROWS = {row.name: row for row in listing() if row.name.startswith("gymnax/")}
PLAYABLE = [name for name, row in ROWS.items() if row.playable]
HEAVY = ["gymnax/Asterix-MinAtar", "gymnax/Freeway-MinAtar", "gymnax/Seaquest-MinAtar"]  # to compile
SEVERAL_STARTS = (  # elsewhere an episode starts from one picture, and differs later
    "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 Breakout-MinAtar Freeway-MinAtar "
    "Catch-bsuite UmbrellaChain-bsuite PointRobot-misc Reacher-misc Swimmer-misc"
).split()


def slow_where_heavy(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in names]


def test_everything_registered_is_listed():
    assert set(ROWS) == {f"gymnax/{name}" for name in gymnax.registered_envs}
    assert all(row.playable or row.reason for row in ROWS.values())
    assert {name for name, row in ROWS.items() if not row.playable} == {"gymnax/MNISTBandit-bsuite"}


@pytest.mark.parametrize("name", PLAYABLE)
def test_contract(name, check_contract):
    check_contract(make(name))


@pytest.mark.parametrize("name", slow_where_heavy(PLAYABLE))
def test_plays_to_a_limit_of_three(name, play):
    """Under vmap and jit; ends are told apart and nothing is NaN."""
    env = make(name, time_limit=3)
    assert env.spec.time_limit == 3
    first, _, step = play(env, steps=3)
    assert not step.truncated[:2].any()
    np.testing.assert_array_equal(step.truncated[2], ~step.terminated[2])
    for leaf in jax.tree.leaves((first, step)):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("name", ["gymnax/Pendulum-v1", "gymnax/MountainCar-v0"])
def test_length_is_the_librarys_own_limit(name, play, check_limit):
    env = make(name)
    assert env.spec.time_limit == 200
    _, _, step = play(env, steps=200)
    check_limit(env, step)


@pytest.mark.parametrize("name", SEVERAL_STARTS)
def test_starts_differ(name):
    _, observation = jax.vmap(make(f"gymnax/{name}").reset)(jax.random.split(jax.random.key(0), 16))
    assert len(np.unique(np.asarray(observation).reshape(16, -1), axis=0)) > 1


def test_terminal_observation_is_the_librarys_final_one():
    """CartPole pushed to one side falls; the library resets then, and keeps the true observation in `info`."""
    env = make("gymnax/CartPole-v1")
    library, params = gymnax.make("CartPole-v1")
    key = jax.random.key(0)
    state, _ = env.reset(key)
    theirs = state
    for _ in range(20):
        state, step = env.step(key, state, jnp.int32(1))
        observation, theirs, reward, terminated, _, info = library.step(key, theirs, 1, params)
        np.testing.assert_allclose(step.observation, info["final_observation"], rtol=1e-6)
        assert (step.reward, step.terminated) == (reward, terminated)
        if terminated:
            break
    assert terminated and np.abs(step.observation - observation).max() > 0.1


def test_truncation_and_termination_in_one_step_is_termination():
    state, _ = make("gymnax/CartPole-v1").reset(jax.random.key(0))
    state = state.replace(theta=jnp.float32(1.0), time=jnp.int32(499))
    _, step = make("gymnax/CartPole-v1").step(jax.random.key(0), state, jnp.int32(1))
    assert step.terminated and not step.truncated


@pytest.mark.parametrize("name", slow_where_heavy(name for name in PLAYABLE if name.endswith("MinAtar")))
def test_minatar_pictures_are_of_zeros_and_ones(name):
    """So that nothing is lost in bool."""
    env = make(name)
    assert env.spec.observation.dtype == bool
    library = env.game.library
    params = library.default_params

    def step(state, key):
        action = jax.random.randint(key, (), 0, env.spec.action.n)
        observation, state, *_ = library.step_env(key, state, action, params)
        return state, observation

    _, state = library.reset_env(jax.random.key(0), params)
    state, _ = step(state, jax.random.key(0))
    _, pictures = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 100)))(state)
    assert set(np.unique(pictures)) == {0.0, 1.0}


def test_parameters_are_leaves():
    env = make("gymnax/CartPole-v1", gravity=12)
    assert parameters(env)["gravity"] == 12.0 and "max_steps_in_episode" not in parameters(env)
    state, _ = env.reset(jax.random.key(0))

    def speed(gravity):
        return with_parameters(env, gravity=gravity).step(jax.random.key(0), state, jnp.int32(1))[1].observation[3]

    speeds = jax.jit(jax.vmap(speed))(jnp.array([12.0, 50.0]))
    np.testing.assert_allclose(speeds[0], env.step(jax.random.key(0), state, jnp.int32(1))[1].observation[3], rtol=1e-6)
    assert speeds[0] != speeds[1]


def test_made_inside_a_trace():
    """Nothing of the trace stays behind in what the adapter keeps."""

    def observe(gravity):
        env = make("gymnax/CartPole-v1", gravity=gravity, time_limit=77)
        return env.step(jax.random.key(0), env.reset(jax.random.key(0))[0], jnp.int32(0))[1].observation

    jax.jit(observe)(9.8)
    np.testing.assert_allclose(observe(9.8), jax.jit(observe)(9.8), rtol=1e-6)


def test_equal_choices_are_one_structure():
    one, other = make("gymnax/CartPole-v1", gravity=9.0), make("gymnax/CartPole-v1", gravity=9.0)
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_constructor_arguments_are_static():
    assert make("gymnax/Catch-bsuite", rows=6, columns=4).spec.observation.shape == (6, 4)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (dict(name="gymnax/CartPole-v1", gravty=1.0), "did you mean gravity"),
        (dict(name="gymnax/CartPole-v1", gravity="heavy"), "takes one number, now 9.8"),
        (dict(name="gymnax/CartPole-v1", gravity=[1.0, 2.0]), "takes one number, now 9.8"),
        (dict(name="gymnax/CartPole-v1", gravity=None), "takes one number, now 9.8"),
        (dict(name="gymnax/CartPole-v1", gravity=float("nan")), "must be a finite number"),
        (dict(name="gymnax/CartPole-v1", time_limit=0), "at least 1"),
        (dict(name="gymnax/CartPole"), "did you mean gymnax/CartPole-v1"),
        (dict(name="gymnax/Catch-bsuite", rows=-1), "refuses"),
        (dict(name="gymnax/Catch-bsuite", rows=[3, 4]), "refuses"),
        (dict(name="gymnax/MNISTBandit-bsuite"), "needs a download"),
    ],
)
def test_bad_input(request_, message):
    values = {name: value for name, value in request_.items() if name != "name"}
    with pytest.raises(UserError, match=message) as caught:
        make(request_["name"], **values)
    assert "\n" not in str(caught.value)


def test_older_versions_are_refused_by_name(monkeypatch):
    from jaxppo.envs import gymnax as adapter

    monkeypatch.setattr(adapter, "version", lambda package: "0.0.9")
    with pytest.raises(UserError, match=r"gymnax 0\.0\.9"):
        make("gymnax/CartPole-v1")
