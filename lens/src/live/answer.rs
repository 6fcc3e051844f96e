//! Answers to requests of the page.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

pub(super) fn text(status: StatusCode, text: &'static str) -> Answer {
    whole(status, "text/plain; charset=utf-8", text)
}

pub(super) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    of(status, kind, Full::new(body.into()).boxed_unsync())
}

pub(super) fn of(status: StatusCode, kind: &'static str, body: UnsyncBoxBody<Bytes, Infallible>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
