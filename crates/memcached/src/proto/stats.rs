//! stats: counters of the server and figures of the store, by memcached's names where it has them.
//!
//! Classes of `stats slabs` and `stats items` are the store's, over all tiers; they differ from memcached's. A command
//! counts in the class of the item it found or stored. `stats
//! sizes` is off, as it is by default in memcached; `lru_crawler metadump` has all sizes.

use core::fmt::Display;
use core::sync::atomic::Ordering::Relaxed;
use std::io::Write as _;

use super::counters::{BY_CLASS, COUNTED, Event};
use super::dispatch::{BAD_FORMAT, Dispatch, ERROR, OK};
use super::service::VERSION;
use super::text::{unsigned_32, words};

const END: &[u8] = b"END\r\n";

fn push_stat(out: &mut Vec<u8>, name: &str, value: &dyn Display) {
    // Writing into a vector does not fail.
    let _ = write!(out, "STAT {name} {value}\r\n");
}

impl Dispatch<'_> {
    pub(super) fn stats(&self, args: &[u8], out: &mut Vec<u8>) {
        let mut words = words(args);
        let figures = &mut |name: &str, value: &dyn Display| push_stat(out, name, value);
        match words.next() {
            None => {
                self.general(out);
                out.extend_from_slice(END);
            }
            Some(b"reset") => {
                self.service.reset(self.store);
                out.extend_from_slice(b"RESET\r\n");
            }
            Some(b"settings") => {
                self.own_settings(figures);
                self.service.host.settings(figures);
                out.extend_from_slice(END);
            }
            Some(b"conns") => {
                self.service.host.connections(figures);
                out.extend_from_slice(END);
            }
            Some(b"slabs") => {
                self.slabs(figures);
                out.extend_from_slice(END);
            }
            Some(b"sizes") => out.extend_from_slice(b"STAT sizes_status disabled\r\nEND\r\n"),
            Some(b"items") => {
                self.items(figures);
                out.extend_from_slice(END);
            }
            Some(b"detail") => self.stats_detail(words.next(), out),
            Some(b"cachedump") => {
                let (_, items) = (words.next(), words.next());
                match items.and_then(unsigned_32) {
                    _ if !self.settings().dump => {
                        out.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n");
                    }
                    None => out.extend_from_slice(BAD_FORMAT),
                    Some(items) => self.cachedump(items, out),
                }
            }
            Some(_) => out.extend_from_slice(ERROR),
        }
    }

    fn slabs(&self, each: &mut super::service::Figures<'_>) {
        let (mut classes, mut bytes) = (0, 0);
        self.store.classes(&mut |number, class| {
            let slots = class.slots_per_slab * class.slabs;
            let figures = [
                ("chunk_size", class.slot_bytes),
                ("chunks_per_page", class.slots_per_slab),
                ("total_pages", class.slabs),
                ("total_chunks", slots),
                ("used_chunks", class.used),
                ("free_chunks", slots.saturating_sub(class.used)),
                ("free_chunks_end", 0),
                ("mem_requested", class.item_bytes),
            ];
            let counted = BY_CLASS.into_iter().zip(self.service.of_class(number));
            let counted = counted.filter(|(name, _)| *name != "outofmemory");
            for (name, value) in figures.into_iter().chain(counted) {
                each(&format!("{number}:{name}"), &value);
            }
            classes += 1;
            bytes += slots * class.slot_bytes;
        });
        each("active_slabs", &classes);
        each("total_malloced", &bytes);
    }

    fn items(&self, each: &mut super::service::Figures<'_>) {
        self.store.classes(&mut |number, class| {
            let figures = [
                ("number", class.items),
                ("mem_requested", class.item_bytes),
                ("evicted", class.evicted),
                ("evicted_nonzero", class.evicted_expiring),
                ("evicted_unfetched", class.evicted_unfetched),
                ("outofmemory", self.service.of_class(number)[Event::OutOfMemory as usize]),
                ("reclaimed", class.expired.saturating_sub(class.reaped)),
                ("expired_unfetched", class.unfetched),
                ("crawler_reclaimed", class.reaped),
            ];
            for (name, value) in figures {
                each(&format!("items:{number}:{name}"), &value);
            }
        });
    }

    fn general(&self, out: &mut Vec<u8>) {
        let service = self.service;
        push_stat(out, "time", &service.unix(self.now));
        push_stat(out, "version", &VERSION);
        push_stat(out, "pointer_size", &usize::BITS);
        service.host.stats(&mut |name, value| push_stat(out, name, value));
        for ((name, _), value) in COUNTED.iter().zip(service.counted()) {
            push_stat(out, name, &value);
        }
        service.stored(self.store, &mut |name, value| push_stat(out, name, &value));
    }

    fn own_settings(&self, each: &mut super::service::Figures<'_>) {
        let yes = |is: bool| if is { "yes" } else { "no" };
        let settings = self.settings();
        each("item_size_max", &settings.item_bytes_max);
        each("reqs_per_event", &settings.requests_per_turn);
        each("verbosity", &self.service.verbosity.load(Relaxed));
        each("flush_enabled", &yes(settings.flush));
        each("dump_enabled", &yes(settings.dump));
        each("shutdown_command", &yes(settings.shutdown));
        each("detail_enabled", &yes(self.service.detail.is_on()));
        each("stat_key_prefix", &':');
        each("evictions", &"on");
        each("cas_enabled", &"yes");
        each("auth_enabled_sasl", &"no");
        each("auth_enabled_ascii", &"no");
        each("binding_protocol", &"ascii");
        each("slab_reassign", &"no");
        each("slab_automove", &0);
        each("lru_crawler", &"yes");
        each("track_sizes", &"no");
        each("client_flags_size", &size_of::<u32>());
    }

    fn stats_detail(&self, what: Option<&[u8]>, out: &mut Vec<u8>) {
        let detail = &self.service.detail;
        if !self.settings().dump {
            return out.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n");
        }
        match what {
            Some(b"on") => {
                detail.turn_on();
                out.extend_from_slice(OK);
            }
            Some(b"off") => {
                detail.turn_off();
                out.extend_from_slice(OK);
            }
            Some(b"dump") => detail.dump(out),
            _ => out.extend_from_slice(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        }
    }
}
