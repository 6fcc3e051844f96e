//! The properties that must hold for any input bytes. Each function panics if its property fails. `fuzz/` also includes
//! this file.

use std::{fs, io::Write};

use allocation_counter::measure;
use listwatch::{
    client::{Config, Env, Options},
    resource::{Resource, kinds::Deployment},
    watch::decode::{Lines, WatchEvent},
};
use listwatch_operators::mywebserver::MyWebserver;

/// Most memory for each byte of input. An empty container, `{}` and a comma, becomes a struct of some hundred bytes, in
/// a list that doubles as it grows.
const BYTES_PER_BYTE_MAX: u64 = 400;
/// Memory that even empty input takes, mostly for the buffers of the YAML reader.
const BYTES_MAX: u64 = 128 * 1024;

/// A watch sends these bytes: the events do not depend on where the bytes are cut, and the memory stays within the
/// limit.
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

/// Reads the events as `watch.rs` does, up to the first invalid line.
fn events<K: Resource + std::fmt::Debug>(chunks: &[&[u8]], mut report: impl FnMut(String)) {
    let mut lines = Lines::default();
    for chunk in chunks {
        lines.push(chunk);
        loop {
            match lines.next_line().map(|line| line.map(WatchEvent::<K>::from_json)) {
                Ok(Some(Ok(event))) => report(format!("{event:?}")),
                Ok(Some(Err(error))) => return report(error.to_string()),
                Ok(None) => break,
                Err(too_long) => return report(format!("{too_long:?}")),
            }
        }
    }
}

/// A kubeconfig contains these bytes: it is read, or refused with an error of one line that names the file.
pub fn kubeconfig(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("a write");
    let path = fs::canonicalize(file.path()).expect("a path");
    let options = Options { kubeconfig: Some(path.clone()), ..Options::default() };
    let mut loaded = None;
    let used = measure(|| loaded = Some(Config::load(&options, &Env::default())));
    // Aliases (`*a`) of aliases expand to a lot of text. The YAML reader has its own limit for them.
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
