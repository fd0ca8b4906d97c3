"""A chat model that needs no network. It decides from what it is given alone, so the same in every process."""

import json
import re
from collections.abc import Sequence
from typing import Any

import shop
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class OfflineModel(BaseChatModel):
    """Calls every tool it is given, with arguments that it finds in the conversation."""

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[tool.name for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        tools: Sequence[str] = (),
        **_: Any,
    ) -> ChatResult:
        assert run_manager is not None
        shop.request(run_manager.metadata["langgraph_node"])
        order = int(re.findall(r"\d+", str(messages[0].content))[0])
        known = {m.name: str(m.content) for m in messages if isinstance(m, ToolMessage)}
        calls = [
            ToolCall(name=tool, args=arguments(tool, order, known), id=f"{tool}-{order}") for tool in tools
        ]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=calls))])


def arguments(tool: str, order: int, known: dict[str | None, str]) -> dict[str, Any]:
    if tool == "refund_card":
        return {"order": order, "amount": json.loads(known["look_up_order"])["paid"]}
    if tool == "open_ticket":
        return {"order": order, "text": f"await the return of {json.loads(known['look_up_order'])['item']}"}
    if tool == "send_mail":
        customer = json.loads(known["look_up_customer"])
        return {"to": customer["mail"], "text": f"Dear {customer['name']}, we have {known['refund_card']}."}
    return {"order": order}
