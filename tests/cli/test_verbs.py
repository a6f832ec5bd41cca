"""Each verb on tiny models."""

import json
import re
import sys
from pathlib import Path

import pytest

from glassformer import api
from glassformer.apps.cli import main
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.presets import PRESETS
from glassformer.config.run import Run
from glassformer.config.schema import FlagText
from glassformer.tasks.reporting import Outcome
from glassformer.tokenization.tokenizer import Tokenizer
from runs import made_up_text, write_documents, write_text

from .conftest import Glassformer
from .test_bad_input import require_one_sentence


def test_train_evaluate_generate_and_resume(glassformer: Glassformer, tmp_path: Path, tiny_recipe: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    done = glassformer("train", tiny_recipe, "--data.path", text, "--out", out, "--train.seed", "3")
    assert done.code == 0 and done.out == ""
    assert "step 20/20" in done.err and "eval loss" in done.err and f"model   {out} (weights of step " in done.err

    found = glassformer("evaluate", out, "--json")
    report = json.loads(found.out)
    assert found.code == 0 and list(report) == ["loss", "perplexity", "bits_per_byte", "n_tokens", "smoothed_loss"]
    assert api.load(out).evaluate().to_dict() == report
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert report["loss"] == min(line["eval/valid_loss"] for line in lines if "eval/valid_loss" in line)
    earlier = glassformer("evaluate", out, "--checkpoint", 10, "--json")
    assert json.loads(earlier.out)["loss"] == next(
        line["eval/valid_loss"] for line in lines if line["step"] == 10 and "eval/valid_loss" in line
    )
    table = glassformer("evaluate", out).out
    assert f"loss                 {report['loss']:.4f} nats per token" in table and "bits per byte" in table

    again = glassformer("resume", out)
    assert again.code == 0 and "resumed at step 20 of 20: the run is complete" in again.err

    first = glassformer("generate", out, "--prompt", "abc", "--seed", 5, "--max-new-tokens", 9)
    assert first.code == 0 and first.out.startswith("abc") and first.err == ""
    assert first.out == "abc" + api.load(out).generate("abc", seed=5, max_new_tokens=9) + "\n"


def test_evaluate_takes_another_text(glassformer: Glassformer, trained: Outcome, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(made_up_text(30, seed=4), "utf-8")
    found = glassformer("evaluate", trained.folder, "--data.path", tmp_path / "other.txt", "--json")
    assert json.loads(found.out) == api.load(trained.folder).evaluate(tmp_path / "other.txt").to_dict()


def test_train_needs_only_a_text(glassformer: Glassformer, tmp_path: Path) -> None:
    text = write_text(tmp_path, 300)
    small = ["--model.d-model", 16, "--model.decoder.n-heads", 2, "--train.max-steps", 2, "--train.batch-size", 2]
    done = glassformer("train", text, *small, "--model.decoder.n-layers", 1, "--model.decoder.d-ff", 16)
    assert done.code == 0, done.err
    assert (Path("runs") / "text" / "manifest.json").exists()
    assert glassformer("generate", "runs/text", "--prompt", "a", "--max-new-tokens", 3).code == 0
    empty = glassformer("generate", "runs/text", "--prompt", "", "--max-new-tokens", 3)
    assert empty.code == 2 and "was not trained to start a text" in empty.err


def test_score_takes_texts_and_their_beginnings(glassformer: Glassformer, trained: Outcome, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc\n\n")
    (tmp_path / "b").write_text(" def é\nabc\tdef\n", "utf-8")
    model = api.load(trained.folder)
    found = glassformer("score", trained.folder, "--target", tmp_path / "b", "--json")
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [record["target"] for record in records] == [" def é", "abc\tdef"]
    scores = model.score([" def é", "abc\tdef"], log=str)
    assert [record["log_prob"] for record in records] == [s.log_prob for s in scores]
    ids = model.tokenizer.encode(" def é")
    assert records[0]["n_bytes"] == 7 - len(model.tokenizer.pieces[ids[0]]) and records[0]["n_tokens"] == len(ids) - 1
    assert "was not trained to start a text" in found.err
    after = glassformer("score", trained.folder, "--source", tmp_path / "a", "--target", tmp_path / "b")
    assert after.out.splitlines()[0] == f"{model.score('abc', ' def é').log_prob:.4f}\t{len(ids)}\t def é"
    assert len(after.out.splitlines()) == 2
    assert "target side is missing" in glassformer("score", trained.folder, "--source", tmp_path / "a").err
    alone = glassformer("score", trained.folder, "abc def", "--json")
    assert json.loads(alone.out)["target"] == "abc def"
    assert json.loads(alone.out)["log_prob"] == model.score(["abc def"], log=str)[0].log_prob


def test_generate_reads_prompts_from_a_file(glassformer: Glassformer, trained: Outcome, tmp_path: Path) -> None:
    prompts = ["abc", "é日", "a b", "abc"]
    stdin = "\n\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    found = glassformer("generate", trained.folder, "--input", "-", "--max-new-tokens", 6, stdin=stdin)
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    model = api.load(trained.folder)
    assert [line["text"] for line in lines] == [model.generate(prompt, max_new_tokens=6) for prompt in prompts]
    two = glassformer("generate", trained.folder, "--input", "-", "--batch-size", 2, "--max-new-tokens", 6, stdin=stdin)
    assert two.out == found.out
    none = glassformer("generate", trained.folder, "--input", "-", "--batch-size", 0, stdin=stdin)
    assert none.code != 0 and "batch_size is 0 and must be at least 1" in none.err
    unused = glassformer("generate", trained.folder, "--prompt", "ab", "-n", 3, "--batch-size", 2)
    assert unused.code == 2 and "--batch-size is for --input FILE.jsonl" in unused.err
    (tmp_path / "in.jsonl").write_text(stdin, "utf-8")
    out = tmp_path / "new" / "out.jsonl"
    written = glassformer(
        "generate", trained.folder, "--input", tmp_path / "in.jsonl", "--output", out, "--max-new-tokens", 6
    )
    assert written.out == "" and out.read_text("utf-8") == found.out


def test_prompts_are_plain_lines_or_json_by_the_first_line(glassformer: Glassformer, trained: Outcome) -> None:
    prompts = ["ab cd", '"ab"', "[1]", 'ab {"prompt": 1}']
    options = ["generate", trained.folder, "--input", "-", "--max-new-tokens", 3, "-n", 2]
    as_json = glassformer(*options, stdin="".join(json.dumps({"prompt": prompt}) + "\n\n" for prompt in prompts))
    as_text = glassformer(*options, stdin="\ufeff" + "\r\n".join(prompts))
    assert as_json.code == 0 and as_text.out == as_json.out and as_text.out.count("\n") == 8
    require_one_sentence(glassformer(*options, stdin='\n{"prompt": "a"\nb\n'), "line 2 of standard input is not JSON")


SHORT = {"max_steps": "7", "batch_size": "5", "seed": "3", "vocab_size": "300", "learning_rate": "0.5", "path": "x.txt"}


@pytest.mark.parametrize("name", [*SHORT, "lr", "epochs", "n_embd", "dropout", "n_layer", "source", "steps"])
@pytest.mark.parametrize("recipe", ["copy-task", "multi30k-en-de-tiny"])
def test_short_names_mean_the_same_in_the_shell_and_in_python(
    glassformer: Glassformer, monkeypatch: pytest.MonkeyPatch, recipe: str, name: str
) -> None:
    value = SHORT.get(name, "1")
    ran: list[Run] = []

    def check(run: Run, folder: Path) -> None:
        ran.append(run)
        sys.exit()

    monkeypatch.setattr("glassformer.apps.cli.train.check_new_run", check)
    try:
        wanted = recipes.with_changes(recipes.load(recipe), {name: FlagText(value)}, "the command line")
    except UserError as error:
        require_one_sentence(glassformer("train", recipe, f"--{name.replace('_', '-')}", value), str(error))
    else:
        with pytest.raises(SystemExit):
            glassformer("train", recipe, f"--{name.replace('_', '-')}={value}")
        assert ran == [wanted]


@pytest.mark.parametrize("width", [60, 40])
def test_tables_fit_a_narrow_terminal(
    glassformer: Glassformer, trained: Outcome, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = write_text(tmp_path).rename(Path("t.txt"))
    tables = [["presets"], ["data", text, "--tokenizer", trained.folder], ["compare", trained.folder]]
    for words in tables:
        shown = glassformer(*words)
        assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= width, shown.out
        assert len(re.findall(r"\bparameters\b|\bbytes per token\b", shown.out)) >= 1


def test_a_prompt_is_an_argument_or_an_option(glassformer: Glassformer, trained: Outcome) -> None:
    settings = ["--max-new-tokens", 6, "--temperature", 0]
    for prompt in ("abc d", "-a"):
        named = glassformer("generate", trained.folder, *settings, f"--prompt={prompt}")
        assert named.code == 0
        assert glassformer("generate", trained.folder, *settings, "--", prompt) == named
    # a dash and a letter are an option, also if the verb has no such option
    assert glassformer("generate", trained.folder, "abc d", *settings).code == 0
    refused = glassformer("generate", trained.folder, "-a", *settings)
    assert refused.code == 2 and "unknown option -a; if it is a text, put -- before it: -- -a" in refused.err


def test_generate_writes_several_samples(glassformer: Glassformer, trained: Outcome) -> None:
    few, model = ["--max-new-tokens", 6, "--temperature", 1.5], api.load(trained.folder)
    texts = model.generate(["abc", "é日"], n=3, max_new_tokens=6, temperature=1.5)
    found = glassformer("generate", trained.folder, "-n", 3, "--prompt", "abc", *few)
    assert found.out == "".join(f"--- sample {i}\nabc{text}\n" for i, text in enumerate(texts[0]))
    stdin = '{"prompt": "abc"}\n{"prompt": "é日"}\n'
    listed = glassformer("generate", trained.folder, "-n", 3, "--input", "-", *few, stdin=stdin)
    expected = [
        {"prompt": prompt, "sample": i, "text": text}
        for prompt, of_prompt in zip(["abc", "é日"], texts, strict=True)
        for i, text in enumerate(of_prompt)
    ]
    assert [json.loads(line) for line in listed.out.splitlines()] == expected
    alone = glassformer("generate", trained.folder, "--sample", 2, "--prompt", "abc", *few)
    assert alone.out == f"abc{texts[0][2]}\n"
    last = glassformer("generate", trained.folder, "-n", 2, "--sample", 1, "--prompt", "abc", *few)
    assert last.out == "".join(f"--- sample {i}\nabc{texts[0][i]}\n" for i in (1, 2))
    for wrong, words in (
        (["-n", 2, "--temperature", 0], "all samples would be equal"),
        (["-n", 0], "n is 0 and must be at least 1"),
        (["--sample", -1], "sample is -1 and must not be negative"),
        (["--temperature", 0, "--top-k", 5], "--top-k has no effect at temperature 0"),
        (["--temperature", 0, "--seed", 1], "--seed has no effect at temperature 0"),
        (["--temperature", 0, "--sample", 1], "--sample has no effect at temperature 0"),
    ):
        refused = glassformer("generate", trained.folder, "--prompt", "abc", *wrong)
        assert refused.code == 2 and words in refused.err and refused.out == ""


def test_generate_reads_special_tokens_on_request(glassformer: Glassformer, trained: Outcome) -> None:
    """As ordinary text, the special tokens of this prompt do not fit the context of 32 tokens."""
    prompt, few = "abc" + "[EOS]" * 20, ["--temperature", 0, "--max-new-tokens", 4]
    text = api.load(trained.folder).generate(prompt, temperature=0.0, max_new_tokens=4, special_tokens=True)
    for words, stdin in ((["--prompt", prompt], ""), (["--input", "-"], json.dumps({"prompt": prompt}))):
        found = glassformer("generate", trained.folder, *words, *few, "--special-tokens", stdin=stdin)
        of_file = json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False)
        assert found.out == (f"{of_file}\n" if stdin else f"{prompt}{text}\n")
        refused = glassformer("generate", trained.folder, *words, *few, stdin=stdin)
        assert refused.code == 2 and "the model's context is 32" in refused.err


def test_pitfall_33_a_cropped_or_full_context_is_reported(glassformer: Glassformer, trained: Outcome) -> None:
    n_tokens = len(api.load(trained.folder).prompt_ids("abc " * 30))
    slid = glassformer("generate", trained.folder, "--prompt", "abc " * 30, "--context", "slide")
    assert slid.code == 0 and f"the prompt has {n_tokens} tokens; the first {n_tokens - 32} do not fit" in slid.err
    greedy = ["--prompt", "abc", "--max-new-tokens", 99, "--temperature", 0]
    full = glassformer("generate", trained.folder, *greedy)
    assert full.err == "the context of 32 tokens is full; --context slide continues beyond it\n"
    on = glassformer("generate", trained.folder, *greedy, "--context", "slide")
    assert on.err == "the context of 32 tokens slid: its older half was dropped\n" and len(on.out) > len(full.out)


def test_a_prompt_is_tokenised_once(glassformer: Glassformer, trained: Outcome, encoded: list[str]) -> None:
    assert glassformer("generate", trained.folder, "--prompt", "abc ", "--max-new-tokens", 2).code == 0
    assert encoded == ["abc "]
    prompts = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("ab", "cd"))
    encoded.clear()
    assert glassformer("generate", trained.folder, "--input", "-", "--max-new-tokens", 2, stdin=prompts).code == 0
    assert encoded == ["ab", "cd"]


def test_generate_passes_its_options(glassformer: Glassformer, trained: Outcome) -> None:
    options = ["--temperature", 0.7, "--top-k", 9, "--top-p", 0.8, "--min-p", 0.01, "--repetition-penalty", 1.3]
    found = glassformer("generate", trained.folder, "--prompt", "abc", *options, "--seed", 2, "--stop", "q", "zz")
    expected = api.load(trained.folder).generate(
        "abc", temperature=0.7, top_k=9, top_p=0.8, min_p=0.01, repetition_penalty=1.3, seed=2, stop=("q", "zz")
    )
    assert found.out == f"abc{expected}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--output", "texts.jsonl"], "--output is for --input"),
        (["--draft-tokens", "3"], "--draft-tokens is for --draft"),
    ],
)
def test_generate_refuses_options_without_effect(
    glassformer: Glassformer, trained: Outcome, options: list[str], words: str
) -> None:
    found = glassformer("generate", trained.folder, "--prompt", "the", *options)
    assert found.code != 0 and words in found.err


@pytest.mark.parametrize("drafts", [["--prompt-lookup", 5], ["--draft", "DIR", "--draft-tokens", 3]])
def test_generate_with_drafts_prints_the_same_text(
    glassformer: Glassformer, trained: Outcome, drafts: list[str]
) -> None:
    drafts = [trained.folder if word == "DIR" else word for word in drafts]
    greedy = [trained.folder, "--prompt", "abc abc", "--temperature", 0, "--max-new-tokens", 12, "--checkpoint", 20]
    plain, drafted = glassformer("generate", *greedy), glassformer("generate", *greedy, *drafts)
    assert drafted.code == 0 and drafted.out == plain.out
    assert re.fullmatch(r"accepted \d+ of \d+ drafted tokens \(\d+%\)\n", drafted.err.removeprefix(plain.err))


@pytest.mark.parametrize("drafts", [["--prompt-lookup", 5], ["--draft", "DIR", "--draft-tokens", 3]])
def test_generate_with_drafts_writes_the_same_file(
    glassformer: Glassformer, trained: Outcome, tmp_path: Path, drafts: list[str]
) -> None:
    """Seven prompts in batches of three: one line for each, in order, as without drafts."""
    drafts = [trained.folder if word == "DIR" else word for word in drafts]
    prompts = ["ab ab ab", "cd", "a", "the the", "b", "cab", "e"]
    (tmp_path / "in").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    greedy = [trained.folder, "--input", tmp_path / "in", "--temperature", 0, "--max-new-tokens", 15]
    plain = glassformer("generate", *greedy)
    assert [json.loads(line)["prompt"] for line in plain.out.splitlines()] == prompts
    drafted = glassformer("generate", *greedy, *drafts, "--batch-size", 3, "--output", tmp_path / "out")
    assert drafted.code == 0 and "drafted tokens" in drafted.err
    assert (tmp_path / "out").read_text() == plain.out


def test_generate_reads_prompts_from_a_terminal(glassformer: Glassformer, trained: Outcome) -> None:
    typed = "\n".join(["abc", "", "abc " * 100, "cab", ""])
    found = glassformer("generate", trained.folder, "--max-new-tokens", 4, stdin=typed, terminal=True)
    assert found.code == 0 and "Ctrl-D ends" in found.err
    model = api.load(trained.folder)
    assert f"abc{model.generate('abc', max_new_tokens=4)}\n" in found.out
    assert f"cab{model.generate('cab', max_new_tokens=4)}\n" in found.out
    assert "glassformer: prompt 1 has" in found.err  # a mistake does not end the conversation


def test_tokenizer_trains_and_encodes(glassformer: Glassformer, tmp_path: Path, trained: Outcome) -> None:
    text, out = write_text(tmp_path), tmp_path / "t" / "tokenizer.json"
    made = glassformer("tokenizer", "train", text, "--vocab-size", 290, "--out", out)
    assert made.code == 0 and "290 tokens (7 special), 27 merges" in made.out
    ids = glassformer("tokenizer", "encode", out, "é abc").out.split()
    assert glassformer("tokenizer", "encode", out, "-", stdin="é abc").out.split() == ids
    assert glassformer("tokenizer", "encode", trained.folder, "[MASK]", "--allow-special").out == "6\n"
    assert len(glassformer("tokenizer", "encode", trained.folder, "[MASK]").out.split()) > 1
    assert "a│b│c" in glassformer("tokenizer", "encode", out, "abc", "--merges").out
    longest = Tokenizer.load(out).encode_longest_match("abc é")
    assert glassformer("tokenizer", "encode", out, "abc é", "--longest-match").out.split() == [*map(str, longest)]
    assert "Ġ" not in glassformer("tokenizer", "encode", out, "a abc", "--merges").out
    assert "290" in glassformer("tokenizer", "report", out, text).out


def test_data_report_prints_the_numbers_of_a_text(glassformer: Glassformer, tmp_path: Path, trained: Outcome) -> None:
    path = write_documents(tmp_path)
    table = glassformer("data", path, "--tokenizer", trained.folder)
    assert table.code == 0 and "bytes per token" in table.out and "repeated documents  0 of 60" in table.out
    found = json.loads(glassformer("data", path, "--json").out)
    assert found["n_documents"] == 60 and found["total"]["n_tokens"] > 60
    assert sum(side["n_bytes"] for side in found["sides"]) == found["total"]["n_bytes"]
    names = json.loads(glassformer("data", path, "--valid-path", path, "--json").out)
    assert any("cannot be split" in note for note in names["notes"])


def test_presets_and_recipes_are_listed_and_printed(glassformer: Glassformer, tmp_path: Path) -> None:
    listed = glassformer("presets").out
    assert "gpt2" in listed and "124,439,808" in listed
    one = glassformer("presets", "gpt2").out
    (tmp_path / "gpt2.toml").write_text("[model]\n" + re.sub(r"^\[", "[model.", one, flags=re.MULTILINE))
    assert recipes.load(str(tmp_path / "gpt2.toml")).model == PRESETS["gpt2"]
    assert "shakespeare-char" in glassformer("recipes").out
    assert "max_steps = 2000" in glassformer("recipes", "shakespeare-char").out
    assert "# number of optimizer steps" in glassformer("recipes", "REFERENCE").out


def test_reproduce_passes_and_fails(glassformer: Glassformer, tmp_path: Path, tiny_recipe: Path) -> None:
    text = write_text(tmp_path)
    passed = glassformer("reproduce", tiny_recipe, "--data.path", text, "--out", tmp_path / "a")
    assert passed.code == 0 and passed.out.startswith("PASS  tiny: loss ") and "(must be at most 9.0)" in passed.out
    failed = glassformer(
        "reproduce", tiny_recipe, "--data.path", text, "--out", tmp_path / "b", "--result.at-most", "0.5"
    )
    assert failed.code == 1 and failed.out.startswith("FAIL  tiny: loss ")


def test_doctor_prints_json(glassformer: Glassformer, trained: Outcome) -> None:
    found = glassformer("doctor", trained.folder, "--json")
    assert found.code == 0, found.out
    assert json.loads(found.out)


def test_another_package_adds_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\n", "utf-8")
    (info / "entry_points.txt").write_text(
        "[glassformer.verbs]\nhail = foreign_verb:hail\ntrain = foreign_verb:hail\n", "utf-8"
    )
    (tmp_path / "foreign_verb.py").write_text(
        "def hail(name: str, /, *, loud: bool = False, times: int = 1) -> int:\n"
        '    """Say hello.\n\n    Args:\n        name: Who is greeted.\n        times: How often.\n    """\n'
        "    print(name.upper() if loud else name * times)\n    return 3\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main.run(["hail", "you", "--loud"]) == 3 and capsys.readouterr().out == "YOU\n"
    assert main.run(["hail", "you", "--times", "2"]) == 3 and capsys.readouterr().out == "youyou\n"
    assert main.run(["hail", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Say hello." in shown and "  --times INT " in shown and "How often" in shown
    assert main.run(["train", "--help"]) == 0 and "How often" not in capsys.readouterr().out
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "hail       from the module foreign_verb" in shown and "train a model: give a recipe" in shown, (
        "verbs of glassformer are not replaced"
    )
    assert main.run(["hial"]) == 2 and "hail" in capsys.readouterr().err
