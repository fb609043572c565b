"""Plugin for the program `llm`: `llm install ixc`, then `llm -m ixc -o path model.gguf "Hi"`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import llm

from ._model import Model


@llm.hookimpl
def register_models(register: Any) -> None:
    """Registers the model `ixc`."""
    register(Ixc())


class Ixc(llm.Model):
    """A model file that the option `path` names. Without one, it is the built-in demo model."""

    model_id = "ixc"
    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """Options of a request."""

        path: Optional[str] = None
        memory: Optional[str] = None
        chat_template: Optional[str] = None
        max_tokens: Optional[int] = None
        temperature: Optional[float] = None
        seed: Optional[int] = None

    def __init__(self) -> None:
        self._loaded: tuple[Any, Model] | None = None

    def _model(self, options: Any) -> Model:
        key = (options.path, options.memory, options.chat_template)
        if self._loaded is None or self._loaded[0] != key:
            if self._loaded is not None:
                self._loaded[1].close()
            path, memory, template = key
            self._loaded = (key, Model(path, memory=memory, chat_template=template))
        return self._loaded[1]

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """Yields the parts of an answer."""
        messages = []
        for turn in conversation.responses if conversation else []:
            if turn.prompt.system:
                messages.append({"role": "system", "content": turn.prompt.system})
            messages.append({"role": "user", "content": turn.prompt.prompt})
            messages.append({"role": "assistant", "content": turn.text_or_raise()})
        if prompt.system:
            messages.append({"role": "system", "content": prompt.system})
        messages.append({"role": "user", "content": prompt.prompt})
        options = {name: getattr(prompt.options, name) for name in ("max_tokens", "temperature", "seed")}
        fields = {name: value for name, value in options.items() if value is not None}
        model = self._model(prompt.options)
        with model.chat(messages, response_format=getattr(prompt, "schema", None), stream=True, **fields) as deltas:
            for delta in deltas:
                yield delta.content
