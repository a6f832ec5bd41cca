"""Load on the server: throughput and latency for several numbers of clients, beside other servers with equal weights.

    python benchmarks/serving.py DIR [--clients N ...] [--tokens N] [--rounds N] [--litgpt DIR]

DIR is a model directory with a chat template, such as the one of `make chat`; `random` makes a model of the size of
GPT-2 with random weights and the tokenizer of `--tokenizer DIR`. It is exported for transformers and llama.cpp, in
fp32. The servers take turns: each is started, asked once, and then asked by all numbers of clients; a client sends its
next question when the answer to the last one has ended. Questions differ, decoding is greedy, and answers are streamed
by `/v1/chat/completions`. A server without its package is skipped, and its name is printed. LitGPT is measured with
`--litgpt DIR`, the exported model after `litgpt convert_to_litgpt DIR`; the command `litgpt` is the one on the path.

`tokens/s` counts the parts of all answers; `first` is the time to the first part and `between` the time between two
parts of an answer, in ms: median and 99th percentile.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import torch

import glassformer
from glassformer.config.presets import preset
from glassformer.config.run import Run
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.tokenization.tokenizer import Tokenizers

WORDS = ("sea", "time", "house", "river", "cloud", "stone", "music", "night", "garden", "bread", "window", "paper")
LLAMA = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.hostnames, p.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
p.n_parallel, p.n_ctx, p.warmup = 16, 16384, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[3])
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


@dataclass
class Load:
    """The times that the clients measured."""

    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    n_failed: int = 0

    def row(self) -> str:
        parts = [f"{(len(self.first) + len(self.between)) / self.seconds:>9.1f}"]
        for times in (self.first, self.between):
            ordered = sorted(times)
            parts.append(
                f"{1e3 * statistics.median(ordered):>9.0f}{1e3 * ordered[int(0.99 * (len(ordered) - 1))]:>9.0f}"
            )
        return "".join(parts) + (f"   {self.n_failed} failed" if self.n_failed else "")


def question(number: int) -> str:
    draws = random.Random(number)
    return f"Write a story about {' and '.join(draws.choices(WORDS, k=draws.randrange(2, 8)))}."


async def one_answer(session: aiohttp.ClientSession, url: str, body: dict[str, Any], load: Load) -> None:
    began = latest = time.perf_counter()
    is_first = True
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            load.n_failed += 1
            return
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:]).get("choices") or [{}]
            if not choices[0].get("delta", {}).get("content"):
                continue
            now = time.perf_counter()
            if is_first:
                load.first.append(now - began)
            else:
                load.between.append(now - latest)
            latest, is_first = now, False
    load.n_failed += is_first


async def ask(url: str, model: str, n_clients: int, n_each: int, n_tokens: int) -> Load:
    load, number = Load(), iter(range(10**6))
    wait = aiohttp.ClientTimeout(total=3600)
    async with aiohttp.ClientSession(
        timeout=wait, connector=aiohttp.TCPConnector(limit=0, force_close=True)
    ) as session:

        async def client() -> None:
            for _ in range(n_each):
                messages = [{"role": "user", "content": question(next(number))}]
                body = {"model": model, "messages": messages, "max_tokens": n_tokens, "temperature": 0, "stream": True}
                await one_answer(session, url, body, load)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(n_clients)))
        load.seconds = time.perf_counter() - began
    return load


@contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[None]:
    with log.open("w") as out:
        quiet = os.environ | {"HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=quiet, start_new_session=True)
    try:
        for _ in range(240):
            time.sleep(0.5)
            if process.poll() is not None:
                raise SystemExit(f"{command[:4]} ended: {log.read_text('utf-8')[-2000:]}")
            if asyncio.run(is_ready(url)):
                break
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what is left: LitGPT's processes outlive the first one
        process.wait()


async def is_ready(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


def random_model(tokenizer_of: Path, out: Path) -> None:
    """Save a model of the size of GPT-2 with random weights and the tokenizer of another model."""
    tokenizer = glassformer.load(tokenizer_of).tokenizer
    config = replace(preset("gpt2"), vocab_size=tokenizer.vocab_size, eos_id=None)
    network = build_model(config)
    run = Run(name="random", model=config)
    Model(network, Tokenizers(tokenizer), run.generation, run, torch.device("cpu")).save(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokenizer", type=Path, help="model directory, for `random`")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--litgpt", type=Path, help="directory of the model for LitGPT; without it, LitGPT is left out")
    parser.add_argument("--servers", nargs="+", help="names of the servers; by default all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        directory = Path(given.model)
        if given.model == "random":
            directory = folder / "random"
            random_model(given.tokenizer, directory)
        model = glassformer.load(directory)
        glassformer.export(model, folder / "hf", to="hf")
        glassformer.export(model, folder / "gguf", to="gguf")
        del model
        servers = commands(directory, folder, given.threads)
        if given.litgpt:
            servers["litgpt"] = (litgpt_command(given.litgpt, given.tokens), "")
        print(f"{given.model}, {given.tokens} tokens per answer, {given.threads} threads")
        print(f"{'':<28} clients {'tokens/s':>9} {'first: median, 99 %':>18} {'between: median, 99 %':>20}")
        for turn in range(given.rounds):
            for number, (name, (command, package)) in enumerate(servers.items()):
                if given.servers and name not in given.servers:
                    continue
                if package and importlib.util.find_spec(package) is None:
                    print(f"{name:<28} skipped: no package {package}")
                    continue
                port = 8600 + 20 * turn + number
                url = f"http://127.0.0.1:{port}"
                command = [word.replace("PORT", str(port)) for word in command]
                asked = str(folder / "hf") if package == "transformers" else "m"
                with running(command, url, folder / "log.txt"):
                    asyncio.run(ask(url, asked, 1, 1, 4))
                    for n_clients in given.clients:
                        n_each = max(1, 32 // max(n_clients, 2))
                        load = asyncio.run(ask(url, asked, n_clients, n_each, given.tokens))
                        print(f"{name:<28} {n_clients:>7} {load.row()}", flush=True)


def commands(directory: Path, folder: Path, threads: int) -> dict[str, tuple[list[str], str]]:
    """Return the command of each server, and the package that it needs."""
    (gguf,) = (folder / "gguf").glob("*.gguf")
    serve = [sys.executable, "-m", "glassformer", "serve", f"m={directory}", "--port", "PORT", "--max-waiting", "256"]
    hf = [shutil.which("transformers") or "transformers", "serve", str(folder / "hf"), "--port", "PORT"]
    hf += ["--dtype", "float32", "--device", "cpu"]
    return {
        "glassformer": (serve, "glassformer"),
        "glassformer, one at a time": ([*serve, "--max-rows", "1"], "glassformer"),
        "transformers": (hf, "transformers"),
        "transformers, continuous": ([*hf, "--continuous-batching"], "transformers"),
        "llama.cpp": ([sys.executable, "-c", LLAMA, str(gguf), "PORT", str(threads)], "xllamacpp"),
    }


def litgpt_command(directory: Path, n_tokens: int) -> list[str]:
    """Return the command of LitGPT's server: greedy, with the length given here, because it ignores `max_tokens`."""
    litgpt = shutil.which("litgpt")
    if litgpt is None:
        raise SystemExit("--litgpt needs the command litgpt on the path")
    options = {"max_new_tokens": n_tokens, "top_k": 1, "temperature": 1.0, "precision": "32-true", "timeout": 3600}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [litgpt, "serve", str(directory), "--openai_spec", "true", "--accelerator", "cpu", "--port", "PORT", *words]


if __name__ == "__main__":
    main()
