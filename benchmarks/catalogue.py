"""All benchmarks: their candidates, settings and numbers of rounds. This file imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from results import Share
from turns import Candidate

OURS = "glassformer"
GPT_MODELS = (OURS, "plain GPT (as nanoGPT)", "transformers GPT-2", "x-transformers", "torch.nn")
PAIR_MODELS = (OURS, "transformers Marian", "torch.nn")
SHAKESPEARE = {"n_layers": 4, "n_heads": 4, "d_model": 128, "vocab_size": 65, "context": 64, "batch": 12}
GPT2 = {"n_layers": 12, "n_heads": 12, "d_model": 768, "vocab_size": 50257, "context": 256, "batch": 4}
GPT2_ON_GPU = GPT2 | {"vocab_size": 50304, "context": 1024, "batch": 16}
PACKED_ON_GPU = GPT2_ON_GPU | {"n_layers": 6, "context": 4096, "batch": 4}
CAPTIONS = {"n_layers": 3, "n_heads": 4, "d_model": 256, "d_ff": 1024, "vocab_size": 8000}
SCHEMES = ("byte", "char", "word")
MB = 1_000_000


@dataclass(frozen=True)
class Benchmark:
    """One benchmark; `run.py` measures it."""

    title: str
    candidates: Sequence[Candidate]
    rounds: int
    warmups: int = 1
    work: str = ""
    share: Share = ""
    reference: str = OURS
    picks_best: bool = False
    """True if all settings take turns together, and the table has the fastest setting of each candidate."""
    prepare: tuple[str, Mapping[str, Any]] | None = None
    """`module:function` and arguments: it fills a temporary folder, which every candidate with `folder` gets."""
    needs_data: bool = False
    """True if it needs `--data`."""
    device: str = "auto"
    """Device whose rates the rows are compared with."""


def _steps(
    make: str, models: Sequence[str], settings: Mapping[str, Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[Candidate]:
    return [
        Candidate(
            model,
            make,
            {"model": model, **arguments, **how},
            setting,
            how["precision"],
            keeps_memory=model == OURS,
        )
        for setting, how in settings.items()
        for model in models
    ]


Settings = dict[str, dict[str, Any]]
FP32: Settings = {"fp32": {"precision": "fp32"}}
BF16: Settings = {"bf16": {"precision": "bf16"}}
BOTH = FP32 | BF16
COMPILED: Settings = {f"{name}, compiled": {"precision": name, "compiled": True} for name in BOTH}


def train_shakespeare() -> Benchmark:
    settings = {name: {**how, "calls": 10} for name, how in (BOTH | COMPILED).items()}
    return Benchmark(
        "Training step of a character model: 4 layers, width 128, context 64, batch 12",
        _steps("train:gpt", GPT_MODELS, settings, {"sizes": SHAKESPEARE}),
        rounds=20,
        warmups=2,
        work="tokens",
        share="matrix products",
        picks_best=True,
    )


def train_gpt2() -> Benchmark:
    return Benchmark(
        "Training step of GPT-2: 12 layers, width 768, context 256, batch 4",
        _steps("train:gpt", GPT_MODELS, BOTH, {"sizes": GPT2}),
        rounds=8,
        warmups=2,
        work="tokens",
        share="matrix products",
    )


def train_gpt2_on_gpu() -> Benchmark:
    """Make the vocabulary a multiple of 64, as nanoGPT does, for all models."""
    settings = {"bf16, compiled": {"precision": "bf16", "compiled": True, "calls": 10, "device": "cuda"}}
    return Benchmark(
        "Training step of GPT-2 on a GPU: 12 layers, width 768, context 1024, batch 16",
        _steps("train:gpt", GPT_MODELS[:3], settings, {"sizes": GPT2_ON_GPU}),
        rounds=8,
        warmups=1,
        work="tokens",
        share="matrix products",
        device="cuda",
    )


def train_packed_on_gpu() -> Benchmark:
    """Fill rows with documents of 341 tokens in the mean; both candidates are glassformer."""
    work = {"sizes": PACKED_ON_GPU, "mean_length": 341, "n_batches": 2}
    work |= {"precision": "bf16", "compiled": True, "calls": 5, "device": "cuda"}
    setting = "bf16, compiled"
    return Benchmark(
        "Training step on packed documents on a GPU: 6 layers, width 768, context 4096, batch 4",
        [
            Candidate(OURS, "train:packed", work, setting, "bf16", keeps_memory=True),
            Candidate("dense mask", "train:packed", {**work, "flex": False}, setting, "bf16"),
        ],
        rounds=8,
        warmups=1,
        work="tokens",
        device="cuda",
    )


def train_translation() -> Benchmark:
    return Benchmark(
        "Training step of an encoder-decoder: 6 + 6 layers, width 512, 64 pairs of 24 tokens",
        _steps("train:translation", PAIR_MODELS, BOTH, {"sizes": {}}),
        rounds=8,
        work="target tokens",
        share="matrix products",
    )


def train_bert() -> Benchmark:
    return Benchmark(
        "Training step of BERT-base on masked tokens: 8 rows of 128 tokens, 15 % masked",
        _steps("train:bert", (OURS, "transformers BERT"), BOTH, {"sizes": {}}),
        rounds=8,
        work="masked tokens",
        share="matrix products",
    )


def train_bahdanau() -> Benchmark:
    return Benchmark(
        "Training step of GRUs with additive attention: width 512, 64 pairs of 24 tokens",
        _steps("train:bahdanau", (OURS, "torch.nn by hand"), BOTH, {"sizes": {}, "calls": 4}),
        rounds=12,
        work="target tokens",
        share="matrix products",
    )


def decode_gpt2(device: str = "auto", batches: Sequence[int] = (1, 16), precisions: Settings = BOTH) -> Benchmark:
    candidates = []
    work: dict[str, Any] = {"n_prompt": 64, "n_new": 128, "sizes": GPT2 | {"context": 1024}}
    for batch in batches:
        for precision in precisions:
            arguments = work | {"precision": precision, "batch": batch, "device": device}
            setting = f"{precision}, batch {batch}"
            candidates.append(Candidate(OURS, "decode_gpt2:ours", arguments, setting, precision))
            for cache in ("dynamic", "static"):
                peer = Candidate(f"transformers, {cache} cache", "decode_gpt2:transformers_gpt2")
                peer = replace(peer, arguments=arguments | {"cache": cache}, setting=setting, precision=precision)
                candidates.append(peer)
    title = "Greedy decoding of GPT-2 (124 M parameters): 128 new tokens after a prompt of 64"
    prepare = None
    if device == "auto":
        candidates += _exported_gpt2()
        prepare = ("decode_gpt2_exported:exported", work)
    return Benchmark(
        title, candidates, rounds=5, work="tokens", share="memory bandwidth", device=device, prepare=prepare
    )


def _exported_gpt2() -> list[Candidate]:
    """Return the candidates for which the model is exported, in fp32."""
    found = []
    for package, name, make in (
        ("xllamacpp", "llama.cpp F32", "llama_cpp"),
        ("ctranslate2", "CTranslate2 float32", "ctranslate2_generator"),
    ):
        if find_spec(package) is not None:
            found.append(Candidate(name, f"decode_gpt2_exported:{make}", {"folder": ""}, "fp32, batch 1"))
    return found


def decode_small() -> Benchmark:
    candidates = []
    for n_layers, d_model, n_heads, vocab_size in ((4, 128, 4, 2048), (6, 192, 6, 2048), (8, 512, 8, 8192)):
        sizes = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "vocab_size": vocab_size}
        for batch in (1, 16):
            for precision in BOTH:
                work = {"precision": precision, "batch": batch, "n_new": 200, "sizes": sizes}
                setting = f"{n_layers} × {d_model}, {precision}, batch {batch}"
                candidates.append(Candidate(OURS, "decode_small:ours", work, setting, precision))
                candidates.append(Candidate("plain loop", "decode_small:plain", work, setting, precision))
    title = "Greedy decoding of small models: 200 new tokens after a prompt of 16"
    return Benchmark(title, candidates, rounds=5, work="tokens")


def decode_gpt2_on_gpu() -> Benchmark:
    return decode_gpt2("cuda", (1,), BF16)


def _translation(title: str, beams: Mapping[str, int], **sizes: Any) -> Benchmark:
    has_ct2 = find_spec("ctranslate2") is not None
    candidates = []
    for name, beam in beams.items():
        for precision in BOTH:
            setting, work = f"{precision}, {name}", {**sizes, "precision": precision, "beam": beam}
            candidates.append(Candidate(OURS, "decode_translation:ours", work, setting, precision))
            candidates.append(Candidate("transformers Marian", "decode_translation:marian", work, setting, precision))
            candidates.append(Candidate("plain loop", "decode_translation:plain", work, setting, precision))
        if has_ct2:
            arguments = {"folder": "", "beam": beam}
            candidates.append(Candidate("CTranslate2 float32", "decode_ct2:translator", arguments, f"fp32, {name}"))
    return Benchmark(
        f"Decoding of an encoder-decoder: {title}",
        candidates,
        rounds=5,
        work="sentences",
        share="memory bandwidth",
        prepare=("decode_translation:exported", {**sizes, "beams": list(beams.values())}) if has_ct2 else None,
    )


def decode_translation() -> Benchmark:
    title = "6 + 6 layers, width 512, 32 sentences of 24 tokens, 40 new tokens each"
    return _translation(title, {"greedy": 1, "beam 4": 4})


def decode_captions() -> Benchmark:
    """Decode at the sizes of Multi30k."""
    sizes = {"n_layers": 4, "n_heads": 4, "d_model": 128, "d_ff": 512, "vocab_size": 10_000}
    title = "4 + 4 layers, width 128, 32 sentences of 14 tokens, 16 new tokens each"
    return _translation(title, {"greedy": 1, "beam 5": 5}, n_source=14, n_new=16, sizes=sizes)


def decode_recurrent() -> Benchmark:
    sizes = {"d_embedding": 128, "d_encoder": 64, "d_decoder": 128, "vocab_size": 10_000, "batch": 32, "n_source": 14}
    candidates = []
    for precision in BOTH:
        work = {"precision": precision, "n_new": 16, "sizes": sizes}
        for name, make in ((OURS, "ours"), ("plain loop", "plain")):
            candidates.append(Candidate(name, f"decode_recurrent:{make}", work, f"{precision}, greedy", precision))
    title = "Decoding of a GRU with additive attention: width 128, 32 sentences of 14 tokens, 16 new tokens each"
    return Benchmark(title, candidates, rounds=5, work="sentences")


def read_short() -> Benchmark:
    """Read texts of the length of a caption."""
    sizes = {"n_layers": 4, "n_heads": 4, "d_model": 128, "vocab_size": 10_000, "n_tokens": 14}
    candidates = []
    for precision in BOTH:
        for what, has_labels in (("labels", True), ("masked tokens", False)):
            for n_texts in (1, 32):
                work = {"precision": precision, "n_texts": n_texts, "sizes": sizes}
                setting = f"{precision}, {what}, {n_texts} text{'s' * (n_texts > 1)}"
                for name, make in ((OURS, "ours"), ("plain loop", "plain")):
                    own = work | {"labels": has_labels}
                    candidates.append(Candidate(name, f"read_short:{make}", own, setting, precision))
                if not has_labels:
                    candidates.append(Candidate("transformers", "read_short:transformers", work, setting, precision))
    title = "Labels and tokens of texts of 14 tokens by an encoder of 4 layers, width 128"
    return Benchmark(title, candidates, rounds=9, work="texts")


def encode() -> Benchmark:
    fast = {OURS: OURS, "tokenizers (Rust)": "tokenizers"}
    candidates = []
    for scheme in SCHEMES:
        has_tiktoken = scheme == "byte" and find_spec("tiktoken") is not None
        rust = fast | ({"tiktoken (Rust)": "tiktoken"} if has_tiktoken else {})
        arguments: dict[str, Any] = {"scheme": scheme, "vocab_size": 2000, "n_bytes": MB}
        for name, encoder in [*rust.items(), ("reference in Python", "reference")]:
            candidates.append(
                Candidate(name, "text:encode", {"encoder": encoder, **arguments}, f"{scheme}, 1 MB in lines")
            )
        arguments |= {"n_bytes": 20 * MB, "piece_bytes": MB}
        for name, encoder in rust.items():
            candidates.append(
                Candidate(name, "text:encode", {"encoder": encoder, **arguments}, f"{scheme}, 20 MB in pieces of 1 MB")
            )
    return Benchmark("Encoding the source of the standard library: vocabulary 2,000", candidates, rounds=7, work="MB")


def learn() -> Benchmark:
    names = {OURS: OURS, "tokenizers (Rust)": "tokenizers", "rescanning, extrapolated": "rescanning"}
    of_scheme = {"byte": {"rustbpe": "rustbpe"}, "word": {"sentencepiece (BPE)": "sentencepiece"}}
    candidates = [
        Candidate(name, "text:learn", {"learner": learner, "scheme": scheme, "vocab_size": 2000, "n_bytes": MB}, scheme)
        for scheme in SCHEMES
        for name, learner in (names | of_scheme.get(scheme, {})).items()
        if learner not in ("rustbpe", "sentencepiece") or find_spec(learner) is not None
    ]
    title = "Learning a tokenizer: vocabulary 2,000, 1 MB of the source of the standard library"
    return Benchmark(title, candidates, rounds=5)


def multi30k() -> Benchmark:
    return Benchmark(
        "Training on Multi30k: 3 + 3 layers, width 256, real batches of at most 4,096 tokens with padding",
        _steps("multi30k:train", PAIR_MODELS, BOTH, {"sizes": CAPTIONS, "folder": ""}),
        rounds=5,
        work="target tokens",
        share="matrix products",
        prepare=("multi30k:prepared", {"vocab_size": 8000, "batch_tokens": 4096, "n_batches": 8}),
        needs_data=True,
    )


def start() -> Benchmark:
    first = 'python -c "import torch"'
    generate = ["-m", "glassformer", "generate", "RUN", "--prompt", "The", "--max-new-tokens", "1"]
    commands = {
        first: ["-c", "import torch"],
        "glassformer --help": ["-m", "glassformer", "--help"],
        "glassformer generate, first token": generate,
    }
    return Benchmark(
        "Start of a command: seconds of CPU",
        [Candidate(name, "start:command", {"folder": "", "words": words}) for name, words in commands.items()],
        rounds=7,
        reference=first,
        prepare=("start:trained", {}),
    )


BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "train-shakespeare": train_shakespeare,
    "train-gpt2": train_gpt2,
    "train-translation": train_translation,
    "train-bert": train_bert,
    "train-bahdanau": train_bahdanau,
    "multi30k": multi30k,
    "decode-gpt2": decode_gpt2,
    "decode-small": decode_small,
    "decode-translation": decode_translation,
    "decode-captions": decode_captions,
    "decode-recurrent": decode_recurrent,
    "read-short": read_short,
    "encode": encode,
    "learn": learn,
    "start": start,
}
ON_GPU: dict[str, Callable[[], Benchmark]] = {
    "train-gpt2-on-gpu": train_gpt2_on_gpu,
    "train-packed-on-gpu": train_packed_on_gpu,
    "decode-gpt2-on-gpu": decode_gpt2_on_gpu,
}
"""Benchmarks of `gpu.py`."""
