"""The quickstart is killed after the refund, and run again."""

from quickstart import goes_on

test_a_killed_run_finishes_when_the_program_is_started_again = goes_on("openai_agents")
