"""The world outside of the agent: orders, a card provider, tickets and mail.

Every request enters the ledger before it is answered. One can be told to hang: then a process can be killed.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger


@dataclass
class World:
    """What this process talks to.

    Args:
        folder: where the ledger lies.
        hang: `STEP` or `STEP:after`: the request that is never answered, without its effect or with it.
    """

    folder: Path = Path()
    hang: str = ""


WORLD = World()


def request(step: str, key: str = "") -> None:
    """One request: it has its effect, but only once for a key, and is answered."""
    _perhaps_hang(step)
    known = key and any(request.key == key for request in ledger.requests(WORLD.folder))
    ledger.enter(WORLD.folder, step, key, effect=not known)
    _perhaps_hang(f"{step}:after")


def _perhaps_hang(place: str) -> None:
    if place == WORLD.hang:
        (WORLD.folder / "hangs").touch()
        time.sleep(60)


def hangs(folder: Path) -> bool:
    """Whether a process waits for the request that is never answered."""
    return (folder / "hangs").exists()


def order(number: int) -> dict[str, Any]:
    request("look_up_order")
    return {"order": number, "item": "a blue lamp", "paid": 84.5}


def customer(number: int) -> dict[str, Any]:
    request("look_up_customer")
    return {"order": number, "name": "Ada", "mail": "ada@example.org"}


def refund(number: int, amount: float, key: str) -> str:
    request("refund_card", key)
    return f"refunded {amount:.2f} EUR for order {number}"


def ticket(number: int, text: str) -> str:
    request("open_ticket")
    return f"ticket {number}-1: {text}"


def mail(to: str, text: str) -> str:
    request("send_mail")
    return f"mail to {to}: {text}"
