"""Train brax's own PPO on one task, seed after seed. Runs inside the virtual environment of brax, knows no jaxppo.

stdin: {"task": fields of tasks.Task, "seeds": [...]}; stdout: one JSON line for each seed (see `protocol.py`).

What brax 0.14.2 does in its own way: a minibatch is made of whole pieces of `num_steps` steps; advantages are estimated
again with the current critic for every minibatch; the truncated step carries no gradient; the learning rate is
constant; the standard deviation of the tanh-Gaussian depends on the observation; the statistics of observations are
updated between rollout and epochs, so the first ratio is not exactly 1.
"""

import time
from functools import partial

import jax
import numpy as np
import protocol
from brax import envs
from brax.training import acting
from brax.training.agents.ppo import networks
from brax.training.agents.ppo import train as ppo
from flax import linen as nn


class Tally:
    """Stands in for brax's logger of training episodes, which knows only the latest hundred of them."""

    def __init__(self):
        self.totals: list[float] = []
        self.counts: list[int] = []

    def update_episode_metrics(self, metrics, finished, _):
        returns = np.asarray(metrics["sum_reward"])[np.asarray(finished) > 0]
        self.totals.append(float(returns.sum()))
        self.counts.append(returns.size)


class Compilation:
    """Seconds that XLA has compiled since the last reading (tracing is not among them)."""

    def __init__(self):
        self._seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_) -> None:
        if event.endswith("backend_compile_duration"):
            self._seconds += seconds

    def reading(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def train(task: dict, seed: int):
    """(policy maker, parameters) after `total_steps`."""
    hidden = tuple(task["hidden"])
    return ppo.train(
        environment=envs.get_environment(task["peer_environment"], backend="spring"),
        num_timesteps=task["total_steps"],
        episode_length=task["episode_limit"],
        num_envs=task["num_envs"],
        unroll_length=task["num_steps"],
        batch_size=task["num_envs"] // task["minibatches"],
        num_minibatches=task["minibatches"],
        num_updates_per_batch=task["epochs"],
        learning_rate=task["learning_rate"],
        entropy_cost=task["entropy_coefficient"],
        discounting=task["gamma"],
        gae_lambda=task["gae_lambda"],
        clipping_epsilon=task["clip"],
        vf_loss_coefficient=task["value_coefficient"],
        max_grad_norm=task["max_grad_norm"],
        normalize_observations=task["normalise_observation"],
        reward_scaling=task["reward_scale"],
        network_factory=partial(
            networks.make_ppo_networks,
            policy_hidden_layer_sizes=hidden,
            value_hidden_layer_sizes=hidden,
            activation=getattr(nn, task["activation"]),
        ),
        seed=seed,
        num_evals=1,
        run_evals=False,
        log_training_metrics=True,
    )[:2]


def evaluate(task: dict, make_policy, parameters, *, deterministic: bool, key: jax.Array) -> float:
    """Mean return of `protocol.EPISODES` episodes."""
    env = envs.get_environment(task["peer_environment"], backend="spring")
    env = envs.training.wrap(env, episode_length=task["episode_limit"], action_repeat=1)
    policy = partial(make_policy, deterministic=deterministic)
    evaluator = acting.Evaluator(env, policy, protocol.EPISODES, task["episode_limit"], action_repeat=1, key=key)
    return float(evaluator.run_evaluation(parameters, {})["eval/episode_reward"])


def main() -> None:
    task, seeds = protocol.request()
    impossible = [name for name in ("anneal", "clip_value", "normalise_reward") if task[name]]
    if impossible:
        raise SystemExit(f"brax's PPO cannot express {', '.join(impossible)} of task {task['name']}")
    compilation = Compilation()
    samples = task["num_envs"] * task["num_steps"]
    for seed in seeds:
        tally = Tally()
        ppo.metric_logger.EpisodeMetricsLogger = lambda tally=tally, **_: tally
        start = time.perf_counter()
        make_policy, parameters = train(task, seed)
        jax.effects_barrier()
        elapsed, compile_seconds = time.perf_counter() - start, compilation.reading()
        key = jax.random.PRNGKey(seed + 10_000)
        by_mode, sampled = (
            evaluate(task, make_policy, parameters, deterministic=deterministic, key=key)
            for deterministic in (True, False)
        )
        compilation.reading()
        protocol.reply(
            seed=seed,
            steps=-(-task["total_steps"] // samples) * samples,
            evaluation_return=by_mode,
            sampled_return=sampled,
            **protocol.training(np.array(tally.totals), np.array(tally.counts)),
            wall_seconds=elapsed - compile_seconds,
            compile_seconds=compile_seconds,
            packages=("brax",),
        )


if __name__ == "__main__":
    main()
