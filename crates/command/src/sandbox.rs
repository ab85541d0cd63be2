//! Confines a server's process once all its files are open: it changes user and drops every further right.
//!
//! Sockets, disk and keys are opened first. Then, before any other thread exists, [`enter`] changes user, drops all
//! capabilities (root's as well), forbids new privileges, access to the file system and new TCP connections
//! (Landlock), and system calls that no cache needs (seccomp). A kernel that lacks one of the last three does without,
//! with a message.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
pub use nix::unistd::User;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
#[cfg(target_arch = "x86_64")]
use seccompiler::sock_filter;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The newest Landlock ABI whose rights are known here; older kernels enforce those they know.
const LANDLOCK: ABI = ABI::V6;

/// The user and group that have no files (overflowuid(5) in proc(5)).
const NOBODY: u32 = 65534;

/// System calls that fail with EPERM: other programs, other processes, the machine, and new sockets.
const REFUSED: [i64; 42] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_personality,
];

/// System calls that only a cache with a disk tier needs. io_uring can open sockets past this filter, and its requests are
/// not seen by one.
const FOR_DISKS: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The state of a process's confinement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    user: String,
    no_new_privs: bool,
    /// The enforced version of Landlock, or the reason there is none.
    landlock: String,
    seccomp: bool,
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, no_new_privs, landlock, seccomp } = self;
        let (no_new_privs, seccomp) = (yes(*no_new_privs), yes(*seccomp));
        write!(
            f,
            "user {user}, no new privileges: {no_new_privs}, landlock: {landlock}, seccomp: {seccomp}"
        )
    }
}

impl Sandbox {
    /// Rows for `stats settings`.
    pub fn figures(&self) -> Vec<(&'static str, String)> {
        vec![
            ("user", self.user.clone()),
            ("no_new_privs", yes(self.no_new_privs).to_owned()),
            ("landlock_abi", self.landlock.clone()),
            ("seccomp", yes(self.seccomp).to_owned()),
        ]
    }
}

/// The user of this name, if this process can change to it.
///
/// # Errors
/// An unknown user, or a process without the right to change.
pub fn user(name: &str) -> anyhow::Result<User> {
    let user = User::from_name(name).with_context(|| format!("--user {name}"))?;
    let user = user.ok_or_else(|| anyhow!("--user {name}: no such user"))?;
    let is_fit = geteuid().is_root() || geteuid() == user.uid;
    ensure!(
        is_fit,
        "--user {name}: only root can switch to another user; leave it out, or use sudo"
    );
    Ok(user)
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Confines this process permanently, as `user`. Only files beside `unix`, the server's own socket, can be removed.
/// `disk`: whether the cache has a disk tier.
///
/// # Errors
/// The user can't be changed.
pub fn enter(user: Option<&User>, unix: Option<&Path>, disk: bool) -> anyhow::Result<Sandbox> {
    for capability in CapabilitySet::all().iter() {
        // Only root can, and a capability that this kernel does not know need not be dropped.
        let _ = remove_capability_from_bounding_set(capability);
    }
    if let Some(user) = user.filter(|user| is_root() && !user.uid.is_root()) {
        become_user(user).with_context(|| format!("--user {}", user.name))?;
    }
    drop_capabilities().context("dropping capabilities")?;
    let me = User::from_uid(geteuid()).ok().flatten();
    Ok(confine(me.map_or_else(|| geteuid().to_string(), |me| me.name), unix, disk))
}

/// Becomes the user and the group, for good. The kernel then denies the process its own files in /proc.
fn become_ids(user: Uid, group: Gid) -> anyhow::Result<()> {
    setgroups(&[group]).context("giving up groups")?;
    setresgid(group, group, group).context("changing group")?;
    setresuid(user, user, user).context("changing user")
}

fn become_user(user: &User) -> anyhow::Result<()> {
    become_ids(user.uid, user.gid)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("denying other processes access to this one's memory")
}

/// Continues without any privilege, as an ordinary user: as nobody, if this is root.
///
/// # Errors
/// Something is left.
pub fn become_ordinary() -> anyhow::Result<()> {
    if is_root() {
        become_ids(Uid::from_raw(NOBODY), Gid::from_raw(NOBODY))?;
        set_dumpable_behavior(DumpableBehavior::Dumpable)
            .context("reading this process's files")?;
    }
    drop_capabilities().context("dropping capabilities")
}

/// Drops all capabilities, root's too: everything they are for has been done.
///
/// # Errors
/// Some are left.
pub fn drop_capabilities() -> anyhow::Result<()> {
    let none = CapabilitySet::empty();
    let held = capabilities(None)?;
    // A service manager may have taken them, and the call with them.
    if !(held.effective | held.permitted | held.inheritable).is_empty() {
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets)?;
        clear_ambient_capability_set()?;
    }
    let left = capabilities(None)?.permitted;
    ensure!(left.is_empty(), "{left:?} are left");
    Ok(())
}

/// Confines this thread, and those it starts.
fn confine(user: String, unix: Option<&Path>, disk: bool) -> Sandbox {
    let no_new_privs = set_no_new_privs(true).is_ok();
    let landlock = confine_files(unix).unwrap_or_else(|error| format!("no ({error:#})"));
    Sandbox { user, no_new_privs, landlock, seccomp: refuse_calls(disk).is_ok() }
}

fn confine_files(unix: Option<&Path>) -> anyhow::Result<String> {
    let directory = unix
        .and_then(Path::parent)
        .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(directory, AccessFs::RemoveFile))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => "no (not in this kernel)".to_owned(),
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            (effective_abi as i32).min(LANDLOCK as i32).to_string()
        }
        _ => "yes".to_owned(),
    })
}

fn refuse_calls(disk: bool) -> anyhow::Result<()> {
    #[cfg(target_arch = "x86_64")]
    refuse_x32()?;
    refuse(REFUSED.iter().chain(FOR_DISKS.iter().filter(|_| !disk)), libc::EPERM)
}

/// Has all calls of the x32 ABI fail, which have numbers of their own (Linux, arch/x86/entry/syscalls/syscall_64.tbl).
#[cfg(target_arch = "x86_64")]
fn refuse_x32() -> anyhow::Result<()> {
    /// Bit of their numbers.
    const X32: u32 = 0x4000_0000;
    let step = |code, k, (jt, jf)| Ok(sock_filter { code: u16::try_from(code)?, jt, jf, k });
    let program: anyhow::Result<BpfProgram> = [
        // The number is the first field of `struct seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0)),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, X32, (0, 1)),
        step(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs(),
            (0, 0),
        ),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)),
    ]
    .into_iter()
    .collect();
    Ok(seccompiler::apply_filter(&program?)?)
}

/// Has these calls of this thread and its children fail.
fn refuse<'a>(calls: impl Iterator<Item = &'a i64>, errno: i32) -> anyhow::Result<()> {
    let rules = calls.map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        refuse,
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::process::Command;

    use super::*;

    /// All of the confinement except the user applies to one thread and its children.
    #[test]
    fn a_confined_thread_runs_no_program_and_opens_no_socket() {
        let confined = std::thread::spawn(|| {
            let sandbox = confine("me".to_owned(), None, false);
            assert!(sandbox.no_new_privs && sandbox.seccomp, "{sandbox}");
            let ran = Command::new("true").status().map_err(|error| error.kind());
            assert_eq!(ran.unwrap_err(), ErrorKind::PermissionDenied);
            let bound = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.kind());
            assert_eq!(bound.unwrap_err(), ErrorKind::PermissionDenied);
            let moved = rustix::process::chroot("/").map_err(|error| error.kind());
            assert_eq!(moved.unwrap_err(), ErrorKind::PermissionDenied);
            let ring = io_uring::IoUring::new(1).map_err(|error| error.kind());
            assert_eq!(ring.err(), Some(ErrorKind::PermissionDenied));
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7, "threads are started still");
            if sandbox.landlock.parse::<i32>().is_ok() {
                assert!(std::fs::File::open("/proc/self/stat").is_err());
            }
        });
        confined.join().unwrap();
        assert!(Command::new("true").status().unwrap().success(), "others are not confined");
    }

    #[test]
    fn without_landlock_the_other_restrictions_apply_and_the_lack_is_reported() {
        let landlock = [
            libc::SYS_landlock_create_ruleset,
            libc::SYS_landlock_add_rule,
            libc::SYS_landlock_restrict_self,
        ];
        // As a container refuses it, and as a kernel without it does.
        for errno in [libc::EPERM, libc::ENOSYS] {
            let confined = std::thread::spawn(move || {
                refuse(landlock.iter(), errno).unwrap();
                let sandbox = confine("me".to_owned(), None, false);
                assert!(sandbox.no_new_privs && sandbox.seccomp, "{sandbox}");
                assert!(sandbox.landlock.starts_with("no"), "{sandbox}");
                assert!(Command::new("true").status().is_err(), "{sandbox}");
            });
            confined.join().unwrap();
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_of_the_x32_abi_are_refused() {
        let confined = std::thread::spawn(|| {
            set_no_new_privs(true).unwrap();
            refuse_x32().unwrap();
            // getpid, by its number in either ABI.
            let script = "print syscall(0x40000000 + 39), ' ', $! + 0, ' ', syscall(39) > 0";
            Command::new("perl").args(["-e", script]).output().unwrap().stdout
        });
        let said = String::from_utf8(confined.join().unwrap()).unwrap();
        assert_eq!(said, format!("-1 {} 1", libc::EPERM));
    }

    #[test]
    fn an_unknown_user_is_reported_by_name() {
        let error = user("no-such-user").unwrap_err().to_string();
        assert!(error.contains("--user no-such-user: no such user"), "{error}");
    }

    #[test]
    fn no_system_call_is_listed_twice_in_the_filters() {
        let once: std::collections::BTreeSet<_> = REFUSED.iter().chain(&FOR_DISKS).collect();
        assert_eq!(once.len(), REFUSED.len() + FOR_DISKS.len());
    }
}
