//! The files in the Pods: what an instance does, and its settings. The kubelet updates them in running Pods, within a minute or two.

use std::collections::BTreeMap;

use super::DatabaseSpec;

/// The files that are the same for each Database.
const FILES: [(&str, &str); 9] = [
    ("start", include_str!("scripts/start")),
    ("tend", include_str!("scripts/tend")),
    ("passfile", include_str!("scripts/passfile")),
    ("ready", include_str!("scripts/ready")),
    ("stop", include_str!("scripts/stop")),
    ("backup", include_str!("scripts/backup")),
    ("roles.sql", include_str!("scripts/roles.sql")),
    ("postgresql.conf", include_str!("scripts/postgresql.conf")),
    ("pg_hba.conf", include_str!("scripts/pg_hba.conf")),
];

/// All files, by name. The scripts read the numbers of the spec from files, so that a change of a number restarts no Pod.
pub(super) fn files(spec: &DatabaseSpec) -> BTreeMap<String, String> {
    let same = FILES.map(|(name, text)| (name, text.to_owned()));
    let numbers = [("size", spec.size.to_string()), ("max-lag-seconds", spec.max_lag_seconds.to_string())];
    let keep = spec.backup.iter().map(|backup| ("keep", backup.keep.to_string()));
    same.into_iter().chain(numbers).chain(keep).map(|(name, text)| (name.to_owned(), text)).collect()
}
