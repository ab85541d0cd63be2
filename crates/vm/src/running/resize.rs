//! Changes how much memory of a tier a guest has, through virtio-mem devices, one for each tier.
//!
//! A device plugs and unplugs blocks of its backend's memory while the guest runs, if the guest has the virtio_mem
//! driver; unplugging needs blocks that the guest can empty (`online_movable`). The request is QEMU's property
//! `requested-size`; the guest approaches it in its own time. Source: Documentation of QEMU, `virtio-mem-pci`.

use nearfar_topology::{Bytes, NodeId, NodeSet};

use super::machine::{Backend, VirtioMem};

/// Reasons why a size can't be requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The machine has no virtio-mem device at all.
    #[error(
        "this virtual machine has no virtio-mem device; give QEMU one for each tier: -object memory-backend-ram,id=far,\
         size=SIZE,reserve=off,host-mem-type=far -device virtio-mem-pci,id=farmem,memdev=far,node=1,requested-size=0"
    )]
    NoDevice,
    /// No device has its memory there.
    #[error("no virtio-mem device has its memory on nodes {nodes}; there are {has}")]
    NoneThere {
        /// The nodes.
        nodes: NodeSet,
        /// The devices in words.
        has: String,
    },
    /// Several have.
    #[error(
        "several virtio-mem devices have their memory on nodes {nodes}: {has}; name one with --device"
    )]
    Several {
        /// The nodes.
        nodes: NodeSet,
        /// The devices in words.
        has: String,
    },
    /// There is no device of this name.
    #[error("there is no virtio-mem device {id}; there are {has}")]
    Unknown {
        /// The name.
        id: String,
        /// The devices in words.
        has: String,
    },
    /// More than its maximum.
    #[error("{size} is more than device {id} can have, {max}")]
    TooLarge {
        /// The device.
        id: String,
        /// The size.
        size: Bytes,
        /// Its maximum.
        max: Bytes,
    },
    /// More than its host nodes have free.
    #[error(
        "{size} are {more} more than device {id} has now, and host nodes {nodes} have {free} free; ask for less, or add --overcommit"
    )]
    NoRoom {
        /// The device.
        id: String,
        /// The size.
        size: Bytes,
        /// The growth.
        more: Bytes,
        /// The nodes.
        nodes: NodeSet,
        /// Their free memory.
        free: Bytes,
    },
    /// Not a multiple of its block size.
    #[error("{size} is no multiple of the block size of device {id}, {block}; try {near}")]
    Uneven {
        /// The device.
        id: String,
        /// The size.
        size: Bytes,
        /// Its block size.
        block: Bytes,
        /// The next smaller multiple.
        near: Bytes,
    },
}

/// The selection of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// By name.
    Device(String),
    /// The one with its memory on these host nodes.
    Nodes(NodeSet),
}

/// The device that is selected, once `size` was found to be possible for it.
///
/// # Errors
/// [`ResizeError`].
pub fn device<'a>(
    devices: &'a [VirtioMem],
    backends: &[Backend],
    select: &Select,
    size: Bytes,
) -> Result<&'a VirtioMem, ResizeError> {
    if devices.is_empty() {
        return Err(ResizeError::NoDevice);
    }
    let host = |device: &VirtioMem| {
        let backend = backends.iter().find(|backend| backend.id == device.backend);
        backend.map(|backend| backend.nodes.clone()).unwrap_or_default()
    };
    let words = |devices: &mut dyn Iterator<Item = &VirtioMem>| {
        let word = |device: &VirtioMem| match host(device) {
            nodes if nodes.is_empty() => format!("{} (no host nodes)", device.id),
            nodes => format!("{} (host nodes {nodes})", device.id),
        };
        devices.map(word).collect::<Vec<_>>().join(", ")
    };
    let has = || words(&mut devices.iter());
    let device = match select {
        Select::Device(id) => devices
            .iter()
            .find(|device| device.id == *id)
            .ok_or_else(|| ResizeError::Unknown { id: id.clone(), has: has() })?,
        Select::Nodes(nodes) => {
            let is_there = |device: &&VirtioMem| {
                let on = host(device);
                !on.is_empty() && on.iter().all(|node| nodes.contains(node))
            };
            let found: Vec<&VirtioMem> = devices.iter().filter(is_there).collect();
            match found.as_slice() {
                [one] => *one,
                [] => return Err(ResizeError::NoneThere { nodes: nodes.clone(), has: has() }),
                several => {
                    let has = words(&mut several.iter().copied());
                    return Err(ResizeError::Several { nodes: nodes.clone(), has });
                }
            }
        }
    };
    check(device, size)?;
    Ok(device)
}

/// Refuses growth for which the host nodes of the device's backend lack free memory; `free` is that of a node.
///
/// # Errors
/// [`ResizeError::NoRoom`].
pub fn room(
    device: &VirtioMem,
    backends: &[Backend],
    size: Bytes,
    free: impl Fn(NodeId) -> Bytes,
) -> Result<(), ResizeError> {
    let more = Bytes(size.0.saturating_sub(device.size.0));
    let Some(backend) = backends.iter().find(|backend| backend.id == device.backend) else {
        return Ok(());
    };
    let nodes = backend.nodes.clone();
    let free = Bytes(nodes.iter().map(|node| free(node).0).sum());
    if backend.policy == "bind" && !nodes.is_empty() && more > free {
        return Err(ResizeError::NoRoom { id: device.id.clone(), size, more, nodes, free });
    }
    Ok(())
}

fn check(device: &VirtioMem, size: Bytes) -> Result<(), ResizeError> {
    let id = device.id.clone();
    if size > device.max {
        return Err(ResizeError::TooLarge { id, size, max: device.max });
    }
    let over = size.0.checked_rem(device.block.0).unwrap_or(0);
    if over > 0 {
        let (block, near) = (device.block, Bytes(size.0 - over));
        return Err(ResizeError::Uneven { id, size, block, near });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn virtio(id: &str, backend: &str) -> VirtioMem {
        VirtioMem {
            id: id.to_owned(),
            backend: backend.to_owned(),
            guest_node: 1,
            size: Bytes(0),
            requested: Bytes(0),
            max: Bytes(1024 * MIB),
            block: Bytes(128 * MIB),
        }
    }

    fn backend(id: &str, nodes: &str) -> Backend {
        Backend {
            id: id.to_owned(),
            size: Bytes(1024 * MIB),
            policy: "bind".to_owned(),
            nodes: NodeSet::parse_list(nodes).unwrap(),
            blocks: Vec::new(),
        }
    }

    #[test]
    fn the_device_of_a_tier_is_the_one_with_its_memory_there() {
        let devices = [virtio("a", "near"), virtio("b", "far"), virtio("c", "far2")];
        let backends = [backend("near", "0"), backend("far", "2"), backend("far2", "3")];
        let on = |nodes: &str| {
            let select = Select::Nodes(NodeSet::parse_list(nodes).unwrap());
            let found = device(&devices, &backends, &select, Bytes(256 * MIB));
            found.map(|device| device.id.as_str()).map_err(|error| error.to_string())
        };
        assert_eq!(on("0"), Ok("a"));
        assert_eq!(on("2"), Ok("b"));
        assert!(
            on("2-3")
                .unwrap_err()
                .contains("b (host nodes 2), c (host nodes 3); name one with --device")
        );
        assert!(on("1").unwrap_err().contains("there are a (host nodes 0), b (host nodes 2)"));
        let named = device(&devices, &backends, &Select::Device("c".into()), Bytes(0));
        assert_eq!(named.unwrap().id, "c");
        let unknown = device(&devices, &backends, &Select::Device("d".into()), Bytes(0));
        assert!(
            unknown
                .unwrap_err()
                .to_string()
                .starts_with("there is no virtio-mem device d; there are a")
        );
        let none = device(&[], &backends, &Select::Device("d".into()), Bytes(0));
        assert_eq!(none, Err(ResizeError::NoDevice));
    }

    #[test]
    fn growth_beyond_the_free_memory_of_its_nodes_is_refused() {
        let one = VirtioMem { size: Bytes(128 * MIB), ..virtio("a", "far") };
        let free = |_| Bytes(256 * MIB);
        let backends = [backend("far", "2")];
        assert_eq!(room(&one, &backends, Bytes(384 * MIB), free), Ok(()));
        assert_eq!(room(&one, &backends, Bytes(0), |_| Bytes(0)), Ok(()));
        let error = room(&one, &backends, Bytes(512 * MIB), free).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "512 MiB are 384 MiB more than device a has now, and host nodes 2 have 256 MiB free"
            ),
            "{error}"
        );
        let anywhere = [Backend { policy: "preferred".into(), ..backend("far", "2") }];
        assert_eq!(room(&one, &anywhere, Bytes(512 * MIB), free), Ok(()));
    }

    #[test]
    fn sizes_beyond_the_device_or_between_blocks_are_refused() {
        let one = virtio("a", "near");
        assert_eq!(check(&one, Bytes(1024 * MIB)), Ok(()));
        assert!(matches!(check(&one, Bytes(1025 * MIB)), Err(ResizeError::TooLarge { .. })));
        let uneven = check(&one, Bytes(200 * MIB)).unwrap_err().to_string();
        assert!(uneven.ends_with("128 MiB; try 128 MiB"), "{uneven}");
    }
}
