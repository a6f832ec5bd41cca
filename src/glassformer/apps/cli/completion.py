"""glassformer --completion SHELL: the script that lets a shell complete verbs, options, keys and their values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

from glassformer.apps.cli.arguments import Group, Signature
from glassformer.common.errors import UserError

SHELLS = ("bash", "zsh", "fish")
NO_VALUES = ("integer", "number", "text", "none", "table", "true", "false")
BASH = """\
_glassformer() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}" words=""
  case "$verb" in {groups}) [ "$COMP_CWORD" -gt 2 ] && verb="$verb ${{COMP_WORDS[2]}}" ;; esac
  [ "$COMP_CWORD" -eq 1 ] && verb="" before=""
  case "$verb $before" in
{values}
  *) case "$verb" in
{verbs}
    esac ;;
  esac
  case "$words" in --*) [ "${{word:0:1}}" = - ] || words="" ;; esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _glassformer glassformer
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


def script(shell: str, verbs: Mapping[str, str]) -> str:
    """Return the script for a shell; `verbs` has the verbs of glassformer, each with its description."""
    if shell not in SHELLS:
        raise UserError(f"--completion: expected one of {', '.join(SHELLS)}, got {shell!r}")
    return "".join(_fish(verbs)) if shell == "fish" else ZSH * (shell == "zsh") + _bash(verbs)


def _signatures(verbs: Iterable[str]) -> Iterator[Signature]:
    """Yield the signature of each verb; a verb of a group has two words."""
    for name in verbs:
        verb = import_module(f"glassformer.apps.cli.{name}").main
        inner = {f"{name} {one}": function for one, function in verb.verbs.items()} if isinstance(verb, Group) else {}
        yield from (Signature.of(function, whole) for whole, function in (inner or {name: verb}).items())


def _options(verb: Signature) -> dict[str, tuple[str, list[str]]]:
    options = {option.name: (option.doc, list(option.choices)) for option in verb.options}
    for entry in (entry for entries in verb.keys.values() for entry in entries):
        words = [word for word in entry.type.split(" | ") if re.fullmatch("[a-z_0-9]+", word) and word not in NO_VALUES]
        options.setdefault(entry.key.replace("_", "-"), (entry.doc, words))
    return options


def _bash(verbs: Iterable[str]) -> str:
    words, values, groups = {"": " ".join(verbs)}, dict[str, str](), dict[str, list[str]]()
    for verb in _signatures(verbs):
        options = _options(verb)
        words[verb.verb] = " ".join(f"--{name}" for name in options)
        values |= {f"{verb.verb} --{name}": " ".join(x) for name, (_, x) in options.items() if x}
        if " " in verb.verb:
            groups.setdefault(verb.verb.split()[0], []).append(verb.verb.split()[1])
    words |= {group: " ".join(inner) for group, inner in groups.items()}
    cases = [[f'    "{name}") words="{text}" ;;' for name, text in of.items()] for of in (values, words)]
    return BASH.format(groups="|".join(groups), values="\n".join(cases[0]), verbs="\n".join(cases[1]))


def _fish(verbs: Mapping[str, str]) -> Iterator[str]:
    for name, text in verbs.items():
        yield f"complete -c glassformer -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}\n"
    for verb in _signatures(verbs):
        group, _, inner = verb.verb.rpartition(" ")
        if group:
            yield f'complete -c glassformer -n "__fish_seen_subcommand_from {group}" -f -a {inner}\n'
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in verb.verb.split())
        for name, (doc, choices) in _options(verb).items():
            of_value = f" -x -a {_quoted(' '.join(choices))}" * bool(choices)
            yield f'complete -c glassformer -n "{seen}" -l {name}{of_value} -d {_quoted(doc)}\n'


def _quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"
