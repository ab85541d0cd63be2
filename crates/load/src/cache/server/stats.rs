//! A server's statistics (`stats`), its process's memory if it is on this machine, and a check that it answers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::super::engine::resident;
use super::super::results::Memory;
use super::address::Address;

/// The most bytes that are read: memcached prints some 4 KiB.
const STATS_MAX: u64 = 1 << 20;

/// A server's statistics.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Stats {
    /// Its version.
    pub(super) version: Option<String>,
    /// Its memory.
    pub(super) memory: Memory,
    process: Option<u32>,
}

/// Requests them over a separate connection.
pub(super) fn ask(address: &Address, patience: Duration) -> anyhow::Result<Stats> {
    let mut connection = address.connect()?;
    connection.with_patience(patience)?;
    let local = connection.is_local();
    let no_answer = || {
        format!("{address}: no answer to `stats`; is that memcached, speaking the text protocol?")
    };
    connection.write_all(b"stats\r\n").with_context(no_answer)?;
    let (mut reader, mut lines) = (BufReader::new(connection.take(STATS_MAX)), String::new());
    loop {
        let before = lines.len();
        let read = reader.read_line(&mut lines).with_context(no_answer)?;
        match lines[before..].trim_end() {
            "END" => break,
            line if read > 0 && line.starts_with("STAT ") => {}
            line => bail!("{}; it said {line:?}", no_answer()),
        }
    }
    let mut stats = parse(&lines);
    // The id of a process on another machine, or in another container, names no process here, or another one.
    let process = stats.process.filter(|_| local).map(|number| number.to_string());
    stats.memory.resident_bytes = process.and_then(|number| resident(&number)).map(|bytes| bytes.0);
    Ok(stats)
}

/// Checks that a read of a missing key is answered: proxies do not know `stats`, and close the connection.
pub(super) fn reads(address: &Address, patience: Duration) -> anyhow::Result<()> {
    let mut connection = address.connect()?;
    connection.with_patience(patience)?;
    connection.write_all(b"get nearfar-is-anybody-there\r\n")?;
    let mut line = String::new();
    BufReader::new(connection.take(STATS_MAX)).read_line(&mut line)?;
    if line != "END\r\n" {
        bail!("{address}: a read was answered by {line:?}");
    }
    Ok(())
}

fn parse(lines: &str) -> Stats {
    let mut stats = Stats::default();
    for line in lines.lines() {
        let mut words = line.splitn(3, ' ').skip(1);
        let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
        match name {
            "version" => stats.version = Some(value.chars().filter(|c| !c.is_control()).collect()),
            "pid" => stats.process = value.parse().ok(),
            _ => {
                if let Ok(value) = value.parse() {
                    stats.memory.figure(name, value);
                }
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_parse_and_malformed_lines_are_ignored() {
        let stats = parse(
            "STAT pid 42\r\nSTAT version 1.6.18\r\nSTAT curr_items 7\r\nSTAT bytes x\r\nSTAT\r\nEND\r\n",
        );
        assert_eq!((stats.version.as_deref(), stats.process), (Some("1.6.18"), Some(42)));
        assert_eq!(
            stats.memory.figures.into_iter().collect::<Vec<_>>(),
            [("curr_items".into(), 7)]
        );
    }
}
