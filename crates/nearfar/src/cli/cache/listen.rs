//! Addresses to listen on: literals and host names, with or without a port.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _};

use anyhow::{Context as _, ensure};

/// Resolves all of `texts`, without duplicates; `port` is the default port.
///
/// # Errors
/// A text that is neither an address nor a name that resolves to one.
pub(super) fn addresses(texts: &[String], port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for text in texts {
        for address in resolved(text, port)? {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    Ok(all)
}

fn resolved(text: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    let (name, own) = match text.rsplit_once(':') {
        None => (text, Ok(port)),
        Some((name, own)) => (name, own.parse()),
    };
    let found = own.ok().map(|own| (name, own).to_socket_addrs());
    let found = found.with_context(|| {
        format!("--listen {text}: write an address or a name, and a port, such as 127.0.0.1, localhost or [::1]:11211")
    })?;
    let found =
        found.with_context(|| format!("--listen {text}: no address of that name is known"))?;
    // A name often resolves to an IPv6 address on a machine without IPv6.
    let is_here = |at: &SocketAddr| at.is_ipv4() || TcpListener::bind((at.ip(), 0)).is_ok();
    let found: Vec<_> = found.filter(is_here).collect();
    ensure!(!found.is_empty(), "--listen {text}: none of its addresses is on this machine");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Vec<String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        addresses(&texts, 7).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_parse_with_and_without_a_port_and_are_deduplicated() {
        let all = of(&["127.0.0.1", "[::1]", "::1", "0.0.0.0:9", "[::1]:8", "127.0.0.1:7"]);
        assert_eq!(all, ["127.0.0.1:7", "[::1]:7", "0.0.0.0:9", "[::1]:8"]);
    }

    #[test]
    fn a_host_name_resolves_to_all_its_addresses() {
        assert!(of(&["localhost"]).contains(&"127.0.0.1:7".to_owned()));
        assert!(of(&["localhost:8"]).contains(&"127.0.0.1:8".to_owned()));
    }

    #[test]
    fn an_invalid_address_is_named() {
        for text in ["127.0.0.1:99999", "localhost:x", "no.such.name.invalid"] {
            let error = addresses(&[text.to_owned()], 7).unwrap_err();
            assert!(format!("{error:#}").contains(text), "{error:#}");
        }
    }
}
