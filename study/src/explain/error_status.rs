//! Sentences about answers and events that are errors.

use std::time::Duration;

use listwatch::{client::Error, resource::Status, watch::EndReason};

use super::{Explainer, OpenExchange, followed::Unauthorized, rule::Rule};
use crate::record::Entry;

impl Explainer {
    /// An answer that is an error.
    pub(super) fn refused(&mut self, entry: &Entry, lasted: Duration) {
        let Some(OpenExchange { head: Some(head), body, collection, target, is_again, .. }) =
            self.exchanges.get(&entry.exchange)
        else {
            return;
        };
        let followed = collection.as_ref().and_then(|key| self.collections.get_mut(key));
        let error = Error::answered(head.status, &head.headers, body);
        let status = error.status().cloned().unwrap_or_default();
        let (code, how) = (status.code, EndReason::of(&error));
        let message = match status.message.trim_end_matches('.') {
            "" => String::new(),
            _ if self.is_brief => String::new(),
            message => format!(": {message}"),
        };
        let is_html = head.headers.get("content-type").is_some_and(|kind| kind.starts_with("text/html"));
        let is_streaming = followed.as_ref().is_some_and(|followed| followed.machine.is_streaming());
        let back_off = if followed.is_some() { " → back off" } else { "" };
        let (rule, text) = match code {
            _ if how == EndReason::Expired || how == EndReason::TooNew => event_error(&status),
            401 if *is_again => {
                let text = "the credentials were read again, and are not valid either: the client gives up";
                (Rule::Unauthorized, format!("401{message}: {text}{back_off}"))
            }
            401 => {
                self.unauthorized.insert(target.clone(), entry.time);
                if let Some(followed) = followed {
                    followed.unauthorized =
                        Some(Unauthorized { target: target.clone(), lasted, ended: entry.time });
                }
                let text = "the credentials are not valid → read them again, if from a file or plugin, and try once more";
                self.say(Rule::Unauthorized, format!("401{message}: {text}"));
                self.exchanges.remove(&entry.exchange);
                return;
            }
            _ if is_html => {
                let text = "an HTML page and no Status: probably not from the API server, but from a proxy before it";
                (Rule::NotTheServer, format!("{code}, {text}{back_off}"))
            }
            403 => {
                let grant = grant(&status.message).map(|grant| format!("; {grant}")).unwrap_or_default();
                let rule = if followed.is_some() { Rule::Forbidden } else { Rule::NoPermission };
                (rule, format!("403{message}{grant}{back_off}"))
            }
            404 if followed.is_some() => {
                let text = "the server has no such resource → back off, as its CRD may come";
                (Rule::NoResource, format!("404{message}: {text}"))
            }
            404 => (Rule::NoObject, format!("404{message}: the same request may succeed later")),
            422 if is_streaming => {
                let text = "this server has no streaming lists → list in pages from now on";
                (Rule::NoStreamingLists, format!("422{message}: {text}"))
            }
            429 => (Rule::TooManyRequests, format!("429{message}: the server is overloaded{back_off}")),
            500.. => {
                let text = "the server, or a proxy before it, cannot answer now";
                (Rule::Unavailable, format!("{code}{message}: {text}{back_off}"))
            }
            _ => {
                let list = if followed.is_some() {
                    ", unless something else changes → back off, then list"
                } else {
                    ""
                };
                (Rule::Refused, format!("{code}{message}: the same request would fail again{list}"))
            }
        };
        self.ends(entry.exchange, rule, text, how, lasted);
    }
}

/// About a 410 or another error that ends a watch or a list.
pub(super) fn event_error(status: &Status) -> (Rule, String) {
    let Status { code, message, .. } = status;
    if status.is_expired() {
        let text = format!(
            "{code} ({message}): the server no longer has every change after our version → list again"
        );
        return (Rule::Expired, text);
    }
    if status.is_too_new() {
        let text = format!(
            "{code} ({message}): the server has not reached that version, as after a restored backup"
        );
        return (Rule::TooNew, text + " → list");
    }
    (Rule::Failed, format!("ERROR {code} ({message}) ends the watch"))
}

/// The rule that would allow a request, from the message of a 403:
/// `… cannot list resource "pods" in API group "" in the namespace "web"`.
pub fn grant(message: &str) -> Option<String> {
    let (verb, about) = message.split_once(" cannot ")?.1.split_once(' ')?;
    let mut words = about.split('"');
    let (what, name) = (words.next()?.trim(), words.next()?);
    let role = if about.contains(" in the namespace ") { "Role" } else { "ClusterRole" };
    if what == "path" {
        return Some(format!(
            "a {role} with {{nonResourceURLs: [\"{name}\"], verbs: [\"{verb}\"]}} would allow it"
        ));
    }
    let group = words.nth(1)?;
    Some(format!(
        "a {role} with {{apiGroups: [\"{group}\"], resources: [\"{name}\"], verbs: [\"{verb}\"]}} would allow it"
    ))
}
