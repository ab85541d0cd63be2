//! Chooses the Debian mirror: the one the host's apt is configured with, so that local mirrors and their rules are
//! respected; the public one if the host has none (another distribution).

use std::fs;
use std::path::Path;

/// Reachable from everywhere.
const PUBLIC: &str = "http://deb.debian.org/debian";

/// Suites whose presence shows that a source is a Debian archive (and not a security or third-party one).
const SUITES: [&str; 9] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "stable",
    "oldstable",
    "testing",
    "unstable",
];

/// Mirrors to try, in order.
pub(super) fn candidates(etc_apt: &Path) -> Vec<String> {
    let mut texts = vec![fs::read_to_string(etc_apt.join("sources.list")).unwrap_or_default()];
    let mut parts: Vec<_> = fs::read_dir(etc_apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    parts.sort();
    texts.extend(parts.iter().filter_map(|path| fs::read_to_string(path).ok()));
    let mut found: Vec<String> = texts.iter().flat_map(|text| archives(text)).collect();
    found.push(PUBLIC.to_owned());
    let mut seen = Vec::new();
    found.retain(|uri| {
        !seen.contains(uri) && {
            seen.push(uri.clone());
            true
        }
    });
    found
}

/// Debian archives named in a source list of either format.
fn archives(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        if let (Some(uris), Some(suites)) = (field("URIs"), field("Suites"))
            && field("Enabled") != Some("no")
            && suites.split_whitespace().any(|suite| SUITES.contains(&suite))
        {
            found.extend(uris.split_whitespace().map(str::to_owned));
        }
    }
    for line in text.lines().filter(|line| line.trim_start().starts_with("deb ")) {
        let after_options = match line.split_once(']') {
            Some((before, after)) if before.contains('[') => after,
            _ => line.trim_start().trim_start_matches("deb "),
        };
        let mut words = after_options.split_whitespace();
        if let (Some(uri), Some(suite)) = (words.next(), words.next())
            && SUITES.contains(&suite)
        {
            found.push(uri.to_owned());
        }
    }
    found.retain(|uri| {
        ["http://", "https://", "file:", "mirror"].iter().any(|s| uri.starts_with(s))
    });
    for uri in &mut found {
        uri.truncate(uri.trim_end_matches('/').len());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_yield_only_the_archive() {
        let text = "Types: deb\n# a comment\nURIs: http://mirror.example/debian/\nSuites: bookworm bookworm-updates\n\
                    Components: main\n\nTypes: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n";
        assert_eq!(archives(text), ["http://mirror.example/debian"]);
        let text = "deb [arch=amd64 signed-by=/k.gpg] https://m.example/debian trixie main\n\
                    deb https://vendor.example/apt vendor-bookworm main\n# deb http://no.example/ sid main\n";
        assert_eq!(archives(text), ["https://m.example/debian"]);
    }

    #[test]
    fn a_host_without_apt_uses_the_public_archive() {
        assert_eq!(candidates(Path::new("/nonexistent")), [PUBLIC]);
    }

    #[test]
    fn a_disabled_source_is_not_used() {
        assert!(archives("Enabled: no\nURIs: http://m.example/debian\nSuites: sid\n").is_empty());
    }
}
