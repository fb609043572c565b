"""The quick part of the checks: compares with recorded results of other engines, and needs only Python and the program.

    {"smollm2": {"ids": [checksum of each text's ids], "greedy": [{"prompt", "text"}]}, "minilm": {"ids": …, "vectors": {"texts", "f16"}}}
"""

import base64
import json
import math
import struct
import zlib
from pathlib import Path

import answers
import fetch
import texts

RECORDED = Path(__file__).resolve().parent / "recorded.json"
COSINE = 0.99999
MODELS = ("smollm2", "minilm")


def checksum(ids):
    return zlib.crc32(",".join(map(str, ids)).encode())


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def tokens(report, ixc, server, name, recorded):
    all_texts = texts.all_texts(len(recorded))
    found = ixc.ids(server, all_texts)
    other = [text for text, ids, right in zip(all_texts, found, recorded) if checksum(ids) != right]
    what = f"{name}: ids of {len(all_texts)} texts are those of Hugging Face's tokenizers"
    report.check(not other, what + (f"; the first other one: {other[0]!r}" if other else ""))


def run(report, ixc, folder):
    """Runs the checks. Returns false if the models cannot be downloaded."""
    try:
        paths = {key: fetch.model(key, folder) for key in MODELS}
    except fetch.NotFetched as error:
        print(f"NOT RUN: trained models (bench/real/run --quick): {error}")
        return False
    recorded = json.loads(RECORDED.read_text())
    of = recorded["smollm2"]
    with ixc.server(paths["smollm2"], "-c", "1024") as server:
        tokens(report, ixc, server, "SmolLM2", of["ids"])
        for row in of["greedy"]:
            text = ixc.ask(server, "/completion", {"prompt": row["prompt"], "n_predict": row["tokens"], "temperature": 0})["content"]
            report.check(text == row["text"], f"SmolLM2: greedy text after {row['prompt']!r} is the recorded one: {text!r}")
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": answers.PERSON, "strict": True}}
        choice = answers.answer(ixc, server, "Describe a person.", response_format=form)
        report.check(is_person(choice["message"]["content"]), f"SmolLM2: JSON of a schema is valid: {choice['message']['content']}")
        choice = answers.answer(ixc, server, answers.CALLS[0], tools=answers.TOOLS, tool_choice="required")
        calls = choice["message"].get("tool_calls") or []
        report.check(calls and is_call(calls[0]["function"]), f"SmolLM2: a required call is there and valid: {calls}")
    of = recorded["minilm"]
    with ixc.server(paths["minilm"], "--embeddings") as server:
        tokens(report, ixc, server, "MiniLM", of["ids"])
        rows = ixc.ask(server, "/v1/embeddings", {"input": of["texts"]})["data"]
    width = len(rows[0]["embedding"])
    numbers = struct.unpack(f"<{width * len(rows)}e", base64.b64decode(of["vectors"]))
    cosines = [cosine(row["embedding"], numbers[at * width :][:width]) for at, row in enumerate(rows)]
    report.check(min(cosines) >= COSINE, f"MiniLM: vectors are those of sentence-transformers: cosine at least {min(cosines):.7f}")
    return True


def is_person(text):
    try:
        person = json.loads(text)
    except ValueError:
        return False
    return list(map(type, (person.get("name"), person.get("age"), person.get("email")))) == [str, int, str] and len(person) == 3


def is_call(call):
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        return False
    names = {tool["function"]["name"]: tool["function"]["parameters"] for tool in answers.TOOLS}
    return call["name"] in names and all(key in arguments for key in names[call["name"]]["required"])


def record(paths, tokenizer_of, vectors_of, greedy_of):
    """Writes what the other engines give now to the file that `run` compares with."""
    some = texts.short_texts(40)[::7]
    vectors = [number for row in vectors_of(some) for number in row]

    def ids(key):
        tokenizer = tokenizer_of(key)
        return [checksum(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts.all_texts()]

    recorded = {
        "smollm2": {"ids": ids("smollm2"), "greedy": greedy_of()},
        "minilm": {"ids": ids("minilm"), "texts": some, "vectors": base64.b64encode(struct.pack(f"<{len(vectors)}e", *vectors)).decode()},
    }
    RECORDED.write_text(json.dumps(recorded, ensure_ascii=False) + "\n")
