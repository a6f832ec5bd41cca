"""Chapters 11, 13 and 14: instruments, training at scale, and a model that answers, tested by their uses."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.course.mytransformer import attention, block, gpt, look, train, tune
from glassformer.apps.course.workshop.exercise import D, Exercise, F, H, L, N, Use, V, ids, normal, uses
from glassformer.apps.course.workshop.exercises.lineages_parts import small_gpt

INSIDE, SCALE, ANSWERS = "course/11-looking-inside", "course/13-at-scale", "course/14-a-model-that-answers"


# Chapter 11: instruments


def seen_gpt() -> gpt.GPT:
    """Return a model in which biases and norms matter, with blocks and heads that are not the last."""
    torch.manual_seed(0)
    model = gpt.GPT(V, D, 4, F, 3, N)
    block.draw_weights(model, 0.5)
    with torch.no_grad():
        for number, x in enumerate(x for x in model.parameters() if x.dim() == 1):
            x.add_(normal(*x.shape, seed=200 + number) / 2)
    return model.eval()


def look_uses(*more: Any) -> Any:
    """Return a use of an instrument, and whether hooks stay in the model."""

    def run(part: Any) -> Any:
        model = seen_gpt()
        before = model(ids(6, 5)).detach()
        found = part(model, ids(6, 5), *more)
        return {"found": found, "leaves no hook": torch.equal(before, model(ids(6, 5)))}

    return lambda: uses(a_small_model=run)


class Fails(nn.Module):
    """A model with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.one(x)
        raise RuntimeError("the model fails")


def capture_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model, names = small_gpt().eval(), ["blocks.1.attention.q", "blocks.0", "norm"]
        found = part(model, names, ids(2, 5))
        kept = {name: x.clone() for name, x in found.items()}
        part(model, names, ids(2, 5, seed=8))
        return {"found": kept, "hooks": sum(len(m._forward_hooks) for m in model.modules())}

    def fails(part: Any) -> Any:
        model = Fails()
        with suppress(RuntimeError):
            part(model, ["one"], normal(1, 2))
        return len(model.one._forward_hooks)

    def unknown(part: Any) -> Any:
        model = small_gpt()
        with suppress(KeyError):
            part(model, ["norm", "blocks.7"], ids(2, 5))
        return len(model.norm._forward_hooks)

    return uses(
        outputs_of_modules=run,
        an_error_of_the_model=fails,
        an_unknown_name=lambda part: part(small_gpt(), ["blocks.7"], ids(2, 5)),
        an_unknown_name_after_a_known_one=unknown,
    )


# Chapter 13: attention by tiles, and recomputation


class Sizes(torch.overrides.TorchFunctionMode):
    """Keep the size of the largest tensor that a function of torch returns."""

    largest = 0

    def __torch_function__(self, function: Any, types: Any, given: Any = (), more: Any = None) -> Any:
        value = function(*given, **(more or {}))
        if isinstance(value, Tensor):
            self.largest = max(self.largest, value.numel())
        return value


def tiles_uses() -> list[tuple[Use]]:
    parts = [3 * normal(2, 2, 10, 4, seed=seed) for seed in range(3)]
    large = [parts[0] * 40, parts[1] * 40, parts[2]]

    def largest(part: Any) -> Any:
        """Return whether a tensor is as large as the matrix of all scores."""
        sizes = Sizes()
        with sizes:
            part(*(normal(1, 1, 64, 2, seed=seed) for seed in range(3)), 8)
        return sizes.largest < 8 * 64

    def later(part: Any) -> Any:
        q, k, v = (normal(1, 2, 9, 4, seed=seed) for seed in range(3))
        v[..., 6:, :] = float("nan")
        return part(q, k, v, 3)[..., :6, :]

    return uses(
        tiles_of_three=lambda part: part(*parts, 3),
        one_tile=lambda part: part(*parts, 10),
        a_tile_larger_than_the_text=lambda part: part(*parts, 16),
        large_scores=lambda part: part(*large, 4),
        later_tiles_are_not_read=later,
        no_row_of_all_scores=largest,
    )


def recomputed_uses() -> list[tuple[Use]]:
    def gradients(part: Any) -> Any:
        torch.manual_seed(0)
        layer, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), normal(3, 4).requires_grad_()
        y = part.apply(x, layer)
        y.sin().sum().backward()
        return [y, x.grad, *(p.grad for p in layer.parameters())]

    def runs(part: Any) -> Any:
        seen = []

        def f(x: Tensor) -> Tensor:
            seen.append(torch.is_grad_enabled())
            return x * x

        part.apply(normal(3).requires_grad_(), f).sum().backward()
        return seen

    def accumulated(part: Any) -> Any:
        torch.manual_seed(0)
        layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), normal(3, 4).requires_grad_()
        for _ in range(2):
            part.apply(part.apply(x, layer), layer).sin().sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    return uses(
        outputs_and_gradients=gradients,
        the_inner_results_are_not_kept=runs,
        a_layer_that_is_used_twice=accumulated,
    )


# Chapter 14: weights of others, and tuning


def names_uses() -> list[tuple[Use]]:
    tensors = {"h.0.mlp.c_fc.bias": normal(2), "wte.weight": normal(3), "ln.h": normal(1)}
    return uses(
        the_given_tensors_stay=lambda part: (part(given := dict(tensors), {"h": "blocks"}), sorted(given)),
        parts_of_names=lambda part: part(dict(tensors), {"h": "blocks", "mlp": "", "c_fc": "up"}),
        none=lambda part: part(dict(tensors), {}),
        exchanged_names=lambda part: part({"a.b": normal(1)}, {"a": "b", "b": "a"}),
    )


def load_uses() -> list[tuple[Use]]:
    def run(part: Any, left_out: str = "") -> Any:
        model, state = nn.Linear(3, 2), {"weight": normal(2, 3), "bias": normal(2), "mask": normal(4)}
        state.pop(left_out, None)
        part(model, state)
        return list(model.parameters())

    def named(part: Any) -> Any:
        try:
            part(nn.Linear(3, 2), {"weight": normal(2, 3)})
        except KeyError as error:
            return "bias" in str(error)

    def another_order(part: Any) -> Any:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        state = {"1.weight": normal(2, 2), "0.weight": normal(2, 2, seed=1)}
        part(model, state)
        with torch.no_grad():
            model.get_parameter("0.weight").add_(1.0)
        return list(model.parameters()), state

    return uses(
        exactly_these=another_order,
        tensors_too_many=run,
        a_weight_that_is_missing=lambda part: run(part, "bias"),
        the_name_in_the_error=named,
    )


def gpt2_uses() -> list[tuple[Use]]:
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (V, D),
        "wpe.weight": (N, D),
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
    }
    for number in range(L):
        part: dict[str, tuple[int, ...]] = {
            "ln_1.weight": (D,),
            "ln_1.bias": (D,),
            "ln_2.weight": (D,),
            "ln_2.bias": (D,),
        }
        part |= {"attn.c_attn.weight": (D, 3 * D), "attn.c_attn.bias": (3 * D,), "attn.c_proj.weight": (D, D)}
        part |= {"attn.c_proj.bias": (D,), "mlp.c_fc.weight": (D, F), "mlp.c_fc.bias": (F,)}
        part |= {"mlp.c_proj.weight": (F, D), "mlp.c_proj.bias": (D,), "attn.bias": (1, 1, N, N)}
        shapes |= {f"h.{number}.{name}": shape for name, shape in part.items()}
    tensors = {name: normal(*shape, seed=seed) / 2 for seed, (name, shape) in enumerate(shapes.items())}
    prefixed = {f"transformer.{name}": x for name, x in tensors.items()} | {"lm_head.weight": tensors["wte.weight"]}
    low = {
        name: torch.full_like(x, -2.2) if "c_fc.bias" in name else 0.02 * x if "c_fc" in name else x
        for name, x in tensors.items()
    }
    low = {
        name: 40 * x if "mlp.c_proj.weight" in name else x for name, x in low.items()
    }  # gelu(-2.2) is -0.0306, or -0.0304 with tanh
    return uses(
        the_gelu_of_gpt2=lambda part: part(low, H)(ids(3, 5)),
        logits=lambda part: part(tensors, H)(ids(3, 5)),
        names_with_a_prefix=lambda part: part(prefixed, H)(ids(3, 5)),
    )


def template_uses() -> list[tuple[Use]]:
    turns = [("system", "Be kind."), ("user", " Hi\n"), ("assistant", "Hello!\nYes?")]
    return uses(three_turns=lambda part: part(turns), a_question=lambda part: part(turns[:2], ask=True))


def label_uses() -> list[tuple[Use]]:
    labels = ids(2, 5, seed=3).masked_fill(ids(2, 5, n=3) == 0, -100)

    def run(part: Any) -> Any:
        model, given = small_gpt().eval(), labels.clone()
        found = part(model, ids(2, 5), given)
        found.sin().sum().backward()
        return found, model.norm.weight.grad, given

    return uses(labels=run)


def grpo_uses() -> list[tuple[Use]]:
    old, scored = -normal(4, 5).abs(), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])

    def run(scale: float, clip: float) -> Any:
        def of(part: Any) -> Any:
            log_p = (old + scale * normal(4, 5, seed=1)).requires_grad_()
            before = old.clone().requires_grad_()
            loss = part(log_p, before, torch.tensor([1.0, -0.5, 2.0, -1.5]), scored, clip)
            loss.backward()
            return loss, log_p.grad, before.grad

        return of

    return uses(the_first_update=run(0.0, 0.2), later_updates=run(0.5, 0.2), far_away=run(3.0, 0.1))


def lora_uses() -> list[tuple[Use]]:
    def new(part: Any, has_bias: bool = True) -> Any:
        torch.manual_seed(0)
        layer = nn.Linear(6, 4, bias=has_bias)
        mine = part(layer, 2, 8.0)
        return layer, mine, normal(3, 6)

    def start(part: Any) -> Any:
        layer, mine, x = new(part)
        return torch.allclose(layer(x), mine(x), atol=1e-5)

    def trained_layer(part: Any, has_bias: bool = True) -> Any:
        _, mine, x = new(part, has_bias)
        shapes = {tuple(weight.shape): weight for weight in mine.parameters() if weight.requires_grad}
        with torch.no_grad():
            for weight in shapes.values():
                weight.copy_(normal(*weight.shape, seed=weight.shape[0]))
        mine(x).sin().sum().backward()
        merged = mine.merged()
        frozen = [tuple(weight.shape) for weight in mine.parameters() if weight.grad is None]
        gradients = {shape: weight.grad for shape, weight in shapes.items()}
        return mine(x), gradients, merged(x), merged.weight, sorted(frozen)

    def first_a(part: Any) -> Any:
        [a] = [x for x in part(nn.Linear(400, 3), 50, 1.0).parameters() if x.shape == (50, 400)]
        return abs(a.std().item() - 0.05) < 0.003

    return uses(
        at_first_nothing_changes=start,
        outputs_gradients_and_merged=trained_layer,
        a_layer_without_bias=lambda part: trained_layer(part, has_bias=False),
        the_start_of_a=first_a,
    )


EXERCISES = [
    Exercise(look.capture, f"{INSIDE}#every-tensor-has-a-name", capture_uses),
    Exercise(look.weights_of, f"{INSIDE}#every-tensor-has-a-name", look_uses()),
    Exercise(look.lens, f"{INSIDE}#the-logit-lens", look_uses()),
    Exercise(look.ablate, f"{INSIDE}#ablation", look_uses(1, 2)),
    Exercise(look.patch, f"{INSIDE}#patching-where-the-information-is", look_uses(ids(6, 5, seed=4), 1, 2)),
    Exercise(attention.attention_by_tiles, f"{SCALE}#attention-by-tiles", tiles_uses),
    Exercise(block.Recomputed, f"{SCALE}#recomputation", recomputed_uses),
    Exercise(train.renamed, f"{ANSWERS}#weights-that-others-trained", names_uses),
    Exercise(train.load_weights, f"{ANSWERS}#weights-that-others-trained", load_uses),
    Exercise(gpt.from_gpt2, f"{ANSWERS}#weights-that-others-trained", gpt2_uses),
    Exercise(tune.template, f"{ANSWERS}#a-conversation-is-a-text", template_uses),
    Exercise(tune.log_p_of_labels, f"{ANSWERS}#labels-only-the-answers-count", label_uses),
    Exercise(tune.grpo_loss, f"{ANSWERS}#rewards-the-models-own-answers", grpo_uses),
    Exercise(tune.LoRA, f"{ANSWERS}#few-new-numbers-lora", lora_uses),
]
