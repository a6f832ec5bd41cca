"""Decoding speed in sentences per second: glassformer and transformers' Marian, measured in one run.

    python benchmarks/decode.py [--precision fp32|bf16|both] [--rounds N] [--threads N] [--device cpu|cuda]

Both are encoder-decoders of 6 + 6 layers × 512, 8 heads, d_ff 2048, vocabulary 8000, with random weights. Each
decodes 32 sentences of 24 tokens into exactly 40 new tokens (no end token), greedily and with 4 beams. They take turns
(A B A B …), so a change of the machine's speed affects both. Printed: medians, and the median ratio of each pair.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import translation_peers
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from translation_peers import END, PAD, EncoderDecoder

SHAPE = EncoderDecoder()
N_SENTENCES, N_SOURCE, N_NEW = 32, 24, 40

Decode = Callable[[Tensor, int], int]
"""(source ids, beam size) → number of new tokens per sentence."""


def ours(dtype: torch.dtype, device: torch.device) -> Decode:
    model = translation_peers.ours(SHAPE).to(device, dtype).eval()

    def decode(source_ids: Tensor, beam: int) -> int:
        found = beam_search(
            model,
            source_ids,
            None,
            BeamConfig(beam, max_new_tokens=N_NEW),
            start_id=PAD,
            end_id=END,
            max_len=model.config.max_len,
            suppress_ids=[END],
        )
        return min(len(hypotheses[0].ids) for hypotheses in found)

    return decode


def transformers_marian(dtype: torch.dtype, device: torch.device) -> Decode:
    model = translation_peers.marian(SHAPE)
    model.to(device, dtype).eval()

    def decode(source_ids: Tensor, beam: int) -> int:
        ids = model.generate(
            source_ids,
            attention_mask=torch.ones_like(source_ids),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=N_NEW,
            max_new_tokens=N_NEW,
        )
        return int(ids.shape[1]) - 1

    return decode


def timed(decode: Decode, source_ids: Tensor, beam: int) -> float:
    if source_ids.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    n_new = decode(source_ids, beam)
    if source_ids.is_cuda:
        torch.cuda.synchronize()
    assert n_new == N_NEW, f"expected {N_NEW} tokens, got {n_new}"
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "bf16", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="number of threads; 0 = the default of torch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    precisions = {"fp32": torch.float32, "bf16": torch.bfloat16}
    chosen = precisions if arguments.precision == "both" else {arguments.precision: precisions[arguments.precision]}

    print(
        f"{N_SENTENCES} sentences of {N_SOURCE} tokens, {N_NEW} new tokens, {SHAPE.n_layers}+{SHAPE.n_layers} × "
        f"{SHAPE.d_model}, vocabulary {SHAPE.vocab_size}, {device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{arguments.rounds} rounds in turns, medians\n")
    print(f"{'sentences/s':<20}{'glassformer':>12}{'Marian':>10}{'ratio':>8}")
    for precision, dtype in chosen.items():
        torch.manual_seed(0)
        decoders = (ours(dtype, device), transformers_marian(dtype, device))
        source_ids = torch.randint(2, SHAPE.vocab_size, (N_SENTENCES, N_SOURCE), device=device)
        for name, beam in (("beam 4", 4), ("greedy", 1)):
            for decode in decoders:
                timed(decode, source_ids, beam)
            seconds = [[timed(decode, source_ids, beam) for decode in decoders] for _ in range(arguments.rounds)]
            rates = [N_SENTENCES / statistics.median(times) for times in zip(*seconds, strict=True)]
            ratio = statistics.median(theirs / own for own, theirs in seconds)
            print(f"{precision + ', ' + name:<20}{rates[0]:>12.1f}{rates[1]:>10.1f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
