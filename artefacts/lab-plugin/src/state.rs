// SPDX-License-Identifier: GPL-2.0-or-later
//! What the callbacks share: the machine, how time is kept, and a seat per vCPU.
//!
//! A [`Seat`] belongs to the thread of its vCPU. Its times are atomic because others read them; the model's part is in
//! a cell that only that thread opens, and never while it calls QEMU.
#![expect(unsafe_code, reason = "hands a vCPU's state to its thread")]

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_uint;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use nearfar_timing::config::{CPUS_MAX, Clock, Config};
use nearfar_timing::{Machine, Pacer, Sample, Timeline, Vcpu};

use crate::api::{self, Counter};
use crate::clock::{exact_waits, real_ns, wait};
use crate::internals::Internals;

/// How much modelled time a vCPU runs between looks at the others: 10 us.
const QUANTUM_PS: u64 = 10_000_000;
/// The same while it waits for memory an eighth of its time: 1 us. What one takes of a node's capacity must then be seen soon by those
/// it is taken from; with looks ten times as far apart, 2 to 5 % of what three nodes give together is lost.
const BUSY_QUANTUM_PS: u64 = 1_000_000;
/// How far it may be ahead of the slowest without waiting, in quanta: one and a half.
const SLACK_HALF_QUANTA: u64 = 3;
/// How often, in modelled time, a vCPU wakes the main loop for the same timer: 50 us.
const NUDGE_PS: u64 = 50_000_000;
/// How long, in real time, it waits for one that does not move: such a one is held up by something that may be us.
const PATIENCE_NS: u64 = 400_000;
/// How long, in real time, it waits at a time.
const NAP_NS: u64 = 20_000;

/// What all vCPUs share.
pub(crate) struct Plugin {
    pub(crate) machine: Machine,
    /// What QEMU offers for a virtual clock, or what it lacks.
    internals: Result<Internals, String>,
    /// Settled when the first vCPU appears.
    time: OnceLock<Settled>,
    /// Modelled time of each vCPU since it was last looked at; translated code adds to it.
    pub(crate) pending: Counter,
    /// Counts so far, if they are kept, and the modelled time at which they are next.
    series: Mutex<Vec<Sample>>,
    sample_ns: AtomicU64,
}

/// How time is kept, and why so if it is the second choice.
struct Settled {
    time: Time,
    reason: Option<String>,
}

/// How the guest is made to feel time.
pub(crate) enum Time {
    /// Its clocks show modelled time.
    Virtual(Timeline, Internals),
    /// It really waits.
    Wait(Pacer, f64),
}

// SAFETY: `pending` is a handle that QEMU lets any thread use; all else is Send and Sync by itself.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
static SEATS: [OnceLock<Seat>; CPUS_MAX] = [const { OnceLock::new() }; CPUS_MAX];

thread_local! {
    /// The vCPU this thread is.
    static HERE: Cell<Option<&'static Seat>> = const { Cell::new(None) };
    /// Whether this thread only asks whether a timer is due.
    static PEEKING: Cell<bool> = const { Cell::new(false) };
}

/// A vCPU's state.
pub(crate) struct Seat {
    index: usize,
    vcpu: UnsafeCell<Vcpu>,
    /// Modelled time reached when last looked at.
    own_ps: AtomicU64,
    /// This vCPU's element of [`Plugin::pending`]: what the quantum was shortened by, and the modelled time since.
    pending_ps: &'static AtomicU64,
    /// What the present quantum was shortened by.
    shortened_ps: AtomicU64,
    /// The part of the present quantum it has stood still.
    stalled_ps: AtomicU64,
    nudged_ps: AtomicU64,
}

// SAFETY: `vcpu` is opened by the vCPU's own thread alone (`with_vcpu`); all else is Sync by itself.
unsafe impl Sync for Seat {}

/// The plugin, once set up.
#[inline]
pub(crate) fn plugin() -> Option<&'static Plugin> {
    PLUGIN.get()
}

/// The seat of a vCPU, once that exists.
#[inline]
pub(crate) fn seat(vcpu: c_uint) -> Option<&'static Seat> {
    SEATS.get(vcpu as usize)?.get()
}

/// Reads the settings and settles how time is kept.
pub(crate) fn set_up(info: &api::Info, arguments: &[String]) -> Result<(), String> {
    if !info.system_emulation {
        return Err(
            "asked to serve a user-mode QEMU; this plugin is for qemu-system-x86_64".to_owned()
        );
    }
    let [argument] = arguments else {
        return Err(format!("expected the one argument config=FILE, found {arguments:?}"));
    };
    let path = argument
        .strip_prefix("config=")
        .ok_or_else(|| format!("expected config=FILE, found {argument:?}"))?;
    let text = std::fs::read_to_string(path).map_err(|error| format!("config={path}: {error}"))?;
    let config = Config::parse(&text).map_err(|wrong| format!("config={path}: {wrong}"))?;
    if usize::try_from(info.max_vcpus).ok() > Some(config.cpu_nodes.len()) {
        let known = config.cpu_nodes.len();
        return Err(format!(
            "config={path}: {known} vCPUs in cpu_nodes, {} in QEMU",
            info.max_vcpus
        ));
    }
    let internals = Internals::look_up();
    if let (Err(lack), Clock::Virtual) = (&internals, config.clock) {
        return Err(no_virtual_clock(lack));
    }
    // SAFETY: may be called at load; the board is kept for good.
    let scoreboard = unsafe { api::qemu_plugin_scoreboard_new(64) };
    let pending = Counter { scoreboard, offset: 0 };
    let machine = Machine::new(config)?;
    let every = machine.config().stats.as_ref().and(machine.config().stats_every_ms);
    let plugin = Plugin {
        machine,
        internals,
        time: OnceLock::new(),
        pending,
        series: Mutex::default(),
        sample_ns: AtomicU64::new(if every.is_some() { 0 } else { u64::MAX }),
    };
    PLUGIN.set(plugin).map_err(|_| "loaded twice".to_owned())?;
    if let Some(plugin) = PLUGIN.get()
        && let Some(socket) = &plugin.machine.config().pmu
    {
        crate::pmu::serve(plugin, socket);
    }
    Ok(())
}

fn no_virtual_clock(lack: &str) -> String {
    format!("asked for a virtual clock, but in this QEMU {lack}; use the clock `wait` or `auto`")
}

/// Says why QEMU will not run with this plugin.
#[expect(clippy::print_stderr, reason = "QEMU shows only a number")]
pub(crate) fn complain(message: &str) {
    eprintln!("nearfar-lab-plugin: {message}");
}

/// What QEMU calls for the virtual clock and the time-stamp counter, nanoseconds.
extern "C" fn show_time() -> i64 {
    let Some(Time::Virtual(timeline, _)) = plugin().and_then(Plugin::time) else {
        return 0;
    };
    let shown = match HERE.get() {
        Some(seat) if PEEKING.get() => timeline.peek(seat.now_ps()),
        Some(seat) if timeline.is_running(seat.index) => timeline.show_vcpu(seat.now_ps()),
        _ => timeline.show_outsider(real_ns()),
    };
    shown.cast_signed()
}

impl Plugin {
    /// How time is kept, once that is settled.
    #[inline]
    pub(crate) fn time(&self) -> Option<&Time> {
        Some(&self.time.get()?.time)
    }

    /// Settles how time is kept, as the settings ask and this QEMU allows, and says so in the statistics file. Called
    /// as each vCPU appears, with QEMU's big lock held; the first does it.
    pub(crate) fn settle_time(&self) -> Result<(), String> {
        if self.time.get().is_some() {
            return Ok(());
        }
        let waits = |slow_motion| Time::Wait(Pacer::new(slow_motion), slow_motion);
        let (time, reason) = match (self.machine.config().clock, self.take_over()) {
            (Clock::Wait { slow_motion }, _) => (waits(slow_motion), None),
            (_, Ok(time)) => (time, None),
            (Clock::Auto { fallback_slow_motion }, Err(lack)) => {
                (waits(fallback_slow_motion), Some(lack))
            }
            (Clock::Virtual, Err(lack)) => return Err(no_virtual_clock(&lack)),
        };
        self.time.set(Settled { time, reason }).map_err(|_| "two vCPUs at once".to_owned())?;
        self.write_stats(false)
    }

    /// Makes the guest's clocks show modelled time, going on from what they show now.
    fn take_over(&self) -> Result<Time, String> {
        if let Clock::Wait { .. } = self.machine.config().clock {
            return Err("not asked for".to_owned());
        }
        let internals = self.internals.clone()?;
        let start_ns = internals.shown_ns().cast_unsigned();
        internals.take_over(show_time)?;
        let vcpus = self.machine.config().cpu_nodes.len();
        Ok(Time::Virtual(Timeline::new(vcpus, start_ns, real_ns()), internals))
    }

    /// How much modelled time a vCPU may run between looks at it.
    pub(crate) fn quantum_ps(&self) -> u64 {
        match self.time() {
            Some(Time::Wait(pacer, _)) => pacer.quantum_ps(),
            _ => QUANTUM_PS,
        }
    }

    /// Keeps what has been counted by now, if that is due.
    fn keep_sample(&self, now_ns: u64) {
        let due_ns = self.sample_ns.load(Relaxed);
        if now_ns < due_ns {
            return;
        }
        let every_ns = self.machine.config().stats_every_ms.unwrap_or(0).saturating_mul(1_000_000);
        let next_ns = now_ns + every_ns;
        if self.sample_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_err() {
            return;
        }
        // Taken within, so that of two the later is behind the other.
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.push(self.machine.sample(now_ns));
    }

    /// Writes the statistics file, whole or not at all.
    pub(crate) fn write_stats(&self, complete: bool) -> Result<(), String> {
        let Some(path) = &self.machine.config().stats else {
            return Ok(());
        };
        let Some(settled) = self.time.get() else {
            return Ok(());
        };
        let (clock, slow_motion) = match settled.time {
            Time::Virtual(..) => ("virtual", 1.0),
            Time::Wait(_, slow_motion) => ("wait", slow_motion),
        };
        let mut stats = self.machine.stats(clock, slow_motion);
        stats.complete = complete;
        stats.clock_reason.clone_from(&settled.reason);
        stats.series.clone_from(&self.series.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = serde_json::to_string_pretty(&stats).map_err(|error| error.to_string())?;
        text.push('\n');
        replace(path, &text).map_err(|error| format!("stats {}: {error}", path.display()))
    }
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, path)
}

impl Seat {
    /// Seats a vCPU on the calling thread, which is its own.
    pub(crate) fn take(plugin: &'static Plugin, index: c_uint) -> Result<&'static Self, String> {
        if HERE.get().is_some() {
            return Err(
                "one thread runs several vCPUs; start QEMU with -accel tcg,thread=multi".to_owned()
            );
        }
        let place = SEATS.get(index as usize).ok_or("more vCPUs than the settings name")?;
        let vcpu =
            plugin.machine.vcpu(index as usize).ok_or("more vCPUs than the settings name")?;
        // SAFETY: vCPU `index` exists by now, as QEMU has told us of it.
        let element = unsafe { api::qemu_plugin_scoreboard_find(plugin.pending.scoreboard, index) };
        // SAFETY: the element is 64 bytes, zeroed, at a multiple of 64, and stays in place: QEMU moves the board only
        // for vCPUs beyond the sixteenth, and there are at most CPUS_MAX. Only this vCPU's translated code and this
        // thread write to it.
        let pending_ps = unsafe { AtomicU64::from_ptr(element.cast()) };
        let seat = place.get_or_init(|| Self {
            index: index as usize,
            vcpu: UnsafeCell::new(vcpu),
            own_ps: AtomicU64::new(0),
            pending_ps,
            shortened_ps: AtomicU64::new(0),
            stalled_ps: AtomicU64::new(0),
            nudged_ps: AtomicU64::new(0),
        });
        HERE.set(Some(seat));
        exact_waits();
        Ok(seat)
    }

    /// Opens the model's part; `work` must not call QEMU.
    #[inline]
    pub(crate) fn with_vcpu<R>(&self, work: impl FnOnce(&mut Vcpu) -> R) -> R {
        // SAFETY: callbacks of a vCPU come from its own thread, one after the other, and `work` calls nothing that
        // would call back; so there is no other reference.
        work(unsafe { &mut *self.vcpu.get() })
    }

    /// The modelled time this vCPU has reached.
    #[inline]
    pub(crate) fn now_ps(&self) -> u64 {
        let pending_ps = self.pending_ps.load(Relaxed) - self.shortened_ps.load(Relaxed);
        self.own_ps.load(Relaxed) + pending_ps
    }

    /// Stands still for a while of modelled time.
    #[inline]
    pub(crate) fn stall(&self, stall_ps: u64) {
        self.pending_ps.store(self.pending_ps.load(Relaxed) + stall_ps, Relaxed);
        self.stalled_ps.store(self.stalled_ps.load(Relaxed) + stall_ps, Relaxed);
    }

    /// Moves what is pending to the vCPU's own time, and returns that; the next quantum is as long as this one makes it.
    fn collect(&self, plugin: &Plugin) -> u64 {
        let busy_ps = self.pending_ps.load(Relaxed) - self.shortened_ps.load(Relaxed);
        let waits_for_memory = self.stalled_ps.swap(0, Relaxed) * 8 > busy_ps;
        let shorten = waits_for_memory && matches!(plugin.time(), Some(Time::Virtual(..)));
        let shortened_ps = if shorten { QUANTUM_PS - BUSY_QUANTUM_PS } else { 0 };
        self.shortened_ps.store(shortened_ps, Relaxed);
        self.pending_ps.store(shortened_ps, Relaxed);
        let own_ps = self.own_ps.load(Relaxed) + busy_ps;
        self.own_ps.store(own_ps, Relaxed);
        self.with_vcpu(|vcpu| plugin.machine.account(vcpu, busy_ps, own_ps));
        own_ps
    }

    /// A quantum has passed.
    pub(crate) fn synchronise(&self, plugin: &Plugin) {
        let own_ps = self.collect(plugin);
        match plugin.time() {
            Some(Time::Virtual(timeline, internals)) => {
                let own_ps = if timeline.is_running(self.index) {
                    timeline.advance(self.index, own_ps)
                } else {
                    timeline.wake(self.index, own_ps, real_ns())
                };
                self.own_ps.store(own_ps, Relaxed);
                plugin.keep_sample(own_ps / 1000);
                self.nudge(timeline, *internals, own_ps);
                self.let_others_catch_up(timeline, own_ps);
            }
            Some(Time::Wait(pacer, _)) => {
                let pace = pacer.pace(own_ps, real_ns());
                self.own_ps.store(pace.own_ps, Relaxed);
                plugin.keep_sample(pace.own_ps / 1000);
                if pace.wait_ns > 0 {
                    wait(pace.wait_ns);
                }
            }
            None => {}
        }
    }

    /// Wakes the main loop if a timer is due. It may miss one wake-up (this thread does not hold its lock), but as long
    /// as the timer is due and a vCPU runs there will be another; and going idle, which holds the lock, is not missed.
    fn nudge(&self, timeline: &Timeline, internals: Internals, own_ps: u64) {
        if own_ps < self.nudged_ps.load(Relaxed) + NUDGE_PS {
            return;
        }
        PEEKING.set(true);
        let is_due = internals.timer_is_due();
        PEEKING.set(false);
        if is_due {
            self.nudged_ps.store(own_ps, Relaxed);
            timeline.announce(own_ps);
            internals.wake_main_loop();
        }
    }

    /// Waits, a little at a time, while this vCPU is too far ahead of one that moves. One that does not move may be
    /// waiting for a lock, for all others to stop, or for the host; it is given up on for this quantum.
    fn let_others_catch_up(&self, timeline: &Timeline, own_ps: u64) {
        let quantum_ps = QUANTUM_PS - self.shortened_ps.load(Relaxed);
        let (mut slowest_ps, mut stuck_ns, mut nap_ns) = (0, 0, NAP_NS);
        while let Some(lead) = timeline.ahead_of_slowest(self.index, own_ps) {
            if lead.lead_ps <= quantum_ps * SLACK_HALF_QUANTA / 2 {
                break;
            }
            if lead.slowest_ps != slowest_ps {
                (slowest_ps, stuck_ns, nap_ns) = (lead.slowest_ps, 0, NAP_NS);
            } else if stuck_ns >= PATIENCE_NS {
                break;
            }
            wait(nap_ns);
            stuck_ns += nap_ns;
            nap_ns = (nap_ns * 2).min(PATIENCE_NS / 4);
        }
    }

    /// The vCPU goes idle; QEMU's big lock is held.
    pub(crate) fn rest(&self, plugin: &Plugin) {
        let own_ps = self.collect(plugin);
        if let Some(Time::Virtual(timeline, internals)) = plugin.time()
            && timeline.rest(self.index, own_ps, real_ns())
        {
            internals.wake_main_loop();
        }
    }

    /// The vCPU begins, or goes on, to run; QEMU's big lock is held.
    pub(crate) fn wake(&self, plugin: &Plugin) {
        let own_ps = self.own_ps.load(Relaxed);
        let own_ps = match plugin.time() {
            Some(Time::Virtual(timeline, _)) => timeline.wake(self.index, own_ps, real_ns()),
            Some(Time::Wait(pacer, _)) => pacer.wake(own_ps, real_ns()),
            None => own_ps,
        };
        self.own_ps.store(own_ps, Relaxed);
    }
}
