//! What the pages say is held by tests: these exist.

use std::{fs, path::Path};

/// `[`name`](path)` is a test of that name in that file.
#[test]
fn every_test_that_a_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for page in ["README.md", "docs/reliability.md", "docs/apiserver.md", "docs/performance.md"] {
        let page = root.join(page);
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("[`").skip(1) {
            let Some((name, rest)) = link.split_once("`](") else { continue };
            let path = rest.split_once(')').unwrap().0;
            let file = page.parent().unwrap().join(path);
            let source =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            if path.ends_with(".rs") {
                assert!(
                    source.contains(&format!("fn {name}(")),
                    "no {name} in {path}, which {} names",
                    page.display()
                );
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
}
