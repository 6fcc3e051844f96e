//! The lines of the demo: who did what, short or, with `-v`, in full. Nothing in this file does I/O.
//!
//! ```text
//!     8 ms  operator  create   deployments/mws-web
//!    36 ms  server    MODIFIED web: 1 of 2 replicas are updated and available
//! ```

use std::{collections::HashMap, fmt, time::Duration};

use http::StatusCode;
use listwatch_apiserver::RequestRecord;
use listwatch_study::{explain::Sentence, object::changes, place::Place, wrap::wrap};
use serde_json::{Value, json};

use super::stories::{ALWAYS, Reason};

/// The author of a request or an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Actor {
    /// The tour, or a user with kubectl.
    Kubectl,
    /// The operator.
    Operator,
    /// The API server, which sends watch events.
    Server,
}

/// The format of the lines, and the objects that exist.
#[derive(Debug, Default)]
pub(super) struct Printer {
    is_full: bool,
    is_colored: bool,
    /// Of the terminal, if there is one.
    width: Option<usize>,
    /// The object of its last watch event, by uid.
    objects: HashMap<String, Value>,
    /// Why the operator sends its requests in the present scene.
    pub(super) reasons: &'static [Reason],
}

impl Printer {
    pub(super) fn new(is_full: bool, is_colored: bool, width: Option<usize>) -> Printer {
        Printer { is_full, is_colored, width, ..Printer::default() }
    }

    /// A text whose lines fit the terminal. Whole requests and events are not broken.
    pub(super) fn fit(&self, text: &str) -> String {
        let Some(width) = self.width.filter(|_| !self.is_full) else { return text.to_owned() };
        let indent = |line: &str| line.len() - line.trim_start_matches([' ', '#']).len();
        text.lines().map(|line| wrap(line, width, indent(line))).collect::<Vec<_>>().join("\n")
    }

    /// A command of the tour.
    pub(super) fn command(&self, command: &str) -> String {
        self.colored("1", &format!("$ {command}"))
    }

    /// Whether a request is shown. The tour itself polls the state of the objects, and the operator's client requests the
    /// version of the server on each new connection.
    pub(super) fn shows(&self, actor: Actor, request: &RequestRecord) -> bool {
        match actor {
            Actor::Kubectl => request.method != "GET",
            Actor::Operator | Actor::Server => self.is_full || request.path != "/version",
        }
    }

    /// A sentence about an answer to the operator.
    pub(super) fn sentence(&self, after: Duration, sentence: &Sentence) -> String {
        let mistake = sentence.mistake.map(|mistake| format!("\n          # {mistake}"));
        let text = self.fit(&format!("          # {sentence}{}", mistake.unwrap_or_default()));
        // In place of the spaces, which are the indent of its other lines.
        let after = format!("{:>5} ms", after.as_millis());
        self.colored("2", &text.replacen("        ", &after, 1))
    }

    /// A request, as verb, resource and name, its status if that is an error, and why the operator sends it.
    pub(super) fn request(&self, after: Duration, actor: Actor, request: &RequestRecord) -> String {
        let RequestRecord { method, path, name, query, status, .. } = request;
        if self.is_full {
            let mark = if query.is_empty() { "" } else { "?" };
            return self.line(after, actor, format_args!("{method} {path}{mark}{query}  {status}"));
        }
        let place = Place::of(path);
        let namespace = place.as_ref().and_then(|place| place.namespace);
        let is_named = place.as_ref().is_none_or(|place| place.name.is_some());
        let verb = verb(method, is_named, query);
        let resource = match place {
            // The names of Events are numbers.
            Some(place) if place.plural() == "events" => "events".to_owned(),
            Some(place) => [Some(place.plural()), place.name, place.subresource]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("/"),
            None => path.clone(),
        };
        // The tour is in the namespace default, apart from copies.
        let place = namespace
            .filter(|name| *name != "default")
            .map_or_else(String::new, |name| format!(" in {name}"));
        let name = if name.is_empty() || resource == "events" { String::new() } else { format!("/{name}") };
        let error = StatusCode::from_u16(*status).ok().filter(|status| status.as_u16() >= 400);
        let error = error.map_or_else(String::new, |status| format!(": {status}"));
        let reason = match actor {
            Actor::Operator if verb == "delete" && *status == 404 => Some("already gone"),
            Actor::Operator => self.reason(&format!("{verb} {resource}{name}")),
            Actor::Kubectl | Actor::Server => None,
        };
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        self.line(after, actor, format_args!("{verb:8} {resource}{name}{place}{error}{reason}"))
    }

    fn reason(&self, request: &str) -> Option<&'static str> {
        if request.ends_with("/status") {
            return Some("reports the state");
        }
        let mut all = self.reasons.iter().chain(ALWAYS);
        all.find(|(start, _)| request.starts_with(start)).map(|(_, reason)| *reason)
    }

    /// A watch event: its type, the object's name, and the most important change since the last event.
    pub(super) fn event(&mut self, after: Duration, line: &str) -> String {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let object = &event["object"];
        let (Some(kind), Some(name), Some(uid), false) = (
            event["type"].as_str(),
            object["metadata"]["name"].as_str(),
            object["metadata"]["uid"].as_str(),
            self.is_full,
        ) else {
            return self.line(after, Actor::Server, format_args!("{line}"));
        };
        let change = match kind {
            "DELETED" => {
                self.objects.remove(uid);
                None
            }
            _ => {
                let before = self.objects.insert(uid.to_owned(), object.clone());
                before.map_or_else(
                    || object.get("spec").map(|spec| format!("spec {spec}")),
                    |before| change(&before, object),
                )
            }
        };
        let change = change.map(|change| {
            let change = if change.starts_with("Ready=True") { self.colored("32", &change) } else { change };
            format!(": {change}")
        });
        self.line(after, Actor::Server, format_args!("{kind:8} {name}{}", change.unwrap_or_default()))
    }

    fn line(&self, after: Duration, actor: Actor, text: fmt::Arguments<'_>) -> String {
        let (name, color) = match actor {
            Actor::Kubectl => ("kubectl", "33"),
            Actor::Operator => ("operator", "36"),
            Actor::Server => ("server", "35"),
        };
        let after = self.colored("2", &format!("{:>5} ms", after.as_millis()));
        let line = format!("{after}  {}  {text}", self.colored(color, &format!("{name:8}")));
        match self.width {
            // Under the text.
            Some(width) if !self.is_full => wrap(&line, width, 20),
            Some(_) | None => line,
        }
    }

    /// See <https://en.wikipedia.org/wiki/ANSI_escape_code#Select_Graphic_Rendition_parameters>.
    fn colored(&self, code: &str, text: &str) -> String {
        if self.is_colored { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The verb of the request, as in a Role.
fn verb(method: &str, is_named: bool, query: &str) -> &'static str {
    match method {
        "GET" if query.split('&').any(|pair| pair == "watch=1" || pair == "watch=true") => "watch",
        "GET" if is_named => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if is_named => "delete",
        "DELETE" => "deletecollection",
        _ => "send",
    }
}

/// The most important change: the request to delete the object, or a change of the spec, of the condition `Ready`, or of another
/// condition; otherwise, all changes.
fn change(before: &Value, now: &Value) -> Option<String> {
    let deleted = &now["metadata"]["deletionTimestamp"];
    if before["metadata"]["deletionTimestamp"] != *deleted {
        return Some(format!("metadata.deletionTimestamp absent → {deleted}"));
    }
    let spec = changes(&json!({"spec": before["spec"]}), &json!({"spec": now["spec"]}));
    if !spec.is_empty() {
        return Some(spec);
    }
    let conditions = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let known = conditions(before);
    let mut changed = conditions(now);
    changed.retain(|condition| !known.contains(condition));
    // `false` comes first.
    changed.sort_by_key(|condition| condition["type"] != "Ready");
    for condition in changed {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let is_same = |field: &str| {
            known.iter().any(|old| old["type"] == condition["type"] && old[field] == condition[field])
        };
        if !is_same("status") || !is_same("reason") {
            return Some(format!("{}={} {}", text("type"), text("status"), text("reason")));
        }
        if text("type") == "Ready" && !is_same("message") {
            return Some(text("message").to_owned());
        }
    }
    let change = changes(before, now);
    (!change.is_empty()).then_some(change)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn event(kind: &str, replicas: i32, conditions: &Value) -> String {
        let object = json!({"metadata": {"name": "web", "uid": "1"}, "spec": {"replicas": replicas}, "status": {"conditions": conditions}});
        json!({"type": kind, "object": object}).to_string()
    }

    #[test]
    fn a_request_is_a_verb_a_resource_and_a_name() {
        for (method, path, query, status, expected) in [
            ("POST", "/api/v1/namespaces/default/services", "", 201, "create   services/new"),
            (
                "POST",
                "/apis/events.k8s.io/v1/namespaces/default/events",
                "",
                201,
                "create   events: for kubectl describe",
            ),
            ("PATCH", "/apis/events.k8s.io/v1/namespaces/default/events/web.1", "", 200, "patch    events"),
            ("GET", "/apis/k8sobjects.gsa.com/v2/mywebservers", "limit=100", 200, "list     mywebservers"),
            ("GET", "/apis/apps/v1/deployments", "watch=1&timeoutSeconds=300", 200, "watch    deployments"),
            (
                "GET",
                "/apis/apps/v1/namespaces/a/deployments/b",
                "",
                404,
                "get      deployments/b in a: 404 Not Found",
            ),
            (
                "PATCH",
                "/apis/g/v2/namespaces/a/mywebservers/web/status",
                "",
                200,
                "patch    mywebservers/web/status in a: reports the state",
            ),
            (
                "PATCH",
                "/api/v1/namespaces/default/services/web",
                "",
                200,
                "patch    services/web: removes the port",
            ),
            ("DELETE", "/api/v1/namespaces/a", "", 200, "delete   namespaces/a"),
            ("DELETE", "/api/v1/namespaces/a", "", 404, "delete   namespaces/a: 404 Not Found: already gone"),
            ("POST", "/api/v1/namespaces/a/configmaps", "", 201, "create   configmaps/new in a"),
            ("DELETE", "/api/v1/namespaces/a/pods", "", 200, "deletecollection pods in a"),
            ("GET", "/version", "", 200, "get      /version"),
        ] {
            let request = RequestRecord {
                id: 1,
                connection: 1,
                method: method.to_owned(),
                path: path.to_owned(),
                name: if method == "POST" { "new".to_owned() } else { String::new() },
                query: query.to_owned(),
                user_agent: String::new(),
                user: String::new(),
                status,
                received: SystemTime::UNIX_EPOCH,
                time: SystemTime::UNIX_EPOCH,
                version: 1,
                list_version: String::new(),
                baggage: String::new(),
            };
            let print = Printer { reasons: &[("patch services", "removes the port")], ..Printer::default() };
            let line = print.request(Duration::from_millis(8), Actor::Operator, &request);
            assert_eq!(line, format!("    8 ms  operator  {expected}"));
        }
    }

    #[test]
    fn an_event_shows_the_most_important_change_since_the_last_one() {
        let ready = |message: &str| json!({"type": "Ready", "status": "False", "reason": "RolloutInProgress", "message": message});
        let available = json!({"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"});
        let mut lines = Printer::default();
        for (kind, replicas, conditions, expected) in [
            ("ADDED", 2, json!([]), "ADDED    web: spec {\"replicas\":2}"),
            ("MODIFIED", 2, json!([ready("0 of 2")]), "MODIFIED web: Ready=False RolloutInProgress"),
            ("MODIFIED", 2, json!([available, ready("1 of 2")]), "MODIFIED web: 1 of 2"),
            ("MODIFIED", 3, json!([ready("1 of 2"), available]), "MODIFIED web: spec.replicas 2 → 3"),
            (
                "MODIFIED",
                3,
                json!([ready("1 of 2")]),
                "MODIFIED web: status.conditions[Available] {…} → absent",
            ),
            (
                "MODIFIED",
                3,
                json!([ready("1 of 2"), available]),
                "MODIFIED web: Available=True MinimumReplicasAvailable",
            ),
            ("DELETED", 3, json!([ready("1 of 2"), available]), "DELETED  web"),
        ] {
            let line = lines.event(Duration::from_millis(36), &event(kind, replicas, &conditions));
            assert_eq!(line, format!("   36 ms  server    {expected}"));
        }
        assert!(lines.objects.is_empty(), "a deleted object is kept");
    }

    #[test]
    fn the_request_to_delete_an_object_is_its_most_important_change() {
        let mut lines = Printer::default();
        let mut object = json!({"metadata": {"name": "web", "uid": "1", "generation": 1}});
        lines.event(Duration::ZERO, &json!({"type": "ADDED", "object": object}).to_string());
        object["metadata"] = json!({"name": "web", "uid": "1", "generation": 2, "deletionTimestamp": "2026-11-23T15:52:50Z",
            "deletionGracePeriodSeconds": 0});
        let line = lines.event(Duration::ZERO, &json!({"type": "MODIFIED", "object": object}).to_string());
        let expected =
            "    0 ms  server    MODIFIED web: metadata.deletionTimestamp absent → \"2026-11-23T15:52:50Z\"";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_line_is_broken_between_words_at_the_width_of_the_terminal() {
        let mut lines = Printer::new(false, true, Some(60));
        let line =
            lines.event(Duration::ZERO, &event("ADDED", 2, &json!([{"type": "Ready", "message": "x"}])));
        assert!(!line.contains('\n'), "{line}");
        let long = "a message of so many words that it does not fit the line";
        let ready = json!([{"type": "Ready", "message": long}]);
        let line = lines.event(Duration::ZERO, &event("MODIFIED", 2, &ready));
        let expected =
            "\x1b[2m    0 ms\x1b[0m  \x1b[35mserver  \x1b[0m  MODIFIED web: a message of so many words\n";
        assert_eq!(line, format!("{expected}{:20}that it does not fit the line", ""));
    }

    #[test]
    fn a_full_line_is_the_watch_event_as_it_was_sent() {
        let mut lines = Printer::new(true, false, Some(20));
        let event = event("ADDED", 2, &json!([]));
        assert_eq!(lines.event(Duration::ZERO, &event), format!("    0 ms  server    {event}"));
    }
}
