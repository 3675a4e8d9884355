"""jaxppo bench: how fast the loop is, and how fast it could be."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from jaxppo.config import PPOConfig
from jaxppo.errors import UserError
from jaxppo.memory import check_memory, gib
from jaxppo.program import arguments as command_line
from jaxppo.program import configuration, runner
from jaxppo.program.commands import train
from jaxppo.program.configuration import RunConfig


@dataclass(frozen=True)
class Bench:
    """Time the whole training loop and its parts, in turns, in one process."""

    env: str = ""
    """Environment; `jaxppo list envs`. Default jaxppo/cartpole."""
    preset: str = ""
    """Settings to start from; `jaxppo list presets`. `none` for the plain defaults."""
    env_parameters: tuple[str, ...] = ()
    """NAME VALUE pairs for the environment."""
    rounds: int = 5
    """Turns of every program; figures are medians over them."""
    seconds: float = 1.0
    """About how long a program runs in a turn."""
    json: bool = False
    """Print one JSON object instead of a table."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)


def run(arguments: Sequence[str]) -> None:
    """Measures and prints. Raises UserError."""
    named = any(command_line.peek(arguments, flag) for flag in ("env", "preset"))
    words = list(arguments) if named else ["--env", "jaxppo/cartpole", *arguments]
    base = train.base(words)
    default = Bench(env=base.train.env, config=base.train.config)
    bench = command_line.parse(Bench, words, command="bench", default=default)
    if bench.rounds < 1 or not bench.seconds > 0:
        raise UserError(f"rounds={bench.rounds} must be at least 1, and seconds={bench.seconds:g} above 0")
    stale = configuration.stale_numbers(base.train.config, bench.config, base.hyper)
    parameters = {**base.env_parameters, **command_line.parameters(bench.env_parameters)}
    settings = RunConfig(
        env=bench.env,
        env_parameters=parameters,
        config=bench.config,
        hyper=configuration.without_numbers(base.hyper, stale),
    )
    check_memory(runner.build(settings), settings.hyper)

    import jax

    from jaxppo.algorithms.ppo import ppo
    from jaxppo.benchmark import benchmark
    from jaxppo.envs import make

    jax.config.update("jax_enable_compilation_cache", False)  # compile seconds are to be those of a compilation
    result = benchmark(
        ppo,
        settings.config,
        make(settings.env, **parameters),
        settings.hyper,
        rounds=bench.rounds,
        seconds=bench.seconds,
    )
    print(json.dumps(as_json(result)) if bench.json else table(result))


def as_json(result: Any) -> dict[str, Any]:
    """One flat object: the loop with everything on; the bare one lies in `bare`."""
    facts = dataclasses.asdict(result)
    return facts.pop("full") | facts


def table(result: Any) -> str:
    """The same for people."""
    steps = result.num_envs * result.num_steps
    lines = [
        f"{result.environment}, {result.num_envs} environments × {result.num_steps} steps, {result.epochs} epochs of "
        f"minibatches of {result.minibatch_size}, on {result.platform}",
        "",
        f"{'':14}{'ns a step':>10}  {'share':>6}  {'kernels':>7}",
    ]
    total = sum(result.parts.values())
    for name, seconds in result.parts.items():
        lines.append(f"{name:14}{1e9 * seconds / steps:>10.1f}  {seconds / total:>6.1%}  {result.kernels[name]:>7}")
    lines.append(f"{'floor':14}{1e9 / result.floor:>10.1f}          {result.floor:>14,.0f} steps/s")
    for name, loop in (("bare loop", result.bare), ("with all on", result.full)):
        low, high = loop.efficiency_range
        speed = f"{name:14}{1e9 / loop.steps_per_second:>10.1f}          {loop.steps_per_second:>14,.0f} steps/s"
        memory = f"{gib(loop.peak_bytes)} (predicted {gib(loop.predicted_bytes)})"
        efficiency = f"efficiency {loop.efficiency:.2f} ({low:.2f} … {high:.2f})"
        lines.append(f"{speed}, {efficiency}, compiled in {loop.compile_seconds:.1f} s, {memory}")
    lines += ["", "Kernels are those of one environment step or one gradient step, as compiled for this platform."]
    return "\n".join(lines)
