//! A Table as the objects of its rows: unless `includeObject` says otherwise, they have the metadata, and no spec and status. Nothing in this file does I/O.
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
        // With includeObject=None, the rows have no objects; with Object, whole ones; otherwise, their metadata.
        What::Request(sent)
            if sent.accept.contains("as=Table") && !sent.path.contains("includeObject=None") =>
        {
            let is_whole = sent.path.contains("includeObject=Object");
            let metadata = sent.accept.replace("as=Table", "as=PartialObjectMetadata");
            let accept = if is_whole { String::new() } else { metadata };
            Some(What::Request(Sent { accept, ..sent.clone() }))
        }
        What::Line(line) => objects(line).map(What::Line),
        What::Rest(line) => objects(line).map(What::Rest),
        What::Request(_) | What::Head(_) | What::End(_) => None,
    };
    what.map_or(Cow::Borrowed(entry), |what| Cow::Owned(Entry { what, ..*entry }))
}

/// The objects of a Table, as a list; or the object of an event, whose Table has one row. `None`: the body is not a Table.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_table_are_those_that_include_object_names() {
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (query, accept) in [
            ("", metadata),
            ("?includeObject=Metadata", metadata),
            ("?limit=1&includeObject=Object", ""),
            ("?includeObject=None", table),
        ] {
            let sent = json!({"method": "GET", "path": format!("/api/v1/pods{query}"), "accept": table});
            let entry = json!({"time": 0, "exchange": 1, "request": sent});
            let entry: Entry = serde_json::from_value(entry).expect("an entry");
            match &as_metadata(&entry).what {
                What::Request(sent) => assert_eq!(sent.accept, accept, "{query}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
