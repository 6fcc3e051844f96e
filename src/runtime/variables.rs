//! Parses the variables and flags of a program: addresses and names of namespaces.

use std::net::SocketAddr;

use listwatch_formats::names::label_errors;

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

/// The names without duplicates. Fails, and names the source, if one of them cannot be the name of a namespace.
pub fn checked(mut names: Vec<String>, source: &str) -> Result<Vec<String>, RuntimeError> {
    for name in &mut names {
        *name = name.trim().to_owned();
        if !label_errors(name).is_empty() {
            let cause = "is not the name of a namespace; for all of them, give none";
            return Err(RuntimeError::Config(format!("{source}: {name:?} {cause}")));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}
