#!/usr/bin/env python3
"""Makes templates.json: what Python's Jinja makes of the templates in a folder, set up as transformers sets it up.

    pip install jinja2 && python3 templates.py > templates.json
    python3 templates.py FOLDER > OTHER.json; IXC_TEMPLATES=OTHER.json cargo test -p ixc-text --test template

The second line is for templates of others, which are not ours to keep. (transformers forbids templates to change lists; here they may.)
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """Block that marks the assistant's words for training. Rendering ignores it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def environment():
    made = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    made.filters["tojson"] = tojson
    made.filters["from_json"] = json.loads
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form)
    return made


def call(number, name, arguments):
    return {"id": f"call{number:05}", "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather \"now\" <here> & there, in '°C'.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Città"},
                "days": {"type": "integer", "default": 3},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " What's <the> weather & \"time\" in Paris? 日本\n"}
THOUGHT = {"role": "assistant", "content": "Sunny.", "reasoning": "It said so."}
AGAIN = {"role": "user", "content": "And tomorrow?"}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call(1, "get_weather", {"unit": "C", "city": "Paris </x> \"é\"", "days": 2, "deep": {"z": [1.5, None, True], "a": {}}}), call(2, "now", {})],
}
RESULTS = [
    {"role": "tool", "content": '{"sky": "<clear>"}', "tool_call_id": "call00001", "name": "get_weather"},
    {"role": "tool", "content": "12:00", "tool_call_id": "call00002", "name": "now"},
]
TALK = [SYSTEM, USER, THOUGHT, AGAIN]
TOOLS = [USER, CALLS, *RESULTS]


def conversation(messages, tools=(), add_generation_prompt=True, **variables):
    return {
        "messages": messages,
        "tools": [json.dumps(tool, ensure_ascii=False) for tool in tools],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "variables": [[name, json.dumps(value)] for name, value in variables.items()],
    }


CONVERSATIONS = {
    "user": conversation([USER]),
    "talk": conversation(TALK),
    "no thinking": conversation(TALK, enable_thinking=False, reasoning_effort="low"),
    "thinking": conversation(TALK, enable_thinking=True, reasoning_effort="high", thinking=True),
    "tools": conversation(TOOLS, [WEATHER, NOW]),
    "tools and more": conversation([SYSTEM, *TOOLS, THOUGHT, AGAIN, {**CALLS, "reasoning": "Again."}, *RESULTS], [WEATHER, NOW]),
    "developer": conversation([{"role": "developer", "content": "Speak French."}, USER], [NOW]),
    "finished": conversation([SYSTEM, USER, THOUGHT], add_generation_prompt=False),
    "none": conversation([]),
}


def message(own):
    made = {"role": own["role"], "content": own["content"]}
    if "reasoning" in own:
        made.update({name: own["reasoning"] for name in ("reasoning_content", "thinking", "reasoning")})
    if "tool_calls" in own:
        made["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.loads(c["arguments"])}}
            for c in own["tool_calls"]
        ]
    made.update({name: own[name] for name in ("tool_call_id", "name") if name in own})
    return made


def render(source, own):
    variables = {name: json.loads(value) for name, value in own["variables"]}
    try:
        text = environment().from_string(source).render(
            messages=[message(m) for m in own["messages"]],
            tools=[json.loads(tool) for tool in own["tools"]] or None,
            documents=None,
            add_generation_prompt=own["add_generation_prompt"],
            bos_token=own["bos_token"],
            eos_token=own["eos_token"],
            **variables,
        )
    except Refused as refused:
        return {"raised": str(refused)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": text}


folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "templates")
sources = {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}
rendered = {name: {which: render(source, own) for which, own in CONVERSATIONS.items()} for name, source in sources.items()}
made = {"conversations": CONVERSATIONS, "sources": sources, "rendered": rendered}
print(json.dumps(made, indent=1, ensure_ascii=False))
