"""Waiting for people: feedback to a flow's method, questions in a method, human input to a task."""

import time
from typing import Any

from crewai.flow.flow import and_, listen, or_, start
from crewai.flow.human_feedback import human_feedback

from crashmatrix import Answer, Resume, Scenario, Turn, World, scenario
from durable_agents.crewai import DurableCrew

from .flows import Quiet
from .kit import Model, agent, asked, charging, crew, final, kickoff, of_flow, task

ASK = Turn("r1", lambda app, **run: asked(app.kickoff(**run)))


def resume(feedback: str) -> Resume:
    def natively(app: Any) -> Any:
        return asked(app.resume(feedback))

    return Resume("r1", lambda app, run_id: asked(app.resume(feedback, run_id=run_id)), natively)


def _reviewed(world: World) -> type[Quiet]:
    class Review(Quiet):
        @start()
        def draft(self) -> str:
            world.effect("draft")
            self.state["draft"] = "v1"
            return "v1"

        @listen(draft)
        @human_feedback(message="fine?")
        def review(self, draft: str) -> str:
            world.effect("review")
            self.state["seen"] = draft
            return draft + "!"

        @listen(review)
        def publish(self, result: Any) -> str:
            world.effect(f"publish {result.feedback}")
            return f"{result.feedback} {result.output} {self.state['seen']}"

    return Review


@scenario
def feedback_resumed(world: World) -> Scenario:
    return of_flow(world, _reviewed(world), ASK, resume("great"))


@scenario
def feedback_answered(world: World) -> Scenario:
    answer = Answer("r1", "great", native=lambda app: app.resume("great"))
    return of_flow(world, _reviewed(world), ASK, answer)


@scenario
def feedback_loop(world: World) -> Scenario:
    """What a person says is classified by a model and routes the flow, back to the draft or on."""
    model = Model(
        model="fake/judge",
        world=world,
        label="judge",
        plan=lambda done, told: "rejected" if "no, again" in told else "approved",
    )

    class Loop(Quiet):
        @start()
        def begin(self) -> str:
            self.state["drafts"] = 0
            return "begun"

        @listen(or_(begin, "rejected"))
        @human_feedback(message="fine?", emit=["approved", "rejected"], llm=model)
        def draft(self) -> str:
            self.state["drafts"] += 1
            world.effect(f"draft {self.state['drafts']}")
            return f"draft {self.state['drafts']}"

        @listen("approved")
        def publish(self, result: Any) -> str:
            world.effect("publish")
            return f"{result.output} {result.feedback} {self.state['drafts']}"

    return of_flow(world, Loop, ASK, resume("no, again"), resume("yes"), native=False)


@scenario
def feedback_beside_others(world: World) -> Scenario:
    """The methods beside the one that waits come to their end, and do not run again."""
    charge = charging(world)

    class Beside(Quiet):
        @start()
        def begin(self) -> str:
            self.state["log"] = []
            return "b"

        @listen(begin)
        @human_feedback(message="fine?")
        def review(self) -> str:
            self.state["log"].append("review")
            return "r"

        @listen(begin)
        def work(self) -> str:
            time.sleep(0.02)
            world.effect("work")
            self.state["log"].append(charge.run(amount=1))
            return "w"

        @listen(work)
        def more(self) -> str:
            world.effect("more")
            self.state["log"].append("more")
            return "m"

        @listen(and_(review, more))
        def end(self) -> Any:
            world.effect("end")
            return sorted(self.state["log"])

    return of_flow(world, Beside, ASK, resume("ok"), native=False)


@scenario
def own_provider(world: World) -> Scenario:
    """A provider of the user's own tells somebody, once."""
    from crewai.flow.async_feedback.types import HumanFeedbackPending

    class Told:
        def request_feedback(self, context: Any, flow: Any) -> str:
            world.effect(f"tell of {context.method_output}")
            raise HumanFeedbackPending(context, {"ticket": 7})

    class Own(Quiet):
        @start()
        @human_feedback(message="fine?", provider=Told())
        def draft(self) -> str:
            world.effect("draft")
            return "v1"

        @listen(draft)
        def publish(self, result: Any) -> str:
            world.effect("publish")
            return f"{result.feedback} {result.output}"

    return of_flow(world, Own, ASK, resume("great"))


@scenario
def asking_method(world: World) -> Scenario:
    """`Flow.ask` in the middle of a method, twice, with a step between."""
    charge = charging(world)

    class Form(Quiet):
        @start()
        def fill(self) -> str:
            name = self.ask("name?")
            paid = charge.run(amount=1)
            town = self.ask("town?")
            self.state["form"] = [name, town]
            return f"{name} {paid} {town}"

        @listen(fill)
        def end(self, form: str) -> str:
            world.effect("end")
            return form

    return of_flow(world, Form, kickoff("kickoff"), Answer("r1", "ann"), Answer("r1", "rome"), native=False)


@scenario
def human_input(world: World) -> Scenario:
    """A person sends an agent's answer back, then accepts it."""

    def plan(done: int, told: str) -> Any:
        return final("second answer") if "be polite AGAIN" in told else final("first answer")

    clerk = agent(world, plan, [charging(world)])
    made = crew([clerk], [task("answer", clerk, human_input=True)])
    return Scenario(
        runner=DurableCrew(made, "crew"),
        turns=[kickoff("kickoff"), Answer("r1", "be polite AGAIN"), Answer("r1", "")],
    )
