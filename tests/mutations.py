"""Breaks the code on purpose and shows that a test notices. Not collected by pytest; run it from the repository:

    python tests/mutations.py [WORD ...]      # only the mutations whose line contains one of the words

Each mutation is applied to a copy of the repository in a temporary folder, so the working tree is never touched.
Prints one line a mutation; exit code 1 if one survives or does not apply.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]

# (what, file, old, new, test)
MUTATIONS = [
    (
        "shift the reset flag by one step",
        "jaxppo/rollout.py",
        "reset=carry.reset,",
        "reset=ended,",
        "tests/test_rollout.py::test_reset_is_the_end_of_the_step_before_also_across_rollouts",
    ),
    (
        "leak the trace over a truncation",
        "jaxppo/rollout.py",
        "trace=1.0 - (terminated | cut)",
        "trace=1.0 - terminated",
        "tests/test_rollout.py::test_ends_stand_at_the_step_that_ended",
    ),
    (
        "take a time limit for a termination",
        "jaxppo/rollout.py",
        "continuation=1.0 - terminated",
        "continuation=1.0 - cut",
        "tests/test_rollout.py::test_ends_stand_at_the_step_that_ended",
    ),
    (
        "take a time limit for a termination, seen in the learned value",
        "jaxppo/rollout.py",
        "continuation=1.0 - terminated",
        "continuation=1.0 - cut",
        "tests/algorithms/test_ppo.py::test_value_of_a_world_that_only_a_limit_ends[bootstrap]",
    ),
    (
        "drop V(final)",
        "jaxppo/rollout.py",
        "next_value = jnp.where(_expand(rollout.final.taken, value), picked, next_value)",
        "pass",
        "tests/test_rollout.py::test_next_values_are_those_of_the_true_next_states",
    ),
    (
        "drop V(final), seen in the whole update",
        "jaxppo/rollout.py",
        "next_value = jnp.where(_expand(rollout.final.taken, value), picked, next_value)",
        "pass",
        "tests/algorithms/test_ppo.py::test_a_whole_update_equals_numpy[0]",
    ),
    (
        "always read the first slot of final observations",
        "jaxppo/rollout.py",
        "jnp.maximum(jnp.cumsum(rollout.final.taken, axis=0) - 1, 0)",
        "jnp.zeros(rollout.final.taken.shape, jnp.int32)",
        "tests/test_rollout.py::test_next_values_are_those_of_the_true_next_states",
    ),
    (
        "reward beside the next observation",
        "jaxppo/rollout.py",
        "observation=carry.observation,\n                action",
        "observation=outcome.observation,\n                action",
        "tests/test_rollout.py::test_reward_stands_beside_the_observation_that_it_was_earned_in",
    ),
    (
        "one key for all steps",
        "jaxppo/rollout.py",
        "jax.random.fold_in(step_key, t)",
        "step_key",
        "tests/test_rollout.py::test_every_step_and_every_rollout_draws_anew",
    ),
    (
        "one action key for all environments",
        "jaxppo/rollout.py",
        "sample(output.distribution, key_for_each(act_key, index))",
        "sample(output.distribution, jnp.broadcast_to(act_key, index.shape))",
        "tests/test_rollout.py::test_samples_of_an_environment_do_not_depend_on_the_others",
    ),
    (
        "keys by place in the chunk instead of by global index",
        "jaxppo/rollout.py",
        "sample(output.distribution, key_for_each(act_key, index))",
        "sample(output.distribution, key_for_each(act_key, jnp.arange(n)))",
        "tests/test_rollout.py::test_samples_of_an_environment_do_not_depend_on_the_others",
    ),
    (
        "let a NaN through",
        "jaxppo/rollout.py",
        "valid = finite((total, split_mask(spec, outcome.observation)[0]))",
        "valid = jnp.ones(index.shape, bool)",
        "tests/test_rollout.py::test_a_nan_ends_the_episode_weighs_nothing_and_is_counted",
    ),
    (
        "let a NaN through from a reset",
        "jaxppo/rollout.py",
        "jnp.where(sound, 0.0, jnp.nan)",
        "jnp.where(sound, 0.0, 0.0)",
        "tests/test_rollout.py::test_a_nan_in_a_first_observation_weighs_nothing_and_is_counted",
    ),
    (
        "members of a group start apart",
        "jaxppo/rollout.py",
        "key_for_each(key, index // group_size)",
        "key_for_each(key, index)",
        "tests/test_rollout.py::test_members_of_a_group_share_the_start_and_part_ways",
    ),
    (
        "leak the trace in the recursion",
        "jaxppo/advantages/estimators.py",
        "gamma * lam * continuation * trace)",
        "gamma * lam * continuation)",
        "tests/advantages/test_estimators.py::test_a_truncated_batch_equals_its_two_halves",
    ),
    (
        "bootstrap through a termination",
        "jaxppo/advantages/estimators.py",
        "return reward + gamma * continuation * next_value - value",
        "return reward + gamma * next_value - value",
        "tests/advantages/test_estimators.py::test_termination_ignores_the_final_value_and_what_follows",
    ),
    (
        "the same key in the next update",
        "jaxppo/algorithms/ppo.py",
        "key=next_key,",
        "key=state.key,",
        "tests/algorithms/test_ppo.py::test_a_whole_update_equals_numpy[0]",
    ),
    (
        "forget γ on the way to the estimator",
        "jaxppo/algorithms/ppo.py",
        '"gamma": hyper.gamma,',
        '"gamma": 0.99,',
        "tests/algorithms/test_ppo.py::test_a_whole_update_equals_numpy[0]",
    ),
    (
        "statistics move before the update",
        "jaxppo/algorithms/ppo.py",
        "policy.apply(parameters, observe(batch.view), batch.mask, (), None)",
        "policy.apply(parameters, normalise_observation(update_observation_statistics(state.statistics, view), "
        "batch.view), batch.mask, (), None)",
        "tests/algorithms/test_ppo.py::test_first_ratio_is_one_whatever_the_policy[categorical]",
    ),
    (
        "score without the mask",
        "jaxppo/algorithms/ppo.py",
        "policy.apply(parameters, observe(batch.view), batch.mask, (), None)",
        "policy.apply(parameters, observe(batch.view), None, (), None)",
        "tests/algorithms/test_ppo.py::test_first_ratio_is_one_whatever_the_policy[masked_multi_discrete]",
    ),
    (
        "the same order in all blocks",
        "jaxppo/randomness.py",
        "jax.random.fold_in(key, b)",
        "key",
        "tests/test_randomness.py::test_blocks_of_one_epoch_have_different_orders",
    ),
    (
        "samples cross blocks",
        "jaxppo/randomness.py",
        "local // width * num_envs + b * width + local % width",
        "b * size + local",
        "tests/test_randomness.py::test_tagged_samples_survive_the_shuffle",
    ),
    (
        "two Feistel rounds of one digit only",
        "jaxppo/randomness.py",
        "y = (y + _hash(x ^ key_bits[2 * i + 1]) % jnp.uint32(b)) % jnp.uint32(b)",
        "pass",
        "tests/test_randomness.py::test_every_sample_comes_to_every_position_equally_often",
    ),
    (
        "the same order in every epoch",
        "jaxppo/improvement.py",
        "jax.random.fold_in(key, epoch)",
        "key",
        "tests/test_improvement.py::test_steps_follow_the_gradient_of_each_minibatch",
    ),
    (
        "fresh starts by place in the chunk",
        "jaxppo/resets.py",
        "return jax.vmap(env.reset)(key_for_each(key, index))",
        "return jax.vmap(env.reset)(key_for_each(key, jnp.arange(index.shape[0])))",
        "tests/test_resets.py::test_starts_depend_on_the_global_index_and_not_on_the_chunk",
    ),
    (
        "one pooled start for everybody",
        "jaxppo/resets.py",
        "return jax.tree.map(lambda leaf: leaf[pick], supply)",
        "return jax.tree.map(lambda leaf: leaf[pick * 0], supply)",
        "tests/test_resets.py::test_starts_are_many_and_new_ones_come_with_every_key",
    ),
    (
        "apply a gradient that is not finite",
        "jaxppo/optimisers.py",
        "applied = go & jnp.isfinite(norm)",
        "applied = go",
        "tests/test_optimisers.py::test_a_gradient_that_is_not_finite_changes_nothing",
    ),
    (
        "go on after the KL has tripped",
        "jaxppo/optimisers.py",
        "applied = go & jnp.isfinite(norm)",
        "applied = jnp.isfinite(norm)",
        "tests/test_improvement.py::test_nothing_moves_after_the_kl_has_tripped",
    ),
    (
        "evaluation takes a key from training",
        "jaxppo/training.py",
        "key, evaluation_key = jax.random.split(key)",
        "key, evaluation_key = (key, key) if evaluate is None else jax.random.split(key)",
        "tests/test_training.py::test_evaluation_changes_no_training_number",
    ),
    (
        "the last chunk runs one update more",
        "jaxppo/training.py",
        "i < count,",
        "i <= count,",
        "tests/test_training.py::test_chunks_equal_the_straight_scan_bit_for_bit",
    ),
    (
        "no carry at 2^32",
        "jaxppo/types.py",
        " + carried)",
        ")",
        "tests/test_types.py::test_counter_crosses_the_boundaries_one_by_one",
    ),
    (
        "returns flow over the end of an episode",
        "jaxppo/normalisation.py",
        "return discounted * t, discounted",
        "return discounted, discounted",
        "tests/test_normalisation.py::test_reward_scaling_equals_a_loop_over_rollouts",
    ),
    (
        "clip on the wrong side",
        "jaxppo/losses/surrogates.py",
        "objective = jnp.minimum(r * advantage,",
        "objective = jnp.maximum(r * advantage,",
        "tests/losses/test_surrogates.py::"
        "test_clip_has_no_gradient_exactly_beyond_the_bound_that_the_advantage_pushes_to",
    ),
    (
        "forget the mask",
        "jaxppo/distributions.py",
        "jax.nn.log_softmax(mask_logits(logits, mask))",
        "jax.nn.log_softmax(logits)",
        "tests/test_distributions.py::test_masked_categorical_equals_the_smaller_distribution_over_what_is_allowed",
    ),
    (
        "count rewards after the end of an evaluated episode",
        "jaxppo/evaluation.py",
        "jnp.where(playing, reward, 0.0)",
        "reward",
        "tests/test_evaluation.py::test_returns_and_lengths_are_those_of_the_first_episode",
    ),
]


def attempt(mutation: tuple[str, str, str, str, str]) -> tuple[bool, str]:
    """(noticed, one line)."""
    what, file, old, new, test = mutation
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("jaxppo", "envs", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        # The editable install would map `jaxppo.envs` to the original; a folder inside the package comes first.
        (copy / "jaxppo" / "envs").symlink_to(copy / "envs", target_is_directory=True)
        text = (copy / file).read_text()
        if text.count(old) != 1:
            return False, f"DOES NOT APPLY ({text.count(old)} places)  {what} [{file}]"
        (copy / file).write_text(text.replace(old, new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    noticed = done.returncode == 1
    verdict = "noticed" if noticed else "SURVIVED" if done.returncode == 0 else f"ERROR {done.returncode}"
    return noticed, f"{verdict}  {what} [{file}] -> {test}"


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in " ".join(m) for word in words)]
    good = True
    with ThreadPoolExecutor(2) as pool:
        for noticed, line in pool.map(attempt, chosen):
            print(line, flush=True)
            good &= noticed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
