"""The process that renders chat templates: equal to transformers, and bounded in time and memory."""

import gc
import multiprocessing
import os
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers

from chat_templates import CALL, ROLES, SPECIAL, TEMPLATES, conversation
from glassformer.common.errors import UserError
from glassformer.tokenization import chat_template
from glassformer.tokenization.chat_template import CHATML, Asked, ChatTemplate
from glassformer.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HI = [{"role": "user", "content": "hi"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TIME_AND_MEMORY = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that writes": "{% for i in range(99999) %}{% for j in range(99999) %}aaaaaaaa{% endfor %}{% endfor %}",
    "macros": "{% macro a() %}{% for i in range(999) %}x{% endfor %}{% endmacro %}"
    "{% macro b() %}{% for i in range(999) %}{{ a() }}{% endfor %}{% endmacro %}"
    "{% for i in range(999) %}{% set x = b() %}{% endfor %}",
    "two calls per macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion of self": "{% block a %}{{ self.a() }}{% endblock %}",
    "recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "squaring": "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "product": "{{ 'a' * 10000000000 }}",
    "power": "{{ 9 ** 999999999 }}",
    "power of powers": "{% set x = 9 ** (9 ** 9) %}",
    "shift by pow": "{{ 2 ** 4000000000 }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "rjust": "{{ 'a'.rjust(10000000000) | length }}",
    "zfill": "{{ '1'.zfill(10000000000) }}",
    "center": "{{ 'a'.center(10000000000) }}",
    "filter center": "{{ 'a' | center(10000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(2000000000) }}",
    "width of %": "{{ '%2000000000d' % 1 }}",
    "width of format": "{{ '{:>2000000000}'.format(1) }}",
    "filter format": "{{ '%2000000000s' | format('a') }}",
    "join": "{% set x = 'a' * 1000000 %}{{ range(99999) | join(x) | length }}",
    "method join": "{% set x = 'a' * 1000000 %}{{ x.join('b' * 99999) | length }}",
    "batch": "{% for r in [1] | batch(10000000000, 'a') %}{{ r | length }}{% endfor %}",
    "slice": "{% for r in [1] | slice(10000000000, 'a') %}{% endfor %}",
    "lipsum": "{% for i in range(99999) %}{% set x = lipsum(n=9999) %}{% endfor %}",
    "lipsum at once": "{{ lipsum(n=100000000) }}",
    "cycler": "{% set c = cycler('a') %}{% for i in range(99999) %}"
    "{% for j in range(99999) %}{{ c.next() }}{% endfor %}"
    "{% endfor %}",
    "joiner": "{% set j = joiner('a' * 1000000) %}{% set n = namespace(x='') %}{% for i in range(99999) %}"
    "{% set n.x = n.x ~ j() %}{% endfor %}",
    "indent of JSON": "{{ {'a': [1, 2, 3]} | tojson(indent=1000000000) }}",
    "filter indent": "{{ ('a\n' * 1000000) | indent(100000) | length }}",
    "wordwrap": "{% for i in range(99999) %}{% set x = ('a ' * 1000000) | wordwrap(3) %}{% endfor %}",
    "replace": "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
    "{% set n.x = n.x.replace('a', 'aaaa') %}{% endfor %}",
    "filter replace": "{{ ('a' * 1000000) | replace('a', 'b' * 100000) | length }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 100000}) | length }}",
    "digits of a float": "{% for i in range(99999) %}{% for j in range(9999) %}{% set x = (1e300 | int) | string %}"
    "{% endfor %}{% endfor %}",
    "sort": "{% for i in range(99999) %}{% set x = range(99999) | list | sort(reverse=true) %}{% endfor %}",
    "groupby": "{% for i in range(99999) %}{% set x = messages | list * 99999 | groupby('role') %}{% endfor %}",
    "map chains": "{% for i in range(99999) %}"
    "{% set x = range(99999) | map('string') | map('upper') | list %}{% endfor %}",
    "lists of lists": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set n.x = [range(99999) | list, n.x] %}"
    "{% endfor %}",
    "sum of lists": "{{ (range(99999) | map('list') | list) or ([[1] * 9999] * 99999) | sum(start=[]) | length }}",
    "a large literal": "{% set x = [" + "[1,2,3]," * 200_000 + "] %}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "encode": "{% for i in range(99999) %}{% set x = ('a' * 10000000).encode().hex() %}{% endfor %}",
    "urlize": "{% for i in range(99999) %}{% set x = ('http://a.b ' * 100000) | urlize %}{% endfor %}",
    "striptags": "{% for i in range(99999) %}{% set x = (messages[0].content * 1000000) | striptags %}{% endfor %}",
    "pprint": "{{ ([1] * 100000000) | pprint }}",
}  # fmt: skip


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a template of this file reaches soon; an ordinary one is far from them."""
    monkeypatch.setattr(chat_template, "TIME_S", 0.3)
    monkeypatch.setattr(chat_template, "MEMORY_MIB", 64)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("name", TIME_AND_MEMORY)
def test_time_and_memory_of_a_template_are_limited(name: str) -> None:
    with pytest.raises(UserError, match="the chat template") as found:
        ChatTemplate(TIME_AND_MEMORY[name] + f"{{# {name} #}}").render(HI)
    message = str(found.value)
    assert len(message) <= 400 and "\n" not in message and "Traceback" not in message


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process in use")
@pytest.mark.usefixtures("small_limits")
def test_the_sentence_names_the_limit() -> None:
    with pytest.raises(UserError, match=r"used more than 64 MiB for these messages: use another template"):
        ChatTemplate(TIME_AND_MEMORY["ljust"]).render(HI)
    with pytest.raises(UserError, match=r"used more than 0\.3 s of processor time for these messages"):
        ChatTemplate(TIME_AND_MEMORY["nested loops"]).render(HI)


@pytest.mark.usefixtures("small_limits")
def test_a_template_renders_again_after_a_limit() -> None:
    template = ChatTemplate("{% for i in range(messages[0].n) %}{% for j in range(99999) %}{% endfor %}{% endfor %}ok")
    for _ in range(2):
        assert template.render([{**HI[0], "n": 1}]) == "ok"
        with pytest.raises(UserError, match="processor time"):
            template.render([{**HI[0], "n": 99999}])


def test_a_deadline_ends_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system without a limit of processor time."""
    monkeypatch.setattr(chat_template, "TIME_S", 0)  # no limit
    monkeypatch.setattr(chat_template, "DEADLINE_S", 0.5)
    with pytest.raises(UserError, match=r"used more than 0\.5 s"):
        ChatTemplate(TIME_AND_MEMORY["nested loops"]).render(HI)


def test_another_template_renders_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other template has no limit of time here: it ends only after this one has rendered."""
    monkeypatch.setattr(chat_template, "TIME_S", 0)
    monkeypatch.setattr(chat_template, "DEADLINE_S", 3600)
    endless, errors = ChatTemplate(TIME_AND_MEMORY["nested loops"]), []

    def render() -> None:
        try:
            endless.render(HI)
        except UserError as error:
            errors.append(str(error))

    thread = threading.Thread(target=render)
    thread.start()
    while (process := endless._worker._process) is None:
        pass
    fast = ChatTemplate("{{ messages[0].content }}")
    for _ in range(100):
        assert fast.render(HI) == "hi"
    assert thread.is_alive()
    process.kill()
    thread.join()
    assert len(errors) == 1 and errors[0].startswith("the chat template used more than")


def _in_child(template: ChatTemplate, answers: Any) -> None:
    answers.put((template.render(HI), template._worker._process.pid))  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_fork_has_a_process_of_its_own() -> None:
    context = multiprocessing.get_context("fork")
    template, answers = ChatTemplate("{{ messages[0].content }}!"), context.Queue()
    assert template.render(HI) == "hi!"
    process = template._worker._process
    child = context.Process(target=_in_child, args=(template, answers))
    child.start()
    text, of_child = answers.get()
    child.join()
    assert child.exitcode == 0 and text == "hi!" and process is not None and of_child != process.pid
    assert template.render(HI) == "hi!" and template._worker._process is process


def test_a_process_ends_with_its_template() -> None:
    one, two = ChatTemplate("{{ messages }}."), ChatTemplate("{{ messages }}.")
    assert one.render(HI) == two.render(HI)
    process = one._worker._process
    assert process is not None and two._worker._process is process and process.poll() is None
    del one, two
    gc.collect()
    assert process.returncode is not None


def test_many_threads_share_a_process() -> None:
    template, found = ChatTemplate("{{ messages[0].content }}"), {}

    def render(number: int) -> None:
        found[number] = [template.render([{"role": "user", "content": f"{number}.{i}"}]) for i in range(50)]

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}.{i}" for i in range(50)] for number in range(8)}


# Equal to transformers


@pytest.fixture(scope="module")
def theirs() -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    learned = Tokenizer.train(["a b"], vocab_size=0, special_tokens=SPECIAL)
    rust = tokenizers.Tokenizer.from_str(Tokenizer.imported(learned.to_json(), ROLES).to_json())
    return PreTrainedTokenizerFast(tokenizer_object=rust, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("name", [*TEMPLATES, "chatml"])
def test_texts_are_those_of_transformers(name: str, theirs: "PreTrainedTokenizerFast") -> None:
    source, draw = {**TEMPLATES, "chatml": CHATML}[name], random.Random(name)
    ours = ChatTemplate(source, TOKENS)
    for _ in range(50):
        messages = conversation(draw, name, ["", " ", "\n\n", "<think>hm</think>", "</s>"])
        asked = [Asked(messages), Asked(messages[:-1], asks=True), Asked(messages, len(messages) - 1, asks=True)]
        for one, found in zip(asked, ours.texts(asked), strict=True):
            wanted = theirs.apply_chat_template(
                one.messages[: one.n], chat_template=source, add_generation_prompt=one.asks, tokenize=False
            )
            assert found.checked() == wanted


@pytest.mark.parametrize(
    "expression",
    [
        "1.0 / 3", "1e300", "2 ** 80", "7 // 2", "'a' * 3", "[1, 'é'] | tojson",
    "{'b': 1, 'a': none} | tojson(indent=2)",
        "{'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'))", "dict(a=1) | tojson", "'<é>' | e",
        "'é' | tojson(ensure_ascii=true)", "messages | map(attribute='content') | join(',')", "range(5) | list",
        "dict.fromkeys('ab', 1) | tojson", "namespace(self=1).self", "messages[0].get('x') is none", "undefined_name",
        "tools is none", "documents is none", "messages[0] | items | list", "messages[0].content[::-1]",
    "'%05.2f' % 3.14159",
        "'a,b'.split(',') | tojson", "messages[0].call.function.arguments | tojson", "messages[0].call",
    "'A' | lower | title",
    ],
)  # fmt: skip
def test_expressions_are_those_of_transformers(expression: str, theirs: "PreTrainedTokenizerFast") -> None:
    source, messages = f"{{{{ {expression} }}}}", [{**HI[0], "call": CALL, "n": 0.1, "flag": True}]
    assert ChatTemplate(source).render(messages) == theirs.apply_chat_template(
        messages, chat_template=source, tokenize=False
    )


def test_values_that_are_not_of_json_are_refused() -> None:
    with pytest.raises(UserError, match="a message has a value that is not of JSON"):
        ChatTemplate("{{ messages }}").render([{**HI[0], "n": {1, 2}}])
