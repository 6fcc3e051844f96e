//! Who may see the page: who has opened the address with the token. No page of another origin can read it, or send it anything.

use hyper::{
    HeaderMap, Method, Request, StatusCode,
    header::{COOKIE, HOST, HeaderName, HeaderValue, LOCATION, ORIGIN, SET_COOKIE},
};
use listwatch_apiserver::random_token;

use super::answer::{Answer, text};

/// Sent with each answer.
const HEADERS: [(&str, &str); 4] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; \
         base-uri 'none'; form-action 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
];

pub(super) struct Access {
    port: u16,
    token: String,
    /// `listwatch-40003=…`: ports of one host share their cookies.
    cookie: String,
}

impl Access {
    pub(super) fn new(port: u16) -> Access {
        Access { port, token: random_token(), cookie: format!("listwatch-{port}={}", random_token()) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// The answer to a request that sees nothing of the page.
    pub(super) fn refusal<B>(&self, request: &Request<B>) -> Option<Answer> {
        let header =
            |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        // A name that somebody else has pointed to 127.0.0.1 is another origin.
        let host = header(HOST);
        if !["127.0.0.1", "localhost"].iter().any(|name| format!("{name}:{}", self.port) == host) {
            return Some(text(StatusCode::FORBIDDEN, "this host is not the page's"));
        }
        let token = request.uri().query().and_then(|query| query.strip_prefix("token="));
        if request.uri().path() == "/" && token == Some(&self.token) {
            return Some(self.welcome());
        }
        if !header(COOKIE).split("; ").any(|cookie| cookie == self.cookie) {
            return Some(text(
                StatusCode::UNAUTHORIZED,
                "open the address with the token that listwatch has printed",
            ));
        }
        if request.method() != Method::GET && header(ORIGIN) != format!("http://{host}") {
            return Some(text(StatusCode::FORBIDDEN, "only the page itself may do this"));
        }
        None
    }

    /// The cookie, and the address without the token, which would stay in the history.
    fn welcome(&self) -> Answer {
        let mut answer = text(StatusCode::SEE_OTHER, "");
        let cookie = format!("{}; HttpOnly; SameSite=Strict; Path=/", self.cookie);
        let cookie = HeaderValue::from_str(&cookie).expect("letters, digits and signs");
        answer.headers_mut().insert(SET_COOKIE, cookie);
        answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
        answer
    }
}

/// Adds the headers with which a browser keeps the page to itself.
pub(super) fn protect(headers: &mut HeaderMap) {
    let fixed = HEADERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    headers.extend(fixed);
}
