//! The mistakes of docs/reliability.md that a [`Rule`] avoids, each with the section of docs/watch.md that has the rule, and a
//! test that shows what the operator does instead.

use std::fmt;

use super::rule::Rule;

/// A mistake, and a test. Displayed after the first sentence that is about the mistake.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    pub(super) rules: &'static [Rule],
    pub(super) number: u8,
    pub(super) title: &'static str,
    /// Of docs/watch.md.
    pub(super) section: u8,
    pub(super) test: &'static str,
    pub(super) file: &'static str,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { number, title, section, test, file, .. } = self;
        write!(
            f,
            "avoids mistake {number}: {title} (docs/watch.md, section {section}; test: {test} in {file})"
        )
    }
}

impl Rule {
    /// The mistake that the rule avoids, if it is listed in docs/reliability.md.
    pub(super) fn mistake(self) -> Option<&'static Mistake> {
        MISTAKES.iter().find(|mistake| mistake.rules.contains(&self))
    }
}

const fn mistake(
    rules: &'static [Rule],
    number: u8,
    title: &'static str,
    section: u8,
    test: &'static str,
    file: &'static str,
) -> Mistake {
    Mistake { rules, number, title, section, test, file }
}

/// All of them, by number.
pub(super) static MISTAKES: [Mistake; 27] = [
    mistake(
        &[Rule::Listed],
        2,
        "resume from the newest of the listed objects",
        1,
        "the_first_watch_begins_at_the_version_of_the_list_not_of_its_objects",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        &[Rule::InitialEvents, Rule::NoVersion],
        3,
        "resume from an object of the initial events, which have no order",
        3,
        "an_aborted_streaming_list_leaves_no_phantom_and_no_version",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::Bookmark],
        5,
        "ignore a BOOKMARK",
        6,
        "a_watch_that_the_server_ends_is_resumed_from_its_last_bookmark",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        &[Rule::Failed],
        6,
        "decode ERROR as an object, or retry it in a hot loop",
        2,
        "an_error_about_what_comes_next_leads_past_it_by_a_list",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::Expired],
        7,
        "expect 410 in one form only",
        7,
        "an_expired_version_in_any_form_costs_one_list_and_loses_no_event",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        &[Rule::Swept],
        8,
        "merge a new list into the known objects",
        7,
        "a_deletion_that_no_watch_reported_is_found_by_the_next_list",
        "tests/it/watch.rs",
    ),
    mistake(
        &[Rule::NoList],
        8,
        "take 200 {\"metadata\":{}} from a proxy for an empty list",
        1,
        "an_object_without_items_or_version_is_no_empty_list",
        "src/resource/list.rs",
    ),
    mistake(
        &[Rule::Silent],
        13,
        "wait on a half-open connection for ever",
        9,
        "half_open_connections_are_replaced_within_two_minutes",
        "tests/it/network.rs",
    ),
    mistake(
        &[Rule::CleanEnd],
        14,
        "treat the end of a watch, which comes every few minutes, as an error",
        4,
        "ten_watches_that_end_normally_cost_no_list",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        &[Rule::VeryShort],
        14,
        "treat the end of a watch, which comes every few minutes, as an error",
        4,
        "a_watch_that_ends_at_once_is_backed_off_and_each_time_longer",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::HalfLine],
        15,
        "take half a line for an event, or for a fatal error",
        5,
        "a_watch_that_is_cut_mid_line_is_resumed",
        "tests/it/malformed_responses.rs",
    ),
    mistake(
        &[Rule::Garbled],
        15,
        "read on after a line that is not a watch event",
        5,
        "a_line_that_is_no_watch_event_is_logged_and_the_operator_lists_again",
        "tests/it/malformed_responses.rs",
    ),
    mistake(
        &[Rule::NotTheServer],
        16,
        "decode the body of an error response as events",
        14,
        "an_html_page_instead_of_a_list_is_reported_as_one",
        "tests/it/malformed_responses.rs",
    ),
    mistake(
        &[Rule::TooManyRequests, Rule::Unavailable],
        17,
        "retry at once, ignore Retry-After, or retry in step with other clients",
        14,
        "retry_after_is_the_least_pause",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::Deselected],
        18,
        "with a selector, take DELETED, or an object missing from a list, for a deletion",
        13,
        "objects_that_enter_or_leave_a_selection_are_added_or_deleted",
        "tests/it/selector.rs",
    ),
    mistake(
        &[Rule::Replaced],
        20,
        "take another object of the same name for the same object",
        13,
        "an_owner_that_is_created_again_gets_its_own_children",
        "tests/it/delete.rs",
    ),
    mistake(
        &[Rule::UnknownType],
        21,
        "fail on unknown fields, events, nulls and numbers, or lose them when writing",
        2,
        "unknown_events_are_passed_over",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::NoStreamingLists],
        24,
        "ask for streaming lists where the server has none",
        11,
        "a_server_without_streaming_lists_is_asked_for_pages_from_then_on",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::Unauthorized],
        25,
        "read tokens and certificates once",
        14,
        "a_token_that_is_refused_is_read_again",
        "tests/it/restart.rs",
    ),
    mistake(
        &[Rule::TooLarge],
        28,
        "ask again for a page that exceeds the read limit, with the same size",
        10,
        "a_page_that_is_too_large_is_asked_for_in_smaller_ones_which_grow_back",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::RepeatedToken],
        28,
        "follow a continue token that leads to the same token again, for ever",
        10,
        "a_page_may_be_empty_but_not_repeat_its_token",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::EmptyEnd, Rule::Cut, Rule::Checked, Rule::WentBack, Rule::TooNew],
        30,
        "watch from a future version, after a restored backup: the watch hangs in silence",
        8,
        "a_restored_backup_is_noticed_and_later_objects_are_forgotten",
        "tests/it/outage.rs",
    ),
    mistake(
        &[Rule::NoResource],
        34,
        "fail with 404 because the CRD is not installed yet",
        14,
        "without_the_crd_readyz_names_the_command_and_recovers",
        "tests/it/refused.rs",
    ),
    mistake(
        &[Rule::Forbidden],
        36,
        "stop watching after a 403",
        14,
        "a_watch_that_is_refused_while_lists_succeed_is_logged_once",
        "tests/it/watch_edge_cases.rs",
    ),
    mistake(
        &[Rule::Refused],
        36,
        "repeat a request that would fail again: after 400, 405, 406, or a check whose answer is too large",
        14,
        "a_refusal_that_may_pass_keeps_the_version_and_any_other_lists_again",
        "src/watch/tests.rs",
    ),
    mistake(
        &[Rule::Unreachable],
        37,
        "end when the server cannot be reached, or breaks off an answer",
        14,
        "the_operator_waits_for_an_unreachable_api_server",
        "tests/it/malformed_responses.rs",
    ),
    mistake(
        &[Rule::Late],
        37,
        "wait for ever for an answer that is not a watch",
        9,
        "an_answer_has_a_deadline_and_an_open_stream_has_none",
        "src/client/http/tests.rs",
    ),
];
