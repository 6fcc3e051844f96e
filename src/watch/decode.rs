//! Decodes the body of a watch: bytes in, watch events out. Nothing in this file does I/O.
//!
//! The body is one JSON object per line:
//!
//! ```json
//! {"type":"ADDED","object":{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","resourceVersion":"1206"}}}
//! {"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Service","metadata":{"resourceVersion":"1300"}}}
//! {"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}
//! ```
//!
//! The bytes come in pieces of any size, cut anywhere, also in the middle of a character. Only `\n` ends a line.

use std::{borrow::Cow, fmt, marker::PhantomData, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use smol_str::SmolStr;

use crate::resource::{Resource, Status, list::Found};

/// Longest line that we accept, in bytes. etcd refuses objects above 1.5 MiB; as JSON, whose escapes can take six bytes
/// for one (`<` becomes `\u003c`), such an object is a line of up to 9 MiB.
pub(crate) const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The capacity in bytes that an empty buffer keeps: a watch is mostly idle, and a process may have thousands of them. A
/// Deployment has 5 kB.
const BUFFER_BYTES_KEPT: usize = 8 * 1024;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    /// The start of the first line that was not handed out.
    start: usize,
    /// The end of the bytes in which no `\n` was found after `start`.
    searched: usize,
}

/// A line grew beyond [`LINE_BYTES_MAX`]. The stream cannot be read any further.
#[derive(Debug, PartialEq, Eq)]
pub struct LineTooLong;

impl Lines {
    /// Takes in the next bytes.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next complete line, without `\n`. `None`: more bytes are needed. An incomplete line at the end of the stream is
    /// dropped.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        loop {
            let Some(length) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                if self.start == self.searched && self.buffer.capacity() > BUFFER_BYTES_KEPT {
                    *self = Lines::default();
                }
                return if self.searched - self.start > LINE_BYTES_MAX { Err(LineTooLong) } else { Ok(None) };
            };
            let (start, end) = (self.start, self.searched + length);
            self.start = end + 1;
            self.searched = self.start;
            if end - start > LINE_BYTES_MAX {
                return Err(LineTooLong);
            }
            if !self.buffer[start..end].trim_ascii().is_empty() {
                return Ok(Some(&self.buffer[start..end]));
            }
        }
    }
}

/// One line of a watch. See
/// <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// The object was created, or now matches the selector, or existed when the watch began.
    Added(Found<K>),
    /// The object was changed.
    Modified(Found<K>),
    /// The object was deleted, or no longer matches the selector: its last state, with the version of the deletion.
    Deleted(Found<K>),
    /// The watch has sent every change up to this version.
    Bookmark {
        /// The version from which the watch can be resumed.
        version: SmolStr,
        /// Whether a streaming list is complete with it.
        ends_initial_events: bool,
    },
    /// The server ends the watch, for this reason.
    Error(Status),
    /// A type that Kubernetes 1.36 does not have.
    Unknown(SmolStr),
}

impl<K> WatchEvent<K> {
    /// The `type` on the wire.
    pub fn type_name(&self) -> &str {
        match self {
            WatchEvent::Added(_) => "ADDED",
            WatchEvent::Modified(_) => "MODIFIED",
            WatchEvent::Deleted(_) => "DELETED",
            WatchEvent::Bookmark { .. } => "BOOKMARK",
            WatchEvent::Error(_) => "ERROR",
            WatchEvent::Unknown(name) => name,
        }
    }

    /// The object, if the event has one.
    pub fn object(self) -> Option<Found<K>> {
        match self {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                Some(object)
            }
            WatchEvent::Bookmark { .. } | WatchEvent::Error(_) | WatchEvent::Unknown(_) => None,
        }
    }
}

impl<K: Resource> WatchEvent<K> {
    /// Decodes a line: in one pass if the object is readable, otherwise in two.
    pub fn from_json(line: &[u8]) -> Result<WatchEvent<K>, serde_json::Error> {
        // One UTF-8 check of the whole line is faster than one of each string.
        let line = str::from_utf8(line).map_err(de::Error::custom)?;
        serde_json::from_str(line).or_else(|_| WatchEvent::from_json_by(line, Found::from_json))
    }

    /// Decodes a line, its object without its content, for this reason.
    pub(crate) fn without_content(line: &[u8], error: &str) -> Result<WatchEvent<K>, serde_json::Error> {
        let line = str::from_utf8(line).map_err(de::Error::custom)?;
        WatchEvent::from_json_by(line, |object| Found::without_content(object, error.to_owned()))
    }

    fn from_json_by(
        line: &str,
        decode: impl FnOnce(&str) -> Result<Found<K>, serde_json::Error>,
    ) -> Result<WatchEvent<K>, serde_json::Error> {
        #[derive(Deserialize)]
        struct TypeAndObject<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let line: TypeAndObject<'_> = serde_json::from_str(line)?;
        let object = line.object.get();
        Ok(match &*line.r#type {
            "ADDED" => WatchEvent::Added(decode(object)?),
            "MODIFIED" => WatchEvent::Modified(decode(object)?),
            "DELETED" => WatchEvent::Deleted(decode(object)?),
            "BOOKMARK" => serde_json::from_str::<Bookmark>(object)?.into(),
            "ERROR" => WatchEvent::Error(serde_json::from_str(object)?),
            other => WatchEvent::Unknown(other.into()),
        })
    }
}

/// The object of a BOOKMARK, which has no `spec`.
#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: SmolStr,
    #[serde(default)]
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: SmolStr,
}

impl<K> From<Bookmark> for WatchEvent<K> {
    fn from(bookmark: Bookmark) -> WatchEvent<K> {
        WatchEvent::Bookmark {
            version: bookmark.metadata.resource_version,
            ends_initial_events: bookmark.metadata.annotations.initial_events_end == "true",
        }
    }
}

impl<'de, K: Resource> Deserialize<'de> for WatchEvent<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WatchEventVisitor(PhantomData))
    }
}

struct WatchEventVisitor<K>(PhantomData<fn() -> K>);

impl<'de, K: Resource> Visitor<'de> for WatchEventVisitor<K> {
    type Value = WatchEvent<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event, {\"type\": …, \"object\": …}")
    }

    /// The server writes `type` before `object`, so that one pass is enough.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if map.next_key::<Cow<'_, str>>()?.as_deref() != Some("type") {
            return Err(de::Error::custom("the first field is not `type`"));
        }
        let kind: Cow<'_, str> = map.next_value()?;
        if map.next_key::<Cow<'_, str>>()?.as_deref() != Some("object") {
            return Err(de::Error::custom("the second field is not `object`"));
        }
        let event = match &*kind {
            "ADDED" => WatchEvent::Added(Found::Readable(Arc::new(map.next_value()?))),
            "MODIFIED" => WatchEvent::Modified(Found::Readable(Arc::new(map.next_value()?))),
            "DELETED" => WatchEvent::Deleted(Found::Readable(Arc::new(map.next_value()?))),
            "BOOKMARK" => map.next_value::<Bookmark>()?.into(),
            "ERROR" => WatchEvent::Error(map.next_value()?),
            other => {
                map.next_value::<IgnoredAny>()?;
                WatchEvent::Unknown(other.into())
            }
        };
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resource::{ObjectMeta, kinds::Service};

    const TRANSCRIPT: &str = concat!(
        r#"{"type":"ADDED","object":{"kind":"Service","metadata":{"name":"日本語 🎉","resourceVersion":"5"}}}"#,
        "\n",
        r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"6"},"spec":{"ports":"none"}}}"#,
        "\r\n\n",
        r#"{"type":"BOOKMARK","object":{"metadata":{"creationTimestamp":null,"resourceVersion":"9"}}}"#,
        "\n",
        r#"{"object":{"metadata":{"name":"a","resourceVersion":"10"}},"type":"DELETED"}"#,
        "\n",
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#,
        "\n",
        r#"{"type":"ADDED","object":{"meta"#,
    );

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut events = Vec::new();
        for chunk in chunks {
            lines.push(chunk);
            while let Some(line) = lines.next_line().expect("a short line") {
                events.push(match WatchEvent::<Service>::from_json(line).expect("an event") {
                    WatchEvent::Added(object) => format!("added {}", object.metadata().name),
                    WatchEvent::Modified(Found::Readable(object)) => {
                        format!("modified {}", object.metadata.name)
                    }
                    WatchEvent::Modified(Found::Partial(partial)) => {
                        format!("partial {}", partial.metadata.name)
                    }
                    WatchEvent::Deleted(object) => format!("deleted {}", object.metadata().resource_version),
                    WatchEvent::Bookmark { version, .. } => format!("bookmark {version}"),
                    WatchEvent::Error(status) => format!("error {}", status.code),
                    WatchEvent::Unknown(kind) => format!("unknown {kind}"),
                });
            }
        }
        events
    }

    #[test]
    fn a_stream_decodes_alike_wherever_it_is_cut() {
        let bytes = TRANSCRIPT.as_bytes();
        let whole = events(&[bytes]);
        assert_eq!(whole, ["added 日本語 🎉", "partial a", "bookmark 9", "deleted 10", "error 410"]);
        for first in 0..=bytes.len() {
            for second in (first..=bytes.len()).step_by(7) {
                let chunks = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(events(&chunks), whole, "cut at {first} and {second}");
            }
        }
        let single_bytes: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(events(&single_bytes), whole);
    }

    fn lines(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Lines::default();
        let mut cut = Vec::new();
        for chunk in chunks {
            lines.push(chunk);
            while let Some(line) = lines.next_line().expect("a short line") {
                cut.push(line.to_vec());
            }
        }
        cut
    }

    proptest! {
        #[test]
        fn any_bytes_are_the_same_lines_however_they_come(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'{'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let starts = std::iter::once(0).chain(cuts.iter().copied());
            let chunks: Vec<_> = starts.zip(&cuts).map(|(start, end)| &bytes[start..*end]).collect();
            prop_assert_eq!(lines(&chunks), lines(&[&bytes]));
        }

        #[test]
        fn any_line_is_an_event_or_an_error(line in r#"[{}\[\]":,a-zA-Z0-9é\\]*"#, cut in any::<prop::sample::Index>()) {
            let _ = WatchEvent::<Service>::from_json(line.as_bytes());
            // And a true one, cut anywhere and gone on with something else.
            let (true_line, _) = TRANSCRIPT.split_once('\n').expect("lines");
            let cut = cut.index(true_line.len());
            let spoilt = [&true_line.as_bytes()[..cut], line.as_bytes()].concat();
            let _ = WatchEvent::<Service>::from_json(&spoilt);
        }
    }

    #[test]
    fn a_line_may_be_long_but_not_endless() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LINE_BYTES_MAX]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"\nx\ny");
        for expected in [Some(LINE_BYTES_MAX), Some(1), None] {
            assert_eq!(lines.next_line().map(|line| line.map(<[u8]>::len)), Ok(expected));
        }

        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert_eq!(lines.next_line(), Err(LineTooLong));
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LINE_BYTES_MAX + 1]);
        lines.push(b"\n");
        assert_eq!(lines.next_line(), Err(LineTooLong));
    }

    #[test]
    fn a_large_object_does_not_cost_memory_for_ever() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; 1024 * 1024]);
        lines.push(b"\n");
        assert!(lines.next_line().expect("short enough").is_some());
        assert_eq!(lines.next_line(), Ok(None));
        assert!(lines.buffer.capacity() <= BUFFER_BYTES_KEPT);
    }

    #[test]
    fn an_event_as_the_server_writes_it_is_read_in_one_pass() {
        let (line, _) = TRANSCRIPT.split_once('\n').expect("lines");
        assert!(matches!(serde_json::from_str(line), Ok(WatchEvent::<Service>::Added(_))));
    }

    #[test]
    fn the_end_of_the_initial_events_is_an_annotation() {
        let line = br#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"10"}}}"#;
        match WatchEvent::<Service>::from_json(line).expect("an event") {
            WatchEvent::Bookmark { version, ends_initial_events } => {
                assert!(ends_initial_events && version == "10")
            }
            other => panic!("{other:?}"),
        }
    }

    /// Numbers that no double holds, fractions of seconds, lists that are null, and fields that nobody has heard of.
    #[test]
    fn unknown_fields_of_an_object_are_ignored() {
        let line = br#"{"type":"ADDED","object":{"kind":"Service","metadata":{"name":"a","resourceVersion":"7",
            "generation":9007199254740993,"creationTimestamp":"2026-11-21T07:00:00.123456789Z","managedFields":null,
            "unheardOf":{"deeper":[{"number":18446744073709551615},null,[[-9223372036854775808]]]}},
            "spec":{"ports":[{"port":80,"targetPort":80,"unheardOf":1e300}],"externalIPs":null},"status":null,"more":[]},"later":null}"#;
        match WatchEvent::<Service>::from_json(line).expect("an event") {
            WatchEvent::Added(Found::Readable(service)) => {
                assert_eq!(service.metadata.generation, 9_007_199_254_740_993);
                assert_eq!(service.metadata.resource_version, "7");
                assert_eq!(service.spec.ports[0].port, 80);
            }
            other => panic!("{other:?}"),
        }
    }

    /// It has the kind of what is watched, and none of the fields which that requires.
    #[test]
    fn a_bookmark_is_no_object_of_its_kind() {
        #[derive(Debug, serde::Deserialize)]
        struct Page {
            metadata: ObjectMeta,
            #[serde(rename = "spec")]
            _spec: serde_json::Value,
        }
        crate::kind!(Page, "example.com", "v1", "pages");
        let line = br#"{"type":"BOOKMARK","object":{"kind":"Page","metadata":{"resourceVersion":"10"}}}"#;
        let event = WatchEvent::<Page>::from_json(line);
        assert!(
            matches!(event, Ok(WatchEvent::Bookmark { version, ends_initial_events: false }) if version == "10")
        );
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        for line in
            ["", "{}", "null", "[]", "<html>", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{}}"#]
        {
            assert!(WatchEvent::<Service>::from_json(line.as_bytes()).is_err(), "{line}");
        }
        let line = br#"{"type":"RENAMED","object":{"metadata":{}}}"#;
        assert!(matches!(WatchEvent::<Service>::from_json(line), Ok(WatchEvent::Unknown(_))));
    }
}
