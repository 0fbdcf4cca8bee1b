"""Named layouts and their options as text."""

import pytest

from weft.errors import WeftError
from weft.layout.catalogue import LAYOUTS, parse


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("fused", "all {*}"),
        ("fused:devices=4", "all on 4 devices {*}"),
        ("actors:actors=3", "actor x3 {env, act} | learner {learn, *}"),
        ("seed:envs=2", "env x2 {env} | learner {act, learn, *}"),
        ("allreduce:workers=2", "worker x2 {*}"),
        (
            "impala:actors=4,take=2",
            "actor x4 {env, act} | learner taking 2 of 4 {learn, *} | register learner -> actor",
        ),
        (
            "sebulba:actors=4,actor_devices=0+1,learner_devices=gpu:2+3",
            "actor x4 on 0, 1 {env, act} | learner on gpu:2, 3 taking 1 of 4 {learn, *} | register learner -> actor, "
            "lag at most 1",
        ),
    ],
)
def test_parsing_returns_the_layout_and_keeps_the_text_as_its_name(text: str, printed: str) -> None:
    assert str(parse(text)) == printed
    assert parse(text).name == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fusd", "unknown layout 'fusd': did you mean 'fused'"),
        ("seed:env=2", "unknown option of layout seed 'env': did you mean 'envs'"),
        ("seed:envs", "write envs=N"),
        ("seed:envs=two", "write envs=N"),
        ("seed:envs=-1", "write envs=N"),
        ("seed:envs=0", "replicas=0"),
        ("seed:envs=2,batch=4", "are for its asynchronous form: give take, too"),
        ("seed:envs=2,max_lag=1", "are for its asynchronous form: give take, too"),
        ("seed:envs=2,take=1,batch=0", "batch=0"),
        ("seed:envs=2,take=1,wait_ms=soon", "write wait_ms=X with a number X"),
        ("impala:actors=4,take=3", "learner takes 3 of 4 lanes: make take a divisor of 4"),
        ("impala:actors=4,learners=3", "4 lanes cannot be divided evenly over 3 replicas of learner"),
    ],
)
def test_invalid_layout_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(WeftError, match=message):
        parse(text)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_a_docstring(name: str) -> None:
    assert (LAYOUTS[name].__doc__ or "").strip().endswith(".")


def test_a_layout_of_your_own_is_named_by_its_module(tmp_path, monkeypatch) -> None:
    text = "from weft import Layout, Role\n"
    text += "duo = Layout(Role('one', ('env',), replicas=2), Role('two', ('*',)))\n"
    text += "number = 3\ndef made():\n    return duo\n"
    (tmp_path / "own_layouts.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_layouts:duo", "own_layouts:made"):
        assert str(parse(name)) == "one x2 {env} | two {*}" and parse(name).name == name
    for name, message in {
        "own_layouts:trio": "unknown name in own_layouts 'trio'",
        "own_layouts:number": "own_layouts:number is int: name a weft.Layout",
        "no_such_module:duo": "no module named 'no_such_module'",
    }.items():
        with pytest.raises(WeftError, match=message):
            parse(name)
