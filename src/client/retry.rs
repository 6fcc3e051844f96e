//! Which failed requests are sent again, and how soon. Nothing in this file does I/O.

use std::time::Duration;

use http::Method;

use super::error::Cause;

/// How often a request is sent again.
pub(super) const RETRIES_MAX: u32 = 3;

/// Longest `Retry-After` that a request waits for. The API server mostly asks for 1 s. After a longer one the request
/// fails: its caller has a backoff and can log the reason.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// First pause before a GET is sent again; each is twice the one before. These retries are for a broken connection. A restart
/// of the API server takes longer; the backoff of the caller is for that.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait before a request is sent again. `None`: it is not sent again.
pub(super) fn pause(method: &Method, cause: &Cause, retries: u32) -> Option<Duration> {
    if retries == RETRIES_MAX {
        return None;
    }
    match cause {
        // The server does not have that version yet. The caller asks for the most recent one instead.
        Cause::Refused { status, .. } if status.is_too_new() => None,
        // The server names a time, so any verb may be sent again: as client-go does, we take it that the server did nothing.
        Cause::Refused { status, retry_after } if status.code == 429 || status.code >= 500 => {
            let wait = retry_after.filter(|wait| *wait <= WAIT_MAX)?;
            Some(wait.mul_f64(1.0 + fastrand::f64() / 4.0))
        }
        // A write is not sent again: the server may have done it already.
        Cause::Unreachable(_) | Cause::Lost(_) if *method == Method::GET => {
            Some(FIRST_PAUSE.mul_f64(f64::from(1 << retries) * (0.5 + fastrand::f64())))
        }
        Cause::Refused { .. }
        | Cause::Unreachable(_)
        | Cause::Lost(_)
        | Cause::Late(_)
        | Cause::Unreadable(_)
        | Cause::TooLarge(_)
        | Cause::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_retry_after_and_a_little_more_or_for_a_get_twice_the_one_before() {
        fastrand::seed(17);
        let refused = |json: &str, retry_after: u64| Cause::Refused {
            status: Box::new(serde_json::from_str(json).expect("a status")),
            retry_after: Some(Duration::from_secs(retry_after)),
        };
        let range = |cause: &Cause, retries| {
            let pauses = (0..500).map(|_| pause(&Method::GET, cause, retries).expect("a pause"));
            pauses.fold((Duration::MAX, Duration::ZERO), |(least, most), one| (least.min(one), most.max(one)))
        };
        let is_about = |is: Duration, should: Duration| is.abs_diff(should) < should / 10;
        for json in [r#"{"code":429}"#, r#"{"code":500}"#, r#"{"code":503}"#] {
            let (least, most) = range(&refused(json, 4), 0);
            assert!(least >= Duration::from_secs(4) && is_about(least, Duration::from_secs(4)), "{least:?}");
            assert!(most <= Duration::from_secs(5) && is_about(most, Duration::from_secs(5)), "{most:?}");
        }
        let lost = Cause::Lost("cut".to_owned());
        for retries in 0..RETRIES_MAX {
            let (least, most) = range(&lost, retries);
            let doubled = FIRST_PAUSE * 2_u32.pow(retries);
            assert!(is_about(least, doubled / 2) && is_about(most, doubled * 3 / 2), "{least:?} {most:?}");
        }
        let too_new = r#"{"code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        for cause in [refused(r#"{"code":409}"#, 1), refused(too_new, 1), Cause::Late("slow".to_owned())] {
            assert_eq!(pause(&Method::GET, &cause, 0), None, "{cause}");
        }
    }
}
