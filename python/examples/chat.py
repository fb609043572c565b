"""Chats with the built-in demo model: an answer, JSON of a schema, and a call of a tool."""

from typing import Any

import ixc

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    # The demo model has no template of its own.
    with ixc.Model(chat_template="chatml") as model:
        messages: list[ixc.Message] = [{"role": "user", "content": "What is a trait?"}]
        answer = model.chat(messages, max_tokens=16)
        print(answer, answer.usage)
        person = model.chat("Who wrote this?", response_format=PERSON, max_tokens=64)
        print(person.parsed)
        calls = model.chat("How is the weather?", tools=[WEATHER], tool_choice="required", max_tokens=64)
        print(calls.tool_calls)
        for delta in model.chat(messages, max_tokens=16, stream=True):
            print(delta, end="")
        print()


main()
