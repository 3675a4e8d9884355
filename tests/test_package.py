"""What holds of the package as a whole: what it imports, what it contains, what it can do with the least around it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("distrax", "tensorflow_probability", "tyro", "orbax", "brax", "jumanji", "gymnax", "matplotlib")
HEAVY += ("scipy.stats", "pyarrow")  # rich is missing here: flax imports it
SOURCES = [
    path
    for folder in ("jaxppo", "envs", "experiments", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "__pycache__" not in path.parts
]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def test_nobody_imports_the_bare_envs():
    """It would be shadowed by every user's own folder of that name, and be a second copy of the registry."""
    assert SOURCES
    guilty = [f"{path}: {name}" for path in SOURCES for name in imported(path) if name.split(".")[0] == "envs"]
    assert not guilty


def test_the_learner_does_not_import_environments_or_simulators():
    """The program (command line) may; the rooms of the learner may not."""
    rooms = [p for p in SOURCES if p.is_relative_to(ROOT / "jaxppo") and not p.is_relative_to(ROOT / "jaxppo/program")]
    rooms = [p for p in rooms if p.name != "cli.py"]
    bad = ("jaxppo.envs", "jaxppo.program", "brax", "jumanji", "gymnax")
    guilty = [f"{p}: {name}" for p in rooms for name in imported(p) if name in bad or name.startswith(bad[:2])]
    assert not guilty


def test_the_list_of_packages_is_that_on_disk():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in SOURCES if p.is_relative_to(ROOT / "jaxppo")}
    folders |= {
        f"jaxppo.{'.'.join(p.parent.relative_to(ROOT).parts)}"
        for p in SOURCES
        if p.parts[-2] == "envs" and p.is_relative_to(ROOT / "envs")
    }
    assert set(settings["packages"]) == folders


def test_nothing_calls_the_host():
    """A callback in the program would switch off the compilation cache and stop a chunk at every update."""
    pattern = re.compile(r"pure_callback|io_callback|debug\.callback|debug\.print|host_callback")
    core = [p for p in SOURCES if p.is_relative_to(ROOT / "jaxppo") or p.is_relative_to(ROOT / "envs")]
    assert not [str(p) for p in core if pattern.search(p.read_text())]


LIGHT = """
import sys
import jaxppo
from jaxppo.envs import make
make("jaxppo/cartpole")
print([name for name in {heavy} if name in sys.modules])
"""

BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
import jax, jaxppo
from jaxppo.envs import make
network = jaxppo.NetworkConfig(hidden=(8,))
config = jaxppo.PPOConfig(total_steps=64, num_envs=4, num_steps=8, minibatches=2, network=network)
state, metrics = jax.jit(jaxppo.make_train(config, make("jaxppo/cartpole")))(jax.random.key(0))
print("trained", int(state.samples))
"""


def run(program, heavy):
    done = subprocess.run(
        [sys.executable, "-c", program.format(heavy=repr(heavy))], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_pulls_in_nothing_heavy():
    assert run(LIGHT, HEAVY) == "[]"


@pytest.mark.timeout(220)
def test_training_a_discrete_policy_needs_jax_flax_optax_and_chex_alone():
    assert run(BARE, tuple(name.split(".")[0] for name in HEAVY if name != "scipy.stats")) == "trained 64"


def test_the_command_line_answers_before_jax_is_there():
    program = "import sys; from jaxppo.cli import main; main(['--help']); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("False"), done.stderr


def test_every_public_name_is_there():
    import jaxppo

    assert set(jaxppo.__all__) == set(jaxppo._ROOM_OF)
    assert all(getattr(jaxppo, name) is not None for name in jaxppo.__all__)
    assert set(jaxppo.__all__) <= set(dir(jaxppo))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = jaxppo.nothing_like_it  # pyright: ignore
