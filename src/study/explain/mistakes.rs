//! The mistakes of docs/reliability.md that a [`Rule`](super::Rule) avoids, each with a test that shows what the operator does
//! instead.

use std::fmt;

/// A mistake, and a test. Displayed where the mistake is named for the first time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(super) number: u8,
    pub(super) title: &'static str,
    pub(super) test: &'static str,
    pub(super) file: &'static str,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { number, title, test, file } = self;
        write!(f, "mistake {number} of docs/reliability.md: {title}; avoided, as tested by {test} in {file}")
    }
}

const fn mistake(number: u8, title: &'static str, test: &'static str, file: &'static str) -> Mistake {
    Mistake { number, title, test, file }
}

/// All of them, by number.
pub(super) static MISTAKES: [Mistake; 16] = [
    mistake(
        2,
        "resume from the newest of the listed objects",
        "the_first_watch_begins_at_the_version_of_the_list_not_of_its_objects",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        3,
        "resume from an object of the initial events, which have no order",
        "a_list_that_is_cut_midway_keeps_no_deleted_object",
        "tests/it/lists.rs",
    ),
    mistake(
        5,
        "ignore a BOOKMARK",
        "a_watch_that_the_server_ends_is_resumed_from_its_last_bookmark",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        7,
        "expect 410 in one form only",
        "an_expired_version_in_any_form_costs_one_list_and_loses_no_event",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        8,
        "merge a new list into the known objects",
        "a_deletion_that_no_watch_reported_is_found_by_the_next_list",
        "tests/it/watch.rs",
    ),
    mistake(
        13,
        "wait on a half-open connection for ever",
        "half_open_connections_are_replaced_within_two_minutes",
        "tests/it/network.rs",
    ),
    mistake(
        14,
        "treat the end of a watch, which comes every few minutes, as an error",
        "ten_watches_that_end_normally_cost_no_list",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        15,
        "take half a line for an event, or for a fatal error",
        "a_watch_that_is_cut_mid_line_is_resumed",
        "tests/it/malformed_responses.rs",
    ),
    mistake(
        17,
        "retry at once, ignore Retry-After, or retry in step with other clients",
        "retry_after_is_the_least_pause",
        "src/watch/tests.rs",
    ),
    mistake(
        18,
        "with a selector, take DELETED, or an object missing from a list, for a deletion",
        "objects_that_enter_or_leave_a_selection_are_added_or_deleted",
        "tests/it/selector.rs",
    ),
    mistake(
        20,
        "take another object of the same name for the same object",
        "an_owner_that_is_created_again_gets_its_own_children",
        "tests/it/delete.rs",
    ),
    mistake(
        21,
        "fail on unknown fields, events, nulls and numbers, or lose them when writing",
        "unknown_events_are_passed_over",
        "src/watch/tests.rs",
    ),
    mistake(
        24,
        "ask for streaming lists where the server has none",
        "a_server_without_streaming_lists_is_asked_for_pages_from_then_on",
        "src/watch/tests.rs",
    ),
    mistake(
        25,
        "read tokens and certificates once",
        "a_token_that_is_refused_is_read_again",
        "tests/it/restart.rs",
    ),
    mistake(
        30,
        "watch from a version of the future, after a restored backup: the watch hangs in silence",
        "a_restored_backup_is_noticed_and_later_objects_are_forgotten",
        "tests/it/outage.rs",
    ),
    mistake(
        34,
        "fail with 404 because the CRD is not installed yet",
        "without_the_crd_readyz_names_the_command_and_recovers",
        "tests/it/refused.rs",
    ),
];
