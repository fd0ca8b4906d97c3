"""A refund agent is killed half way: once with DurableGraph, once with LangGraph's own checkpointer.

    python demo/demo.py [--kill-at STEP[:after]]

Each process is a real one and dies of a real SIGKILL. They are forks of this one, which has imported everything before.
What is printed was measured in this run; whether a step ran is read from the ledger of requests to the outside world.
The exit code is 1 if the promise does not hold.
"""

import argparse
import gc
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from side import FORK, Side, paint, say

EFFECTS = {"refund_card": "refund", "open_ticket": "ticket", "send_mail": "mail"}
STEPS = ["plan", "look_up_order", "look_up_customer", "decide", "inform", *EFFECTS]


def main() -> int:
    began = time.monotonic()
    kill_at = arguments().kill_at
    say("A refund agent is killed half way.", "bold")
    say("plan → look_up (two lookups at once) → decide → settle (refund, then ticket) → inform (mail)", "dim")
    with tempfile.TemporaryDirectory(prefix="durable-demo-") as folder:
        ours, native = Side(Path(folder, "durable")), Side(Path(folder, "native"))
        try:
            native_waits = tell_the_story(ours, native, kill_at)
            holds = compare(ours, native, native_waits)
        finally:
            ours.close()
            native.close()
    say(f"\n{time.monotonic() - began:.1f} s", "dim")
    return 0 if holds else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kill-at",
        metavar="STEP[:after]",
        default="open_ticket",
        choices=[*STEPS, *(f"{step}:after" for step in STEPS)],
        help=f"the step to kill in, before its effect or right after it: {', '.join(STEPS)}; default: open_ticket",
    )
    return parser.parse_args()


def tell_the_story(ours: Side, native: Side, kill_at: str) -> bool:
    """Both sides, one after the other; whether the native one waited for somebody to resume it."""
    gc.disable()  # imports are a seventh faster, and nothing here lives for long
    import worker  # takes a while; by now there is something to read

    resume = FORK.Event()
    native.fork(worker.start_native, kill_at)
    worker.warm_up(ours.folder)
    ours.fork(worker.start, kill_at)

    say("\nOne line more: app = DurableGraph(graph)", "bold", "cyan")
    ours.introduce(0, 'app.invoke({"order": 55}, run_id="order-55")')
    ours.show(0, ours.hangs)
    ours.kill()
    ours.fork(worker.recover)
    ours.tell_kill(kill_at)
    ours.introduce(1, "durable_agents.launch(), and nothing else: nobody calls resume")
    native.wait(native.hangs)
    native.kill()
    native.fork(worker.resume_native, resume)
    ours.show(1, ours.is_over)
    tell_outcome(ours)

    say("\nThe same graph, killed in the same place: compile(checkpointer=SqliteSaver(…))", "bold", "cyan")
    native.introduce(0, 'graph.invoke({"order": 55}, config)')
    native.show(0, native.hangs)
    native.tell_kill(kill_at)
    native.introduce(1, "has the graph and its checkpoints")
    shown = native.show(1, lambda: bool(native.lines(1)))
    waits = not native.ran(1)
    idle = f"nothing has run for {native.age(1):.1f} s" if waits else "it goes on by itself"
    say(f"  {native.age(1):5.2f} s   {paint(idle, 'yellow')}")
    native.introduce(1, "graph.invoke(None, config): somebody has noticed")
    resume.set()
    native.show(1, native.is_over, shown)
    tell_outcome(native)
    return waits


def tell_outcome(side: Side) -> None:
    """What was not run again, and what happened in the world outside."""
    kept = [step for step in side.ended(0) if step not in side.ended(1)]
    if kept:
        say(f"            not entered again: {', '.join(kept)}", "dim")
    done, asked = side.effects(), Counter(side.ran(0) + side.ran(1))
    counts = [f"{done[step]} {name}{'s' * (done[step] != 1)}" for step, name in EFFECTS.items()]
    same_key = [f"; {asked[step]} times {step} with one key" for step in EFFECTS if asked[step] > done[step]]
    say(f"  ledger    {paint(', '.join(counts), 'bold')}{''.join(same_key)}")


def compare(ours: Side, native: Side, native_waits: bool) -> bool:
    """The two side by side; whether the promise holds."""
    killed, finished = ours.processes[0].exitcode == -signal.SIGKILL, ours.processes[1].exitcode == 0
    once = all(
        ours.effects()[step] == 1 for step in EFFECTS if step == "refund_card" or step not in ours.cut()
    )
    holds = killed and finished and once and not ours.repeated()
    went_on = f"by itself, {ours.first_new():.2f} s after" if finished else "no"
    rows = [
        ("", "DurableGraph", "SqliteSaver"),
        ("went on after the kill", went_on, "when somebody resumed it" if native_waits else "by itself"),
        ("finished steps that ran again", *(", ".join(side.repeated()) or "none" for side in (ours, native))),
        ("refunds", *(str(side.effects()["refund_card"]) for side in (ours, native))),
    ]
    say()
    for number, (what, here, there) in enumerate(rows):
        good, bad = (("bold",), ("bold",)) if number == 0 else (("green" if holds else "red",), ("yellow",))
        say(f"{what:<31} {paint(f'{here:<27}', *good)} {paint(there, *bad)}")
    say()
    for note in notes(ours, native):
        say(note, "dim")
    say("The promise holds." if holds else "THE PROMISE DOES NOT HOLD.", "bold", "green" if holds else "red")
    return holds


def notes(ours: Side, native: Side) -> list[str]:
    """What is to be said in fairness."""
    found = []
    if "refund_card" in native.repeated():
        found += [
            "LangGraph keeps the nodes that finished. One that did not starts again from its top, and this one",
            "had paid: a node for each tool, or a key made from the order, would have saved that refund too.",
        ]
    found += [
        "An effect and its record cannot be one act: a kill just between them repeats that one step, with the"
    ]
    if cut := ours.cut():
        found += [f"same idempotency key, which the card provider looks at. Here it was {' and '.join(cut)}."]
    else:
        found += ["same idempotency key, which the card provider looks at: see --kill-at refund_card:after."]
    return found


if __name__ == "__main__":
    sys.exit(main())
