"""Chapter 5: scaled dot-product attention, masks and heads."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import mask, normal
from glassformer.course.workshop.solutions.ch05_attention import (
    attention,
    causal_and_padding_mask,
    causal_mask,
    join_heads,
    masked_softmax,
    multi_head_attention,
    split_heads,
)

SECTION = "course/05-attention"
QUERIES = f"{SECTION}#query-key-and-value"
SCALE = f"{SECTION}#why-the-scores-are-divided-by-d_k"
MASKS = f"{SECTION}#masks"
HEADS = f"{SECTION}#many-heads"
MISTAKES = "course/12-classical-mistakes"
ALSO_EMPTY = "A query without any allowed key needs zeros too."
AS_IN_MODULE = "The mask is inverted, as for nn.MultiheadAttention: here, True means that a query may attend."
FIRST_BERT = "A mask of 0 and -10000 is added, as in the first BERT, and real scores can be lower: use -inf."
FROM_MASK_TO_WEIGHTS = """hidden = scores.masked_fill(~allowed, float("-inf"))
    is_empty = ~allowed.any(dim=-1, keepdim=True)
    weights = hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)
    return weights.masked_fill(is_empty, 0.0)"""


def padded() -> torch.Tensor:
    """Three rows of five tokens; the second has padding at the left, so its first queries have no key."""
    return torch.tensor([[True] * 5, [False, False, True, True, True], [True, True, True, False, False]])


def softmax_cases() -> list[tuple[torch.Tensor, torch.Tensor]]:
    scores, allowed = normal(2, 4, 5), mask(2, 4, 5, seed=1)
    allowed[0, 2] = False
    scores[1, 1] = 0.0
    low = torch.tensor([[-1e12, -2e12, 0.0], [-3e4, -3e4, 1.0], [-500.0, -501.0, 1.0]])
    return [(scores, allowed), (low, torch.tensor([[True, True, False]] * 3))]


def attention_cases() -> list[tuple[torch.Tensor, ...]]:
    allowed = mask(2, 3, 4, 6, seed=3) | torch.eye(4, 6, dtype=torch.bool)
    query, key, value = normal(2, 3, 4, 8), normal(2, 3, 6, 8, seed=1), normal(2, 3, 6, 5, seed=2)
    scores = torch.tensor([[1e6, 0.0]]), torch.tensor([[-1e6, 0.0], [0.0, 1.0]])  # -1e12 and 0, divided by √2
    low = (*scores, normal(2, 3), torch.tensor([[True, False]]))
    without_keys = allowed.clone()
    without_keys[0, 1, 2] = False
    everything = torch.ones_like(allowed)
    return [(query, key, value, allowed), (3 * query, key, value, everything), low, (query, key, value, without_keys)]


def heads_cases() -> list[tuple[object, ...]]:
    w = {name: normal(6, 6, seed=number) for number, name in enumerate("qkvo", 4)}
    x, memory, allowed = normal(2, 3, 6), normal(2, 4, 6, seed=1), mask(2, 1, 3, 4, seed=9)
    short = (memory[:, :3], w, 2, allowed[..., :3])  # as many keys as queries
    causal = causal_mask(3)[None, None]
    return [(x, memory, w, 2, allowed), (x, memory, w, 3, allowed), (x, *short), (x, x, w, 2, causal)]


EXERCISES = (
    Exercise(
        causal_mask,
        MASKS,
        lambda: [(1,), (5,)],
        (
            Mistake(
                "The mask has True where a query may NOT attend: here, True means that it may.",
                ".tril()",
                ".triu(1)",
                MASKS,
                pitfall=6,
            ),
            Mistake("A token cannot attend to itself: the diagonal must be allowed.", ".tril()", ".tril(-1)"),
            Mistake("Each token sees the future: rows must be queries, and columns keys.", ".tril()", ".triu()"),
            Mistake(
                "Each token sees the next one: the last allowed key must be the token itself.", ".tril()", ".tril(1)"
            ),
            Mistake("The mask has the numbers 1 and 0: make it of bool, True and False.", ".tril()", ".tril().float()"),
            Mistake(
                "This mask of 0 and -inf is for adding to scores, as in fairseq: return bool, True if a query may "
                "attend.",
                "torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()",
                'torch.full((n_tokens, n_tokens), float("-inf")).triu(1)',
                pitfall=6,
            ),
        ),
    ),
    Exercise(
        causal_and_padding_mask,
        MASKS,
        lambda: [(padded(),), (padded()[:1],)],
        (
            Mistake(
                "The mask of padding replaces the causal mask, so tokens see the future: join both with &.",
                "causal_mask(n_tokens) & is_token[:, None, None, :]",
                "is_token[:, None, None, :].expand(-1, 1, n_tokens, -1)",
                f"{MISTAKES}#a-padding-mask-that-replaces-the-causal-one-3",
                pitfall=3,
            ),
            Mistake(
                "Padding is hidden on the axis of the queries: hide it on the axis of the keys, the last one.",
                "is_token[:, None, None, :]",
                "is_token[:, None, :, None]",
                pitfall=4,
            ),
            Mistake("Joined with |, each mask permits what the other forbids: use &.", ") & is_token", ") | is_token"),
            Mistake(
                "Padding is not hidden: a query must not attend to keys that are padding.",
                "causal_mask(n_tokens) & is_token[:, None, None, :]",
                "causal_mask(n_tokens).expand(len(is_token), 1, -1, -1)",
                pitfall=9,
            ),
            Mistake(
                "The mask of padding is inverted: True means a token, which may be attended to.",
                "is_token[:, None, None, :]",
                "~is_token[:, None, None, :]",
                pitfall=6,
            ),
            Mistake(
                AS_IN_MODULE,
                "causal_mask(n_tokens) & is_token[:, None, None, :]",
                "~(causal_mask(n_tokens) & is_token[:, None, None, :])",
                pitfall=6,
            ),
            Mistake(
                "Padding is hidden on the axis of the queries too, which leaves queries without any key: hide it on "
                "the axis of the keys only.",
                "is_token[:, None, None, :]",
                "is_token[:, None, None, :] & is_token[:, None, :, None]",
                pitfall=4,
            ),
            Mistake(
                "Padding may attend to itself, so that each query has a key: hide it, because `masked_softmax` gives "
                "zeros to a query without keys.",
                "causal_mask(n_tokens) & is_token[:, None, None, :]",
                "causal_mask(n_tokens) & is_token[:, None, None, :] | torch.eye(n_tokens, dtype=torch.bool)",
                pitfall=5,
            ),
        ),
    ),
    Exercise(
        masked_softmax,
        MASKS,
        softmax_cases,
        (
            Mistake(
                "The mask is inverted: the allowed keys are hidden. True means that a query may attend.",
                'hidden = scores.masked_fill(~allowed, float("-inf"))\n    is_empty = ~allowed.any',
                'hidden = scores.masked_fill(allowed, float("-inf"))\n    is_empty = allowed.all',
                pitfall=6,
            ),
            Mistake(
                "Keys are hidden where the score is 0 after a multiplication by the mask, so a real score of 0 is "
                "hidden too: use the mask itself.",
                'scores.masked_fill(~allowed, float("-inf"))',
                '(scores * allowed).masked_fill(scores * allowed == 0, float("-inf"))',
                pitfall=1,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e9, and real scores can be lower: use -inf.",
                'float("-inf")',
                "-1e9",
                pitfall=2,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e4, and real scores can be lower: use -inf.",
                'float("-inf")',
                "-1e4",
                pitfall=2,
            ),
            Mistake(
                "A query without any allowed key gives NaN: 0 / 0. Give it finite scores before the softmax, and "
                "zeros after it.",
                "hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)\n    return weights.masked_fill(is_empty, 0.0)",
                "hidden.softmax(dim=-1)\n    return weights",
                pitfall=5,
            ),
            Mistake(
                "The weights are right, and the gradient of a query without any allowed key is NaN: replace its scores "
                "before the softmax, because a later replacement leaves the NaN in the backward pass.",
                'scores.masked_fill(~allowed, float("-inf"))\n'
                "    is_empty = ~allowed.any(dim=-1, keepdim=True)\n"
                "    weights = hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)",
                'scores + torch.zeros_like(scores).masked_fill(~allowed, float("-inf"))\n'
                "    is_empty = ~allowed.any(dim=-1, keepdim=True)\n"
                "    weights = hidden.softmax(dim=-1)",
                pitfall=5,
            ),
            Mistake(
                "A query without any allowed key attends to all keys equally: its weights must be zeros.",
                "    return weights.masked_fill(is_empty, 0.0)",
                "    return weights",
                pitfall=5,
            ),
            Mistake(
                "The weights of the keys are set to 0 after the softmax, so the other weights do not add up to 1: "
                "hide the scores before the softmax.",
                'hidden = scores.masked_fill(~allowed, float("-inf"))\n'
                "    is_empty = ~allowed.any(dim=-1, keepdim=True)\n"
                "    weights = hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)\n"
                "    return weights.masked_fill(is_empty, 0.0)",
                "return scores.softmax(dim=-1).masked_fill(~allowed, 0.0)",
            ),
            Mistake(
                "The softmax is over the queries: the weights of each query must add up to 1, along the last axis.",
                "softmax(dim=-1)",
                "softmax(dim=-2)",
            ),
            Mistake(
                "The scores of hidden keys are set to 0, which is an ordinary score: use -inf.",
                'float("-inf")',
                "0.0",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "The mask is ignored: hide the keys that are not allowed.",
                'hidden = scores.masked_fill(~allowed, float("-inf"))',
                "hidden = scores",
                MISTAKES,
                pitfall=9,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e9, and real scores can be lower: use -inf."
                f" {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "return scores.masked_fill(~allowed, -1e9).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                f"The hidden keys get a finite score such as -1e4, and real scores can be lower: use -inf. "
                f"{ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "return scores.masked_fill(~allowed, -1e4).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                f"The scores of hidden keys are set to 0, which is an ordinary score: use -inf. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "return scores.masked_fill(~allowed, 0.0).softmax(dim=-1)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                f"A real score of 0 is hidden too: use the mask itself. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'return (scores * allowed).masked_fill(scores * allowed == 0, float("-inf")).softmax(dim=-1)',
                pitfall=1,
            ),
            Mistake(
                f"The mask is ignored: hide the keys that are not allowed. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "return scores.softmax(dim=-1)",
                MISTAKES,
                pitfall=9,
            ),
            Mistake(
                "The softmax is over the queries: the weights of each query must add up to 1, along the last axis."
                f" {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'return scores.masked_fill(~allowed, float("-inf")).softmax(dim=-2)',
            ),
            Mistake(
                f"The mask is inverted: the allowed keys are hidden. True means that a query may attend. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'return scores.masked_fill(allowed, float("-inf")).softmax(dim=-1)',
                pitfall=6,
            ),
            Mistake(
                f"{FIRST_BERT} {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "return (scores - 10000.0 * ~allowed).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e9, and real scores can be lower: use -inf.",
                FROM_MASK_TO_WEIGHTS,
                "return scores.masked_fill(~allowed, -1e9).softmax(dim=-1) * allowed",
                pitfall=2,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e4, and real scores can be lower: use -inf.",
                FROM_MASK_TO_WEIGHTS,
                "return scores.masked_fill(~allowed, -1e4).softmax(dim=-1) * allowed",
                pitfall=2,
            ),
            Mistake(
                "The weights are set to 0 after the softmax and divided by their sum, which is 0 if a hidden score is "
                "much larger: hide the scores before the softmax.",
                FROM_MASK_TO_WEIGHTS,
                "weights = scores.softmax(dim=-1) * allowed\n"
                "    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-13)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "The mask is multiplied by -inf, and 0 · -inf is NaN: write -inf only where the mask hides.",
                FROM_MASK_TO_WEIGHTS,
                'return (scores + ~allowed * float("-inf")).softmax(dim=-1)',
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        attention,
        QUERIES,
        attention_cases,
        (
            Mistake(
                "The scores are not divided by √d, the root of the width of a key.",
                " / math.sqrt(query.shape[-1])",
                "",
                SCALE,
                pitfall=7,
            ),
            Mistake(
                "The scores are divided by d, the width of a key: take its root.",
                "math.sqrt(query.shape[-1])",
                "query.shape[-1]",
                pitfall=7,
            ),
            Mistake(
                "The scores are multiplied by √d: divide by it.",
                "/ math.sqrt(query.shape[-1])",
                "* math.sqrt(query.shape[-1])",
                pitfall=7,
            ),
            Mistake(
                "The scores are divided by the root of the width of the values: take the width of the keys.",
                "math.sqrt(query.shape[-1])",
                "math.sqrt(value.shape[-1])",
                pitfall=7,
            ),
            Mistake(
                "The scores are divided by the root of the number of keys, which is another axis: take the width of "
                "the keys.",
                "math.sqrt(query.shape[-1])",
                "math.sqrt(key.shape[-2])",
                pitfall=7,
            ),
            Mistake(
                "The hidden keys get a finite score such as -1e9, and real scores can be lower: use -inf.",
                "masked_softmax(scores, allowed)",
                "scores.masked_fill(~allowed, -1e9).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                "The mask is ignored: hide the keys that are not allowed.",
                "masked_softmax(scores, allowed)",
                "scores.softmax(dim=-1)",
                MASKS,
                pitfall=9,
            ),
            Mistake(
                "Your mask is a causal one, as PyTorch's kernel makes it with is_causal=True: use `allowed`, which may "
                "hide other keys.",
                "masked_softmax(scores, allowed) @ value",
                "torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)",
                "pitfalls",
                pitfall=10,
            ),
            Mistake(
                "A query without any allowed key gives NaN: 0 / 0. Give it zeros, by your masked_softmax.",
                "masked_softmax(scores, allowed)",
                'scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)',
                pitfall=5,
            ),
            Mistake(
                "The scores are divided by √T, the root of the number of queries: divide by √d.",
                "math.sqrt(query.shape[-1])",
                "math.sqrt(query.shape[-2])",
                pitfall=7,
            ),
            Mistake(
                "The division comes after the softmax: divide the scores before it.",
                " / math.sqrt(query.shape[-1])\n    return masked_softmax(scores, allowed)",
                "\n    return masked_softmax(scores, allowed) / math.sqrt(query.shape[-1])",
            ),
            Mistake(
                AS_IN_MODULE,
                "masked_softmax(scores, allowed)",
                "masked_softmax(scores, ~allowed)",
                pitfall=6,
            ),
            Mistake(
                "The weights are set to 0 after the softmax, so the others do not add up to 1: hide the scores before "
                "it.",
                "masked_softmax(scores, allowed)",
                "scores.softmax(dim=-1).masked_fill(~allowed, 0.0)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "The mask is added to the scores as 1 and 0, as PyTorch's kernel adds a mask of numbers: give it bool.",
                "masked_softmax(scores, allowed)",
                "(scores + allowed).softmax(dim=-1)",
                MASKS,
            ),
            Mistake(
                "A query without any allowed key gets the mean of all values: give it zeros, by your masked_softmax.",
                "masked_softmax(scores, allowed)",
                "scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)",
                MASKS,
                pitfall=5,
            ),
            Mistake(
                FIRST_BERT,
                "masked_softmax(scores, allowed)",
                "(scores - 10000.0 * ~allowed).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                "The softmax is over the queries: the weights of each query must add up to 1, along the last axis.",
                "masked_softmax(scores, allowed)",
                "masked_softmax(scores.mT, allowed.mT).mT",
            ),
            Mistake(
                "The mask is multiplied by -inf, and 0 · -inf is NaN: write -inf only where the mask hides.",
                "masked_softmax(scores, allowed)",
                '(scores + ~allowed * float("-inf")).softmax(dim=-1)',
                MASKS,
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        split_heads,
        HEADS,
        lambda: [(normal(2, 3, 8), 4), (normal(1, 5, 6), 1), (normal(2, 3, 8), 3)],
        (
            Mistake(
                "A view (B, H, T, …) cuts across the tokens, so a head mixes numbers of several tokens: split the last "
                "axis first, and then exchange T and H.",
                "x.view(n_rows, n_tokens, n_heads, width // n_heads).transpose(1, 2)",
                "x.view(n_rows, n_heads, n_tokens, width // n_heads)",
            ),
            Mistake(
                "Each head gets every H-th number: head 0 must get the first K numbers.",
                "x.view(n_rows, n_tokens, n_heads, width // n_heads).transpose(1, 2)",
                "x.view(n_rows, n_tokens, width // n_heads, n_heads).permute(0, 3, 1, 2)",
            ),
            Mistake(
                "The tokens come before the heads: exchange axes 1 and 2.",
                ".transpose(1, 2)",
                "",
            ),
            Mistake(
                "A width that is not a multiple of H ends in an error of torch about shapes: raise ValueError with "
                "both numbers before that.",
                "raise ValueError",
                "raise RuntimeError",
                pitfall=16,
            ),
        ),
    ),
    Exercise(
        join_heads,
        HEADS,
        lambda: [(normal(2, 4, 3, 2),), (normal(1, 1, 5, 3),)],
        (
            Mistake(
                "Without an exchange of H and T, the numbers of different tokens are mixed.",
                "x.transpose(1, 2).reshape",
                "x.reshape",
            ),
            Mistake(
                "The numbers of the heads alternate: put all numbers of head 0 first.",
                "x.transpose(1, 2).reshape",
                "x.permute(0, 2, 3, 1).reshape",
            ),
        ),
    ),
    Exercise(
        multi_head_attention,
        HEADS,
        heads_cases,
        (
            Mistake(
                "Keys and values come from the text of the queries: take them from the memory.",
                'key = split_heads(memory @ w["k"], n_heads)\n'
                '    value = split_heads(memory @ w["v"], n_heads)\n'
                "    return",
                'key = split_heads(x @ w["k"], n_heads)\n    value = split_heads(x @ w["v"], n_heads)\n    return',
            ),
            Mistake(
                "The keys are reshaped with the number of queries: use the length of the memory.",
                'key = split_heads(memory @ w["k"], n_heads)',
                'key = (memory @ w["k"]).view(len(x), x.shape[1], n_heads, -1).transpose(1, 2)',
                pitfall=8,
            ),
            Mistake('The last matrix, w["o"], is missing.', ' @ w["o"]', ""),
            Mistake(
                "The scores are divided by the root of the width of the model: take the smaller width of a head.",
                'query = split_heads(x @ w["q"], n_heads)',
                'query = split_heads(x @ w["q"], n_heads) / math.sqrt(n_heads)',
                SCALE,
                pitfall=7,
            ),
            Mistake(
                "All heads share one softmax, so there is only one head: split the width before the scores.",
                "join_heads(attention(query, key, value, allowed))",
                "join_heads(attention(*(join_heads(y)[:, None] for y in (query, key, value)), allowed))",
            ),
            Mistake(
                "The mask is ignored: hide the keys that are not allowed.",
                "(query, key, value, allowed)",
                "(query, key, value, torch.ones_like(allowed))",
                MISTAKES,
                pitfall=9,
            ),
            Mistake(
                'The matrices are transposed: apply them as x @ w["q"].',
                "    query = split_heads",
                "    w = {name: matrix.T for name, matrix in w.items()}\n    query = split_heads",
            ),
            Mistake("Keys and values are exchanged.", "(query, key, value, allowed)", "(query, value, key, allowed)"),
            Mistake(
                AS_IN_MODULE,
                "(query, key, value, allowed)",
                "(query, key, value, ~allowed)",
                pitfall=6,
            ),
            Mistake(
                "The scores are not divided by √d, the root of the width of a head.",
                'query = split_heads(x @ w["q"], n_heads)',
                'query = split_heads(x @ w["q"], n_heads) * math.sqrt(x.shape[-1] / n_heads)',
                SCALE,
                pitfall=7,
            ),
            Mistake(
                "Each head gets every H-th number: head 0 must get the first K numbers.",
                "query = split_heads",
                "order = torch.arange(x.shape[-1]).view(-1, n_heads).T.flatten()\n"
                '    w = {name: w[name][:, order] for name in "qkv"} | {"o": w["o"][order]}\n'
                "    query = split_heads",
            ),
            Mistake(
                "The heads are joined without an exchange of H and T, so the numbers of different tokens are mixed.",
                "join_heads(attention(query, key, value, allowed))",
                "attention(query, key, value, allowed).reshape(x.shape)",
            ),
            Mistake(
                "Heads are split and joined by a view alone, so a head mixes numbers of several tokens: exchange T and "
                "H.",
                "join_heads(attention(query, key, value, allowed))",
                "attention(*(y.transpose(1, 2).reshape(y.shape) for y in (query, key, value)), "
                "allowed).reshape(x.shape)",
            ),
        ),
        has_gradient=True,
    ),
)
