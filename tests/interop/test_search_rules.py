"""Beam search with each stopping rule, and greedy search, with one or several end tokens: equal to transformers."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

import late
from glassformer.apps.interop.generation import STOPPING
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.drafts import Drafter, PromptLookup
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.search import Search
from interop.checkpoints import VOCAB, Both, imported
from interop.decoding import Ids, drawn_prompts, padded
from tolerances import assert_close

transformers = late.optional("transformers")

N_NEW = 9
NOBODY = 999


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Both:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes))
    return imported(theirs, tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Both:
    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 4, "bos_token_id": 3, "eos_token_id": 3}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCAB, **sizes))
    return imported(theirs, tmp_path_factory.mktemp("gpt2"))


def frequent(rows: Iterable[Sequence[int]], n: int) -> list[int]:
    """Return the `n` ids that most rows contain: as end tokens they end rows at different positions."""
    return [token for token, _ in Counter(token for row in rows for token in set(row[1:])).most_common(n)]


@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_beams_equal_transformers(t5: Both, stopping: bool | str) -> None:
    """Compare ids and scores of all results, for random beams, numbers of results, penalties and end tokens."""
    fixed = {"do_sample": False, "pad_token_id": 0, "output_scores": True, "return_dict_in_generate": True}
    max_len = t5.network.config.max_len
    lengths: Counter[int] = Counter()
    for seed in range(8):
        draw = random.Random(f"{seed} {stopping}")
        beam = draw.choice([2, 3, 5])
        n_best, penalty = draw.randint(1, beam), draw.choice([-0.7, 0.0, 0.6, 1.0, 2.0])
        ids, mask = padded(drawn_prompts(t5, 24, seed=seed), left=False)
        sources, endless = (ids, mask.bool()), Search(BeamConfig(beam, max_new_tokens=N_NEW), 0, NOBODY, max_len)
        free = beam_search(t5.network, sources, endless)
        ends = draw.sample(frequent((best.ids for best, *_ in free), 6), 1 + seed % 3)

        settings = {"num_beams": beam, "num_return_sequences": n_best, "length_penalty": penalty}
        settings |= {"max_new_tokens": N_NEW, "early_stopping": stopping, "eos_token_id": ends}
        theirs = t5.theirs.generate(ids, attention_mask=mask, **settings, **fixed)
        config = BeamConfig(beam, penalty, "average", STOPPING[stopping], N_NEW, end_ids=tuple(ends[1:]))
        found = beam_search(t5.network, sources, Search(config, 0, ends[0], max_len, n_best))

        ours = [hypothesis for row in found for hypothesis in row]
        expected = [up_to_end(row, ends) for row in theirs.sequences[:, 1:].tolist()]
        assert [h.ids for h in ours] == expected, (seed, beam, n_best, penalty, ends)
        assert [h.ended for h in ours] == [row[-1] in ends for row in expected]
        scores = torch.tensor([h.score for h in ours])
        assert_close(scores, theirs.sequences_scores)
        lengths.update(len(h.ids) for h in ours if h.ended)
    assert len(lengths) > 4 and lengths.total() > 40


def up_to_end(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return a row without the padding after its end token."""
    return row[: next((n for n, token in enumerate(row, 1) if token in ends), len(row))]


@pytest.mark.parametrize("n_ends", [1, 2, 4])
def test_greedy_texts_end_as_in_transformers(gpt2: Both, n_ends: int) -> None:
    """Compare generation with and without drafts on 60 prompts."""
    prompts = drawn_prompts(gpt2, 60)
    ends = frequent(written_by(gpt2, prompts, (), [NOBODY]), n_ends)
    ids, mask = padded(prompts, left=True)
    theirs = gpt2.theirs.generate(
        ids, attention_mask=mask, max_new_tokens=N_NEW, eos_token_id=ends, do_sample=False, pad_token_id=0
    )
    expected = [up_to_end(row, ends) for row in theirs[:, ids.shape[1] :].tolist()]
    for drafter in (None, PromptLookup(3)):
        assert written_by(gpt2, prompts, tuple(ends[1:]), ends[:1], drafter) == expected
    assert len({row[-1] for row in expected} & set(ends)) >= min(n_ends, 2)
    assert len({len(row) for row in expected}) > 2


def written_by(
    both: Both,
    prompts: Ids,
    more_ends: tuple[int, ...],
    end_ids: Sequence[int],
    drafter: Drafter | None = None,
) -> Ids:
    config = GenerationConfig(temperature=0.0, max_new_tokens=N_NEW, end_ids=more_ends)
    written: Ids = [[] for _ in prompts]
    for step in Generation(both.network, prompts, Settings(config, 32, end_ids), drafter=drafter):
        for number, token in step.items():
            written[number].append(token)
    return written


def test_every_way_of_writing_a_text_ends_with_each_end_token(gpt2: Both, t5: Both) -> None:
    """Further end tokens cut the free text, and are not part of it."""
    ours, prompts = gpt2.ours, ["to be", "or not", "Ist es"]
    for prompt in prompts:
        settings = {"temperature": 0.0, "max_new_tokens": N_NEW}
        free = written_by(gpt2, [ours.prompt_ids(prompt)], (), [NOBODY])[0]
        end_ids = (free[4], free[6])
        n = min(map(free.index, end_ids))
        expected = ours.generate(prompt, max_new_tokens=n, temperature=0.0) if n else ""
        assert ours.generate(prompt, end_ids=end_ids, **settings) == expected
        assert ours.generate(prompt, end_ids=end_ids, prompt_lookup=2, **settings) == expected
        assert "".join(ours.stream(prompt, end_ids=end_ids, **settings)) == expected
        assert ours.generate([prompt, "to"], end_ids=end_ids, batch_size=1, **settings)[0] == expected
    for model in (t5.ours, replace(t5.ours, others=(t5.network,))):  # alone, and as an ensemble with itself
        (free,) = model.translations("to be", beam=1, max_new_tokens=N_NEW)
        end_ids = (free.hypothesis.ids[3],)
        (found,) = model.translations("to be", beam=1, max_new_tokens=N_NEW, end_ids=end_ids)
        n = free.hypothesis.ids.index(end_ids[0])
        assert found.hypothesis.ids == free.hypothesis.ids[: n + 1] and found.hypothesis.ended
        assert found.text == model.tokenizer.decode(free.hypothesis.ids[:n])
