// SPDX-License-Identifier: GPL-2.0-or-later
//! The state that callbacks share: the machine, the timekeeping method, and a seat per vCPU.
//!
//! A [`Seat`] belongs to the thread of its vCPU. Its times are atomic because other threads read them; the model's
//! state is in a cell that only that thread accesses, and never while it calls QEMU.
#![expect(unsafe_code, reason = "hands a vCPU's state to its thread")]

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_uint;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use nearfar_timing::config::{CPUS_MAX, Clock, Config};
use nearfar_timing::{HostStats, Machine, Pacer, Sample, Timeline, Vcpu};

use crate::api::{self, Counter, PluginId};
use crate::begin;
use crate::clock::{Thread, exact_waits, precede_others, real_ns, wait};
use crate::internals::Internals;
use crate::translation::{look_up_registers, machine};

/// Modelled time that a vCPU runs between synchronisations with the others: 10 us.
const QUANTUM_PS: u64 = 10_000_000;
/// The same while a vCPU waits for memory at least an eighth of its time: 1 us. Its use of a node's capacity must soon
/// affect the others; with an interval ten times as long, three nodes lose 2 to 5 % of their total bandwidth.
const BUSY_QUANTUM_PS: u64 = 1_000_000;
/// The lead over the slowest vCPU that is allowed without waiting, in half quanta: one and a half quanta.
const SLACK_HALF_QUANTA: u64 = 3;
/// Minimum modelled time between two wake-ups of the main loop for the same timer: 50 us.
const NUDGE_PS: u64 = 50_000_000;
/// Maximum real time to wait for a vCPU that makes no progress: it may be blocked by this thread.
const PATIENCE_NS: u64 = 400_000;
/// The same for one that the host does not run: 4 ms. With more, a guest on a busy host hardly gets on.
const HOST_PATIENCE_NS: u64 = 4_000_000;
/// Real time of a single wait.
const NAP_NS: u64 = 20_000;

/// State that all vCPUs share.
pub(crate) struct Plugin {
    pub(crate) machine: Machine,
    id: PluginId,
    /// QEMU's functions for the virtual clock, or the reason why they are unavailable.
    internals: Result<Internals, String>,
    /// Set when the first vCPU appears.
    time: OnceLock<Settled>,
    /// Modelled time of each vCPU since it was last collected; translated code adds to it.
    pub(crate) pending: Counter,
    /// The reason why page walks cost nothing although the machine has TLBs.
    walk_reason: Option<String>,
    /// Counts so far, if a time series is recorded, and the modelled time of the next sample.
    series: Mutex<Vec<Sample>>,
    sample_ns: AtomicU64,
}

/// The timekeeping method, and the reason if it is the fallback.
struct Settled {
    time: Time,
    reason: Option<String>,
}

/// The way in which the guest experiences modelled time.
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
    /// The vCPU of this thread.
    static HERE: Cell<Option<&'static Seat>> = const { Cell::new(None) };
    /// Whether this thread only queries whether a timer is due.
    static PEEKING: Cell<bool> = const { Cell::new(false) };
}

/// A vCPU's state.
pub(crate) struct Seat {
    index: usize,
    vcpu: UnsafeCell<Vcpu>,
    /// Modelled time reached at the last collection.
    own_ps: AtomicU64,
    /// This vCPU's element of [`Plugin::pending`]: the shortening of the quantum, plus the modelled time since.
    pending_ps: &'static AtomicU64,
    /// 1 while loads are in flight (this vCPU's element of [`Plugin::ahead`]).
    ahead: &'static AtomicU64,
    /// The amount by which the present quantum was shortened.
    shortened_ps: AtomicU64,
    /// The part of the present quantum that was spent in stalls.
    stalled_ps: AtomicU64,
    nudged_ps: AtomicU64,
    thread: Thread,
    /// The thread's wait for CPUs of the host up to the time when the vCPU went idle.
    waited_ns: AtomicU64,
}

// SAFETY: `vcpu` is accessed by the vCPU's own thread alone (`with_vcpu`); all else is Sync by itself.
unsafe impl Sync for Seat {}

/// The plugin, once set up.
#[inline]
pub(crate) fn plugin() -> Option<&'static Plugin> {
    PLUGIN.get()
}

/// The seat of a vCPU; `None` before it appears.
#[inline]
pub(crate) fn seat(vcpu: c_uint) -> Option<&'static Seat> {
    SEATS.get(vcpu as usize)?.get()
}

/// Reads the settings and initialises the plugin.
pub(crate) fn set_up(id: PluginId, info: &api::Info, arguments: &[String]) -> Result<(), String> {
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
    // SAFETY: may be called at load; the scoreboard is never freed.
    let scoreboard = unsafe { api::qemu_plugin_scoreboard_new(64) };
    let pending = Counter { scoreboard, offset: 0 };
    let (machine, walk_reason) = machine(config)?;
    let every = machine.config().stats.as_ref().and(machine.config().stats_every_ms);
    let plugin = Plugin {
        machine,
        id,
        internals,
        time: OnceLock::new(),
        pending,
        walk_reason,
        series: Mutex::default(),
        sample_ns: AtomicU64::new(if every.is_some() { 0 } else { u64::MAX }),
    };
    PLUGIN.set(plugin).map_err(|_| "loaded twice".to_owned())?;
    if let Some(plugin) = PLUGIN.get() {
        let config = plugin.machine.config();
        if let Some(socket) = &config.pmu {
            crate::pmu::serve(plugin, socket);
        }
        if let Some(socket) = &config.begins {
            begin::wait_for(socket);
        }
    }
    Ok(())
}

fn no_virtual_clock(lack: &str) -> String {
    format!("asked for a virtual clock, but in this QEMU {lack}; use the clock `wait` or `auto`")
}

/// Reports why QEMU can't run with this plugin.
#[expect(clippy::print_stderr, reason = "QEMU shows only a number")]
pub(crate) fn complain(message: &str) {
    eprintln!("nearfar-lab-plugin: {message}");
}

/// The function that QEMU calls for the virtual clock and the time-stamp counter; returns nanoseconds.
extern "C" fn show_time() -> i64 {
    let Some(Time::Virtual(timeline, internals)) = plugin().and_then(Plugin::time) else {
        return 0;
    };
    let running = HERE.get().filter(|seat| timeline.is_running(seat.index));
    let shown = match (running, PEEKING.get()) {
        (Some(seat), true) => timeline.peek(seat.now_ps()),
        (Some(seat), false) => timeline.show_vcpu(seat.now_ps()),
        (None, true) => timeline.peek_idle(),
        (None, false) => {
            timeline.show_outsider(real_ns(), || u64::try_from(peeking(|| internals.due_ns())).ok())
        }
    };
    shown.cast_signed()
}

/// Asks QEMU for something that depends on the time, without that counting as a reading of it.
fn peeking<R>(ask: impl FnOnce() -> R) -> R {
    PEEKING.set(true);
    let answer = ask();
    PEEKING.set(false);
    answer
}

impl Plugin {
    /// Counters that are 1 for vCPUs with loads in flight.
    pub(crate) fn ahead(&self) -> Counter {
        Counter { offset: size_of::<u64>(), ..self.pending }
    }

    /// The timekeeping method, once it is settled.
    #[inline]
    pub(crate) fn time(&self) -> Option<&Time> {
        Some(&self.time.get()?.time)
    }

    /// Settles the timekeeping method by the settings and this QEMU's abilities, and records it in the statistics file.
    /// Called as each vCPU appears, with QEMU's big lock held; the first call has the effect.
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

    /// Makes the guest's clocks show modelled time, starting from their present values.
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

    /// Modelled time that a vCPU may run between synchronisations.
    pub(crate) fn quantum_ps(&self) -> u64 {
        match self.time() {
            Some(Time::Wait(pacer, _)) => pacer.quantum_ps(),
            _ => QUANTUM_PS,
        }
    }

    /// Records a sample of the counts if one is due.
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
        // The counts are read under the lock, so that samples are in order.
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.push(self.machine.sample(now_ns));
    }

    /// Writes the statistics file atomically.
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
        stats.walk_reason.clone_from(&self.walk_reason);
        if let Time::Virtual(timeline, _) = &settled.time {
            let reached_ps = stats.cpus.iter().map(|cpu| cpu.virtual_time_ns * 1000).sum();
            let waited_ns =
                SEATS.iter().filter_map(OnceLock::get).map(|seat| seat.thread.waited_ns());
            stats.host = Some(HostStats::new(timeline.jumps(), reached_ps, waited_ns.sum()));
        }
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
    /// Assigns a vCPU to the calling thread, which is its own.
    pub(crate) fn take(plugin: &'static Plugin, index: c_uint) -> Result<&'static Self, String> {
        if HERE.get().is_some() {
            return Err(
                "one thread runs several vCPUs; start QEMU with -accel tcg,thread=multi".to_owned()
            );
        }
        if plugin.machine.config().processor.tlb_entries > 0 && plugin.walk_reason.is_none() {
            look_up_registers()?;
        }
        let place = SEATS.get(index as usize).ok_or("more vCPUs than the settings name")?;
        let vcpu =
            plugin.machine.vcpu(index as usize).ok_or("more vCPUs than the settings name")?;
        // SAFETY: vCPU `index` exists by now, since QEMU has announced it.
        let element = unsafe { api::qemu_plugin_scoreboard_find(plugin.pending.scoreboard, index) };
        // SAFETY: the element is 64 bytes, zeroed, at a multiple of 64, and stays in place: QEMU moves the board only
        // for vCPUs beyond the sixteenth, and there are at most CPUS_MAX. Only this vCPU's translated code and this
        // thread write to it.
        let pending_ps = unsafe { AtomicU64::from_ptr(element.cast()) };
        // SAFETY: as above; the second of its eight words.
        let ahead = unsafe { AtomicU64::from_ptr(element.cast::<u64>().wrapping_add(1)) };
        let seat = place.get_or_init(|| Self {
            index: index as usize,
            vcpu: UnsafeCell::new(vcpu),
            own_ps: AtomicU64::new(0),
            pending_ps,
            ahead,
            shortened_ps: AtomicU64::new(0),
            stalled_ps: AtomicU64::new(0),
            nudged_ps: AtomicU64::new(0),
            thread: Thread::this(),
            waited_ns: AtomicU64::new(0),
        });
        HERE.set(Some(seat));
        exact_waits();
        precede_others();
        Ok(seat)
    }

    /// Calls `work` with the model's state; `work` must not call QEMU.
    #[inline]
    pub(crate) fn with_vcpu<R>(&self, work: impl FnOnce(&mut Vcpu) -> R) -> R {
        // SAFETY: callbacks of a vCPU come from its own thread, one after the other, and `work` makes no call that
        // leads to another callback; so there is no other reference.
        work(unsafe { &mut *self.vcpu.get() })
    }

    /// The modelled time this vCPU has reached.
    #[inline]
    pub(crate) fn now_ps(&self) -> u64 {
        let pending_ps = self.pending_ps.load(Relaxed) - self.shortened_ps.load(Relaxed);
        self.own_ps.load(Relaxed) + pending_ps
    }

    /// Whether loads are in flight.
    #[inline]
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead.load(Relaxed) != 0
    }

    /// Notes whether loads are in flight, for translated code to ask.
    #[inline]
    pub(crate) fn note_ahead(&self) {
        let now_ps = self.now_ps();
        self.ahead.store(u64::from(self.with_vcpu(|vcpu| vcpu.is_ahead(now_ps))), Relaxed);
    }

    /// Stalls for an amount of modelled time.
    #[inline]
    pub(crate) fn stall(&self, stall_ps: u64) {
        self.pending_ps.store(self.pending_ps.load(Relaxed) + stall_ps, Relaxed);
        self.stalled_ps.store(self.stalled_ps.load(Relaxed) + stall_ps, Relaxed);
    }

    /// Moves pending time to the vCPU's own time, and returns that; sets the length of the next quantum by the stalls
    /// in this one.
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

    /// Synchronises after a quantum.
    pub(crate) fn synchronise(&self, plugin: &Plugin) {
        begin::if_asked(plugin.id);
        let own_ps = self.collect(plugin);
        match plugin.time() {
            Some(Time::Virtual(timeline, internals)) => {
                let own_ps = if timeline.is_running(self.index) {
                    timeline.advance(self.index, own_ps)
                } else {
                    self.join(timeline, own_ps)
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
    /// as the timer is due and a vCPU runs there will be another; going idle, which holds the lock, never misses one.
    fn nudge(&self, timeline: &Timeline, internals: Internals, own_ps: u64) {
        if own_ps < self.nudged_ps.load(Relaxed) + NUDGE_PS {
            return;
        }
        if peeking(|| internals.due_ns()) == 0 {
            self.nudged_ps.store(own_ps, Relaxed);
            timeline.announce(own_ps);
            internals.wake_main_loop();
        }
    }

    /// Waits in short intervals while this vCPU is too far ahead of one that makes progress. One without progress may
    /// be waiting for a lock, for all others to stop, or for the host; it is ignored for this quantum.
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
                let slowest = SEATS.get(lead.slowest).and_then(OnceLock::get);
                let is_kept = slowest.is_some_and(|slowest| slowest.thread.is_runnable());
                if !is_kept || stuck_ns >= HOST_PATIENCE_NS {
                    break;
                }
            }
            wait(nap_ns);
            stuck_ns += nap_ns;
            nap_ns = (nap_ns * 2).min(PATIENCE_NS / 4);
        }
    }

    /// Joins the others after being idle.
    fn join(&self, timeline: &Timeline, own_ps: u64) -> u64 {
        let kept_ns = self.thread.waited_ns().saturating_sub(self.waited_ns.load(Relaxed));
        timeline.wake(self.index, own_ps, real_ns(), kept_ns)
    }

    /// The vCPU goes idle; QEMU's big lock is held.
    pub(crate) fn rest(&self, plugin: &Plugin) {
        let own_ps = self.collect(plugin);
        if let Some(Time::Virtual(timeline, internals)) = plugin.time() {
            self.waited_ns.store(self.thread.waited_ns(), Relaxed);
            if timeline.rest(self.index, own_ps, real_ns()) {
                internals.wake_main_loop();
            }
        }
    }

    /// The vCPU starts or resumes running; QEMU's big lock is held.
    pub(crate) fn wake(&self, plugin: &Plugin) {
        let own_ps = self.own_ps.load(Relaxed);
        let own_ps = match plugin.time() {
            Some(Time::Virtual(timeline, _)) => self.join(timeline, own_ps),
            Some(Time::Wait(pacer, _)) => pacer.wake(own_ps, real_ns()),
            None => own_ps,
        };
        self.own_ps.store(own_ps, Relaxed);
    }
}
