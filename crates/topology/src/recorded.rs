//! The recorded machines of `fixtures/machines`, for this crate's tests.

macro_rules! recorded {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../fixtures/machines/", $name, ".tree")))),*]
    };
}

/// Name and text of each.
pub(crate) const ALL: [(&str, &str); 12] = recorded![
    "laptop",
    "two-sockets",
    "hbm-flat",
    "memoryless",
    "cxl-region-two-devices",
    "sparse-ids",
    "one-tier",
    "pmem-kmem",
    "lab-cxl-2tier",
    "lab-hbm-dram-cxl",
    "lab-numa-4node",
    "lab-cxl-device",
];

/// CXL memory that the kernel has in DRAM's tier, distinguishable only by its distance.
pub(crate) const ONE_TIER: &str = include_str!("../../../fixtures/machines/one-tier.tree");
