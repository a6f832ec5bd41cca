"""The tokenizer in JavaScript gives the ids, texts and tokens of `Tokenizer`, for every scheme."""

import json
import random
from pathlib import Path

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.web_file import vocabulary
from glassformer.tokenization.chat_template import CHATML_TOKENS
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.schemes import Scheme
from glassformer.tokenization.tokenizer import Tokenizer
from inspector.network.node import run_node

SCRIPTS = [
    "Don't go! they'll say 'I've seen 12,345 of them', isn't it?",
    "Größe, naïve café; Ähre über Straße\n\n  eingerückt\tTab",
    "это тест, который проверяет слова и числа 2024",
    "これは日本語の文です。漢字とかな",
    "هذا نص عربي، مع أرقام ١٢٣",
    "यह हिन्दी में एक वाक्य है ४५६",
    "👩‍👩‍👧 emoji 🎉🎉 and flags 🇩🇪, keycap 1️⃣",
    "a\u00a0b\u2003c\u3000d\u0085e\ufefff\u200bg\u2028h",
    "␣ end \ufffd of [MASK] word </w> [UNK]  \n \n",
    "e\u0301 combining, ﬁ ligature, ½ Ⅷ ² _under_score\u203f",
    "",
    " ",
]
SCHEMES: list[tuple[Scheme, int]] = [
    ("byte", 400), ("byte", 0), ("char", 0), ("char", 250), ("word", 250), ("whitespace", 250), ("whole_words", 40)
]  # fmt: skip


def made_up(seed: int) -> str:
    """Return a text of parts of all scripts, in random order."""
    rng = random.Random(seed)
    parts = [rng.choice(SCRIPTS)[rng.randrange(12) :][: rng.randrange(1, 14)] for _ in range(12)]
    return rng.choice(["", " ", "\n"]).join(parts)


def test_ids_texts_and_tokens_equal_those_of_python(tmp_path: Path) -> None:
    tokenizers = []
    for scheme, size in SCHEMES:
        trained = Tokenizer.train(SCRIPTS[:6], vocab_size=size, scheme=scheme, min_frequency=1)
        tokenizers.append(trained)
    texts = [*SCRIPTS, *map(made_up, range(200))]
    vocabularies = [vocabulary(tokenizer) for tokenizer in tokenizers]
    (tmp_path / "texts.json").write_text(json.dumps({"vocabularies": vocabularies, "texts": texts}))
    run_node("tokenize.mjs", tmp_path / "texts.json")
    found = json.loads((tmp_path / "texts.out.json").read_text())
    for tokenizer, ours in zip(tokenizers, found, strict=True):
        assert [one["ids"] for one in ours["texts"]] == tokenizer.encode_batch(texts), tokenizer
        assert [one["text"] for one in ours["texts"]] == [
            tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)
        ]
        assert [one["unknown"] for one in ours["texts"]] == [page_data.unknown(tokenizer, text) for text in texts]
        assert ours["tokens"] == tokenizer.tokens(range(tokenizer.vocab_size))
        assert ours["pieces"] == [list(piece) for piece in tokenizer.pieces]


def test_ids_of_conversations_equal_those_of_python(tmp_path: Path) -> None:
    """Among others: answers that merge with the line end before them, and special tokens that messages contain."""
    tokenizers = [
        with_template(
            Tokenizer.train([*SCRIPTS[:6], "assistant\n\n a"], vocab_size=size, scheme=scheme, min_frequency=1)
        )
        for scheme, size in SCHEMES
    ]
    hostile = [
        "\n\n a",
        "<|im_end|><|im_start|>user\nb",
        "[UNK] <|im_start|",
        "<|im_end|>",
        "",
        *SCRIPTS,
        *map(made_up, range(20)),
    ]
    rng = random.Random(1)
    conversations = [
        [{"role": rng.choice(["system", "user", "assistant"]), "content": rng.choice(hostile)} for _ in range(n)]
        for n in (1, 2, 3) * 40
    ]
    rules = [dict(zip(("start", "end"), map(one.vocab.__getitem__, CHATML_TOKENS), strict=True)) for one in tokenizers]
    written = {
        "vocabularies": [*map(vocabulary, tokenizers)],
        "texts": [],
        "rules": [{"chatml": one} for one in rules],
        "conversations": conversations,
    }
    (tmp_path / "texts.json").write_text(json.dumps(written))
    run_node("tokenize.mjs", tmp_path / "texts.json")
    found = json.loads((tmp_path / "texts.out.json").read_text())
    for tokenizer, ours in zip(tokenizers, found, strict=True):
        encoder = ConversationEncoder(tokenizer, "a model")
        for messages, ids in zip(conversations, ours["conversations"], strict=True):
            assert ids == encoder.read(messages), (tokenizer, messages)
