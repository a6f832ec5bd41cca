"""Compare the answers of a chat model with those of transformers, id by id, and with those of its server.

    make runs/smollm2                         # SmolLM2-135M-Instruct, imported from its GGUF file
    python benchmarks/answers.py runs/smollm2 [--conversations 50] [--tokens 40]

transformers reads the model that glassformer exports. Decoding is greedy. In the second turn, all sides read the same
first answer; `chat` has it in its cache. The server gets 8 requests at a time. The exit code is 1 if anything differs.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import glassformer
from glassformer.inference.writer import RowText
from glassformer.model import Model

FIRST = """What is salt? Why is the sky blue? How do plants eat? What is 12 x 11? Who wrote Hamlet? What is a noun? How
far is the moon? What do bees make? What is a prime number? Why do cats purr? How do I boil an egg? What is rain? What
is an ocean? Why does ice float? How many days has a year? What is gravity? Where do penguins live? What is 7 + 35? How
is paper made? What is a river? Why do leaves fall? Who was Marie Curie? How fast is light? What is a poem? Who lays
eggs? How old is the Earth? What is a loop? Why do we sleep? What is tea? How do I learn to swim? Where is Peru? What is
a computer? How do magnets work? Who was Mozart? What is a map? What is a triangle? Is exercise healthy? What is a
letter? What is law? What is glass? How do birds fly? What is an atom? How do I cook rice? What is the capital of
France? What is jam? What is an island? Who was Gandhi? What is a vowel? Why do we laugh? What is a bridge?"""
SECOND = ("Why?", "Write it in one sentence.", "Give me 2 examples.", "Are you sure?", "Explain it to a child.")
ASKED = [(f"{' '.join(one.split())}?", SECOND[i % len(SECOND)]) for i, one in enumerate(FIRST.split("?")[:-1])]
COLUMNS = ("ids of the prompt", "ids of the answer", "text of the answer", "text of the server", "end of the server")


def compared(model: Model, url: str, asked: list[tuple[str, str]], n_tokens: int) -> list[tuple[bool, ...]]:
    """Return for each question what is equal (`COLUMNS`); `url` is that of a server of the same model."""
    with tempfile.TemporaryDirectory() as folder:
        glassformer.export(model, Path(folder) / "hf")
        tokenizer: Any = AutoTokenizer.from_pretrained(Path(folder) / "hf")
        network: Any = AutoModelForCausalLM.from_pretrained(Path(folder) / "hf", dtype=torch.float32)
    settings, _ = model.chat_settings(temperature=0, max_new_tokens=n_tokens)
    read, written, same = list[Any](), list[tuple[str, bool]](), list[tuple[bool, ...]]()
    for questions in asked:
        chat = model.conversation()
        for question in questions:
            chat.add("user", question)
            read.append([*chat.messages])
            with patch.object(RowText, "push", autospec=True, side_effect=RowText.push) as push:
                text = "".join(chat.answer(settings))
            prompt, ids = model.conversation_encoder.prompt(read[-1]), [call.args[1] for call in push.call_args_list]
            written.append((text, ids[-1] in settings.ends))
            given = tokenizer.apply_chat_template(read[-1], add_generation_prompt=True, return_tensors="pt")
            n_prompt = given["input_ids"].shape[1]
            theirs = network.generate(**given, do_sample=False, max_new_tokens=n_tokens)[0].tolist()
            their_text = tokenizer.decode(theirs[n_prompt:], skip_special_tokens=True)
            same.append((prompt == theirs[:n_prompt], ids == theirs[n_prompt:], text == their_text))
    with openai.OpenAI(base_url=url, api_key="none", timeout=3600) as client, ThreadPoolExecutor(8) as pool:
        how: dict[str, Any] = {"model": "m", "max_tokens": n_tokens, "temperature": 0}
        found = pool.map(lambda messages: client.chat.completions.create(messages=messages, **how).choices[0], read)
        served = [(one.message.content, one.finish_reason == "stop") for one in found]
    return [(*row, a[0] == b[0], a[1] == b[1]) for row, a, b in zip(same, written, served, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--conversations", type=int, default=len(ASKED))
    parser.add_argument("--tokens", type=int, default=40)
    given = parser.parse_args()
    model = glassformer.load(given.model, device="cpu")
    command = [sys.executable, "-m", "glassformer", "serve", f"m={given.model}", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split()[2]  # serving m: URL
            same = compared(model, url, ASKED[: given.conversations], given.tokens)
        finally:
            server.terminate()
    for name, column in zip(COLUMNS, zip(*same, strict=True), strict=True):
        print(f"{name:<20}{sum(column):>5} of {len(column)} equal")
    return int(not all(map(all, same)))


if __name__ == "__main__":
    sys.exit(main())
