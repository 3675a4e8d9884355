"""The generated page says what the registries say."""

from experiments.catalogue import PAGE, page


def test_the_committed_catalogue_is_what_the_registries_say():
    assert PAGE.read_text() == page(), "run: python -m experiments.catalogue"
