//! Administrative commands: flush_all, verbosity, version, quit, shutdown, cache_memlimit, watch, and those that tune
//! memcached's slabs and its LRU.
//!
//! Commands for parts of memcached that do not exist here are parsed as memcached parses them, with the same errors for
//! malformed ones. The reply is OK if the requested state holds anyway (no automover, a running crawler: expired items
//! are freed in the background), else an error that there is nothing to tune; never OK for a command without effect.

use core::sync::atomic::Ordering::Relaxed;

use super::connection::Step;
use super::dispatch::{BAD_EXPTIME, BAD_FORMAT, Dispatch, ERROR, OK, is_quiet};
use super::service::{Shutdown, VERSION};
use super::text::{real, signed, signed_32, unsigned_32, words};

const MIB: u64 = 1 << 20;
/// memcached's least and most for cache_memlimit, in MiB.
const MEMLIMIT: core::ops::RangeInclusive<u32> = 8..=1_000_000_000;

const NO_AUTOMOVER: &[u8] = b"CLIENT_ERROR there is no slab automover to tune\r\n";
const NO_LRU_TUNING: &[u8] = b"ERROR there is no segmented LRU to tune\r\n";
const NO_CRAWLER_TUNING: &[u8] = b"CLIENT_ERROR there is no lru crawler to tune\r\n";

impl Dispatch<'_> {
    /// Executes a line that is not a command on keys.
    pub(super) fn admin(&self, line: &[u8], out: &mut Vec<u8>) -> Step {
        let mut rest = words(line);
        let verb = rest.next().unwrap_or_default();
        let args = rest.rest();
        // A command on keys has nothing before it.
        let is_first = line.first() != Some(&b' ');
        let reply: &[u8] = match verb {
            b"version" if is_first => return version(out),
            b"quit" if is_first => return Step::Close,
            b"stats" if is_first => {
                self.stats(args, out);
                return Step::Done(0);
            }
            b"lru_crawler" => return self.crawler(args, out),
            b"shutdown" => return self.shutdown(args, out),
            b"watch" if is_first => b"CLIENT_ERROR watch commands not allowed\r\n",
            b"flush_all" => self.flush_all(args),
            b"verbosity" => self.verbosity(args),
            b"cache_memlimit" => self.memlimit(args),
            b"slabs" => slabs(args),
            b"lru" => lru(args),
            b"debugtime" if self.settings().debug_time => {
                out.extend_from_slice(self.debug_time(args));
                // The next command must see the new time.
                return Step::Full(0);
            }
            _ if is_http(line) => return Step::Close,
            _ => ERROR,
        };
        if !(may_be_quiet(verb, args) && is_quiet(args)) {
            out.extend_from_slice(reply);
        }
        Step::Done(0)
    }

    fn flush_all(&self, args: &[u8]) -> &'static [u8] {
        self.counts.cmd_flush.one();
        if !self.settings().flush {
            return b"CLIENT_ERROR flush_all not allowed\r\n";
        }
        let mut rest = words(args);
        let delay = rest.next().filter(|word| !(is_quiet(args) && *word == b"noreply"));
        let Some(delay) = delay.map_or(Some(0), signed_32) else { return BAD_EXPTIME };
        // A time in the past means now.
        self.store.flush(self.service.second(delay.max(0), self.now));
        OK
    }

    fn verbosity(&self, args: &[u8]) -> &'static [u8] {
        let Some(level) = words(args).next().and_then(unsigned_32) else { return BAD_FORMAT };
        self.service.verbosity.store(u64::from(level.min(2)), Relaxed);
        OK
    }

    fn memlimit(&self, args: &[u8]) -> &'static [u8] {
        match words(args).next().and_then(unsigned_32) {
            None => ERROR,
            Some(mib) if mib < *MEMLIMIT.start() => {
                b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
            }
            Some(mib) if mib > *MEMLIMIT.end() => {
                b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
            }
            Some(mib) if self.store.resize(u64::from(mib) * MIB) => OK,
            Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        }
    }

    fn shutdown(&self, args: &[u8], out: &mut Vec<u8>) -> Step {
        let mut words = words(args);
        let how = match (words.next(), words.next()) {
            (None, _) => Some(Shutdown::Now),
            (Some(b"graceful"), None) => Some(Shutdown::Graceful),
            _ => None,
        };
        match how {
            // The colon is memcached's.
            _ if !self.settings().shutdown => {
                out.extend_from_slice(b"SERVER_ERROR: shutdown not enabled\r\n");
            }
            None => out.extend_from_slice(b"CLIENT_ERROR invalid shutdown mode\r\n"),
            Some(how) => {
                self.service.host.shutdown(how);
                return Step::Close;
            }
        }
        Step::Done(0)
    }

    /// `debugtime p|r|<seconds>`: the clock is paused, resumed, or moved.
    fn debug_time(&self, args: &[u8]) -> &'static [u8] {
        match words(args).next() {
            Some(b"p") => self.service.pause(),
            Some(b"r") => self.service.resume(),
            Some(seconds) => match signed(seconds) {
                Some(seconds) => self.service.move_clock(self.store, seconds),
                None => return ERROR,
            },
            None => return ERROR,
        }
        OK
    }

    fn crawler(&self, args: &[u8], out: &mut Vec<u8>) -> Step {
        let mut words = words(args);
        let reply: &[u8] = match (words.next(), words.next(), words.next()) {
            (Some(b"metadump"), Some(class), None) => return self.metadump(class, out),
            (Some(b"mgdump"), Some(class), None) => return self.mgdump(class, out),
            (Some(b"crawl"), Some(_), None) => {
                b"NOTSTARTED expired items are freed without a crawler\r\n"
            }
            (Some(b"tocrawl"), Some(items), None) => match unsigned_32(items) {
                None => BAD_FORMAT,
                Some(_) => NO_CRAWLER_TUNING,
            },
            (Some(b"sleep"), Some(us), None) => match unsigned_32(us) {
                None => BAD_FORMAT,
                Some(1_000_001..) => b"CLIENT_ERROR sleep must be one second or less\r\n",
                Some(_) => NO_CRAWLER_TUNING,
            },
            (Some(b"enable"), None, None) => OK,
            (Some(b"disable"), None, None) => b"ERROR failed to stop lru crawler thread\r\n",
            _ => ERROR,
        };
        out.extend_from_slice(reply);
        Step::Done(0)
    }
}

/// Whether a command obeys `noreply`. Others reply nevertheless, and clients wait for that: libmemcached sends `version
/// noreply`.
fn may_be_quiet(verb: &[u8], args: &[u8]) -> bool {
    match verb {
        b"flush_all" | b"verbosity" | b"cache_memlimit" | b"lru" | b"watch" => true,
        b"slabs" => words(args).next() == Some(b"automove"),
        _ => false,
    }
}

fn version(out: &mut Vec<u8>) -> Step {
    out.extend_from_slice(b"VERSION ");
    out.extend_from_slice(VERSION.as_bytes());
    out.extend_from_slice(b"\r\n");
    Step::Done(0)
}

fn slabs(args: &[u8]) -> &'static [u8] {
    let mut words = words(args);
    match (words.next(), words.next(), words.next()) {
        (Some(b"reassign"), Some(_), Some(_)) => b"CLIENT_ERROR slab reassignment disabled\r\n",
        (Some(b"automove"), Some(b"ratio" | b"freeratio"), ratio) => {
            ratio.and_then(real).map_or(ERROR, |_| NO_AUTOMOVER)
        }
        (Some(b"automove"), Some(b"window"), window) => match window.and_then(unsigned_32) {
            None => BAD_FORMAT,
            Some(3..=1800) => NO_AUTOMOVER,
            Some(_) => b"CLIENT_ERROR automove window too low or too high\r\n",
        },
        (Some(b"automove"), Some(level), _) => match unsigned_32(level) {
            None => BAD_FORMAT,
            Some(0) => OK,
            Some(1 | 2) => NO_AUTOMOVER,
            Some(_) => ERROR,
        },
        _ => ERROR,
    }
}

fn lru(args: &[u8]) -> &'static [u8] {
    let mut words = words(args);
    let is_fit = match words.next() {
        Some(b"tune") => {
            let percents: Option<u64> =
                words.by_ref().take(2).map(|word| unsigned_32(word).map(u64::from)).sum();
            let factors: Vec<f64> = words.map_while(real).take(2).collect();
            if percents.is_some_and(|sum| sum > 80) {
                return b"ERROR hot and warm pcts must not exceed 80\r\n";
            }
            percents.is_some() && factors.len() == 2 && factors.iter().all(|one| *one > 0.0)
        }
        Some(b"mode") => matches!(words.next(), Some(b"flat" | b"segmented")),
        Some(b"temp_ttl") => words.next().and_then(signed_32).is_some(),
        _ => false,
    };
    if is_fit { NO_LRU_TUNING } else { ERROR }
}

/// Whether it is the first line of an HTTP request: the connection is closed.
fn is_http(line: &[u8]) -> bool {
    words(line).skip(1).last().is_some_and(|word| word.starts_with(b"HTTP/"))
}
