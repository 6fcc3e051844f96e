//! Files that flags name: recordings (`--record`), scripts (`--curl`), kubeconfigs. An existing file is never overwritten.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use listwatch_study::record::Header;

use super::failure::Failure;

/// A file of entries, readable by its owner alone.
pub(super) struct Recording {
    file: File,
    path: PathBuf,
    /// Whether it has only the header.
    is_empty: bool,
}

impl Recording {
    /// Creates the file. An existing file is not overwritten.
    pub(super) fn create(path: &Path, server: &str) -> Result<Recording, Failure> {
        let file = create("--record", path, 0o600)?;
        let mut recording = Recording { file, path: path.to_owned(), is_empty: true };
        recording.write(&Header::new(server))?;
        recording.is_empty = true;
        Ok(recording)
    }

    /// Removes a recording without an exchange: the corrected command writes the same file.
    pub(super) fn remove_if_empty(self) {
        if self.is_empty {
            // At worst, the file stays.
            let _ = fs::remove_file(self.path);
        }
    }

    /// Writes an entry, or the header.
    pub(super) fn write(&mut self, line: &impl serde::Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(line).map_err(|error| Failure::Runtime(error.to_string()))?;
        let line = line + "\n";
        self.is_empty = false;
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| Failure::Runtime(format!("--record {}: {error}", self.path.display())))
    }
}

/// Whether a path is a directory, a terminal, a pipe or the like: anything that no file can replace.
pub(super) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file())
}

/// The refusal of such a path.
pub(super) fn special(flag: &str, path: &Path) -> Failure {
    Failure::Usage(format!("{flag} {}: is not a regular file; choose another file", path.display()))
}

/// Creates a file that a flag names.
pub(super) fn create(flag: &str, path: &Path, mode: u32) -> Result<File, Failure> {
    if is_special(path) {
        return Err(special(flag, path));
    }
    new_file(mode).open(path).map_err(|error| {
        let path = path.display();
        match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::Usage(format!("{flag} {path}: exists; remove it, or choose another file"))
            }
            _ => Failure::Runtime(format!("{flag} {path}: {error}")),
        }
    })
}

/// The options of a new file with this mode. Windows has no modes: a file there has the access list of its directory.
pub(super) fn new_file(mode: u32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options
}
