"""The processes that train one run together: who leads, what they agree on, how a state goes in and comes out.

All of them run the same programs in the same order, so whatever depends on a clock, a signal or a file is decided by
the leader, process 0, and agreed upon; and only the leader writes. By itself a process is a crew of one, for which
everything here is the identity.

A process belongs to a crew where `--distributed` is given, or where these environment variables are set (by the
launcher, by hand, by a scheduler's script): `JAXPPO_COORDINATOR`, host:port at which process 0 listens;
`JAXPPO_PROCESSES`, how many there are; `JAXPPO_PROCESS`, which one this is.
"""

import os
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxppo.errors import UserError
from jaxppo.program.signals import Signals

COORDINATOR, PROCESSES, PROCESS = "JAXPPO_COORDINATOR", "JAXPPO_PROCESSES", "JAXPPO_PROCESS"
LIFELINE = "JAXPPO_LIFELINE"
"""Environment variable of the launcher's children: a pipe that closes when the launcher dies."""

JOIN_SECONDS = 300  # for the last process to come; a cluster may start them minutes apart
LEAVE_SECONDS = 60  # for the last process to leave, after the end
PATIENCE = 5.0  # seconds before an exception is shown: where another process died, that one's end is the news

PyTree = Any


@dataclass(frozen=True)
class Crew:
    """rank: which process this is. size: how many there are.

    What asks all processes (`everyone` and what uses it, `gather`) has to be called by all of them, at the same place.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def everyone(self, value: int) -> list[int]:
        """The `value` of every process, by rank; of 32 bits."""
        if self.size == 1:
            return [int(value)]
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.int32(value)).tolist()

    def agree(self, value: int) -> int:
        """The leader's `value`."""
        return self.everyone(value)[0]

    def highest(self, value: int) -> int:
        """The highest `value` of any process."""
        return max(self.everyone(value))

    def neighbours(self) -> int:
        """How many of the processes run on this machine, this one included."""
        here = zlib.crc32(socket.gethostname().encode()) >> 1
        return self.everyone(here).count(here)

    def only_leader(self, context: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """`context` for the leader, nothing for the others."""
        return context if self.leads else nullcontext()

    def spread(self, state: PyTree, shardings: PyTree) -> PyTree:
        """A state that every process holds whole, in its place on the devices of all."""
        import jax

        if self.size == 1:
            return jax.device_put(state, shardings)
        return jax.tree.map(_spread, state, shardings)

    def gather(self, state: PyTree) -> PyTree:
        """The whole state for the leader, on its host or first device; for the others nothing of use."""
        import jax

        return state if self.size == 1 else jax.tree.map(self._gather, state)

    def _gather(self, leaf: Any) -> Any:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        if not leaf.is_fully_replicated:
            # One leaf at a time is on every device, not the state.
            leaf = jax.jit(_identity, out_shardings=NamedSharding(leaf.sharding.mesh, PartitionSpec()))(leaf)
        if not self.leads:
            return None
        mine = leaf.addressable_data(0)
        return mine if jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key) else np.asarray(mine)


ALONE = Crew()


def _identity(leaf: Any) -> Any:
    return leaf


def _spread(leaf: Any, sharding: Any) -> Any:
    """An array that is the same in every process, its parts on the devices that `sharding` says."""
    import jax

    if not leaf.is_fully_addressable:  # it is in its place
        return leaf
    key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(leaf) if key else leaf)
    parts = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
    return jax.random.wrap_key_data(parts, impl=jax.random.key_impl(leaf)) if key else parts


def summoned(words: Sequence[str] = ()) -> bool:
    """Whether the environment or a command line says that this process belongs to a crew."""
    return "--distributed" in words or any(name in os.environ for name in (COORDINATOR, PROCESSES, PROCESS))


def join(*, processes: int = 1) -> Crew:
    """Meets the other processes and returns the crew. JAX must not have looked for devices before.

    processes: how many there should be; 1 for any number. Raises UserError where nobody says who they are, or where
    they do not come.
    """
    import jax

    place = _place(os.environ)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from `Signals`
    if LIFELINE in os.environ:  # the launcher keeps proxies out of the way
        jax.config.update("jax_check_proxy_envs", False)
    _silence_native_output()
    address = place.get("coordinator_address", "the first of them")
    late = threading.Timer(JOIN_SECONDS, _give_up, [address])
    late.daemon = True
    late.start()
    # After its own timeout JAX ends the process, with a page of native stack frames.
    limits: dict[str, Any] = {"initialization_timeout": 2 * JOIN_SECONDS, "shutdown_timeout_seconds": LEAVE_SECONDS}
    try:
        jax.distributed.initialize(**place, **limits)
    except ValueError as error:
        raise UserError(
            f"--distributed finds no cluster here ({str(error).rstrip('.')}); set {COORDINATOR}=HOST:PORT, "
            f"{PROCESSES} and {PROCESS} for each process, or start them with --processes"
        ) from error
    except RuntimeError as error:
        raise UserError(f"the processes cannot meet at {address}: {str(error).splitlines()[0]}") from error
    finally:
        late.cancel()
    crew = Crew(jax.process_index(), jax.process_count())
    if processes not in (1, crew.size):
        raise UserError(f"processes={processes} were asked for, and {crew.size} have met")
    return crew


def _give_up(address: str) -> None:
    print(f"jaxppo: error: process {rank()}: not all have come to {address} within {JOIN_SECONDS} s", file=sys.stderr)
    os._exit(2)


def _place(environment: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `jax.distributed.initialize` that the environment gives; none where a cluster has to be found.

    Raises UserError for a variable that is missing or no number.
    """
    names = (COORDINATOR, PROCESSES, PROCESS)
    if not any(name in environment for name in names):
        return {}
    for name in names:
        if not environment.get(name):
            raise UserError(f"{name} is not set, and {', '.join(n for n in names if n in environment)} is; set all")
    count, rank = _number(environment, PROCESSES), _number(environment, PROCESS)
    if not 0 <= rank < count:
        raise UserError(f"{PROCESS}={rank} must be between 0 and {count - 1}, as {PROCESSES}={count}")
    if not environment[COORDINATOR].rpartition(":")[2].isdecimal():
        raise UserError(f"{COORDINATOR}={environment[COORDINATOR]} must be HOST:PORT")
    return {
        "coordinator_address": environment[COORDINATOR],
        "num_processes": count,
        "process_id": rank,
        "cluster_detection_method": "deactivate",
    }


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise UserError(f"{name}={environment[name]} must be a whole number")
    return int(environment[name])


def serve(command: Callable[[], int]) -> int:
    """Runs `command` as one process of a crew and returns its exit code; after an error it leaves without waiting.

    Signals are remembered from the first moment: all processes have to stop at the same place, or the others wait.
    """
    _follow_launcher()
    with Signals():
        try:
            code = command()
        except Exception as error:
            time.sleep(PATIENCE)
            code = _report(error)
        if code not in (0, 130, 143):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # a usual end would wait for all the others to end, too
    return code


def _report(error: Exception) -> int:
    """Prints what nobody has expected, and returns the exit code."""
    text = str(error)
    if any(library in text.lower() for library in ("gloo", "nccl", "coordination service")):
        said = f"another process is gone ({text.splitlines()[0]}); the run is whole up to its last checkpoint"
        print(f"jaxppo: error: process {rank()}: {said}", file=sys.stderr)
        return 2
    traceback.print_exception(error)
    return 1


def rank() -> int:
    """Which process this is, as far as is known before `join`."""
    for name in (PROCESS, "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def _follow_launcher() -> None:
    """From now on this process dies when the launcher that started it does."""
    lifeline = os.environ.get(LIFELINE)
    if lifeline is None:
        return

    def wait() -> None:
        os.read(int(lifeline), 1)  # nobody writes: it returns when the other end is gone
        os._exit(2)

    threading.Thread(target=wait, daemon=True).start()


def _silence_native_output() -> None:
    """Keeps what the collectives' library prints out of standard output, which belongs to Python alone from now on."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
