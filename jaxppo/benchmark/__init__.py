"""How fast a training loop is, and how fast it could be: the floor, part by part, in one process."""

from jaxppo.benchmark.measure import Benchmark, Loop, bare_config, benchmark, full_config

__all__ = ["Benchmark", "Loop", "bare_config", "benchmark", "full_config"]
