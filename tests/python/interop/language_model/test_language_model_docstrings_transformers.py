"""The public names of qcore.language_model say what they are and what their parameters are."""

import docstrings

import qcore.language_model as lm

MADE_ELSEWHERE = (lm.Comparison, lm.Evaluation, lm.Generation, lm.LoadedModel, lm.Source)


def test_public_names_are_documented():
    things = {f"qcore.language_model.{name}": getattr(lm, name) for name in lm.__all__}
    complaints = [
        each
        for name, thing in things.items()
        for each in docstrings.missing(name, thing, made_elsewhere=MADE_ELSEWHERE)
    ]
    assert not complaints, "\n".join(complaints)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(lm, "no_such_name")
