"""What a model of text makes of the beginning of the validation text, shown at each evaluation."""

import torch

from glassformer.config.run import BeamConfig, CausalConfig, GenerationConfig, MaskedConfig, Run, SpansConfig
from glassformer.data.batching import Example
from glassformer.inference.decode import generate, never_written
from glassformer.inference.fill import fill_by_writing, fill_masks, fill_spans
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.text_objectives import sentinel_ids

SAMPLE_PROMPT, SAMPLE_LENGTH = 16, 64
GREEDY = BeamConfig(beam=1, max_ratio=2.0)


def sample(network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
    """A text goes on, or what was masked in it is filled."""
    if isinstance(run.objective, CausalConfig):
        return _continued(network, tokenizer, run, row, device)
    ids = row.token_ids[: max(3, min(SAMPLE_PROMPT, run.model.max_len - 3))].tolist()
    words = tokenizer.decode(ids).split()
    masked = [i for i in range(len(words)) if i % 4 == 2]
    text = " ".join("[MASK]" if i in masked else word for i, word in enumerate(words))
    if not masked:
        return text
    if isinstance(run.objective, MaskedConfig):
        filling = fill_masks(network, tokenizer, text, 1, device)
    elif isinstance(run.objective, SpansConfig):
        known = sentinel_ids(tokenizer)
        if len(masked) > len(known):
            return text
        filling = fill_spans(network, tokenizer, text, known, GREEDY, device)
    else:
        filling = fill_by_writing(network, tokenizer, text, GREEDY, device)
    return f"{text} │ {filling.text}"


def _continued(network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
    """The beginning of the row, and how the model goes on."""
    n_prompt = max(1, min(SAMPLE_PROMPT, (run.data.context or run.model.max_len) // 4))  # type: ignore[union-attr]
    prompt = row.token_ids[:n_prompt].tolist()
    length = max(1, min(SAMPLE_LENGTH, run.model.max_len - n_prompt))
    config = GenerationConfig(max_new_tokens=length, temperature=0.8, top_k=50, seed=run.train.seed)
    end = [] if run.model.eos_id is None else [run.model.eos_id]
    suppress_ids = never_written(tokenizer, run.model.vocab_size)
    steps = generate(
        network, [prompt], config, max_len=run.model.max_len, end_ids=end, suppress_ids=suppress_ids, device=device
    )
    new = [ids[0] for ids in steps if ids[0] is not None]
    stream = tokenizer.stream(after=prompt)
    return "".join([tokenizer.decode(prompt), "│", *map(stream.push, new), stream.flush()])
