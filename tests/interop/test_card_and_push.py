"""The model card of an export, and the upload to a hub: the real client, and a server with the hub's interface."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

import late
from configs import CONFIGS, GPT
from glassformer.config.run import TextData, TokenizerConfig
from glassformer.errors import UserError
from glassformer.interop.export import Target, export
from glassformer.interop.push import push as upload
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training import metrics_log
from interop.checkpoints import model_directory

huggingface_hub = late.optional("huggingface_hub")
late.optional("transformers")

DIGEST = "ab" * 32


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run's folder with a measured loss and the digest of its data."""
    tokenizer = TokenizerConfig(path="/home/me/secret/tokenizer.json")
    data = TextData(path="/home/me/sec:ret/book.txt")
    folder = model_directory(GPT, tmp_path / "ours", data=data, tokenizer=tokenizer)
    Manifest.of(folder, "model", 7, list(Manifest.read(folder).entries)).write(folder)
    lines = [{"step": 5, "eval/valid_loss": 9.0}, {"step": 7, "eval/valid_loss": 2.5, "sample": "x"}]
    (folder / metrics_log.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = checkpoint.path_of(folder, 7) / checkpoint.STATE
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"data_digest": DIGEST}))
    return folder


def test_the_card_names_data_loss_and_licence_and_no_path(run_folder: Path, tmp_path: Path) -> None:
    export(run_folder, tmp_path / "hf", license="apache-2.0")
    card = huggingface_hub.ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "tags": ["glassformer"],
    }
    assert DIGEST in card.text and "valid_loss 2.5000" in card.text and "`book.txt`" in card.text
    assert "step 7." in card.text and "9.0" not in card.text and 'path = "tokenizer.json"' in card.text
    assert "secret" not in card.content and "sec:ret" not in card.content and f"d_model = {GPT.d_model}" in card.text


def test_a_card_without_a_licence_states_that_it_is_unknown(tmp_path: Path) -> None:
    export(model_directory(GPT, tmp_path / "ours"), tmp_path / "hf")
    card = huggingface_hub.ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.license is None and "The licence is unknown" in card.text


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("hf", "llama"),
        ("hf", "bert"),
        ("hf", "bart"),
        ("hf", "t5"),
        ("hf", "vectors_mean"),
        ("gguf", "llama"),
        ("ct2", "gpt"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the other packages
def test_the_code_of_the_card_runs(to: Target, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if to != "hf":
        pytest.importorskip({"gguf": "gguf", "ct2": "ctranslate2"}[to])
    folder = tmp_path / "out"
    config = CONFIGS[name] if name != "bart" else replace(CONFIGS["bart"], decoder_start_id=2)
    export(model_directory(config, tmp_path / "ours"), folder, to=to)
    run_card(folder, monkeypatch)


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of the card in the folder of an export."""
    text = (folder / "README.md").read_text("utf-8")
    code = text.split("## How to run it\n\n```")[1].split("```")[0]
    assert all(path.name in code for path in folder.glob("*.onnx"))
    if file := next(folder.glob("*.gguf"), None):
        assert code == f'shell\nllama-cli -m {file.name} -p "…"\n'
        return
    if "sentence_transformers" in code and find_spec("sentence_transformers") is None:
        assert 'SentenceTransformer("FOLDER_OR_NAME").encode(' in code and (folder / "modules.json").exists()
        return
    body = code.removeprefix("python\n").replace("FOLDER_OR_NAME", ".").replace('"FOLDER"', '"."').replace("…", "to be")
    monkeypatch.chdir(folder)
    exec(compile(body, "README.md", "exec"), {})  # a process of its own would import transformers for 8 s


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that an upload of small files uses; keeps what it receives."""

    received: dict[str, bytes]
    created: list[dict[str, object]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.headers.get("Authorization"):
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            return self.answer({"url": f"http://{self.headers['Host']}/me/mybook"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            paths = [one["path"] for one in json.loads(body)["files"]]
            return self.answer(
                {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
            )
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.received[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"http://{self.headers['Host']}/me/mybook/commit/{'c' * 40}"
        return self.answer({"success": True, "commitOid": "c" * 40, "commitUrl": address})

    def do_GET(self) -> None:
        self.answer({"id": "me/mybook", "sha": "0" * 40, "siblings": []})

    def answer(self, value: object, status: int = 200) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.received, Hub.created = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def push(hub: str, folder: Path, token: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    env |= {"HF_HOME": str(folder.parent / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", "glassformer", "push", str(folder), "hf:me/mybook", "--private"]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_push_uploads_every_file_of_the_folder(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    export(model_directory(GPT, tmp_path / "ours"), folder, license="mit")
    done = push(hub, folder, "hf_token")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"pushed to {hub}/me/mybook\n"
    assert Hub.created[0]["name"] == "mybook" and Hub.created[0]["organization"] == "me"
    assert Hub.received == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_refused_token_gives_one_sentence(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "README.md").write_text('---\ntags: ["glassformer"]\n---\n# x\n')
    done = push(hub, folder, "")
    assert done.returncode == 2 and Hub.received == {}
    assert done.stderr.startswith("glassformer: cannot push to hf:me/mybook: ") and done.stderr.count("\n") == 1


def test_without_a_network_push_gives_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "README.md").write_text('---\ntags: ["glassformer"]\n---\n# x\n')
    done = push("http://127.0.0.1:9", folder, "hf_token")
    assert done.returncode == 2
    assert done.stderr.startswith("glassformer: cannot push to hf:me/mybook: ") and done.stderr.count("\n") == 1


def test_only_an_export_is_pushed(tmp_path: Path) -> None:
    """A folder of a project, with another README and hidden files, stays where it is."""
    for text in ("# My project\n", "---\ntags: [a\n---\n", "---\ntags: 5\n---\n"):
        (tmp_path / "README.md").write_text(text)
        with pytest.raises(UserError, match="is not an export of glassformer"):
            upload(tmp_path, "hf:me/mybook")
    (tmp_path / "README.md").write_text('---\ntags: ["glassformer"]\n---\n# x\n')
    (tmp_path / ".env").write_text("KEY=1")
    with pytest.raises(UserError, match=r"\.env is not part of an export"):
        upload(tmp_path, "hf:me/mybook")
