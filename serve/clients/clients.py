"""Tests a server with the official Python clients of OpenAI and Anthropic: clients.py http://127.0.0.1:8099 KEY [http://127.0.0.1:8098]

The last address is that of a server with --embeddings.
"""

import base64
import json
import struct
import sys
import threading
import urllib.request

import anthropic
import openai

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
o = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
a = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
MESSAGES = [{"role": "user", "content": "Say a word."}]
SCHEMA = {
    "type": "object", "required": ["name", "age"], "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
results = []


def attempt(name):
    def run(function):
        try:
            results.append((name, True, str(function())[:110].replace("\n", " ")))
        except Exception as error:
            results.append((name, False, f"{type(error).__name__}: {error}"[:300]))
    return run


def check(so, what=None):
    assert so, what
    return what


def is_of_schema(text):
    value = json.loads(text)
    return check(set(value) == {"name", "age"} and len(value["name"]) <= 6 and 0 <= value["age"] <= 99, value)


def chat(**more):
    return o.chat.completions.create(model="demo", messages=MESSAGES, **{"max_tokens": 8, **more})


attempt("models")(lambda: [m.id for m in o.models.list()])
attempt("completion")(lambda: o.completions.create(model="demo", prompt="Once upon", max_tokens=8, temperature=0).choices[0].text)


@attempt("completion, streamed")
def _():
    stream = o.completions.create(model="demo", prompt="Once upon", max_tokens=8, temperature=0, stream=True)
    return "".join(c.choices[0].text for c in stream if c.choices)


@attempt("completion, logprobs")
def _():
    choice = o.completions.create(model="demo", prompt="Once upon", max_tokens=4, temperature=0, logprobs=2).choices[0]
    check("".join(choice.logprobs.tokens) == choice.text and len(choice.logprobs.top_logprobs[0]) == 2)
    return choice.logprobs.token_logprobs


attempt("chat")(lambda: chat().choices[0].message)


@attempt("chat, streamed, with usage")
def _():
    text, usage = [], None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        if chunk.choices and chunk.choices[0].delta.content:
            text.append(chunk.choices[0].delta.content)
        usage = chunk.usage or usage
    return check(usage.completion_tokens > 0, ("".join(text), usage.total_tokens))


attempt("chat, tools")(lambda: chat(tools=[TOOL]).choices[0].finish_reason)
attempt("chat, stop, seed, bias, penalties")(
    lambda: chat(stop=["a"], seed=3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={"5": -100}).choices[0].finish_reason
)


@attempt("chat, logprobs")
def _():
    content = chat(max_tokens=2, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    return check(len(content) == 2 and len(content[0].top_logprobs) == 2, content[0].token)


@attempt("chat, n = 3")
def _():
    return check([c.index for c in chat(n=3).choices] == [0, 1, 2])


@attempt("chat, n = 3, streamed")
def _():
    return check({c.choices[0].index for c in chat(n=3, stream=True) if c.choices} == {0, 1, 2})


attempt("chat, json_object")(lambda: json.loads(chat(max_tokens=4000, response_format={"type": "json_object"}, temperature=1.2).choices[0].message.content))


@attempt("chat, json_schema")
def _():
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    return is_of_schema(chat(max_tokens=400, response_format=form).choices[0].message.content)


@attempt("chat, parse() of a pydantic model")
def _():
    import pydantic

    class Person(pydantic.BaseModel):
        happy: bool
        age: int

    got = o.chat.completions.parse(model="demo", messages=MESSAGES, max_tokens=400, response_format=Person)
    return check(isinstance(got.choices[0].message.parsed, Person), got.choices[0].message.parsed)


attempt("responses")(lambda: o.responses.create(model="demo", input="x", max_output_tokens=4).output_text)


@attempt("responses, streamed")
def _():
    # The client treats an answer that a limit ended as an error. This answer ends by itself.
    form = {"format": {"type": "json_schema", "name": "p", "schema": {"enum": ["yes", "no"]}}}
    with o.responses.stream(model="demo", input=MESSAGES, max_output_tokens=80, text=form) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    check(kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds)
    return final.output_text


@attempt("responses, json_schema")
def _():
    form = {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA, "strict": True}}
    return is_of_schema(o.responses.create(model="demo", input="x", max_output_tokens=400, text=form).output_text)


attempt("messages")(lambda: a.messages.create(model="demo", messages=MESSAGES, max_tokens=8).content)


@attempt("messages, streamed")
def _():
    with a.messages.stream(model="demo", messages=MESSAGES, max_tokens=8) as stream:
        return "".join(stream.text_stream), stream.get_final_message().usage.output_tokens


attempt("messages, tokens")(lambda: a.messages.count_tokens(model="demo", messages=MESSAGES).input_tokens)


def post(path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(BASE + path, data=data, headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    return urllib.request.urlopen(request).read()


for path, body in [
    ("/health", None), ("/props", None), ("/slots", None), ("/metrics", None), ("/tokenize", {"content": "hello"}),
    ("/completion", {"prompt": "Once", "n_predict": 4, "n_probs": 2}),
]:
    attempt(path)(lambda: post(path, body)[:100])


@attempt("/completion, grammar")
def _():
    text = json.loads(post("/completion", {"prompt": "x", "n_predict": 20, "grammar": 'root ::= "a"{2,4} "!"'}))["content"]
    return check(text in ("aa!", "aaa!", "aaaa!"), text)


@attempt("8 at once")
def _():
    texts = [None] * 8

    def one(i):
        texts[i] = o.completions.create(model="demo", prompt="Once upon", max_tokens=24, temperature=0).choices[0].text

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return check(len(set(texts)) == 1 and texts[0], texts[0])


if len(sys.argv) > 3:
    v = openai.OpenAI(base_url=sys.argv[3] + "/v1", api_key=KEY, max_retries=0)
    TEXTS = ["The borrow checker", "A trait", "The borrow checker"]

    def vectors(**more):
        got = v.embeddings.create(model="demo", **{"input": TEXTS, **more})
        check([one.index for one in got.data] == list(range(len(got.data))) and got.usage.total_tokens > 0)
        return [one.embedding for one in got.data]

    @attempt("embeddings")
    def _():
        # The client requests base64 by default.
        one, two, three = vectors()
        check(one == three and one != two and abs(sum(x * x for x in one) - 1) < 1e-5)
        return len(one)

    @attempt("embeddings, float")
    def _():
        # Decimals are as short as possible, and denote the same f32.
        pairs = list(zip(vectors(encoding_format="float"), vectors()))
        check(all(abs(x - y) < 1e-7 for a, b in pairs for x, y in zip(a, b)))
        # With explicit base64, the client returns the text unchanged.
        text = vectors(encoding_format="base64")[0]
        return check(list(struct.unpack(f"<{len(pairs[0][1])}f", base64.b64decode(text))) == pairs[0][1], "the same")

    @attempt("embeddings, one text, tokens, dimensions")
    def _():
        check(vectors(input=TEXTS[0]) == vectors()[:1])
        check(vectors(input=[[5, 6], [7]])[0] == vectors(input=[5, 6])[0])
        return check(len(vectors(dimensions=8)[0]) == 8, 8)

    @attempt("embeddings, errors")
    def _():
        for wrong in [{"input": ""}, {"input": []}, {"dimensions": 1 << 20}]:
            try:
                vectors(**wrong)
            except openai.BadRequestError as error:
                wrong["said"] = error.message
            check("said" in wrong, wrong)
        return wrong["said"]


for name, ok, what in results:
    print("ok    " if ok else "FAILED", name, "|", what)
sys.exit(0 if all(ok for _, ok, _ in results) else 1)
