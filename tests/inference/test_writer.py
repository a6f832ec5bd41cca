"""Texts of a generation, as a stream and whole."""

from collections import Counter
from dataclasses import replace

from configs import CONFIGS, random_model
from glassformer.config.run import GenerationConfig
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import Writer
from glassformer.tokenization.tokenizer import Tokenizer

GREEDY = GenerationConfig(max_new_tokens=10, temperature=0.0)


def test_the_end_token_is_not_part_of_a_text() -> None:
    """The end token of a model may be a token with text; both methods leave it out."""
    tokenizer = Tokenizer.train(["abcdefgh"], vocab_size=0, scheme="char")
    model = random_model(replace(CONFIGS["gpt"], vocab_size=tokenizer.vocab_size))
    config = replace(GREEDY, max_new_tokens=12)
    prompts = [EncodedPrompt([i]) for i in range(tokenizer.vocab_size)]
    writer = Writer(model, tokenizer)
    [*steps] = writer.stream(prompts, writer.settings(config, slide=True))
    end = Counter("".join("".join(row) for row in zip(*steps, strict=True))).most_common(1)[0][0]
    model.config = replace(model.config, eos_id=tokenizer.vocab[end])
    how = writer.settings(config, slide=True)
    [*steps] = writer.stream(prompts, how)
    expected = {number: "".join(row) for number, row in enumerate(zip(*steps, strict=True))}
    assert dict(writer.finished(prompts, how)) == expected
    assert not any(end in text for text in expected.values())
    assert any(len(text) < 12 for text in expected.values()), "no text has ended"
