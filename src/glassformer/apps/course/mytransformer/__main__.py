"""Train and use your models: python -m mytransformer train book.txt."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import bart, bert, generate, gpt, transformer, tune
from .recurrent import EncoderDecoder
from .tokenizer import Tokenizer
from .train import evaluate, fit, load_weights, read_tensors

KINDS = ("gpt", "bert", "bart", "transformer", "recurrent", "chat")


def sizes_of(kind: str, n_ids: int, context: int) -> tuple[type[nn.Module], list[int]]:
    """Return the class of a kind, and its arguments."""
    usual = [96, 4, 384, 3, context]
    if kind in ("gpt", "chat"):
        return gpt.GPT, [n_ids, *usual]
    if kind == "bert":
        return bert.BERT, [n_ids, *usual]
    if kind == "recurrent":
        return EncoderDecoder, [n_ids, n_ids, 128]
    return transformer.Transformer, [n_ids, n_ids, *usual, int(kind == "bart")]


def batches(kind: str, lines: list[str], tokenizer: Tokenizer, context: int) -> Any:
    """Return the function that draws a batch of a kind from lines of text."""
    pad, unknown, start, end = (tokenizer.ids[name] for name in tokenizer.special)
    if kind in ("transformer", "recurrent"):
        sides = [line.split("\t") for line in lines]
        rows = [
            [tokenizer.encode(side)[: context - 1] for side in pair] for pair in sides
        ]
    elif kind == "chat":
        talks = [chat_row(json.loads(line), tokenizer, context) for line in lines]
    else:
        whole = torch.tensor(tokenizer.encode("\n".join(lines)))
        if len(whole) <= context:
            sys.exit(
                f"a part has {len(whole)} tokens; at least {context + 1} are needed"
            )

    def batch(generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        if kind in ("transformer", "recurrent"):
            numbers = torch.randint(len(rows), (16,), generator=generator)
            pairs = [(rows[number][0], rows[number][1]) for number in numbers]
            return transformer.batch_of(pairs, start, end, pad)
        if kind == "chat":
            numbers = torch.randint(len(talks), (16,), generator=generator)
            found = [talks[number] for number in numbers]
            ids, is_token = tokenizer.pad([row for row, _ in found])
            longest = ids.shape[1]
            is_answer = (
                torch.tensor([x + [0] * (longest - len(x)) for _, x in found]) > 0
            )
            return (ids[:, :-1], is_token[:, :-1]), tune.answer_labels(ids, is_answer)
        n_rows = 64 if kind == "bert" else 16  # BERT learns from 15 % of the tokens
        inputs, labels = gpt.windows(whole, n_rows, context - 1, generator)
        if kind == "bert":
            is_special = inputs < len(tokenizer.special)
            n_ids = len(tokenizer.symbols)
            inputs, labels = bert.masked_batch(
                inputs, is_special, unknown, n_ids, generator
            )
            return (inputs, torch.ones_like(inputs, dtype=torch.bool)), labels
        if kind == "bart":
            pieces = inputs[:, : context - 2].tolist()
            return bart.denoising_batch(
                pieces, 0.3, unknown, start, end, pad, generator
            )
        return (inputs,), labels

    return batch


def chat_row(
    messages: list[dict[str, str]], tokenizer: Tokenizer, context: int
) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation, and 1 for each that the assistant wrote."""
    ids, is_answer = [], []
    for message in messages:
        text = tune.template([(message["role"], message["content"])])
        head, last = f"<|im_start|>{message['role']}\n", "<|im_end|>\n"
        answer = text.removeprefix(head).removesuffix(last)
        for part, answers in ((head, 0), (answer + last[:-1], 1), (last[-1:], 0)):
            new = tokenizer.encode(part)
            ids += new
            is_answer += [answers * (message["role"] == "assistant")] * len(new)
    return ids[:context], is_answer[:context]


def lines_of(path: Path, kind: str) -> list[str]:
    """Return the lines of a file that a kind can use, and stop where there are few."""
    lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    if kind in ("transformer", "recurrent"):
        lines = [line for line in lines if line.count("\t") == 1]
        print(f"{len(lines):,} lines are two texts with a tab between them")
    elif kind == "chat":
        lines = [line for line in lines if is_chat(line)]
        print(f"{len(lines):,} lines are conversations in JSON")
    if len(lines) < 20:
        sys.exit(f"{path} has {len(lines)} lines that {kind} can use; 20 are needed")
    return lines


def is_chat(line: str) -> bool:
    """Return True for a list of messages, each with a role and a content, in JSON."""
    try:
        messages = json.loads(line)
        return all({"role", "content"} <= message.keys() for message in messages)
    except (ValueError, TypeError, AttributeError):
        return False


def train(given: argparse.Namespace) -> None:
    """Train a tokenizer and a model on a file, or continue a training that stopped."""
    folder, kind, context = Path(given.folder), given.kind, 64
    path, kind_path = folder / "tokenizer.json", folder / "kind.json"
    weights = folder / "model.safetensors"
    lines = lines_of(Path(given.file), kind)
    if kind_path.exists():
        known, context = json.loads(kind_path.read_text("utf-8"))
        if known != kind:
            sys.exit(f"{folder} has a model of kind {known}: choose another --folder")
        tokenizer = Tokenizer.load(path)
    else:
        tokenizer = Tokenizer.train("\n".join(lines), 400, is_bytes=True)
    n_train = len(lines) * 9 // 10
    draw = batches(kind, lines[:n_train], tokenizer, context)
    held_out = batches(kind, lines[n_train:], tokenizer, context)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    kind_path.write_text(json.dumps([kind, context]))
    torch.manual_seed(0)
    part, sizes = sizes_of(kind, len(tokenizer.symbols), context)
    model = part(*sizes)
    n_weights = sum(weight.numel() for weight in model.parameters())
    print(f"{n_weights:,} weights; {'continued' if weights.exists() else 'new'}")

    def rate_of(step: int) -> float:
        return 3e-3 * min(step / 50, max(0.05, 1 - step / given.steps))

    def report(step: int, loss: float) -> None:
        print(f"step {step:5} of {given.steps}  loss {loss:.3f}", flush=True)

    fit(model, draw, given.steps, rate_of, weights, report=report)
    generator = torch.Generator().manual_seed(1)
    loss, perplexity = evaluate(model, [held_out(generator) for _ in range(8)])
    print(f"held out: loss {loss:.3f} nats, perplexity {perplexity:.2f}")


def use(given: argparse.Namespace) -> None:
    """Continue a text, translate it, repair it, or answer it."""
    folder = Path(given.folder)
    if not (folder / "model.safetensors").exists():
        sys.exit(f"{folder} has no trained model: train one first, or give --folder")
    kind, context = json.loads((folder / "kind.json").read_text("utf-8"))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    part, sizes = sizes_of(kind, len(tokenizer.symbols), context)
    model: Any = part(*sizes)
    kept = read_tensors(folder / "model.safetensors")
    model_only = {name[6:]: x for name, x in kept.items() if name[:6] == "model."}
    load_weights(model, model_only)
    _, unknown, start, end = (tokenizer.ids[name] for name in tokenizer.special)
    text = given.text
    if not text or (kind in ("bert", "bart") and "_" not in text):
        sys.exit("give a text" + (", in which _ stands for a gap" if text else ""))
    if kind == "chat":
        text = tune.template([("user", text)], ask=True)
    ids = tokenizer.encode(text)
    if kind in ("bert", "bart"):
        parts = [tokenizer.encode(piece) for piece in text.split("_")]
        ids = parts[0] + [i for piece in parts[1:] for i in [unknown, *piece]]
    row = torch.tensor([ids if kind in ("gpt", "chat", "bert") else [*ids, end]])
    is_token = torch.ones_like(row, dtype=torch.bool)
    if kind in ("gpt", "chat"):
        new = generate.generate(model, ids, given.n, temperature=given.temperature)
        text = tokenizer.decode(new)
        print(text.split("<|im_end|>")[0] if kind == "chat" else given.text + text)
    elif kind == "bert":
        print(tokenizer.decode(bert.fill(model, row, is_token, unknown)[0].tolist()))
    elif kind == "recurrent":
        found = model.write(row, is_token, start, end, given.n)
        print(tokenizer.decode(found[0]))
    else:
        n = min(given.n, context - 2)
        found = generate.translate(model, row, is_token, start, end, max_len=n)
        print(tokenizer.decode(found[0]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mytransformer")
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("train", help=train.__doc__)
    one.add_argument("file", help="a text; pairs: lines with a tab; chats: JSON lines")
    one.add_argument("--kind", choices=KINDS, default="gpt")
    one.add_argument("--steps", type=int, default=500)
    one.set_defaults(run=train)
    two = verbs.add_parser("use", help=use.__doc__)
    two.add_argument("text", help="for bert and bart, _ stands for a gap")
    two.add_argument("--n", type=int, default=100, help="tokens to write at most")
    two.add_argument("--temperature", type=float, default=0.7)
    two.set_defaults(run=use)
    for parser_of_verb in (one, two):
        parser_of_verb.add_argument("--folder", default="mymodel")
    given = parser.parse_args()
    try:
        given.run(given)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues from the last save")
    except UnicodeDecodeError:
        sys.exit(f"{given.file} is not a text in UTF-8")
    except OSError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
