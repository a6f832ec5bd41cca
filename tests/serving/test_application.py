"""The facts of a server: its models."""

from serving.conftest import Serve
from serving.served import ask


def test_the_list_of_models_names_the_abilities_of_each(serve: Serve) -> None:
    status, answer = ask(f"{serve()}/v1/models")
    able = {one["id"]: set(one["abilities"]) for one in answer["data"]}
    assert status == 200 and {"completions", "chat"} <= able["chat"]
    assert "chat" not in able["decoder"] and "translate" in able["recurrent"]
    assert "fill_mask" in able["encoder"] and "classify" in able["classifier"]
