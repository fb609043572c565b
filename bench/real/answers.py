"""Answers that an instruct model writes through `ixc serve`: conversations, JSON of schemas, and calls of tools."""

import json

import texts
from tables import cell

# Marks of chat formats, which no answer may show.
MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email", "maxLength": 40}},
    "required": ["name", "age", "email"],
    "additionalProperties": False,
}
# Questions and the schemas that their answers must have.
SCHEMAS = [
    ("Describe a person.", PERSON),
    ("What is the weather in Paris?", {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "celsius": {"type": "number"}, "sky": {"enum": ["clear", "cloudy", "rain", "snow"]}}, "required": ["city", "celsius", "sky"]}),
    ("List three fruits.", {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 3}),
    ("Is the sky blue?", {"type": "object", "properties": {"answer": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 80}}, "required": ["answer", "reason"]}),
    ("Give me a date.", {"type": "object", "properties": {"date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}}, "required": ["date"]}),
    ("A tree of two levels.", {"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}, "required": ["value", "children"]}}, "$ref": "#/$defs/node"}),
    ("An address or a phone number.", {"anyOf": [{"type": "object", "properties": {"street": {"type": "string", "maxLength": 30}}, "required": ["street"]}, {"type": "object", "properties": {"phone": {"type": "string", "pattern": "^[0-9]{5,12}$"}}, "required": ["phone"]}]}),
    ("Rate this film: it was good.", {"type": "object", "properties": {"stars": {"enum": [1, 2, 3, 4, 5]}, "kind": {"const": "review"}}, "required": ["stars", "kind"]}),
    ("Prices of two things.", {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1, "maxProperties": 3}),
    ("A pair of numbers.", {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "minItems": 2, "maxItems": 2}),
]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"], "additionalProperties": False}}},
]
CALLS = ["What is the weather in Oslo?", "Add 2 and 40.", "Tell me the weather in Lima in celsius.", "What is 17 plus 4?"]
# Max tokens of an answer. Answers that reach the limit are not judged.
MOST_TOKENS = 400


def answer(ixc, server, question, **more):
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": MOST_TOKENS} | more
    return ixc.ask(server, "/v1/chat/completions", body)["choices"][0]


def chat(report, ixc, name, server):
    report.title(f"{name}: answers to {len(texts.QUESTIONS)} questions, greedily")
    rows, clean = [], 0
    for question in texts.QUESTIONS:
        choice = answer(ixc, server, question, max_tokens=64)
        text = choice["message"]["content"]
        clean += bool(text.strip()) and not any(mark in text for mark in MARKS)
        rows.append((question, cell(text), choice["finish_reason"]))
    report.table(["question", "answer", "ends by"], rows)
    report.check(clean == len(rows), f"{name}: {clean} of {len(rows)} answers are text without marks of the chat format")


def schemas(report, ixc, name, server, seeds=(1, 2)):
    import jsonschema

    report.title(f"{name}: JSON of {len(SCHEMAS)} schemas, greedily and drawn {len(seeds)} times")
    rows, valid, whole, all_answers = [], 0, 0, 0
    for question, schema in SCHEMAS:
        first, right = None, 0
        for more in [{"temperature": 0}, *({"temperature": 1, "seed": seed} for seed in seeds)]:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
            choice = answer(ixc, server, question, response_format=form, **more)
            text = choice["message"]["content"]
            first = first or text
            all_answers += 1
            if choice["finish_reason"] != "stop":
                continue
            whole += 1
            try:
                jsonschema.validate(json.loads(text), schema, format_checker=None)
                right += 1
            except (ValueError, jsonschema.ValidationError) as error:
                report.line(f"- {question} {text!r}: {str(error).splitlines()[0]}")
        valid += right
        rows.append((question, cell(first), right))
    report.table(["question", "greedy answer", "valid"], rows)
    report.line()
    report.line(f"{all_answers - whole} of {all_answers} answers were cut at {MOST_TOKENS} tokens.")
    report.check(valid == whole, f"{name}: {valid} of {whole} whole answers are valid")


def tools(report, ixc, name, server):
    import jsonschema

    report.title(f"{name}: calls of tools")
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    rows, wrong = [], 0
    for question in CALLS:
        for how, choice in [("required", "required"), ("by name", {"type": "function", "function": {"name": "get_weather"}}), ("auto", "auto")]:
            given = answer(ixc, server, question, tools=TOOLS, tool_choice=choice)
            calls = given["message"].get("tool_calls") or []
            valid = [is_valid(jsonschema, parameters, call) for call in calls]
            forced = how != "auto"
            # A forced call exists, or a limit cut it. All calls have valid arguments.
            whole = given["finish_reason"] != "length"
            bad = whole and (not all(valid) or forced and not calls or how == "by name" and any(call["function"]["name"] != "get_weather" for call in calls))
            wrong += bad
            shown = "; ".join(f"{call['function']['name']} {call['function']['arguments']}" for call in calls) or cell(given["message"]["content"] or "")
            rows.append((question, how, cell(shown), given["finish_reason"], "WRONG" if bad else "ok"))
    report.table(["question", "tool_choice", "calls, or text", "ends by", ""], rows)
    report.check(wrong == 0, f"{name}: forced calls are there, and all arguments are valid")


def is_valid(jsonschema, parameters, call):
    try:
        jsonschema.validate(json.loads(call["function"]["arguments"]), parameters[call["function"]["name"]])
        return True
    except (KeyError, ValueError, jsonschema.ValidationError):
        return False
