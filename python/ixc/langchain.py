"""Chat model and embeddings for LangChain: `pip install 'ixc[langchain]'`.

>>> from ixc.langchain import ChatIxc
>>> ChatIxc(path="model.gguf").invoke("What is a trait?")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Optional

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, PrivateAttr

from ._model import Answer, Delta, Model


class ChatIxc(BaseChatModel):
    """Chat model of LangChain.

    Attributes:
        path: Model file. By default it is the built-in demo model.
        model_options: Arguments of `ixc.Model`.
        options: Fields of each request, such as `temperature`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    path: Optional[str] = None
    model_options: dict[str, Any] = {}
    options: dict[str, Any] = {}
    _model: Model = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Loads the model."""
        super().model_post_init(context)
        self._model = Model(self.path, **self.model_options)

    @property
    def _llm_type(self) -> str:
        return "ixc"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **options: Any) -> Any:
        """Returns this model with tools that it may call."""
        choice = "required" if tool_choice in ("any", True) else tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=choice, **options)

    def _request(self, stop: list[str] | None, options: dict[str, Any]) -> dict[str, Any]:
        fields = {**self.options, **options}
        return {**fields, "stop": stop} if stop else fields

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        answer: Answer = self._model.chat(convert_to_openai_messages(messages), **self._request(stop, options))
        calls = [
            {"name": call.name, "args": call.arguments, "id": call.id, "type": "tool_call"}
            for call in answer.tool_calls
            if isinstance(call.arguments, dict)
        ]
        usage = {
            "input_tokens": answer.usage.prompt_tokens,
            "output_tokens": answer.usage.generated_tokens,
            "total_tokens": answer.usage.prompt_tokens + answer.usage.generated_tokens,
        }
        metadata = {"finish_reason": answer.finish_reason, "model_name": self._model.name}
        message = AIMessage(
            content=answer.content, tool_calls=calls, usage_metadata=usage, response_metadata=metadata
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> Iterator[ChatGenerationChunk]:
        fields = self._request(stop, options)
        with self._model.chat(convert_to_openai_messages(messages), stream=True, **fields) as deltas:
            for delta in deltas:
                chunk = _chunk(delta)
                if run_manager:
                    run_manager.on_llm_new_token(delta.content, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        fields = self._request(stop, options)
        async with self._model.chat(convert_to_openai_messages(messages), stream=True, **fields) as deltas:
            async for delta in deltas:
                chunk = _chunk(delta)
                if run_manager:
                    await run_manager.on_llm_new_token(delta.content, chunk=chunk)
                yield chunk


def _chunk(delta: Delta) -> ChatGenerationChunk:
    calls = [
        ToolCallChunk(
            name=call["function"].get("name"),
            args=call["function"].get("arguments"),
            id=call.get("id"),
            index=call["index"],
            type="tool_call_chunk",
        )
        for call in delta.tool_calls
    ]
    return ChatGenerationChunk(message=AIMessageChunk(content=delta.content, tool_call_chunks=calls))


class IxcEmbeddings(Embeddings):
    """Embeddings of LangChain. The arguments are those of `ixc.Model`."""

    def __init__(self, path: str | None = None, **model_options: Any) -> None:
        self._model = Model(path, embeddings=True, **model_options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of texts."""
        vectors: list[list[float]] = self._model.embed(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Returns the vector of a text."""
        return self.embed_documents([text])[0]
