"""A refund agent as anybody writes it with LangGraph. Nothing here knows that its runs are going to be durable."""

from collections.abc import Callable
from typing import Any

import shop
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode


class Refund(MessagesState):
    order: int


def refund_agent(model: BaseChatModel, new_key: Callable[[], str]) -> "StateGraph[Refund]":
    """The agent's graph, not compiled yet.

    Args:
        model: any chat model that calls tools.
        new_key: makes the idempotency key that the card provider asks for.
    """

    @tool
    def look_up_order(order: int) -> dict[str, Any]:
        """What was ordered, and what it cost."""
        return shop.order(order)

    @tool
    def look_up_customer(order: int) -> dict[str, Any]:
        """Who ordered it."""
        return shop.customer(order)

    @tool
    def refund_card(order: int, amount: float) -> str:
        """Pay an amount back to the card an order was paid with."""
        return shop.refund(order, amount, key=new_key())

    @tool
    def open_ticket(order: int, text: str) -> str:
        """Open a ticket for the warehouse."""
        return shop.ticket(order, text)

    @tool
    def send_mail(to: str, text: str) -> str:
        """Mail the customer."""
        return shop.mail(to, text)

    lookups, actions, mails = [look_up_order, look_up_customer], [refund_card, open_ticket], [send_mail]

    def ask(state: Refund, task: str, tools: list[BaseTool]) -> AIMessage:
        prompt: list[AnyMessage] = [SystemMessage(f"Order {state['order']}. {task}"), *state["messages"]]
        return model.bind_tools(tools).invoke(prompt)

    def act(message: AnyMessage, tools: list[BaseTool]) -> list[Any]:
        by_name = {tool.name: tool for tool in tools}
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        return [by_name[call["name"]].invoke(call) for call in calls]

    def plan(state: Refund) -> dict[str, Any]:
        return {"messages": ask(state, "Look up what a refund needs.", lookups)}

    def decide(state: Refund) -> dict[str, Any]:
        return {"messages": ask(state, "Decide on the refund.", actions)}

    def settle(state: Refund) -> dict[str, Any]:
        """One action after the other: no ticket for a refund that was refused."""
        return {"messages": act(state["messages"][-1], actions)}

    def inform(state: Refund) -> dict[str, Any]:
        message = ask(state, "Tell the customer.", mails)
        return {"messages": [message, *act(message, mails)]}

    graph = StateGraph(Refund)
    graph.add_edge(START, "plan")
    nodes: list[Any] = [plan, ("look_up", ToolNode(lookups)), decide, settle, inform]
    graph.add_sequence(nodes)
    return graph
