"""Repetition penalty, n-grams and minimum length in greedy search and beams, alone and together: as in transformers.

Language models and encoder-decoders; beams of language models too. Prompts of transformers have one length per call,
because its rules also see padding.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from glassformer.apps.interop.generation import STOPPING
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.continuations import continue_prompts
from glassformer.inference.drafts import PromptLookup
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.search import Hypothesis, Search
from interop.checkpoints import VOCAB, Both, imported
from interop.decoding import Ids, padded
from tolerances import within

transformers = late.optional("transformers")

N_NEW, N_PROMPTS = 9, 3
TIE = torch.finfo(torch.float32).eps * 512 * 16
"""Rounding of a score: about 512 terms (width × layers × ids) of magnitude 16."""


def gpt2() -> Any:
    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 4, "bos_token_id": 3, "eos_token_id": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCAB, **sizes))


def llama() -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"max_position_embeddings": 32, "bos_token_id": 2, "eos_token_id": 3, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCAB, **sizes, **special))


def bart() -> Any:
    sizes = {"d_model": 16, "max_position_embeddings": 32, "forced_eos_token_id": None}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 1, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 24}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=VOCAB, **sizes, **special))


def t5() -> Any:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes))


@pytest.fixture(scope="module", params=[gpt2, llama, bart, t5], ids=lambda make: make.__name__)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    make: Callable[[], Any] = request.param
    folder: Path = tmp_path_factory.mktemp(make.__name__)
    return imported(make(), folder)


def drawn(draw: random.Random, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rules, each alone in the first cases, and settings of beams; transformers has the same names."""
    rules: dict[str, Any] = {
        "repetition_penalty": draw.choice([0.6, 1.3, 2.5]),
        "no_repeat_ngram_size": draw.choice([1, 2, 3]),
        "min_new_tokens": draw.randint(1, N_NEW),
    }
    if number < 9:
        name = list(rules)[number % 3]
        rules = {name: rules[name]}
    else:
        rules = {name: value for name, value in rules.items() if draw.random() < 0.7}
    beams = {"length_penalty": draw.choice([-0.7, 0.0, 0.6, 1.0, 2.0]), "early_stopping": draw.choice([*STOPPING])}
    return rules, beams


def ours_of(both: Both, prompts: Ids, config: BeamConfig, ends: Sequence[int], n: int) -> list[list[Hypothesis]]:
    """Return the `n` best of each prompt or source; those of other lengths are in the same batch."""
    network, max_len = both.network, both.network.config.max_len
    batch = [*prompts, [5], [8, 9, 4, 4, 7, 11, 12]]
    if network.config.encoder is None:
        search = Search(config, None, ends[0], max_len, n)
        return continue_prompts(network, batch, search)[: len(prompts)]
    start = both.network.config.decoder_start_id
    search = Search(config, start, ends[0], max_len, n)
    ids, mask = padded(batch, left=False)
    return beam_search(network, (ids, mask.bool()), search)[: len(prompts)]


def theirs_of(both: Both, prompts: Ids, n: int, ends: Sequence[int], **settings: Any) -> tuple[Ids, list[float]]:
    fixed = {"max_new_tokens": N_NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": list(ends)}
    output = {"return_dict_in_generate": True, "output_scores": True, "num_return_sequences": n}
    ids = torch.tensor(prompts)
    found = both.theirs.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **output, **settings)
    n_prompt = 1 if both.network.config.encoder is not None else ids.shape[1]
    rows = [up_to_end(row, ends) for row in found.sequences[:, n_prompt:].tolist()]
    return rows, [] if settings["num_beams"] == 1 else found.sequences_scores.tolist()


def up_to_end(row: list[int], ends: Sequence[int]) -> list[int]:
    return row[: next((n for n, token in enumerate(row, 1) if token in ends), len(row))]


def free_ends(both: Both, prompts: Ids, n: int) -> list[int]:
    """Return ids that free texts contain at several positions."""
    free = ours_of(both, prompts, BeamConfig(3, 0.0, max_new_tokens=N_NEW), [999], 3)
    counts = Counter(token for row in free for one in row for token in set(one.ids[1:]))
    return [token for token, _ in counts.most_common(n)]


def test_greedy_texts_and_beams_equal_those_of_transformers(both: Both) -> None:
    """50 cases of each model: ids and scores of all results."""
    lengths: Counter[int] = Counter()
    for number in range(50):
        draw = random.Random(number)
        rules, beams = drawn(draw, number)
        beam = draw.randint(1, 5)
        n = draw.randint(1, beam)
        length = draw.randint(2, 8)
        prompts = [[draw.randrange(4, 280) for _ in range(length)] for _ in range(N_PROMPTS)]
        ends = free_ends(both, prompts, draw.randint(1, 3))
        named = rules | (beams if beam > 1 else {})
        expected, scores = theirs_of(both, prompts, n, ends, num_beams=beam, **named)

        options = {"early_stopping": STOPPING[beams["early_stopping"]], "length_penalty": beams["length_penalty"]}
        config = BeamConfig(
            beam, length_penalty_type="average", max_new_tokens=N_NEW, end_ids=tuple(ends[1:]), **options, **rules
        )
        found = [one for row in ours_of(both, prompts, config, ends, n) for one in row]
        assert len(found) == len(expected)
        case = (number, beam, n, named, ends)
        for i, (one, ids) in enumerate(zip(found, expected, strict=True)):
            assert one.ids == ids or (scores and abs(one.score - scores[i]) < TIE), case
            assert one.ended == (one.ids[-1] in ends)
            if scores:
                assert one.score == within(scores[i], TIE), case
        lengths.update(len(one.ids) for one in found if one.ended)
        if beam == 1:
            assert_greedy_ways_agree(both, prompts, config, ends, expected)
    assert len(lengths) > 4 and lengths.total() > 40


def assert_greedy_ways_agree(both: Both, prompts: Ids, config: BeamConfig, ends: list[int], expected: Ids) -> None:
    """Generation gives the same ids, with and without drafts."""
    network, max_len = both.network, both.network.config.max_len
    rules = {name: getattr(config, name) for name in ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens")}
    settings = Settings(GenerationConfig(temperature=0.0, max_new_tokens=N_NEW, **rules), max_len, ends)
    sources: Ids = []
    if network.config.encoder is not None:
        start = network.config.decoder_start_id
        assert start is not None
        sources, prompts = prompts, [[start]] * len(prompts)
    for drafter in (None, PromptLookup(3)):
        written: Ids = [[] for _ in prompts]
        for step in Generation(network, prompts, settings, sources=sources, drafter=drafter):
            for row, token in step.items():
                written[row].append(token)
        assert written == expected
