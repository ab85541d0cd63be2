//! A running virtual machine: its process, its monitor, and its memory as the monitor reports it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_kernel::fs::{Fs, FsError};
use nearfar_topology::{Bytes, NodeId, NodeSet};
use serde_json::{Value, json};

use super::blocks::{self, Block};
use super::qmp::{Qmp, QmpError, socket_of};

/// Time that QEMU has for each answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Objects that make QEMU encrypt or hide the memory of its guest, so that pages can't be migrated.
const CONFIDENTIAL: [&str; 6] =
    ["sev-guest", "sev-snp-guest", "tdx-guest", "rme-guest", "s390-pv-guest", "pef-guest"];

/// A virtual machine as named by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The process of QEMU.
    Pid(u32),
    /// The socket of a QMP monitor.
    Socket(PathBuf),
}

impl Target {
    /// A number is a process, anything else the path of a socket.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Socket(text.into()), Self::Pid)
    }
}

/// The memory that a backend provides, and the placement that QEMU was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its id.
    pub id: String,
    /// Its size.
    pub size: Bytes,
    /// QEMU's policy: `default`, `preferred`, `bind`, `interleave`.
    pub policy: String,
    /// Its host nodes.
    pub nodes: NodeSet,
    /// Its blocks of memory; empty if QEMU has not mapped it, or the table could not be parsed.
    pub blocks: Vec<Block>,
}

impl Backend {
    /// The address ranges of its blocks.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.blocks.iter().map(|block| (block.address, block.end())).collect()
    }

    /// Size of its largest host pages.
    #[must_use]
    pub fn page(&self) -> Bytes {
        self.blocks.iter().map(|block| block.page).max().unwrap_or_default()
    }
}

/// A virtio-mem device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtioMem {
    /// Its id.
    pub id: String,
    /// Its backend.
    pub backend: String,
    /// The guest's node.
    pub guest_node: u64,
    /// Bytes that the guest has plugged.
    pub size: Bytes,
    /// Bytes requested.
    pub requested: Bytes,
    /// Maximum size.
    pub max: Bytes,
    /// Sizes are multiples of this.
    pub block: Bytes,
}

/// A connected virtual machine.
#[derive(Debug)]
pub struct Machine {
    qmp: Qmp,
    /// Its process.
    pub pid: u32,
}

/// Reasons why a virtual machine's memory can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The monitor fails.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// A file of the process can't be read.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// There is no such process.
    #[error("process {pid} does not exist")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// The process has no monitor that can be found.
    #[error(
        "process {pid} ({program}) has no QMP socket on its command line; start QEMU with -qmp unix:PATH,server=on,wait=off, \
         or name the socket instead of the process"
    )]
    NoMonitor {
        /// Its id.
        pid: u32,
        /// Its first argument.
        program: String,
    },
    /// The monitor is not that of a process here.
    #[error("QMP socket {}: its process is unknown, so its memory can't be verified", .path.display())]
    Foreign {
        /// The socket.
        path: PathBuf,
    },
    /// Another process has the path of the monitor now.
    #[error(
        "process {pid} was started with QMP socket {}, which process {other} serves now; give each QEMU a socket of its own",
        .path.display()
    )]
    Another {
        /// The process.
        pid: u32,
        /// The one that serves the socket.
        other: u32,
        /// The socket.
        path: PathBuf,
    },
    /// An answer lacks a part.
    #[error("QEMU's answer to {command} has no {part}")]
    Incomplete {
        /// The command.
        command: &'static str,
        /// The missing part.
        part: &'static str,
    },
}

impl Machine {
    /// Connects to the monitor of a virtual machine.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn connect(fs: &dyn Fs, target: &Target) -> Result<Self, MachineError> {
        let pid = match target {
            Target::Socket(path) => {
                let qmp = Qmp::connect(path, path, DEADLINE)?;
                let pid = qmp.pid().ok_or_else(|| MachineError::Foreign { path: path.clone() })?;
                return Ok(Self { qmp, pid });
            }
            Target::Pid(pid) => *pid,
        };
        let (path, own) = socket_of_process(fs, pid)?;
        let qmp = Qmp::connect(&path, &own, DEADLINE)?;
        match qmp.serves().filter(|other| *other != pid) {
            Some(other) => Err(MachineError::Another { pid, other, path: own }),
            None => Ok(Self { qmp, pid }),
        }
    }

    /// Executes a monitor command.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.qmp.execute(command, arguments)
    }

    /// The backends with their blocks, by id.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn backends(&mut self) -> Result<Vec<Backend>, MachineError> {
        let devices = self.execute("query-memdev", &Value::Null)?;
        let table = self.execute("x-query-ramblock", &Value::Null)?;
        let text = table.get("human-readable-text").and_then(Value::as_str).unwrap_or_default();
        let blocks = blocks::parse(text);
        if blocks.is_empty() {
            // Every guest has some: the table has another form than those known here.
            return Err(MachineError::Incomplete {
                command: "x-query-ramblock",
                part: "table of blocks",
            });
        }
        let devices = devices
            .as_array()
            .ok_or(MachineError::Incomplete { command: "query-memdev", part: "list" })?;
        let mut all: Vec<Backend> =
            devices.iter().filter_map(|device| backend(device, &blocks)).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// The virtio-mem devices, by id.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn virtio_mem(&mut self) -> Result<Vec<VirtioMem>, MachineError> {
        let devices = self.execute("query-memory-devices", &Value::Null)?;
        let mut all: Vec<VirtioMem> =
            devices.as_array().into_iter().flatten().filter_map(virtio_mem).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// The kind of confidential guest, if it is one.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn confidential(&mut self) -> Result<Option<String>, MachineError> {
        let objects = self.execute("qom-list", &json!({ "path": "/objects" }))?;
        let kind = |object: &Value| {
            let kind = object.get("type")?.as_str()?.strip_prefix("child<")?.strip_suffix('>')?;
            CONFIDENTIAL.contains(&kind).then(|| kind.to_owned())
        };
        Ok(objects.as_array().into_iter().flatten().find_map(kind))
    }
}

fn backend(device: &Value, blocks: &[Block]) -> Option<Backend> {
    let id = device.get("id")?.as_str()?.to_owned();
    let node = |node: &Value| Some(NodeId(u16::try_from(node.as_u64()?).ok()?));
    let nodes = device.get("host-nodes").and_then(Value::as_array);
    Some(Backend {
        size: Bytes(device.get("size")?.as_u64()?),
        policy: device.get("policy")?.as_str()?.to_owned(),
        nodes: nodes.into_iter().flatten().filter_map(node).collect(),
        blocks: blocks.iter().filter(|block| block.is_of(&id)).cloned().collect(),
        id,
    })
}

fn virtio_mem(device: &Value) -> Option<VirtioMem> {
    if device.get("type")?.as_str()? != "virtio-mem" {
        return None;
    }
    let data = device.get("data")?;
    let bytes = |key: &str| Some(Bytes(data.get(key)?.as_u64()?));
    Some(VirtioMem {
        id: data.get("id")?.as_str()?.to_owned(),
        backend: data.get("memdev")?.as_str()?.rsplit('/').next()?.to_owned(),
        guest_node: data.get("node")?.as_u64()?,
        size: bytes("size")?,
        requested: bytes("requested-size")?,
        max: bytes("max-size")?,
        block: bytes("block-size")?,
    })
}

/// The monitor's socket on the command line of a process, as seen from here: below its root and working directory; and by
/// the process's own name.
fn socket_of_process(fs: &dyn Fs, pid: u32) -> Result<(PathBuf, PathBuf), MachineError> {
    let line = fs.read(&format!("proc/{pid}/cmdline"))?.ok_or(MachineError::NoProcess { pid })?;
    let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
    let program = || words.first().cloned().unwrap_or_else(|| "a kernel thread".to_owned());
    let path =
        socket_of(&words).ok_or_else(|| MachineError::NoMonitor { pid, program: program() })?;
    let from = if path.is_absolute() { "root" } else { "cwd" };
    let inside = path.strip_prefix("/").unwrap_or(&path).to_owned();
    Ok((Path::new("/proc").join(pid.to_string()).join(from).join(inside), path))
}

#[cfg(test)]
mod tests {
    use super::super::qmp::tests::{HELLO, PATIENCE, monitor};
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    #[test]
    fn a_number_names_a_process_and_its_socket_is_found() {
        assert_eq!(Target::parse("812"), Target::Pid(812));
        assert_eq!(Target::parse("./812"), Target::Socket("./812".into()));
        let mut tree = Tree::new();
        tree.insert("proc/5/cmdline", "qemu\0-qmp\0unix:/run/q,server\0");
        tree.insert("proc/6/cmdline", "qemu\0-qmp\0unix:q.sock,server\0");
        tree.insert("proc/7/cmdline", "redis-server\0");
        let fs = TreeFs(tree);
        let found = |pid| {
            socket_of_process(&fs, pid).map(|(path, _)| path).map_err(|error| error.to_string())
        };
        assert_eq!(found(5), Ok("/proc/5/root/run/q".into()));
        assert_eq!(found(6), Ok("/proc/6/cwd/q.sock".into()));
        assert!(found(7).unwrap_err().starts_with("process 7 (redis-server) has no QMP socket"));
        assert_eq!(found(8), Err("process 8 does not exist".to_owned()));
    }

    #[test]
    fn a_confidential_guest_is_known_by_its_objects() {
        const READY: &str = "{\"return\": {}}\n";
        const ENCRYPTED: &str = "{\"return\": [{\"name\": \"m\", \"type\": \"child<memory-backend-ram>\"}, \
             {\"name\": \"s\", \"type\": \"child<sev-snp-guest>\"}]}\n";
        const PLAIN: &str =
            "{\"return\": [{\"name\": \"m\", \"type\": \"child<memory-backend-ram>\"}]}\n";
        for (lines, kind) in
            [(&[HELLO, READY, ENCRYPTED], Some("sev-snp-guest")), (&[HELLO, READY, PLAIN], None)]
        {
            let (_dir, path, served) = monitor(lines);
            let qmp = Qmp::connect(&path, &path, PATIENCE).unwrap();
            let found = Machine { qmp, pid: 1 }.confidential().unwrap();
            assert_eq!(found.as_deref(), kind);
            served.join().unwrap();
        }
    }

    #[test]
    fn devices_are_as_qemu_reports_them() {
        let device = json!({"share": false, "host-nodes": [0, 2], "size": 4096, "policy": "bind", "id": "m0"});
        let found = backend(&device, &[]).unwrap();
        assert_eq!((found.size, found.nodes.to_string()), (Bytes(4096), "0,2".to_owned()));
        assert_eq!(backend(&json!({"id": "m0"}), &[]), None);
        let data = json!({"memdev": "/objects/v0", "block-size": 134_217_728, "size": 0, "node": 1,
            "max-size": 268_435_456, "requested-size": 0, "id": "vmem1"});
        let found = virtio_mem(&json!({"type": "virtio-mem", "data": data})).unwrap();
        assert_eq!((found.backend.as_str(), found.guest_node), ("v0", 1));
        assert_eq!(virtio_mem(&json!({"type": "dimm", "data": data})), None);
    }
}
