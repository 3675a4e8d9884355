"""Growth: steps per second, compile time and memory from 2^6 to 2^20 environments.

    python -m experiments.scale [--sizes 6 8 ...]           # what docs/results/scale.csv lacks
    python -m experiments.scale --million [--minutes 60]    # PPO on 2^20 × 16, with its curve
    python -m experiments.scale --page                      # docs/results/scale.md and scale.png

A size is measured in a process of its own, so that compile times and memory are its own. Rows are kept; a second call
measures what is missing.
"""

import argparse
import csv
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

from experiments import results
from jaxppo.errors import UserError

FOLDER = Path(__file__).parents[1] / "docs" / "results"
TABLE = FOLDER / "scale.csv"
MILLION = FOLDER / "million.csv"
PAGE = FOLDER / "scale.md"
ENVIRONMENTS = ("jaxppo/cartpole", "gymnax/Breakout-MinAtar")
SIZES = (6, 8, 10, 12, 14, 16, 18, 20)
SAMPLES = {"jaxppo/cartpole": 2**24, "gymnax/Breakout-MinAtar": 2**22}
"""Most samples of one update: the horizon shrinks where there are many environments."""
MINIBATCH = 2**14
"""Samples whose activations are held at once."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One size. bytes_per_environment: XLA's allocation for the whole loop over the environments."""

    environment: str
    num_envs: int
    num_steps: int
    chunks: int
    microbatches: int
    steps_per_second: float
    efficiency: float
    compile_seconds: float
    peak_bytes: int
    predicted_bytes: int
    platform: str
    versions: str
    commit: str


def configuration(environment: str, exponent: int):
    """4 epochs of 4 minibatches at every size; large sizes act and learn in parts."""
    import jaxppo

    envs = 2**exponent
    steps = max(4, min(128, SAMPLES[environment] // envs))
    minibatch = envs * steps // 4
    network = jaxppo.NetworkConfig(torso="mlp")
    return jaxppo.PPOConfig(
        total_steps=10**12,
        num_envs=envs,
        num_steps=steps,
        epochs=4,
        minibatches=4,
        chunks=max(1, envs // 2**12),
        microbatches=max(1, minibatch // MINIBATCH),
        network=network,
    )


def measure(environment: str, exponent: int, seconds: float) -> Row:
    """Measure one size here."""
    from jaxppo.algorithms.ppo import ppo
    from jaxppo.benchmark import benchmark
    from jaxppo.envs import make

    config = configuration(environment, exponent)
    found = benchmark(ppo, config, make(environment), rounds=3, seconds=seconds)
    return Row(
        environment,
        config.num_envs,
        config.num_steps,
        config.chunks,
        config.microbatches,
        found.full.steps_per_second,
        found.full.efficiency,
        found.full.compile_seconds,
        found.full.peak_bytes,
        found.full.predicted_bytes,
        found.platform,
        ", ".join(f"{name} {number}" for name, number in found.versions.items()),
        results.commit(),
    )


def read() -> list[Row]:
    if not TABLE.exists():
        return []
    with open(TABLE) as file:
        kinds = {f.name: f.type for f in dataclasses.fields(Row)}
        return [Row(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def append(path: Path, row: dict) -> None:
    new = not path.exists()
    with open(path, "a") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def grow(environments: list[str], sizes: list[int], seconds: float) -> None:
    """Measure what the table lacks, each size in a process of its own."""
    there = {(row.environment, row.num_envs) for row in read()}
    for environment in environments:
        for size in sizes:
            if (environment, 2**size) in there:
                continue
            command = [sys.executable, "-m", "experiments.scale", "--one", environment, str(size), str(seconds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=3600)
            if done.returncode:
                print(f"{environment} at 2^{size}: failed with exit status {done.returncode}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            append(TABLE, row)
            print(
                f"{environment} 2^{size} × {row['num_steps']}: {row['steps_per_second']:,.0f} steps/s, efficiency "
                f"{row['efficiency']:.2f}, compiled in {row['compile_seconds']:.1f} s, "
                f"{row['peak_bytes'] / row['num_envs']:,.0f} bytes an environment",
                flush=True,
            )


def million(minutes: float) -> None:
    """PPO on CartPole, 2^20 environments × 16 steps, until `minutes` are over; appends one row an update."""
    import jax

    import jaxppo
    from jaxppo.envs import make
    from jaxppo.memory import allocated, gib, plan

    config = jaxppo.PPOConfig(
        total_steps=10**12,
        num_envs=2**20,
        num_steps=16,
        epochs=1,
        minibatches=32,
        chunks=256,
        microbatches=32,
        normalise_observation=True,
    )
    hyper = jaxppo.Hyperparameters(learning_rate=2e-3, entropy_coefficient=0.0)
    algorithm = jaxppo.ppo(config, make("jaxppo/cartpole"))
    state = jax.jit(algorithm.init)(jax.random.key(0), hyper)
    update = jax.jit(algorithm.update, donate_argnums=0).lower(state).compile()
    evaluate = jax.jit(algorithm.evaluate, static_argnames=("mode", "episodes"))
    peak = allocated(update)
    print(f"XLA allocates {gib(peak)}, predicted {gib(plan(algorithm).total)}", flush=True)
    start, updates = time.perf_counter(), 0
    MILLION.unlink(missing_ok=True)
    while time.perf_counter() - start < 60 * minutes:
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(update(state))
        took = time.perf_counter() - begun
        updates += 1
        score = float(evaluate(state, jax.random.key(1), mode=True, episodes=128).episode_return.mean())
        append(
            MILLION,
            {
                "update": updates,
                "steps": int(state.samples),
                "evaluation_return": round(score, 2),
                "seconds": round(time.perf_counter() - start, 1),
                "steps_per_second": round(config.steps_per_update / took),
                "peak_bytes": peak,
                "resident_bytes": resident(),
                "commit": results.commit(),
            },
        )
        print(
            f"{int(state.samples):,} steps: {score:.1f} in mode, {config.steps_per_update / took:,.0f} steps/s",
            flush=True,
        )


def resident() -> int:
    """The most memory that this process has held, as the system counts it."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def page() -> None:
    """Write docs/results/scale.md and its figure from the tables."""
    rows = sorted(read(), key=lambda row: (row.environment, row.num_envs))
    if not rows and not MILLION.exists():
        raise UserError(f"{TABLE} is empty; python -m experiments.scale first")
    lines = [
        "# Scale",
        "",
        "Generated by `python -m experiments.scale --page` from the tables `scale.csv` and `million.csv`, which "
        "`python -m experiments.scale` measures: PPO, MLP 2×64 for actor and critic, 4 epochs of 4 minibatches, "
        "everything on (statistics, bootstrapped limits, metrics). Efficiency is floor ÷ actual within one run "
        "(`jaxppo bench`). Two shared CPU cores: look at ratios, not at steps per second.",
        "",
    ]
    for environment in dict.fromkeys(row.environment for row in rows):
        mine = [row for row in rows if row.environment == environment]
        lines += [
            f"## {environment}",
            "",
            "| environments | steps | chunks | microbatches | steps/s | efficiency | compiled in | peak | bytes each "
            "| predicted |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| 2^{row.num_envs.bit_length() - 1} | {row.num_steps} | {row.chunks} | {row.microbatches} "
            f"| {row.steps_per_second:,.0f} | {row.efficiency:.2f} | {row.compile_seconds:.1f} s "
            f"| {row.peak_bytes / 2**20:,.0f} MiB | {row.peak_bytes / row.num_envs:,.0f} "
            f"| {row.predicted_bytes / row.peak_bytes:.2f} × |"
            for row in mine
        ]
        lines += ["", f"{mine[-1].platform}; {mine[-1].versions}; commit {mine[-1].commit}.", ""]
    lines += ["![growth](scale.png)", ""] if rows else ["Growth was not measured yet.", ""]
    if MILLION.exists():
        with open(MILLION) as file:
            updates = list(csv.DictReader(file))
        last, best = updates[-1], max(updates, key=lambda row: float(row["evaluation_return"]))
        lines += [
            "## A million environments",
            "",
            "`python -m experiments.scale --million`: PPO on CartPole, 2^20 environments × 16 steps, 32 minibatches in "
            f"32 microbatches each, one seed. XLA allocates {int(last['peak_bytes']) / 2**30:.2f} GiB, the process "
            f"held {int(last['resident_bytes']) / 2**30:.2f} GiB at most. After {len(updates)} updates "
            f"({int(last['steps']):,} steps, {float(last['seconds']) / 60:.0f} minutes): return of the mode "
            f"{last['evaluation_return']}; the best was {best['evaluation_return']} after {best['update']} updates.",
            "",
            "| update | steps | return (mode, 128 episodes) | steps/s |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['update']} | {int(row['steps']):,} | {row['evaluation_return']} "
            f"| {int(row['steps_per_second']):,} |"
            for row in updates
        ]
        lines.append("")
    PAGE.write_text("\n".join(lines))
    if rows:
        figure(rows)
    print(f"wrote {PAGE}")


def figure(rows: list[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    for environment in dict.fromkeys(row.environment for row in rows):
        mine = [row for row in rows if row.environment == environment]
        sizes = [row.num_envs for row in mine]
        axes[0].plot(sizes, [row.steps_per_second for row in mine], "o-", label=environment)
        axes[1].plot(sizes, [row.compile_seconds for row in mine], "o-")
        axes[2].plot(sizes, [row.peak_bytes / row.num_envs for row in mine], "o-")
    for axis, name in zip(axes, ("steps/s", "seconds of compilation", "bytes an environment"), strict=True):
        axis.set(xlabel="environments", title=name, xscale="log")
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
    axes[2].set_yscale("log")
    axes[0].legend(frameon=False)
    drawing.savefig(PAGE.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="exponents of 2")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a program runs in a round")
    parser.add_argument("--page", action="store_true", help="write the page and the figure")
    parser.add_argument("--million", action="store_true", help="train on 2^20 environments")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--one", nargs=3, metavar=("ENVIRONMENT", "SIZE", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.one:
            environment, size, seconds = options.one
            print(json.dumps(dataclasses.asdict(measure(environment, int(size), float(seconds)))))
        elif options.page:
            page()
        elif options.million:
            million(options.minutes)
        else:
            grow(options.environment, options.sizes, options.seconds)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
