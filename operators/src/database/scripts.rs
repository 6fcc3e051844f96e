//! The files in the Pods: what an instance does, and its settings. The kubelet updates them in running Pods, within a minute or two.

use std::collections::BTreeMap;

use super::{Database, DatabaseSpec, types::gib};

/// The files that are the same for each Database.
const FILES: [(&str, &str); 7] = [
    ("start", include_str!("scripts/start")),
    ("tend", include_str!("scripts/tend")),
    ("passfile", include_str!("scripts/passfile")),
    ("ready", include_str!("scripts/ready")),
    ("stop", include_str!("scripts/stop")),
    ("backup", include_str!("scripts/backup")),
    ("roles.sql", include_str!("scripts/roles.sql")),
];

/// All files, by name. The scripts read the numbers of the spec from files, so that a change of a number restarts no Pod.
pub(super) fn files(database: &Database, pods: &[String]) -> BTreeMap<String, String> {
    let Database { spec, status, .. } = database;
    let same = FILES.map(|(name, text)| (name, text.to_owned()));
    let tls = spec.tls.iter().map(|_| ("tls.conf", include_str!("scripts/tls.conf").to_owned()));
    let settings = [("pg_hba.conf", pg_hba(spec, pods)), ("postgresql.conf", postgresql_conf(&spec.storage))];
    let numbers = [("size", spec.size.to_string()), ("max-lag-seconds", spec.max_lag_seconds.to_string())];
    let restores = spec.restore_from.iter().map(|_| ("restores", String::new()));
    let had_data = (!status.primary_claim.is_empty()).then(had_data);
    same.into_iter()
        .chain(tls)
        .chain(settings)
        .chain(numbers)
        .chain(restores)
        .map(|(name, text)| (name.to_owned(), text))
        .chain(had_data)
        .collect()
}

/// The file of a Database whose primary had data. The instances look whether there is one.
pub(super) fn had_data() -> (String, String) {
    ("had-data".to_owned(), String::new())
}

/// The settings of the instances. That of a user, by `ALTER SYSTEM`, takes precedence over each of them.
fn postgresql_conf(storage: &str) -> String {
    // The schema lets no other storage pass than a number of Gi.
    let third = gib(storage).map_or("-1".to_owned(), |gib| format!("{}MB", gib * 1024 / 3));
    include_str!("scripts/postgresql.conf").replace("SLOT_WAL_MAX", &third)
}

/// The permitted connections: from the addresses of Pods; with TLS, only encrypted.
fn pg_hba(spec: &DatabaseSpec, pods: &[String]) -> String {
    let mut all = String::new();
    for line in include_str!("scripts/pg_hba.conf").lines() {
        let line = if spec.tls.is_some() { line.replace("host   ", "hostssl") } else { line.to_owned() };
        let addresses = if line.contains("PODS") { pods } else { &[String::new()] };
        addresses.iter().for_each(|address| all += &(line.replace("PODS", address) + "\n"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the default of PostgreSQL, 1GB, the WAL of a restore fills the least storage.
    #[test]
    fn the_server_that_loads_a_dump_and_the_instances_limit_their_wal() {
        assert!(postgresql_conf("1Gi").lines().any(|line| line == "max_wal_size = 256MB"));
        let start = include_str!("scripts/start").replace("\\\n", "");
        let loading: Vec<&str> = start.lines().filter(|line| line.contains("pg_ctl start")).collect();
        assert!(!loading.is_empty() && loading.iter().all(|line| line.contains(" -c max_wal_size=256MB")));
    }
}
