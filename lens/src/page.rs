//! The page, whose files are in `lens/page`: a server serves them as they are, and [`html`] makes one file of them and of a document.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};
use serde_json::Value;

/// `index.html`
pub const INDEX: &str = include_str!("../page/index.html");

/// `page.css`
pub const STYLE: &str = include_str!("../page/page.css");

/// `page.js`, a module.
pub const SCRIPT: &str = include_str!("../page/page.js");

/// The lines of [`INDEX`] in whose place the HTML file has the files themselves, and the document. A browser asks a server for an icon that no
/// line names.
const LINK: &str = r#"<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">"#;
const MODULE: &str = r#"<script type="module" src="page.js"></script>"#;
const END: &str = "</body>";

/// One HTML file that shows a [`document`](crate::document()). It asks for nothing from the network, and may not.
#[must_use]
pub fn html(document: &Value) -> String {
    html_of(&document.to_string())
}

/// The same, of a document that is text already.
pub(crate) fn html_of(document: &str) -> String {
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    let head =
        format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style>{STYLE}</style>");
    // Nothing in it can end the element.
    let document = document.replace('<', "\\u003c");
    let end = format!("<script type=\"application/json\" id=\"recording\">{document}</script>\n{END}");
    let html = INDEX.replace(LINK, &head);
    html.replace(MODULE, &format!("<script type=\"module\">{SCRIPT}</script>")).replace(END, &end)
}

/// As the policy names a script or a style.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes())))
}
