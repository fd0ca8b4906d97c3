"""Bad days, and the tests that go through them: which test it is that a line of this table rests on.

Those of the core stand beside this file, those with a framework's agent in `integrations/langgraph/tests`.
"""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parents[1] / "integrations" / "langgraph" / "tests")

BAD_DAYS: dict[str, tuple[str, ...]] = {
    "a result that cannot be encoded": (
        "test_steps::test_an_opaque_leaf_goes_on_live_and_stops_a_replay",
        "test_steps::test_an_opaque_container_runs_again_over_its_steps",
        "test_rebuild::test_it_is_made_again_out_of_the_records",
    ),
    "a state that cannot be encoded": (
        "test_graph::test_types_of_the_schema_are_stored_and_others_are_refused_when_written",
    ),
    "two runners with one name": ("test_launch::test_two_runners_of_one_name_are_an_error",),
    "an unreachable, read-only, locked or full database": (
        "test_database_trouble::test_a_step_that_is_done_waits_for_the_database_and_is_not_done_again",
        "test_database_trouble::test_a_run_that_ends_or_parks_waits_for_the_database",
        "test_database_trouble::test_a_database_that_is_unwell_at_launch_is_said_at_once",
        "test_database_trouble::test_a_process_ends_although_the_database_is_unwell",
    ),
    "a database of a newer version": (
        "test_schema::test_a_database_of_a_newer_version_is_refused_and_left_as_it_is",
        "test_schema::test_an_integration_whose_tables_are_newer_is_refused",
        "test_schema::test_what_is_missing_in_the_tables_of_dbos_is_named",
    ),
    "a run id with another input": ("test_runs::test_another_input_thread_or_runner_is_an_error",),
    "an unknown run id": ("test_runs::test_an_unknown_id_is_an_error",),
    "answering a run that does not wait": ("test_waits::test_only_waiting_runs_take_answers",),
    "answering twice the same, twice differently": (
        "test_waits::test_the_same_answer_again_is_no_error_and_another_one_is",
        "test_waits::test_the_same_answer_again_while_the_next_question_is_open",
    ),
    "four processes that answer at once": (
        "test_answers_race::test_of_four_processes_that_answer_at_once_one_is_accepted",
    ),
    "killed in the middle of an answer": (
        "test_kills_at_commits::test_a_run_survives_a_kill_at_the_commit_that_moves_it",
        "test_waits::test_an_answer_in_another_process_and_a_crash_right_after_it",
    ),
    "cancelling a finished run": ("test_runs::test_cancel_of_a_run_that_is_over_changes_nothing",),
    "an exception class with an odd constructor": (
        "test_codec::test_an_error_with_strange_arguments_is_still_an_error",
        "test_codec::test_an_error_is_read_without_running_its_class",
    ),
    "exceptions, KeyboardInterrupt and SystemExit in a node": (
        "test_interrupts::test_a_base_exception_releases_the_run_and_reaches_the_caller",
        "test_replay::test_ctrl_c_and_exit_in_a_node_reach_the_caller_and_the_run_goes_on",
        "test_replay::test_an_error_in_a_node_ends_the_run_with_it",
    ),
    "a task group that wraps our stop": (
        "test_interrupts::test_a_stop_wrapped_by_a_task_group_still_parks_the_run",
    ),
    "a framework that swallows our stop": (
        "test_interrupts::test_a_swallowed_stop_still_parks_the_run",
        "test_interrupts::test_no_new_step_starts_after_a_swallowed_stop",
    ),
    "a cancelled waiter": (
        "test_steps::test_a_cancelled_caller_of_a_step_does_not_cancel_its_record",
        "test_interrupts::test_a_cancelled_caller_detaches_and_the_run_goes_on",
    ),
    "a prompt that contains the time": (
        "test_steps::test_a_model_with_another_prompt_is_served",
        "test_replay::test_a_model_asked_with_the_time_is_served_in_an_async_node",
    ),
    "a tool whose arguments changed on replay": (
        "test_steps::test_a_tool_with_other_arguments_stops_the_run",
    ),
    "a fork after launch": (
        "test_launch::test_a_forked_child_launches_an_engine_of_its_own",
        "test_launch::test_a_forked_child_does_not_keep_its_parent_alive",
        "test_dying_workers::test_a_child_that_outlives_a_killed_worker_does_not_keep_it_alive",
    ),
    "a clock an hour off": (
        "test_living_workers::test_clocks_that_are_an_hour_off_and_jump_matter_to_nobody",
        "test_living_workers::test_a_run_is_taken_over_by_a_worker_whose_clock_is_two_hours_behind",
    ),
    "a lost acknowledgement of a commit": (
        "test_lost_acknowledgements::test_a_caller_whose_connection_breaks_goes_on_as_if_nothing_had_happened",
        "test_lost_acknowledgements::test_a_pause_that_was_answered_and_goes_on_elsewhere_is_not_taken_back",
        "test_database_trouble::test_a_record_whose_acknowledgement_was_lost_is_written_once",
    ),
}


@pytest.mark.parametrize("day", BAD_DAYS)
def test_every_bad_day_has_its_tests(day: str) -> None:
    for named in BAD_DAYS[day]:
        module, _, test = named.partition("::")
        found = [file for folder in FOLDERS if (file := folder / f"{module}.py").exists()]
        assert found, f"there is no {module}.py"
        assert re.search(rf"^(async )?def {test}\(", found[0].read_text(), re.MULTILINE), named
