import inspect
import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import jax.numpy as jnp
import pytest

from jaxppo.envs import CartPole, Listing, listing, make, register, registry
from jaxppo.errors import UserError


@pytest.fixture
def clean(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def test_listing_is_sorted_unique_and_gives_reasons():
    rows = listing()
    names = [row.name for row in rows]
    assert names == sorted(set(names))
    assert all(row.playable != bool(row.reason) for row in rows)
    assert {"jaxppo/cartpole", "gymnax/CartPole-v1", "brax/ant", "jumanji/Snake-v1"} <= set(names)


def test_simulators_are_imported_only_when_asked_for():
    code = """
import sys
from jaxppo.envs import make
make("jaxppo/cartpole", frame_stack=2)
sys.exit(", ".join({"brax", "gymnax", "jumanji", "mujoco", "distrax", "scipy"} & set(sys.modules)) or 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_register_from_outside(clean):
    @register("test/pole")
    def pole(gravity: float = 1.0):
        return CartPole(gravity=gravity)

    assert make("test/pole", gravity=3).gravity == 3.0
    assert Listing("test/pole") in listing()
    with pytest.raises(UserError, match="registered already"):
        register("test/pole", pole)
    with pytest.raises(UserError, match="did you mean gravity"):
        make("test/pole", gravty=3)
    with pytest.raises(UserError, match="fixes its time limit at 500"):
        make("test/pole", time_limit=3)


def test_entry_points(monkeypatch):
    good = EntryPoint("lab/pole", "jaxppo.envs:CartPole", registry.GROUP)
    bad = EntryPoint("lab/gone", "jaxppo.envs:Gone", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [good, bad])
    assert make("lab/pole", length=1.0).length == 1.0
    rows = {row.name: row for row in listing()}
    assert rows["lab/pole"].playable and "cannot be imported" in rows["lab/gone"].reason
    with pytest.raises(UserError, match="cannot be imported"):
        make("lab/gone")


def test_missing_library(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'jaxppo\[brax\]'"):
        make("brax/ant")
    rows = {row.name: row for row in listing()}
    assert not rows["brax/*"].playable and "jaxppo[brax]" in rows["brax/*"].reason


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("jaxppo/cartpol", {}, "did you mean jaxppo/cartpole"),
        ("CartPole-v1", {}, "did you mean gymnax/CartPole-v1"),
        ("jaxppo/cartpole", dict(gravty=1.0), "did you mean gravity"),
        (
            "jaxppo/cartpole",
            dict(gravity="heavy"),
            "gravity='heavy' of jaxppo/cartpole does not fit: it takes one number",
        ),
        ("jaxppo/cartpole", dict(gravity=[1, 2]), "gravity=[1, 2] of jaxppo/cartpole does not fit"),
        ("jaxppo/cartpole", dict(name="x"), "has no parameter 'name'"),
        ("gymnax/CartPole-v1", dict(name="x"), "gymnax/CartPole-v1 has no parameter 'name'"),
        ("brax/reacher", dict(name="x"), "brax/reacher has no parameter 'name'"),
        ("jumanji/Maze-v0", dict(name="x"), "jumanji/Maze-v0 has no parameter 'name'"),
        ("jaxppo/cartpole", dict(physics=5), "has no parameter 'physics'"),
        ("jaxppo/cartpole", {"physics.gravity": 5}, "did you mean gravity"),
        ("jaxppo/cartpole", dict(gravity=float("inf")), "finite"),
        ("jaxppo/cartpole", dict(time_limit=0), "time_limit=0"),
        ("jaxppo/cartpole", dict(time_limit=-3), "time_limit=-3"),
        ("jaxppo/cartpole", dict(time_limit=2.5), "whole number"),
        ("jaxppo/cartpole", dict(frame_stack=0), "frame_stack=0"),
        ("jaxppo/cartpole", dict(frame_stack=None), "frame_stack=None"),
        ("jaxppo/cartpole", dict(action_repeat="2"), "action_repeat='2'"),
        ("jaxppo/cartpole", dict(flatten="no"), "flatten='no' of jaxppo/cartpole must be true or false"),
        ("jaxppo/cartpole", dict(rescale_action=1), "rescale_action=1"),
        ("jaxppo/memory", dict(delay=0), "delay >= 1"),
        ("jaxppo/memory", dict(delay="long"), "whole number"),
        ("jaxppo/memory", dict(time_limit=3), "fixes its time limit at 65"),
        ("jaxppo/nan", dict(where="action"), "must be 'reward', 'observation' or 'reset'"),
    ],
)
def test_bad_input(name, values, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        make(name, **values)
    assert "\n" not in str(caught.value)


def test_whole_numbers_for_real_parameters_become_real():
    assert make("jaxppo/cartpole", gravity=9).gravity.dtype == jnp.float32


OWN = [row.name for row in listing() if row.name.startswith("jaxppo/")]


@pytest.mark.parametrize("value", [[1.0, 2.0], (3,), [], "heavy", "", None, True, {"a": 1}, float("nan")], ids=repr)
@pytest.mark.parametrize("name", OWN)
def test_every_number_of_our_environments_is_one_finite_number(name, value):
    for parameter in inspect.signature(registry._factories[name]).parameters.values():
        if isinstance(parameter.default, (int, float)):
            with pytest.raises(UserError, match=parameter.name) as caught:
                make(name, **{parameter.name: value} if parameter.name != "time_limit" else {"time_limit": value or 0})
            assert "\n" not in str(caught.value)


def test_an_environment_from_outside_may_have_a_parameter_called_name(clean):
    register("test/named", lambda name="x", gravity=1.0: CartPole(gravity=gravity + len(name)))
    assert make("test/named", name="long").gravity == 5.0


def test_whole_parameters_take_whole_numbers_however_they_are_written():
    assert make("jaxppo/memory", delay=3.0).spec == make("jaxppo/memory", delay=3).spec
