//! A Table as the objects of its rows: they have the metadata, and no spec and status. Nothing in this file does I/O.
//!
//! ```text
//! {"type":"ADDED","object":{"kind":"Table","rows":[{"cells":["web"],"object":{"kind":"PartialObjectMetadata",…}}]}}
//! {"type":"ADDED","object":{"kind":"PartialObjectMetadata",…}}
//! ```

use std::borrow::Cow;

use serde_json::{Value, json};

use super::record::{Entry, Line, Sent, What};

/// The entry, as if the client had asked for metadata only.
pub(super) fn as_metadata(entry: &Entry) -> Cow<'_, Entry> {
    let what = match &entry.what {
        // With includeObject=None, the rows have no metadata.
        What::Request(sent) if sent.accept.contains("as=Table") && !sent.path.contains("includeObject") => {
            let accept = sent.accept.replace("as=Table", "as=PartialObjectMetadata");
            Some(What::Request(Sent { accept, ..sent.clone() }))
        }
        What::Line(line) => objects(line).map(What::Line),
        What::Rest(line) => objects(line).map(What::Rest),
        What::Request(_) | What::Head(_) | What::End(_) => None,
    };
    what.map_or(Cow::Borrowed(entry), |what| Cow::Owned(Entry { what, ..*entry }))
}

/// The objects of a Table, as a list; or that of an event, whose Table has one row. `None`: there is no Table.
fn objects(line: &Line) -> Option<Line> {
    let text = line.text();
    if !text.contains("\"Table\"") {
        return None;
    }
    let mut value: Value = serde_json::from_str(&text).ok()?;
    if value["object"]["kind"] == "Table" {
        value["object"] = value["object"].pointer_mut("/rows/0/object")?.take();
        return Some(Line::new(&value.to_string()));
    }
    if value["kind"] != "Table" {
        return None;
    }
    let items: Vec<_> = value["rows"].as_array_mut()?.iter_mut().map(|row| row["object"].take()).collect();
    let list = json!({"kind": "PartialObjectMetadataList", "metadata": value["metadata"], "items": items});
    Some(Line::new(&list.to_string()))
}
