import dataclasses
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest

from experiments import results, tasks
from experiments.results import Result
from jaxppo.errors import UserError
from jaxppo.presets import Preset
from jaxppo.schedules import Schedule

FIXTURE = Path(__file__).parent / "fixtures" / "results_schema_1.csv"

RUN = Result(
    task="cartpole",
    environment="gymnax/CartPole-v1",
    algorithm="ppo",
    implementation="jaxppo",
    seed=0,
    steps=501_760,
    evaluation_return=499.5,
    sampled_return=490.0,
    training_return=math.nan,
    curve=(20.5, math.nan, 400.0),
    wall_seconds=7.25,
    compile_seconds=3.5,
    versions="jax 0.9.2, gymnax 1.0.1",
    commit="1f89466+",
    settings="0123456789ab",
    date="2026-11-30",
)


def same(a: Result, b: Result) -> bool:
    return repr(a) == repr(b)  # NaN is equal to itself in writing


def test_a_row_comes_back_as_it_went(tmp_path):
    table = tmp_path / "deep" / "ppo.csv"
    results.append(table, RUN)
    results.append(table, replace(RUN, seed=1, versions='quoted "text", with commas'))
    first, second = results.load(table)
    assert same(first, RUN)
    assert second.seed == 1 and second.versions == 'quoted "text", with commas'
    assert [path.name for path in table.parent.iterdir()] == ["ppo.csv"]  # nothing is left beside it


def test_a_folder_is_all_its_tables(tmp_path):
    results.append(tmp_path / "b.csv", replace(RUN, task="b"))
    results.append(tmp_path / "a.csv", replace(RUN, task="a"))
    assert [r.task for r in results.load(tmp_path)] == ["a", "b"]


def test_finished_seeds_are_known_by_task_code_and_settings(tmp_path):
    table = tmp_path / "ppo.csv"
    key = dict(task=RUN.task, implementation=RUN.implementation, settings=RUN.settings)
    assert results.done(table, **key) == set()
    results.append(table, RUN, replace(RUN, seed=3), replace(RUN, seed=4, settings="other"))
    assert results.done(table, **key) == {0, 3}
    assert results.done(tmp_path, **key) == {0, 3}
    assert results.done(table, **key | {"implementation": "rejax"}) == set()


def test_many_writers_lose_nothing(tmp_path):
    table = tmp_path / "ppo.csv"
    script = (
        "import sys; from dataclasses import replace; from pathlib import Path; from experiments import results\n"
        f"run = results.load(Path({str(FIXTURE)!r}))[0]\n"
        f"for seed in range(20): results.append(Path({str(table)!r}), replace(run, task=sys.argv[1], seed=seed))"
    )
    root = Path(results.__file__).parents[1]
    writers = [subprocess.Popen([sys.executable, "-c", script, name], cwd=root) for name in "abc"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert {(r.task, r.seed) for r in results.load(table)} == {(name, seed) for name in "abc" for seed in range(20)}


def test_a_failed_write_leaves_the_old_table(tmp_path, monkeypatch):
    table = tmp_path / "ppo.csv"
    results.append(table, RUN)
    before = table.read_bytes()

    def full_disk(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(results.os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        results.append(table, RUN)
    assert table.read_bytes() == before
    assert list(tmp_path.iterdir()) == [table]


def test_tables_of_schema_1_stay_loadable():
    rejax, ours = results.load(FIXTURE)
    assert (rejax.implementation, rejax.seed, rejax.steps, rejax.evaluation_return) == ("rejax", 0, 501760, 500.0)
    assert len(rejax.curve) == 20 and rejax.training_return == pytest.approx(472.25)
    assert ours.versions == "jax 0.9.2, gymnax 1.0.1" and math.isnan(ours.sampled_return) and ours.curve == ()


def test_a_column_that_an_older_table_lacks_takes_its_default(tmp_path):
    table = tmp_path / "old.csv"
    table.write_text(
        "schema,task,environment,algorithm,implementation,seed,steps,evaluation_return\n1,a,e,ppo,rejax,0,10,2.5\n"
    )
    (row,) = results.load(table)
    assert row.evaluation_return == 2.5 and row.settings == "" and math.isnan(row.wall_seconds)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[: text.rindex("501760")], "line 2: schema '' is not among"),
        (lambda text: text.replace("501760", "many"), "column 'steps' cannot hold 'many'"),
        (lambda text: text.rstrip("\n") + ",1\n", "more cells than columns"),
        (lambda text: text.replace(",1\n", ",99\n"), r"schema '99' is not among those .* \(1 to 1\)"),
        (lambda text: text.replace("environment", "place"), "column 'environment' is missing"),
    ],
    ids=["cut", "wrong type", "extra cell", "newer schema", "renamed column"],
)
def test_a_damaged_table_is_named_and_not_overwritten(tmp_path, damage, message):
    table = tmp_path / "ppo.csv"
    results.append(table, RUN)
    table.write_text(damage(table.read_text()))
    damaged = table.read_text()
    with pytest.raises(UserError, match=message):
        results.append(table, RUN)
    assert table.read_text() == damaged


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="no results table at"):
        results.load(tmp_path / "none.csv")
    with pytest.raises(UserError, match="'sb3' is not one of jaxppo"):
        results.append(tmp_path / "ppo.csv", replace(RUN, implementation="sb3"))


def test_summary_has_a_row_for_each_code_and_settings():
    runs = [replace(RUN, seed=seed, evaluation_return=score) for seed, score in enumerate([0.0, 400, 410, 420, 500])]
    runs += [replace(RUN, implementation="rejax", seed=seed) for seed in range(3)]
    runs += [replace(RUN, seed=0, evaluation_return=-1e6, settings="other")]
    ours, rejax, other = results.summarise(runs)
    assert (ours.seeds, ours.mean) == (5, pytest.approx(410.0)) and 0.0 <= ours.low <= 410.0 <= ours.high <= 500.0
    assert (rejax.seeds, rejax.mean, rejax.low, rejax.high) == (3, 499.5, 499.5, 499.5)
    assert other.mean == -1e6


def test_a_repeated_seed_counts_once():
    (summary,) = results.summarise([RUN, replace(RUN, evaluation_return=7.0)])
    assert (summary.seeds, summary.mean) == (1, 7.0)


def test_markdown_has_as_many_cells_in_every_line():
    lines = results.markdown_table(results.summarise([RUN, replace(RUN, task="b")])).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert "501,760" in lines[2] and "499.5 … 499.5" in lines[2]


def other(owner, name):
    """Another value for a field of a dataclass."""
    value, choices = getattr(owner, name), get_args(get_type_hints(type(owner))[name])
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return 0.5 if math.isinf(value) else value + 1
    if isinstance(value, tuple):
        return (*value, 3)
    if isinstance(value, str):
        return next((choice for choice in choices if choice != value), "other")
    return 3


def variations():
    """(what differs, preset) for every field of a preset's configuration and numbers, its parameters and its name."""
    plain = Preset("gymnax/CartPole-v1")
    config, hyper = plain.settings()
    for f in dataclasses.fields(config):
        if f.name == "network":
            for inner in dataclasses.fields(config.network):
                changed = {inner.name: other(config.network, inner.name)}
                yield f"network.{inner.name}", replace(plain, config={"network": changed})
        elif f.name not in ("surrogate", "advantage"):
            yield f.name, replace(plain, config={f.name: other(config, f.name)})
    yield "surrogate", replace(plain, config={"surrogate": "spo"})
    yield "advantage", replace(plain, config={"advantage": "grpo"})
    for f in dataclasses.fields(hyper):
        if f.name not in ("surrogate", "advantage"):
            yield f.name, replace(plain, hyper={f.name: other(hyper, f.name)})
            yield f"{f.name} with a schedule", replace(plain, hyper={f.name: Schedule(0.5, 0.0)})
    yield "surrogate_numbers", replace(plain, hyper={"surrogate": {"epsilon": 0.3}})
    yield "advantage_numbers", replace(plain, hyper={"advantage": {"lam": 0.9}})
    yield "env", replace(plain, env="gymnax/Acrobot-v1")
    yield "env_parameters", replace(plain, env_parameters={"gravity": 9.0})
    yield "env_parameters of another name", replace(plain, env_parameters={"length": 9.0})


def hash_of(preset, **fields):
    return tasks.settings_hash(tasks.Task("name", preset, "goal", **fields))


def test_everything_that_changes_a_run_changes_the_hash_of_its_settings():
    hashes = {"": hash_of(Preset("gymnax/CartPole-v1"))}
    for name, preset in variations():
        hashes[name] = hash_of(preset)
    hashes["peer"] = hash_of(Preset("gymnax/CartPole-v1"), peer="rejax")
    again = {name for name, value in hashes.items() if list(hashes.values()).count(value) > 1}
    assert not again
    assert len({tasks.settings_hash(task) for task in tasks.TASKS.values()}) == len(tasks.TASKS)


def test_what_changes_no_run_changes_no_hash():
    plain, cartpole = Preset("gymnax/CartPole-v1"), tasks.TASKS["cartpole"]
    assert tasks.settings_hash(replace(cartpole, goal="≥ 1", threshold=1.0, seeds=1)) == tasks.settings_hash(cartpole)
    assert hash_of(replace(plain, summary="another")) == hash_of(plain)
    said = replace(
        plain,
        config={"num_envs": 64, "network": {"hidden": [64, 64]}},
        hyper={"max_grad_norm": 0.5, "reward_scale": 1, "surrogate": {"epsilon": 0.2}, "advantage": {"lam": 0.95}},
    )
    assert hash_of(said) == hash_of(plain)  # the defaults, said


def test_a_younger_setting_keeps_the_hash_while_it_means_what_was_done_before(monkeypatch):
    plain = Preset("gymnax/CartPole-v1")
    monkeypatch.setitem(tasks.YOUNGER, "network.layer_norm", False)
    without = hash_of(plain)
    monkeypatch.setattr(tasks, "facts", lambda task, facts=tasks.facts: facts(task) | {"new": 1})
    monkeypatch.setitem(tasks.YOUNGER, "new", 1)
    assert hash_of(plain) == without
    monkeypatch.setitem(tasks.YOUNGER, "new", 2)
    assert hash_of(plain) != without


def test_results_stay_current_until_a_setting_changes():
    """If this fails, every committed row has lost its task. A new setting: put it into `tasks.YOUNGER`. A default that
    changed: the rows are of other settings, write the new hash here."""
    assert hash_of(Preset("gymnax/CartPole-v1")) == "babf045faf58"


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=lambda task: task.name)
def test_every_task_can_be_said_by_its_peer(task):
    said = SimpleNamespace(**tasks.settings(task))
    assert (said.num_envs * said.num_steps) % said.minibatches == 0
    assert bool(said.peer) == bool(said.peer_environment)
    if said.peer == "brax":
        assert said.num_envs % said.minibatches == 0
        assert not (said.anneal or said.clip_value or said.normalise_reward)
    if said.peer == "rejax":
        assert said.clip_value and said.distribution != "tanh_gaussian" and said.reward_scale == 1.0
