//! Parses the variables and flags of a program: addresses and names of namespaces.

use std::net::SocketAddr;

use listwatch_formats::names::namespaces;

use super::RuntimeError;

/// The address in `[IP]:PORT`. `0`: none.
pub fn address(text: &str) -> Result<Option<SocketAddr>, &'static str> {
    if text == "0" {
        return Ok(None);
    }
    // Also for IPv4 on a machine with both.
    let address = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    address.parse().map(Some).map_err(|_| "is not [IP]:PORT, such as :8081 or 127.0.0.1:8081, nor 0 for off")
}

/// The names in a variable such as `WATCH_NAMESPACE`, in which operators customarily ignore empty ones.
pub fn names_in(variable: &str) -> Vec<String> {
    variable.split(',').filter(|name| !name.trim().is_empty()).map(str::to_owned).collect()
}

/// The names of [`namespaces`].
pub fn checked(names: Vec<String>, source: &str) -> Result<Vec<String>, RuntimeError> {
    namespaces(names, source).map_err(RuntimeError::Config)
}
