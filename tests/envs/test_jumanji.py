"""The jumanji adapter: every listed environment keeps the protocol, and its ends are told apart exactly."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jumanji as library
import numpy as np
import pytest
from jumanji.environments.logic.rubiks_cube.utils import make_solved_cube
from jumanji.environments.routing.sokoban import generator as sokoban

from jaxppo.environment import split_mask
from jaxppo.envs import jumanji
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete

LISTING = jumanji.listing()
PLAYABLE = [row.name for row in LISTING if row.playable]
STEPS = 30
LIMIT = 20

# Smaller than registered where the registered size is slow, or too long for the limit to be seen in STEPS steps.
SMALL = {
    "BinPack-v2": dict(max_num_items=6, max_num_ems=12, obs_num_ems=8),
    "FlatPack-v0": dict(num_row_blocks=4, num_col_blocks=5),  # its limit is the number of blocks
    "Maze-v0": dict(num_rows=5, num_cols=6, time_limit=LIMIT),
    "PacMan-v1": dict(time_limit=LIMIT),
    "RubiksCube-v0": dict(num_scrambles_on_reset=5, time_limit=LIMIT),
    "RubiksCube-partly-scrambled-v0": dict(time_limit=LIMIT),
    "SlidingTilePuzzle-v0": dict(grid_size=3, num_random_moves=30, time_limit=LIMIT),
    "Snake-v1": dict(num_rows=4, num_cols=3, time_limit=LIMIT),
    "Tetris-v0": dict(num_rows=12, num_cols=6, time_limit=LIMIT),
}
LIMITED = sorted(SMALL.keys() - {"BinPack-v2"})
STOCHASTIC = {"Game2048-v1", "PacMan-v1", "Snake-v1", "Tetris-v0"}


@cache
def small(name):
    return jumanji.make(name, **SMALL.get(name, {}))


def sizes(space):
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def random_action(space, mask, key):
    """A valid action; any where none is valid."""
    mask = jnp.ones(space.num_logits, bool) if mask is None else mask
    noise = mask + jax.random.uniform(key, mask.shape)
    choices = [part.argmax() for part in jnp.split(noise, np.cumsum(sizes(space))[:-1])]
    return choices[0] if isinstance(space, Discrete) else jnp.stack(choices)


@cache
def episode(name):
    """STEPS steps, without resets, of two environments dealt the same first state. Their step keys differ; their valid
    actions are the same for as long as their observations are. Leaves are [2, STEPS, ...]."""
    env, spec = small(name), small(name).spec

    def roll(start_key, step_keys):
        def step(carry, keys):
            state, observation = carry
            action = random_action(spec.action, split_mask(spec, observation)[1], keys[0])
            next_state, step = env.step(keys[1], state, action)
            return (next_state, step.observation), (observation, action, next_state.replace(key=None), step)

        return jax.lax.scan(step, env.reset(start_key), (jax.random.split(jax.random.key(7), STEPS), step_keys))[1]

    keys = jax.random.split(jax.random.key(1), (2, STEPS))
    rolled = jax.jit(jax.vmap(roll, (None, 0)))(jax.random.key(0), keys)
    observation, action, next_state, step = jax.tree.map(np.asarray, rolled)
    over = np.cumsum(step.terminated | step.truncated, axis=1) > 0
    live = np.concatenate([np.zeros((2, 1), bool), over[:, :-1]], axis=1) == 0
    return SimpleNamespace(observation=observation, action=action, next_state=next_state, step=step, live=live)


def test_everything_registered_is_listed_with_the_reason_why_not():
    reasons = {row.name: row.reason for row in LISTING if not row.playable}
    assert {row.name for row in LISTING} == library.registered_environments()
    assert reasons.pop("Sokoban-v0").startswith("needs a download")
    assert len(reasons) == 7 and set(reasons.values()) == {"multi-agent: not yet"}
    with pytest.raises(UserError, match="multi-agent: not yet"):
        jumanji.make("Cleaner-v0")


def test_sokoban_really_needs_a_download(monkeypatch):
    def download(**asked):
        raise ConnectionError(asked["repo_id"])

    monkeypatch.setattr(sokoban, "hf_hub_download", download)
    with pytest.raises(ConnectionError, match="boxoban-levels"):
        library.make("Sokoban-v0")


@pytest.mark.parametrize("name", PLAYABLE)
def test_protocol(name):
    """jit, vmap and scan accept it (so the types of the state are stable), and what it gives is what its spec says."""
    spec, seen = small(name).spec, episode(name)
    shapes = jax.eval_shape(small(name).reset, jax.random.key(0))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(shapes))
    assert spec.name == f"jumanji/{name}"
    assert seen.step.reward.dtype == np.float32 and np.isfinite(seen.step.reward).all()
    assert seen.step.terminated.dtype == seen.step.truncated.dtype == bool
    for observation in (seen.observation, seen.step.observation):
        view, _ = split_mask(spec, observation)
        structure = jax.tree.structure(spec.observation, is_leaf=lambda node: isinstance(node, (Box, Discrete)))
        for space, leaf in zip(structure.flatten_up_to(spec.observation), structure.flatten_up_to(view), strict=True):
            low, high = (0, space.n - 1) if isinstance(space, Discrete) else space.bounds()
            assert leaf.dtype == space.dtype and leaf.shape[2:] == space.shape
            assert (leaf[seen.live] >= low).all() and (leaf[seen.live] <= high).all()


@pytest.mark.parametrize("name", [name for name in PLAYABLE if small(name).spec.masked])
def test_the_mask_covers_the_action_space(name):
    spec, seen = small(name).spec, episode(name)
    mask = seen.observation.action_mask
    assert mask.dtype == bool and mask.shape[2:] == (spec.action.num_logits,)
    some = [part.any(-1)[seen.live].all() for part in np.split(mask, np.cumsum(sizes(spec.action))[:-1], axis=-1)]
    assert all(some) or name == "FlatPack-v0"  # the only one that can get stuck before its end


def test_a_joint_action_is_row_major():
    env = jumanji.make("Minesweeper-v0", num_rows=3, num_cols=5, num_mines=1)
    state, observation = env.reset(jax.random.key(0))
    assert env.spec.action == Discrete(15) and observation.action_mask.shape == (15,)
    _, step = env.step(jax.random.key(1), state, jnp.int32(8))
    opened = np.argwhere(step.observation.view["board"] != -1)
    assert opened.tolist() == [[1, 3]] and np.flatnonzero(~step.observation.action_mask).tolist() == [8]


def test_component_masks_are_concatenated():
    """JobShop charges 1 a step, and much more for an action that its mask forbids."""
    spec, seen = small("JobShop-v0").spec, episode("JobShop-v0")
    assert spec.action.nvec == (21,) * 10
    assert (seen.step.reward[seen.live] == -1).all()


@pytest.mark.parametrize("name", PLAYABLE)
def test_the_step_key_alone_decides_what_follows_a_pooled_state(name):
    pairs = [leaf for leaf in jax.tree.leaves(episode(name).next_state)]
    assert any((leaf[0] != leaf[1]).any() for leaf in pairs) == (name in STOCHASTIC)


@pytest.mark.parametrize("name", LIMITED)
def test_it_ends_when_the_library_ends_and_is_cut_only_at_its_limit(name):
    """The library is run again with its own limit, on the actions taken, from each state before them."""
    env, seen = small(name), episode(name)
    assert env.spec.time_limit == LIMIT
    reference = jumanji._build(name, jumanji._ENTRIES[name], SMALL[name])

    def ends(key, actions, step_keys):
        def step(state, inputs):
            key, action = inputs
            action = jnp.stack(jnp.unravel_index(action, env.game.components)) if env.game.components else action
            state, timestep = reference.step(state.replace(key=key), action)
            return state, timestep.last()

        return jax.lax.scan(step, env.reset(key)[0], (step_keys, actions))[1]

    keys = jax.random.split(jax.random.key(1), (2, STEPS))
    expected = jax.jit(jax.vmap(ends, (None, 0, 0)))(jax.random.key(0), seen.action, keys)
    terminated, truncated = seen.step.terminated, seen.step.truncated
    np.testing.assert_array_equal((terminated | truncated)[seen.live], np.asarray(expected)[seen.live])
    assert not (terminated & truncated).any()
    assert (
        not truncated[:, : LIMIT - 1].any()
        and (terminated | truncated)[:, LIMIT - 1 :][seen.live[:, LIMIT - 1 :]].all()
    )


def one_from_the_end(name, env, state):
    """(state, action) after which the episode goes on, and (state, action) with which it truly ends."""
    first = env.reset(jax.random.key(0))[1]
    allowed = first.action_mask.argmax() if env.spec.masked else jnp.zeros(env.spec.action.shape, int)
    match name:
        case "RubiksCube-v0" | "RubiksCube-partly-scrambled-v0":
            half_turn = jnp.array([0, 0, 2])
            solved = state.replace(cube=make_solved_cube(3))
            return (solved, half_turn), (env.step(jax.random.key(0), solved, half_turn)[0], half_turn)
        case "SlidingTilePuzzle-v0":
            solved = state.replace(puzzle=env.game.library.solved_puzzle, empty_tile_position=jnp.array([2, 2]))
            up, down = jnp.int32(0), jnp.int32(2)
            return (solved, up), (env.step(jax.random.key(0), solved, up)[0], down)
        case "Tetris-v0":
            return (state, allowed), (state, first.action_mask.argmin())  # sticks out of the grid
        case "Snake-v1":
            return (state, allowed), (state.replace(action_mask=jnp.zeros(4, bool)), allowed)  # into itself
        case "Maze-v0":
            open_maze = jnp.zeros_like(state.walls)
            at, right = state.agent_position, jnp.int32(1)
            state = state.replace(
                walls=open_maze,
                action_mask=jnp.ones(4, bool),
                agent_position=at._replace(row=jnp.int32(1), col=jnp.int32(1)),
                target_position=at._replace(row=jnp.int32(1), col=jnp.int32(2)),
            )
            return (state, jnp.int32(2)), (state, right)
        case "PacMan-v1":
            at, stay = state.player_locations, jnp.int32(4)
            caught = state.replace(old_ghost_locations=jnp.tile(jnp.stack([at.y, at.x]), (4, 1)))
            return (state, stay), (caught, stay)
        case "FlatPack-v0":  # an illegal action uses up a step; with every block placed nothing can follow
            illegal = first.action_mask.argmin()
            return (state, illegal), (state.replace(placed_blocks=jnp.ones(LIMIT, bool)), illegal)
    raise AssertionError(f"{name} has a time limit and no test of it")


@pytest.mark.parametrize("name", LIMITED)
def test_the_limit_truncates_unless_the_episode_truly_ends_there(name):
    env = small(name)
    state, _ = env.reset(jax.random.key(0))
    goes_on, ends = one_from_the_end(name, env, state)
    scenes = [(goes_on, LIMIT - 2), (goes_on, LIMIT - 1), (ends, LIMIT - 1), (ends, LIMIT - 2)]
    states = [state.replace(step_count=jnp.int32(count)) for (state, _), count in scenes]
    states, actions = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[(s, a) for s, ((_, a), _) in zip(states, scenes, strict=True)]
    )
    _, step = jax.jit(jax.vmap(env.step, (None, 0, 0)))(jax.random.key(5), states, actions)
    early = name != "FlatPack-v0"  # which goes through all of its steps, whatever happens
    assert step.terminated.tolist() == [False, False, True, early]
    assert step.truncated.tolist() == [False, True, False, False]


def test_every_limit_is_tested_and_the_defaults_are_the_library_s():
    limits = {name: jumanji.make(name).spec.time_limit for name in LIMITED}
    assert limits == {
        "FlatPack-v0": 25,
        "Maze-v0": 100,
        "PacMan-v1": 1000,
        "RubiksCube-partly-scrambled-v0": 20,
        "RubiksCube-v0": 200,
        "SlidingTilePuzzle-v0": 500,
        "Snake-v1": 4000,
        "Tetris-v0": 400,
    }
    assert [name for name in PLAYABLE if small(name).spec.time_limit is not None] == LIMITED


def test_a_limit_for_an_environment_without_one_is_the_wrapper_s():
    env = jumanji.make("Knapsack-v1", time_limit=2, num_items=9)
    assert env.spec.time_limit == 2 and env.spec.action == Discrete(9)
    state, _ = env.reset(jax.random.key(0))
    state, step = env.step(jax.random.key(1), state, jnp.int32(0))
    assert not step.truncated
    assert env.step(jax.random.key(1), state, jnp.int32(1))[1].truncated


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("Snak-v1", {}, "did you mean Snake-v1"),
        ("Snake-v1", {"rows": 3}, "did you mean num_rows"),
        ("Snake-v1", {"num_rows": 0}, "refuses"),
        ("Snake-v1", {"num_rows": 2.5}, "whole number"),
        ("Snake-v1", {"viewer": None}, "unknown parameter"),
        ("Maze-v0", {"time_limit": 0}, "at least 1"),
        ("Maze-v0", {"time_limit": -3}, "at least 1"),
        ("FlatPack-v0", {"time_limit": 9}, "fixes its time limit at 25"),
        ("Knapsack-v1", {"total_budget": float("nan")}, "finite"),
        ("Minesweeper-v0", {"num_mines": 500}, "refuses"),
        ("BinPack-v2", {"obs_num_ems": 80}, "do not fit each other"),
        ("Maze-v0", {"generator": 5}, "generator=5 .* object of the library"),
        ("Game2048-v1", {"reward_fn": 5}, r"reward_fn"),
        ("Knapsack-v1", {"reward_fn": "sparse"}, "reward_fn='sparse' .* object of the library"),
        ("Maze-v0", {"generator": object(), "num_rows": 3}, "set it in the generator"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(name, parameters, message):
    with pytest.raises(UserError, match=message) as error:
        jumanji.make(name, **parameters)
    assert "\n" not in str(error.value)


def test_parameters_set_the_sizes():
    assert jumanji.make("Snake-v1", num_rows=6, num_cols=7).spec.observation["grid"].shape == (6, 7, 5)
    assert jumanji.make("RubiksCube-v0", cube_size=4).spec.action.nvec == (6, 2, 3)
    assert jumanji.make("Maze-v0", num_rows=4, num_cols=5).spec.time_limit == 20
