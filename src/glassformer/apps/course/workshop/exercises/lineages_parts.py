"""Chapters 8 to 10: BERT, GPT with its training and its files, and BART, tested by their uses."""

import copy
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.course.mytransformer import bart, bert, block, generate, gpt, train, transformer
from glassformer.apps.course.workshop.exercise import (
    IS_TOKEN,
    D,
    Exercise,
    F,
    Filled,
    H,
    L,
    N,
    Use,
    V,
    generator,
    ids,
    normal,
    uses,
)

HIDDEN, NEXT, DAMAGE = "course/08-bert", "course/09-gpt", "course/10-bart-and-t5"


# Chapter 8: BERT


def masked_batch_uses() -> list[tuple[Use]]:
    given = ids(4, 40, n=99) + 5

    def stays(part: Any) -> Any:
        part(mine := given.clone(), given % 10 == 0, 4, 104, generator(1))
        return torch.equal(mine, given)

    return uses(
        the_ids_stay=stays,
        inputs_and_labels=lambda part: [
            part(given.clone(), given % 10 == 0, 4, 104, generator(seed)) for seed in range(2)
        ],
    )


def bert_uses() -> list[tuple[Use]]:
    given = ids(3, 5)

    def new(part: Any, **more: Any) -> Filled:
        return Filled(part, V, D, H, F, L, N, **more)

    def shown(x: Tensor) -> Tensor:
        return x.masked_fill(~IS_TOKEN[..., None], 0.0)

    def first(part: Any) -> Any:
        model = part(500, 64, 4, 256, 2)
        tables = [round(x.std().item(), 3) for x in model.parameters() if x.shape == (500, 64)]
        return tables, [x.abs().max().item() for x in model.parameters() if x.shape == (500,)]

    return uses(
        first_weights=first,
        logits=lambda part: new(part)(given, torch.ones_like(IS_TOKEN)),
        padding=lambda part: shown(new(part).module(given, IS_TOKEN)),
        segments=lambda part: new(part).module(given, torch.ones_like(IS_TOKEN), ids(3, 5, n=2, seed=3)),
        labels_of_places=lambda part: shown(new(part, n_labels=3).module.tag(given, IS_TOKEN)),
        labels_of_texts=lambda part: new(part, n_labels=3).module.classify(given, IS_TOKEN),
    )


class Sums(nn.Module):
    """A model whose answer depends on all ids, and on its mode."""

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        best = (x.sum(1, keepdim=True) + torch.arange(x.shape[1]) + self.training) % V
        return nn.functional.one_hot(best, V).float()


def fill_uses() -> list[tuple[Use]]:
    given = ids(3, 5).masked_fill(IS_TOKEN.flip(1) & (ids(3, 5, n=2, seed=5) > 0), 4)

    def run(part: Any) -> Any:
        torch.manual_seed(0)
        model = bert.BERT(V, D, H, F, L, N)
        block.draw_weights(model, 0.5)
        return part(model.train(), given.clone(), IS_TOKEN, 4)

    def one_pass(part: Any) -> Any:
        hidden = ids(3, 5).index_fill(1, torch.tensor([1, 3]), 4)
        before = hidden.clone()
        return part(Sums().train(), hidden, IS_TOKEN, 4), torch.equal(hidden, before)

    return uses(hidden_tokens=run, one_pass_in_evaluation_mode=one_pass)


# Chapter 9: GPT, its training and its writing


def windows_uses() -> list[tuple[Use]]:
    return uses(
        windows=lambda part: part(torch.arange(50), 4, 6, generator(2)),
        the_shortest_text=lambda part: part(torch.arange(8), 40, 6, generator(1)),
    )


def gpt_uses() -> list[tuple[Use]]:
    given = ids(3, 5)

    def new(part: Any, **more: Any) -> Filled:
        return Filled(part, V, D, H, F, L, N, **more)

    def with_cache(part: Any) -> Any:
        model = new(part).module
        cache = model.new_cache()
        return torch.cat([model(given[:, a:b], cache=cache) for a, b in pairwise((0, 3, 4, 5))], 1)

    def padded_cache(part: Any) -> Any:
        model, is_token = new(part).module, torch.tensor([[0, 0, 1, 1, 1], [1] * 5, [0, 1, 1, 1, 1]]).bool()
        cache = model.new_cache()
        return torch.cat([model(given[:, a:b], is_token[:, :b], cache)[:, -1:] for a, b in ((0, 3), (3, 5))], 1)

    def without_future(part: Any) -> Any:
        model, other = new(part).module, given.clone()
        other[:, 3:] = (other[:, 3:] + 1) % V
        return torch.allclose(model(given)[:, :3], model(other)[:, :3], atol=1e-4)

    def dropped(part: Any) -> Any:
        """With nearly all numbers of the blocks dropped, their weights do not matter, and the tokens do."""
        filled = new(part, rate=1 - 1e-7)
        model, half, quiet = filled.module.train(), new(part, rate=0.5).module.train(), new(part).module.train()
        with_blocks = model(given)
        with torch.no_grad():
            for name, x in filled.weights.items():
                x.mul_(0.0 if name.startswith("blocks.") else 1.0)
        return {
            "the rate acts on both additions of all blocks": torch.allclose(model(given), with_blocks),
            "the rate acts on the blocks alone": not torch.allclose(model(given), model((given + 1) % V)),
            "some numbers are dropped": not torch.allclose(half(given), half(given)),
            "none is dropped at the rate 0": torch.allclose(quiet(given), quiet(given)),
        }

    def spread(part: Any) -> Any:
        found = dict(part(500, 64, 4, 256, 2).named_parameters())
        return sorted(round(x.std().item() / 0.002) for x in found.values() if x.dim() == 2)

    return uses(
        logits=lambda part: new(part)(given),
        later_tokens_change_nothing=without_future,
        padding=lambda part: new(part).module(given, IS_TOKEN).masked_fill(~IS_TOKEN[..., None], 0.0),
        another_activation=lambda part: new(part, activation=torch.relu)(given),
        a_cache=with_cache,
        a_cache_and_padding=padded_cache,
        first_weights=spread,
        attributes=lambda part: [new(part).module.max_len, new(part).module.n_heads],
        dropout=dropped,
    )


def small_gpt(rate: float = 0.0) -> gpt.GPT:
    torch.manual_seed(0)
    model = gpt.GPT(V, D, H, F, L, N, rate=rate)
    block.draw_weights(model, 0.5)
    return model


def batch(source: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    inputs, labels = gpt.windows(torch.arange(200) % V, 4, 6, source)
    return (inputs,), labels


def groups_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model = small_gpt()
        names = {id(x): name for name, x in model.named_parameters()}
        groups = [(g.get("weight_decay", 0.01), sorted(names[id(x)] for x in g["params"])) for g in part(model, 0.3)]
        return dict(groups)

    def tied(part: Any) -> Any:
        model = transformer.Transformer(V, V, D, H, F, 1, N, is_bart=True)
        names = {id(x): name for name, x in model.named_parameters()}
        return {g["weight_decay"]: sorted(names[id(x)] for x in g["params"]) for g in part(model, 0.3)}

    return uses(groups=run, a_table_that_is_the_output_matrix_too=tied)


def evaluate_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model = small_gpt(0.5).train()
        (inputs,), labels = batch(generator())
        labels = labels.masked_fill(ids(4, 6, n=2) > 0, -100)
        found = part(model, [((inputs[:1],), labels[:1]), ((inputs[1:],), labels[1:])])
        return tuple(found), model.training

    def evaluating(part: Any) -> Any:
        model, seen = small_gpt().eval(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(torch.is_grad_enabled()))
        return part(model, [batch(generator())]), {"mode": model.training, "gradients": seen}

    return uses(batches_with_different_counts=run, a_model_in_evaluation_mode=evaluating)


def tensor_uses() -> list[tuple[Use]]:
    def kinds() -> dict[str, Tensor]:
        return {"a": normal(2, 3).mT, "b": torch.tensor(7), "c": normal(4).bfloat16(), "d": ids(3).to(torch.uint8)}

    def run(part: Any) -> Any:
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            part(path := Path(folder) / "tensors", kinds())
            return load_file(path), len(list(Path(folder).iterdir()))

    def other_letters(part: Any) -> Any:
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            part(path := Path(folder) / "tensors", {"größe": normal(2)})
            return load_file(path)

    def replaced(part: Any) -> Any:
        """Return whether the old file stays whole, under its other name, while the new one is written."""
        with tempfile.TemporaryDirectory() as folder:
            path, old = Path(folder) / "tensors", Path(folder) / "old"
            path.write_bytes(b"old")
            old.hardlink_to(path)
            part(path, kinds())
            return old.read_bytes() == b"old"

    def header(part: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            part(path := Path(folder) / "tensors", kinds())
            data = path.read_bytes()
        begin = data.index(b"{")
        found, _ = json.JSONDecoder().raw_decode(data[begin:].decode("latin-1"))
        return {
            "first bytes": int.from_bytes(data[:8], "little") < 1000,
            "first of {": begin,
            "header": {k: sorted(map(str, found[k].items())) for k in sorted(found)},
        }

    return uses(
        a_file_that_others_read=run, the_header=header, an_old_file=replaced, a_name_with_other_letters=other_letters
    )


def read_uses() -> list[tuple[Use]]:
    def run(part: Any, **more: Any) -> Any:
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory() as folder:
            save_file(
                {"a": normal(2, 3), "b": torch.tensor(7), "c": normal(4).half()}, path := Path(folder) / "t", **more
            )
            return part(path)

    def in_another_order(part: Any) -> Any:
        entries = {"b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}}
        header = json.dumps(entries | {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t"
            path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(1, 6)))
            return part(path)

    return uses(
        a_file_of_others=run,
        a_file_with_notes=lambda part: run(part, metadata={"format": "pt"}),
        a_header_in_another_order=in_another_order,
    )


def restored(save: Any, resume: Any) -> Any:
    """Return everything that comes back from the file of a training: with the reader's `save` or `resume`."""
    model, source = small_gpt(), generator(4)
    optimizer = torch.optim.AdamW(train.decay_groups(model, 0.1), lr=0.01)
    (inputs,), labels = batch(source)
    train.train_step(model, optimizer, train.cross_entropy(model(inputs), labels), 0.01)
    with tempfile.TemporaryDirectory() as folder:
        save(path := Path(folder) / "run", model, optimizer, source, 17)
        torch.manual_seed(99)
        other, source = gpt.GPT(V, D, H, F, L, N), generator(5)
        optimizer = torch.optim.AdamW(train.decay_groups(other, 0.1), lr=0.01)
        step = resume(path, other, optimizer, source)
    drawn = torch.rand(2), torch.rand(2, generator=source)
    weights = [x.detach().clone() for x in other.parameters()]
    states = [{k: 1000 * x for k, x in optimizer.state.get(x, {}).items()} for x in other.parameters()]
    return {"step": step, "random numbers": drawn, "weights": weights, "state": states}


def save_uses() -> list[tuple[Use]]:
    return uses(everything_comes_back=lambda part: restored(part, train.resume))


def resume_uses() -> list[tuple[Use]]:
    return uses(everything_comes_back=lambda part: restored(train.save, part))


def fit_uses() -> list[tuple[Use]]:
    def fitted(part: Any, stops: list[int], **more: Any) -> Any:
        reported: list[Any] = []
        with tempfile.TemporaryDirectory() as folder:
            losses: list[float] = []
            for stop in stops:
                model = small_gpt(0.2).eval()
                torch.manual_seed(5 + len(losses))
                losses += part(
                    model, batch, stop, lambda step: 0.02 / step, Path(folder) / "run", every=4,
                    report=lambda step, loss: reported.append((step, loss, len(list(Path(folder).iterdir())))), **more,
                )  # fmt: skip
            return {"losses": losses, "weights": model.norm.weight, "reports": reported, "mode": model.training}

    def exactly(part: Any) -> Any:
        return torch.equal(fitted(part, [7])["weights"], fitted(part, [3, 7])["weights"])

    def learns(part: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model = small_gpt()
            losses = part(model, batch, 30, lambda step: 0.05, Path(folder) / "run")
            return losses[-1] < 0.5 * losses[0]

    return uses(
        six_steps=lambda part: fitted(part, [6]),
        label_smoothing=lambda part: fitted(part, [3], smoothing=0.3),
        decay=lambda part: fitted(part, [3], decay=5.0),
        another_seed=lambda part: fitted(part, [3], seed=7),
        stopped_and_continued=lambda part: fitted(part, [3, 7]),
        equal_to_a_training_without_a_stop=exactly,
        a_training_that_is_done=lambda part: fitted(part, [3, 3]),
        learns_to_count=learns,
    )


def generate_uses() -> list[tuple[Use]]:
    def new(**more: Any) -> Any:
        return lambda part: part(small_gpt(0.5), [1, 2], 7, **more)

    def reads(part: Any) -> Any:
        """Return how many tokens the model reads in each step."""
        model, seen = small_gpt(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
        part(model, [1, 2, 3], 5)
        return seen

    def given_ids(part: Any) -> Any:
        part(small_gpt(), given := [1, 2], 3)
        return given

    def own_numbers(part: Any) -> Any:
        model, before = small_gpt(), torch.get_rng_state()
        part(model, [1, 2], 3, seed=5)
        return torch.equal(before, torch.get_rng_state())

    def quiet(part: Any) -> Any:
        model, seen = small_gpt(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(torch.is_grad_enabled()))
        part(model, [1, 2], 3, seed=5)
        return seen

    return uses(
        the_largest_logit=new(temperature=0.0),
        sampling=new(seed=3),
        a_temperature=new(temperature=0.5, seed=4),
        top_k=new(k=3, seed=5),
        top_p=new(p=0.5, seed=6),
        all_together=new(temperature=1.5, k=6, p=0.8, seed=7),
        an_end=lambda part: part(
            small_gpt(), [1, 2], 7, temperature=0.0, end=part(small_gpt(), [1, 2], 7, temperature=0.0)[3]
        ),
        each_step_reads_one_token=reads,
        longer_than_the_model=lambda part: part(small_gpt(), [1, 2], 24, temperature=2.0, seed=8),
        few_ids=lambda part: part(small_gpt(), [1, 2], 3, temperature=0.0),
        the_given_ids_stay=given_ids,
        numbers_of_its_own_generator=own_numbers,
        no_gradients=quiet,
    )


# Chapter 10: the noise of BART


def noise_uses() -> list[tuple[Use]]:
    rows = [list(range(4, 24)), list(range(4, 10))]
    return uses(
        batches=lambda part: [part(copy.deepcopy(rows), 0.3, 3, 0, 1, 2, generator(seed)) for seed in range(3)],
        half_of_the_text=lambda part: part(copy.deepcopy(rows), 0.5, 3, 0, 1, 2, generator(9)),
    )


EXERCISES = [
    Exercise(bert.masked_batch, f"{HIDDEN}#hide-tokens-and-find-them-again", masked_batch_uses),
    Exercise(bert.BERT, f"{HIDDEN}#the-class-bert", bert_uses),
    Exercise(bert.fill, f"{HIDDEN}#fill", fill_uses),
    Exercise(gpt.windows, f"{NEXT}#a-text-two-splits-random-windows", windows_uses),
    Exercise(gpt.GPT, f"{NEXT}#the-model-written-out", gpt_uses),
    Exercise(train.decay_groups, f"{NEXT}#training", groups_uses),
    Exercise(train.evaluate, f"{NEXT}#training", evaluate_uses),
    Exercise(train.write_tensors, f"{NEXT}#a-file-of-tensors", tensor_uses),
    Exercise(train.read_tensors, f"{NEXT}#a-file-of-tensors", read_uses),
    Exercise(train.save, f"{NEXT}#a-loop-that-can-be-stopped", save_uses),
    Exercise(train.resume, f"{NEXT}#a-loop-that-can-be-stopped", resume_uses),
    Exercise(train.fit, f"{NEXT}#a-loop-that-can-be-stopped", fit_uses),
    Exercise(generate.generate, f"{NEXT}#a-context-that-slides", generate_uses),
    Exercise(bart.denoising_batch, f"{DAMAGE}#batches-of-damaged-texts", noise_uses),
]
