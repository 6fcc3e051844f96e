//! Shards: several processes share the objects of an operator. Nothing in this file does I/O.
//!
//! ```text
//!   uid of an object ──► hash ──► modulo 3 ──► 0, 1 or 2: its shard of three
//! ```
//!
//! The uid and no label, so that a user cannot move an object, and so that the shards are about equally large: uids are random. An
//! object that is deleted and created again may come into another shard. `leader.rs` says which process has a shard.

use std::{
    fmt::{self, Write},
    str::FromStr,
};

use crate::resource::Uid;

/// Most shards. Each process renews two Leases, and sees the renewals of all others.
const SHARDS_MAX: u32 = 64;

/// One shard of several: `0/3`, `1/3` or `2/3`. The default is `0/1`, all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard { index: 0, count: 1 }
    }
}

impl Shard {
    /// Whether this shard has all objects.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.count == 1
    }

    /// Its number, from 0.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many shards there are.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether an object with this uid is in this shard.
    #[must_use]
    pub fn has(self, uid: &Uid) -> bool {
        self.is_whole() || hash(uid) % u64::from(self.count) == u64::from(self.index)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers =
            text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index, count)) if index < count && count <= SHARDS_MAX => Ok(Shard { index, count }),
            Some(_) | None => Err(format!(
                "is not N/M, the shard N of M shards, such as 0/3, 1/3 and 2/3; there are at most {SHARDS_MAX}"
            )),
        }
    }
}

/// FNV-1a of the text of the uid. It is the same in each version and on each machine, so that all processes agree.
/// See <https://datatracker.ietf.org/doc/html/rfc9923>.
fn hash(uid: &Uid) -> u64 {
    struct Fnv(u64);
    impl Write for Fnv {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            Ok(())
        }
    }
    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    // It never fails.
    let _ = write!(fnv, "{uid}");
    fnv.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_several() {
        for (text, count) in [("0/1", 1), ("0/3", 3), ("2/3", 3), ("63/64", 64)] {
            let shard: Shard = text.parse().expect("a shard");
            assert_eq!((shard.to_string(), shard.count()), (text.to_owned(), count));
        }
        for wrong in
            ["", "/", "1", "3/3", "0/0", "a/b", "-1/2", "1/-2", "0/65", "0/3/1", " 0/3", "0/4294967296"]
        {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_hash_is_that_of_the_standard() {
        for (text, expected) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(hash(&text.into()), expected, "{text}");
        }
    }

    #[test]
    fn each_object_is_in_one_shard_and_the_shards_are_about_equally_large() {
        let mut random = fastrand::Rng::with_seed(1);
        let uids: Vec<Uid> = (0..3_000)
            .map(|_| uuid::Builder::from_random_bytes(random.u128(..).to_be_bytes()))
            .map(|uuid| Uid::from(&*uuid.into_uuid().to_string()))
            .collect();
        for count in [1, 2, 3, 7] {
            let shards: Vec<_> = (0..count).map(|index| Shard { index, count }).collect();
            let has = |shard: &Shard| uids.iter().filter(|uid| shard.has(uid)).count();
            let sizes: Vec<_> = shards.iter().map(has).collect();
            assert_eq!(sizes.iter().sum::<usize>(), uids.len());
            let mean = uids.len() / shards.len();
            assert!(sizes.iter().all(|size| size.abs_diff(mean) < mean / 5), "{sizes:?}");
        }
    }
}
