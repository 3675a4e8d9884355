import pytest

from jaxppo import registry
from jaxppo.errors import UserError
from jaxppo.registry import Registry


@pytest.fixture
def shelf():
    return Registry("thing", frozenset({"kl"}))


def test_an_entry_knows_its_numbers_and_what_is_handed_in(shelf):
    @shelf.register("mine", paper="a paper", requires=("kl",), aliases=("ours",), kernel="score")
    def mine(inputs, *, state, epsilon=0.2):
        """What it does.

        And how.
        """

    entry = shelf.get("ours")
    assert entry is shelf.get("mine")
    assert (entry.numbers, entry.keywords) == ({"epsilon": 0.2}, frozenset({"state"}))
    assert (entry.summary, entry.requires, entry.facts) == ("What it does.", frozenset({"kl"}), {"kernel": "score"})
    assert entry.resolve({"epsilon": 0.1}) == {"epsilon": 0.1}
    with pytest.raises(UserError, match="no number 'epsilom'; it has: epsilon"):
        entry.resolve({"epsilom": 0.1})


def test_unknown_names_and_requirements_are_refused(shelf):
    shelf.register("clip")(lambda x: x)
    with pytest.raises(UserError, match="unknown thing 'clop'; did you mean clip"):
        shelf.get("clop")
    with pytest.raises(UserError, match="unknown requirement of thing a 'kk'"):
        shelf.register("a", requires=("kk",))


def test_a_taken_name_or_alias_is_refused_and_the_same_function_replaces_itself(shelf):
    def first(x): ...

    def second(x): ...

    shelf.register("a", aliases=("b",))(first)
    shelf.register("a", aliases=("b",))(first)
    for name, aliases in (("a", ()), ("b", ()), ("c", ("b",))):
        with pytest.raises(UserError, match="already registered"):
            shelf.register(name, aliases=aliases)(second)
    assert list(shelf) == ["a"]


def test_entry_points_of_other_packages_are_found_once(shelf, monkeypatch):
    loads = []

    class Point:
        def load(self):
            loads.append(1)
            shelf.register("from_outside")(lambda x: x)

    def entry_points(*, group):
        assert group == "jaxppo.things"
        return [Point()]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert shelf.get("from_outside").name == "from_outside"
    assert [e.name for e in shelf.listing()] == ["from_outside"]
    assert loads == [1]


def test_a_namesake_from_another_module_does_not_replace_an_entry(shelf):
    def make(module):
        def clip(x): ...

        clip.__module__ = module
        return clip

    shelf.register("clip")(make("jaxppo.losses"))
    with pytest.raises(UserError, match="already registered"):
        shelf.register("clip")(make("somebody.else"))
