//! What must hold of any bytes at all. Each function panics where it does not. `fuzz/` includes this file too.

use std::{fs, io::Write};

use allocation_counter::measure;
use listwatch::{
    client::{Config, Env, Options},
    operators::mywebserver::MyWebserver,
    resource::{Resource, kinds::Deployment},
    watch::decode::{Lines, WatchEvent},
};

/// Most memory for one byte that came. An empty container, `{}` and a comma, becomes a struct of some hundred bytes, in
/// a list that doubles as it grows.
const BYTES_PER_BYTE_MAX: u64 = 400;
/// What is needed for no byte at all: the buffers of the YAML reader, above all.
const BYTES_MAX: u64 = 128 * 1024;

/// A watch sends these bytes: they mean the same wherever they are cut, and cost no more memory than they may.
pub fn watch(bytes: &[u8], cut: usize) {
    check::<Deployment>(bytes, cut);
    check::<MyWebserver>(bytes, cut);
}

fn check<K: Resource + std::fmt::Debug>(bytes: &[u8], cut: usize) {
    let mut whole = Vec::new();
    let used = measure(|| events::<K>(&[bytes], |_| {}));
    assert_cheap(used.bytes_max, bytes);
    events::<K>(&[bytes], |event| whole.push(event));
    let (start, end) = bytes.split_at(cut.min(bytes.len()));
    for chunks in [vec![start, end], bytes.chunks(1).collect(), bytes.chunks(cut.max(1)).collect()] {
        let mut cut = Vec::new();
        events::<K>(&chunks, |event| cut.push(event));
        assert_eq!(cut, whole);
    }
}

/// As `watch.rs` reads them: up to the first line that is none.
fn events<K: Resource + std::fmt::Debug>(chunks: &[&[u8]], mut tell: impl FnMut(String)) {
    let mut lines = Lines::default();
    for chunk in chunks {
        lines.push(chunk);
        loop {
            match lines.next_line().map(|line| line.map(WatchEvent::<K>::from_json)) {
                Ok(Some(Ok(event))) => tell(format!("{event:?}")),
                Ok(Some(Err(error))) => return tell(error.to_string()),
                Ok(None) => break,
                Err(too_long) => return tell(format!("{too_long:?}")),
            }
        }
    }
}

/// A kubeconfig holds these bytes: it is read, or refused with one line that names the file.
pub fn kubeconfig(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("a write");
    let path = fs::canonicalize(file.path()).expect("a path");
    let options = Options { kubeconfig: Some(path.clone()), ..Options::default() };
    let mut loaded = None;
    let used = measure(|| loaded = Some(Config::load(&options, &Env::default())));
    // Aliases (`*a`) of aliases stand for much: the YAML reader gives up on them by a measure of its own.
    if !bytes.contains(&b'*') {
        assert_cheap(used.bytes_max, bytes);
    }
    if let Some(Err(error)) = loaded {
        let error = error.to_string();
        assert!(error.contains(&*path.to_string_lossy()), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

fn assert_cheap(used: u64, bytes: &[u8]) {
    let may = BYTES_MAX + BYTES_PER_BYTE_MAX * bytes.len() as u64;
    assert!(used <= may, "{used} bytes of memory for {} bytes", bytes.len());
}
